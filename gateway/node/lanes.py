"""The thread of the lanes: what the unordered layer wants written, in the order in which it wants it.

It is not the disk's thread, so that a sync of a lane does not hold up one of the ordered log. One round takes all that was queued:
frames of all lanes are written, then those lanes are synced, all at a time, and one `LanePersisted` with the highest token goes
back. What was decided is indexed behind that, then one read is answered. A disk that fails is the gateway's: nothing more is
written in this run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from structlog.typing import FilteringBoundLogger

from gateway.core import limits
from gateway.core.actions import DeliverUnordered, PersistLane, ReadLane
from gateway.core.events import Event, LaneLog, LanePersisted, LaneRead, WriteFailed
from gateway.data.frame import Frame
from gateway.data.lanes import LaneName
from gateway.errors import DiskFull, TuttiError
from gateway.node.mailbox import Mailbox
from gateway.node.meters import DiskMeters
from gateway.node.threads import ended

US = 1_000_000
US_PER_MS = 1000
NS_PER_US = 1000


class LaneLogs(Protocol):
    """What is needed of `gateway.log.lanes.LaneLogs`."""

    damaged: dict[LaneName, str]

    def persist(self, action: PersistLane) -> None:
        """Carry an action out, but for the sync of its frames; after a lack of room the same comes again."""

    def sync(self) -> None:
        """Make all that was written durable."""

    def read(self, action: ReadLane) -> tuple[Frame, ...]:
        """Durable frames from the first one on."""

    def frontier(self, lane: LaneName, position: int, offset: int) -> None:
        """Show how far the own lane is decided."""

    def decided(self, run: DeliverUnordered) -> None:
        """Index what is decided; after a lack of room the same run comes again."""

    def forget(self, producers: Iterable[int]) -> None:
        """The ordered log forgot these producers."""

    def suspect(self, incarnation: bytes) -> list[LaneName]:
        """Have the next start look at all of the lanes whose incarnation begins so; those of which this was not known."""

    def idle(self) -> bool:
        """Do what is to be done while nothing is queued; True to be called again soon."""


class LaneFacts(NamedTuple):
    """How far a lane is decided: last position, and the offset behind its last record; and why nothing can follow in it here."""

    position: int = 0
    offset: int = 0
    halted: str = ""


NO_FACTS = LaneFacts()


class LaneDisk:
    """Carries out PersistLane, ReadLane and DeliverUnordered, in a thread of its own or, in tests, by `run_once`.

    Attributes:
        facts: of each lane, for the status. Of the socket thread.
        meters: of what was written and synced; one sync is that of all lanes that a round wrote to.
        failed: why nothing more is written; full: why what waits cannot be; both empty while all is well.
    """

    def __init__(
        self, logs: LaneLogs, report: Callable[[Event], None], indexed: Callable[[], None], log: FilteringBoundLogger
    ) -> None:
        """Prepare.

        Args:
            logs: the lanes; only this thread uses them from now on.
            report: takes events for the stack; called in the thread.
            indexed: called, in the thread, when there is more to read.
            log: for what an operator must know.
        """
        self._logs = logs
        self._report = report
        self._indexed = indexed
        self._log = log
        self._queue: Mailbox[PersistLane | ReadLane | DeliverUnordered | tuple[int, ...] | bytes | None] = Mailbox()
        self._waiting: deque[PersistLane] = deque()  # taken from the queue, not yet durable
        self._decided: deque[DeliverUnordered] = deque()
        self._reads: deque[ReadLane] = deque()
        self._stopping = False
        self._last: Callable[[], None] = _nothing
        self._thread = threading.Thread(target=self._run, name="lanes", daemon=True)
        self._full_at = 0.0
        self.failed = self.full = ""
        self.meters = DiskMeters()
        self.facts: dict[LaneName, LaneFacts] = {}

    # For the socket thread

    def found(self, lanes: tuple[LaneLog, ...]) -> None:
        """What the stack starts from."""
        for lane in lanes:
            self.facts[LaneName(lane.origin, lane.incarnation)] = LaneFacts(lane.position, lane.offset, lane.halted)

    def persist(self, action: PersistLane) -> None:
        """Queue what is to become durable."""
        self._queue.put(action)

    def read(self, action: ReadLane) -> None:
        """Queue what is to be read for another member."""
        self._queue.put(action)

    def show(self, run: DeliverUnordered) -> None:
        """A run is decided: readers of the own lane see it before any receipt leaves."""
        lane, last = LaneName(run.origin, run.incarnation), run.frames[-1].position
        offset = run.first_offset + sum(frame.count for frame in run.frames)
        self.facts[lane] = LaneFacts(last, offset)
        self._logs.frontier(lane, last, offset)

    def deliver(self, run: DeliverUnordered) -> None:
        """Queue a decided run to be indexed."""
        self._queue.put(run)

    def forget(self, producers: tuple[int, ...]) -> None:
        """Queue word of producers that the ordered log forgot."""
        self._queue.put(producers)

    def suspect(self, incarnation: bytes) -> None:
        """Somebody could not read a lane, whose incarnation begins so; from any thread."""
        self._queue.put(incarnation)

    @property
    def damaged(self) -> dict[LaneName, str]:
        """Lanes of which something cannot be read here: what is known of it, and what to do."""
        return self._logs.damaged

    @property
    def depth(self) -> int:
        """How many things wait."""
        return len(self._queue) + len(self._waiting) + len(self._decided) + len(self._reads)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, last: Callable[[], None] | None = None, hurried: Callable[[], bool] = lambda: False) -> bool:
        """Finish what is queued, then end the thread; as `Disk.stop`.

        Returns whether the thread ended; if not, the disk hangs in it, and it is left.
        """
        self._last = last or _nothing
        self._queue.put(None)
        if not ended(self._thread, hurried):
            self._log.error("the disk of the lanes hangs: the gateway ends without it, as by a crash")
            return False
        self._queue.close()
        return True

    # In the thread

    def _run(self) -> None:
        self._work()
        self._guarded(self._close)

    def _close(self) -> bool:
        self._last()
        return False

    def _work(self) -> None:
        while True:
            busy = self.run_once()
            if self._stopping and (self.failed or self.full or not self.depth):
                return
            if busy and (self._waiting or self._reads):
                continue
            soon = busy or (not self.failed and self._guarded(self._idle)) or self.full
            self._queue.wait((limits.MARK_IDLE_US if soon else limits.SPACE_LOOK_US) // US_PER_MS)

    def run_once(self) -> bool:
        """Do one round of what is queued; False when there was nothing to do."""
        for item in self._queue.take(limits.MAILBOX_ITEMS_A_TURN_MAX):
            if item is None:
                self._stopping = True
            elif isinstance(item, PersistLane):
                self._waiting.append(item)
            elif isinstance(item, ReadLane):
                self._reads.append(item)
            elif isinstance(item, tuple):
                self._logs.forget(item)
            elif isinstance(item, bytes):
                self._guarded(lambda incarnation=item: self._suspect(incarnation))  # type: ignore[misc]  # bound at once
            else:
                self._decided.append(item)
        if self.failed:
            self._waiting.clear()
            self._decided.clear()
            return self._read()
        wrote = self._guarded(self._round)
        return self._read() or wrote

    def _guarded(self, act: Callable[[], bool]) -> bool:
        """Do something, whose result is returned; whatever goes wrong in it ends writing, and is told."""
        try:
            return act()
        except (TuttiError, OSError) as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - a thread that dies silently would leave the gateway voting for nothing
            self._log.exception("the thread of the lanes met a defect")
            self._fail(f"a defect in the thread of the lanes: {type(error).__name__}: {error}")
        return False

    def _round(self) -> bool:
        if self.full and time.monotonic() - self._full_at < limits.DISK_FULL_WAIT_US / US:
            return False
        try:
            wrote = self._write()
            indexed = self._index()
        except DiskFull as error:  # what is left waits, and comes again as it was
            self._full_at = time.monotonic()
            self.full = str(error)
            return False
        self.full = ""
        return wrote or indexed

    def _write(self) -> bool:
        """Make what waits durable, up to one sync's worth, and report it."""
        done = frames = size = 0
        lack: DiskFull | None = None
        for action in self._waiting:
            if size >= limits.SYNC_BYTES_MAX:
                break
            try:
                self._logs.persist(action)
            except DiskFull as error:
                lack = error
                break
            size += sum(frame.size for frame in action.frames)
            frames += len(action.frames)
            done += 1
        if done:
            began = time.monotonic_ns()
            self._logs.sync()
            if frames:
                self.meters.count((time.monotonic_ns() - began) // NS_PER_US, frames, size)
            self._report(LanePersisted(self._waiting[done - 1].token))
            for _ in range(done):
                self._waiting.popleft()
        if lack is not None:
            raise lack
        return done > 0

    def _index(self) -> bool:
        done = 0
        while self._decided:
            self._logs.decided(self._decided[0])
            self._decided.popleft()
            done += 1
        if done:
            self._indexed()
        return done > 0

    def _read(self) -> bool:
        """Answer one read; False if there was none. What cannot be read ends no writing."""
        if not self._reads:
            return False
        action = self._reads.popleft()
        frames: tuple[Frame, ...] = ()
        try:
            frames = self._logs.read(action)
        except Exception:  # noqa: BLE001 - whoever asks looks elsewhere
            self._log.exception("a lane could not be read for another gateway", origin=action.origin, first=action.first)
        if not frames and not self.failed:
            self._guarded(lambda: self._suspect(action.incarnation))
        self._report(LaneRead(action.token, frames))
        return True

    def _suspect(self, incarnation: bytes) -> bool:
        for lane in self._logs.suspect(incarnation):
            self._log.error("records of a lane cannot be read here", lane=lane.text, damaged=self._logs.damaged[lane])
        return True

    def _idle(self) -> bool:
        try:
            return self._logs.idle()
        except DiskFull:
            return False  # the mark can wait; what must be written says itself that it cannot be

    def _fail(self, reason: str) -> None:
        self.failed = reason
        self._log.error(
            "writing a lane failed; this gateway takes no more records until it is started again, and goes on serving reads",
            reason=reason,
        )
        self._report(WriteFailed(reason))


def _nothing() -> None:
    """Nothing is left to do."""
