"""The thread of the lanes: what the unordered layer wants written, in the order in which it wants it.

It is not the disk's thread, so that a sync of a lane does not hold up one of the ordered log. One round takes all that was queued:
frames of all lanes are written, then those lanes are synced, all at a time, and one `LanePersisted` with the highest token goes
back. What was decided is indexed behind that, then one read is answered, one piece of what is mended written, and the next piece of
what is decided looked at. Before all of that retention looks at the next lane, if it is time: a thread that never rests keeps to it
too. A disk that fails is the gateway's: nothing more is written in this run.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from structlog.typing import FilteringBoundLogger

from tutti.data.frames.frame import Frame
from tutti.data.lane_name import LaneName
from tutti.errors import DiskFull
from tutti.log.read.lane_reader import End
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import DeliverUnordered, LaneHeld, MendLane, PersistLane, ReadLane
from tutti_gateway.core.protocol.events import Event, LaneLog, LanePersisted, LaneRead, LaneRotted
from tutti_gateway.core.protocol.messages import LaneBegin
from tutti_gateway.node.common.counters import DiskMeters
from tutti_gateway.node.disk.scrub_schedule import LATE_S, Sparing
from tutti_gateway.node.disk.worker_thread import Working

US = 1_000_000
NS_PER_US = 1000
_NEWS = "a look at what is decided in lanes found something to know"


class LaneLogs(Protocol):
    """What is needed of `tutti_gateway.log.lanes.lane_logs.LaneLogs`."""

    starts: dict[LaneName, int]

    def begin(self, action: ReadLane) -> LaneBegin | None:
        """How a lane begins here, if what is to be read was let go."""

    def held(self, action: LaneHeld) -> None:
        """Every gateway of the roster has a lane up to a position."""

    @property
    def rounds(self) -> int:
        """How often all lanes were looked at."""

    @property
    def damaged(self) -> dict[LaneName, str]:
        """Lanes of which something cannot be read here, and what is done about it."""

    @property
    def hurried(self) -> bool:
        """Whether something is to be looked at soon."""

    def look(self) -> LaneRotted | None:
        """Look at the next piece of what is decided: what came to be known as lost, or as lost no more."""

    def news(self) -> list[str]:
        """What became known of snapshots, and of lanes that cannot be opened, since it was asked for, a sentence each."""

    def mend(self, action: MendLane) -> LaneRotted:
        """Write what was lost of a lane; what is lost of it now."""

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
        """Have all of the lanes looked at whose incarnation begins so; those of which this was not known."""

    def let_go(self) -> bool:
        """Let go of what retention says of the next lane, if it is time; whether files are to be removed."""

    def idle(self) -> bool:
        """Do what is to be done while nothing is queued; True to be called again soon."""


class LaneFacts(NamedTuple):
    """How far a lane is decided: last position, and the offset behind its last record; and why nothing can follow in it here.

    Where a start found it damaged or gone that is what its files still say, a moment old at least, or None: not known.
    """

    position: int | None = 0
    offset: int | None = 0
    halted: str = ""


NO_FACTS = LaneFacts()


class LaneDisk(Working[PersistLane | ReadLane | MendLane | LaneHeld | DeliverUnordered | tuple[int, ...] | bytes]):
    """Carries out PersistLane, ReadLane and DeliverUnordered, in a thread of its own or, in tests, by `run_once`.

    Attributes:
        facts: of each lane, for the status. Of the socket thread.
        meters: of what was written and synced; one sync is that of all lanes that a round wrote to.
    """

    def __init__(
        self,
        logs: LaneLogs,
        report: Callable[[Event], None],
        indexed: Callable[[], None],
        log: FilteringBoundLogger,
        ends: Mapping[LaneName, End],
    ) -> None:
        """Prepare.

        Args:
            logs: the lanes; only this thread uses them from now on.
            report: takes events for the stack; called in the thread.
            indexed: called, in the thread, when there is more to read.
            log: for what an operator must know.
            ends: of lanes that a start found halted, how far their files say that they were decided; without those that do not.
        """
        super().__init__("lanes", report, log)
        self._logs = logs
        self._ends = ends
        self._indexed = indexed
        self._waiting: deque[PersistLane] = deque()  # taken from the queue, not yet durable
        self._decided: deque[DeliverUnordered] = deque()
        self._reads: deque[ReadLane] = deque()
        self._mends: deque[MendLane] = deque()
        self._sparing = Sparing(log)
        self._look_at = 0.0
        self._rounds = 0
        self._full_at = 0.0
        self.meters = DiskMeters()
        self.facts: dict[LaneName, LaneFacts] = {}

    # For the socket thread

    def found(self, lanes: tuple[LaneLog, ...]) -> None:
        """What the stack starts from."""
        for log in lanes:
            lane = LaneName(log.origin, log.incarnation)
            end = self._ends.get(lane) if log.halted else End(log.position, log.offset)
            self.facts[lane] = LaneFacts(end.position, end.offset, log.halted) if end else LaneFacts(None, None, log.halted)

    def persist(self, action: PersistLane) -> None:
        """Queue what is to become durable."""
        if action.begin is not None:
            self.facts[LaneName(action.origin, action.incarnation)] = LaneFacts(action.begin.position, action.begin.offset)
        self._queue.put(action)

    def read(self, action: ReadLane) -> None:
        """Queue what is to be read for another member."""
        self._queue.put(action)

    def held(self, action: LaneHeld) -> None:
        """Queue word of how far everybody has a lane."""
        self._queue.put(action)

    def mend(self, action: MendLane) -> None:
        """Queue frames to be written where they were lost."""
        self._queue.put(action)

    def show(self, run: DeliverUnordered) -> None:
        """A run is decided: readers of the own lane see it before any receipt leaves."""
        lane, last = LaneName(run.origin, run.incarnation), run.frames[-1].position
        offset = run.first_offset + sum(frame.count for frame in run.frames)
        if last > (self.facts.get(lane, NO_FACTS).position or 0):  # the lane may be being replaced by one that is further on
            self.facts[lane] = LaneFacts(last, offset)
        self._logs.frontier(lane, last, offset)

    def deliver(self, run: DeliverUnordered) -> None:
        """Queue a decided run to be indexed; what replaces its lane may overtake it."""
        self._queue.put(run)

    def forget(self, producers: tuple[int, ...]) -> None:
        """Queue word of producers that the ordered log forgot."""
        self._queue.put(producers)

    def suspect(self, incarnation: bytes) -> None:
        """Somebody could not read a lane, whose incarnation begins so; from any thread."""
        self._queue.put(incarnation)

    @property
    def starts(self) -> dict[LaneName, int]:
        """The first offset that each lane still has here."""
        return self._logs.starts

    @property
    def damaged(self) -> dict[LaneName, str]:
        """Lanes of which something cannot be read here, and what is done about it."""
        return self._logs.damaged

    @property
    def depth(self) -> int:
        """How many things wait."""
        return len(self._queue) + len(self._waiting) + len(self._decided) + len(self._reads) + len(self._mends)

    # In the thread

    @property
    def _pressing(self) -> bool:
        return bool(self._waiting or self._reads or self._mends)

    def run_once(self) -> bool:
        """Do one round of what is queued; False when there was nothing to do."""
        for item in self._queue.take(limits.MAILBOX_ITEMS_A_TURN_MAX):
            if item is None:
                self._stopping = True
            elif isinstance(item, PersistLane):
                self._waiting.append(item)
            elif isinstance(item, ReadLane):
                self._reads.append(item)
            elif isinstance(item, MendLane):
                self._mends.append(item)
            elif isinstance(item, LaneHeld):
                self._logs.held(item)
            elif isinstance(item, tuple):
                self._logs.forget(item)
            elif isinstance(item, bytes):
                self._guarded(lambda incarnation=item: self._suspect(incarnation))  # type: ignore[misc]  # bound at once
            else:
                self._decided.append(item)
        if self.failed:
            self._waiting.clear()
            self._decided.clear()
            self._mends.clear()
            return self._read()
        wrote = self._guarded(self._round)
        return self._read() or self._guarded(self._mend) or wrote

    def _round(self) -> bool:
        with contextlib.suppress(DiskFull):  # it holds up no writing: its turn comes again
            self._logs.let_go()
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
        begin: LaneBegin | None = None
        try:
            frames = self._logs.read(action)
            begin = None if frames else self._logs.begin(action)
        except Exception:  # noqa: BLE001 - whoever asks looks elsewhere
            self._log.exception("a lane could not be read for another gateway", origin=action.origin, first=action.first)
        if not frames and begin is None and not self.failed:
            self._guarded(lambda: self._suspect(action.incarnation))
        self._report(LaneRead(action.token, frames, begin))
        return True

    def _suspect(self, incarnation: bytes) -> bool:
        for lane in self._logs.suspect(incarnation):
            self._log.error("records of a lane cannot be read here", lane=lane.text, damaged=self._logs.damaged[lane])
        return True

    def _idle(self) -> bool:
        soon = self._logs.idle()
        return self._look() or soon

    # What is decided and cannot be read

    def _look(self, late: float = 0.0) -> bool:
        """Look at a piece of a lane if it is time, or has been for `late` seconds; whether the next one is wanted soon."""
        logs, now = self._logs, time.monotonic()
        if self._sparing.over or (now < self._look_at + late and not (logs.hurried and not late)):
            return False
        try:
            found = self._sparing.spared(logs.look)
        except DiskFull:
            found = None  # what was to be made again is so by a later round
        if found is not None:
            self._report(found)
            if found.first:
                lane = LaneName(found.origin, found.incarnation)
                self._log.error("a part of a lane cannot be read", lane=lane.text, damaged=logs.damaged.get(lane, ""))
        for told in logs.news():
            self._log.warning(_NEWS, told=told)
        rested, self._rounds = logs.rounds > self._rounds, logs.rounds
        self._look_at = time.monotonic() + (limits.SCRUB_REST_US if rested else limits.SCRUB_WAIT_US) / US
        return logs.hurried

    def _mend(self) -> bool:
        """Write one piece of what was lost; a disk that never rests looks for it too, now and then."""
        self._look(late=LATE_S)
        if not self._mends or self._sparing.over:
            self._mends.clear()
            return False
        action = self._mends.popleft()
        lane = LaneName(action.origin, action.incarnation)
        try:
            left = self._sparing.spared(lambda: self._logs.mend(action))
        except DiskFull:
            left = None
        if left is None:  # nothing says what is left: the same is lost still, and is asked for again after a while
            self._report(LaneRotted(*lane, action.frames[0].position, action.frames[-1].position))
        else:
            self._report(left)
            if not left.first and lane not in self._logs.damaged:
                self._log.info("what could not be read of a lane is mended", lane=lane.text, up_to=action.frames[-1].position)
        return True
