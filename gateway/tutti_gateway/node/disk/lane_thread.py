"""The lane thread: writes, syncs, indexes and reads the lanes, in the order of the stack's actions.

Lanes have their own thread, so that the sync of a lane does not delay a sync of the ordered log. A round processes all queued items
in this order:

1. Apply retention to the next lane if it is due, even if the thread is busy.
2. Write the frames of all lanes, sync these lanes in parallel, and report one `LanePersisted` with the highest token.
3. Index decided runs.
4. Answer one read. Without a read, scrub if a scrub is overdue, and then write one repair.

After a failed write or sync, this thread writes nothing more until the gateway restarts.
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
from tutti.log.read.lane_reader import LaneEnd
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import DeliverUnordered, LaneHeld, PersistLane, ReadLane, RepairLane
from tutti_gateway.core.protocol.events import Event, LaneCorrupt, LaneLog, LanePersisted, LaneRead
from tutti_gateway.core.protocol.messages import LaneBegin
from tutti_gateway.node.common.counters import DiskCounters
from tutti_gateway.node.disk.scrub_schedule import LATE_S, ScrubGuard
from tutti_gateway.node.disk.worker_thread import DiskWorker

US = 1_000_000
NS_PER_US = 1000
_FINDING = "the scrubber of the lanes reports a finding"


class LaneLogs(Protocol):
    """The methods of `tutti_gateway.log.lanes.lane_logs.LaneLogs` that this thread calls. A call may be repeated after
    `DiskFull`.
    """

    starts: dict[LaneName, int]

    def begin(self, action: ReadLane) -> LaneBegin | None:
        """Return the start of a lane if the requested frames were trimmed, else None."""

    def set_replicated(self, action: LaneHeld) -> None:
        """Store the position up to which every gateway of the roster has the frames of a lane."""

    @property
    def rounds(self) -> int:
        """The number of completed scrub rounds over all lanes."""

    @property
    def damaged(self) -> dict[LaneName, str]:
        """The lanes with unreadable data, and the remedy for each."""

    @property
    def urgent(self) -> bool:
        """True if a read of a lane has failed, so that the scrubber must check the lane soon."""

    def scrub(self) -> LaneCorrupt | None:
        """Scrub the next part. Return the lost range of its lane if that range has changed."""

    def pop_messages(self) -> list[str]:
        """Return new problems of snapshots, and of lanes that cannot be opened, one sentence each."""

    def repair(self, action: RepairLane) -> LaneCorrupt:
        """Write frames that replace lost ones. Return the range that is still lost."""

    def persist(self, action: PersistLane) -> None:
        """Execute an action except for the sync of its frames, which `sync` does for all lanes at once."""

    def sync(self) -> None:
        """Make all written frames durable."""

    def read(self, action: ReadLane) -> tuple[Frame, ...]:
        """Return durable frames, starting at the first requested position."""

    def frontier(self, lane: LaneName, position: int, offset: int) -> None:
        """Publish the frontier of this gateway's lane."""

    def decided(self, run: DeliverUnordered) -> None:
        """Index a decided run."""

    def forget(self, producers: Iterable[int]) -> None:
        """Delete the state of producers that were deleted in the ordered log."""

    def suspect(self, incarnation: bytes) -> list[LaneName]:
        """Schedule an early scrub of the lanes whose incarnation starts with these bytes. Return those lanes that were not
        suspected before.
        """

    def apply_retention(self) -> bool:
        """Apply retention to the next lane if it is due. Return True if files are left to remove."""

    def idle(self) -> bool:
        """Do background work while nothing is queued. Return True to be called again soon."""


class LaneFacts(NamedTuple):
    """The frontier of a lane (last decided position and next offset), and the reason why the lane accepts no frames here, if any.

    If the start found the lane corrupt or missing, position and offset are lower bounds from the lane's files, or None.
    """

    position: int | None = 0
    offset: int | None = 0
    halted: str = ""


NO_FACTS = LaneFacts()


class LaneThread(DiskWorker[PersistLane | ReadLane | RepairLane | LaneHeld | DeliverUnordered | tuple[int, ...] | bytes]):
    """Executes PersistLane, ReadLane and DeliverUnordered, in its own thread or, in tests, by `run_once`.

    Attributes:
        facts: frontier of each lane, for the status; owned by the socket thread.
        counters: counters of writes and syncs, where the parallel syncs of one round count as one sync.
    """

    def __init__(
        self,
        logs: LaneLogs,
        report: Callable[[Event], None],
        on_new_records: Callable[[], None],
        log: FilteringBoundLogger,
        ends: Mapping[LaneName, LaneEnd],
    ) -> None:
        """Prepare the thread; `start` starts it.

        Args:
            logs: the lanes, which from now on only this thread uses.
            report: receives events for the stack; called in the thread.
            on_new_records: called in the thread when new records can be read.
            log: receives messages for the operator.
            ends: last known frontier of each lane that was halted at the start, if its files contain the frontier.
        """
        super().__init__("lanes", report, log)
        self._logs = logs
        self._ends = ends
        self._on_new_records = on_new_records
        self._waiting: deque[PersistLane] = deque()  # actions that were taken from the queue, and whose frames are not durable yet
        self._decided: deque[DeliverUnordered] = deque()
        self._reads: deque[ReadLane] = deque()
        self._repairs: deque[RepairLane] = deque()
        self._scrub_guard = ScrubGuard(log)
        self._next_scrub_at = 0.0
        self._rounds = 0
        self._full_at = 0.0
        self.counters = DiskCounters()
        self.facts: dict[LaneName, LaneFacts] = {}

    # For the socket thread

    def set_recovered(self, lanes: tuple[LaneLog, ...]) -> None:
        """Set the recovered state of each lane."""
        for log in lanes:
            lane = LaneName(log.origin, log.incarnation)
            # The start recovers no state of a halted lane, so the frontier comes from the lane's files.
            end = self._ends.get(lane) if log.halted else LaneEnd(log.position, log.offset)
            self.facts[lane] = LaneFacts(end.position, end.offset, log.halted) if end else LaneFacts(None, None, log.halted)

    def put(self, action: PersistLane | ReadLane | RepairLane | LaneHeld) -> None:
        """Queue an action: frames to make durable, a read, frames that replace lost ones, or a limit for retention."""
        if isinstance(action, PersistLane) and action.begin is not None:
            # The status shows the frontier of a snapshot at once, so that runs of the replaced copy cannot move it back.
            self.facts[LaneName(action.origin, action.incarnation)] = LaneFacts(action.begin.position, action.begin.offset)
        self._queue.put(action)

    def publish_frontier(self, run: DeliverUnordered) -> None:
        """Move the frontier that readers of this gateway's lane see, before any receipt for the run is sent."""
        lane, last = LaneName(run.origin, run.incarnation), run.frames[-1].position
        offset = run.first_offset + sum(frame.count for frame in run.frames)
        # a snapshot that is being installed may have a later frontier, which stays
        if last > (self.facts.get(lane, NO_FACTS).position or 0):
            self.facts[lane] = LaneFacts(last, offset)
        self._logs.frontier(lane, last, offset)

    def deliver(self, run: DeliverUnordered) -> None:
        """Queue a decided run for indexing. The thread ignores frames before the start of a lane that a snapshot has replaced."""
        self._queue.put(run)

    def forget(self, producers: tuple[int, ...]) -> None:
        """Queue the numbers of producers that were deleted in the ordered log."""
        self._queue.put(producers)

    def suspect(self, incarnation: bytes) -> None:
        """Queue a scrub of the lane whose incarnation starts with these bytes, because a reader could not read the lane.

        Any thread may call this method.
        """
        self._queue.put(incarnation)

    @property
    def starts(self) -> dict[LaneName, int]:
        """The first available offset of each lane that is stored here."""
        return self._logs.starts

    @property
    def damaged(self) -> dict[LaneName, str]:
        """The lanes with unreadable data, and the remedy for each."""
        return self._logs.damaged

    @property
    def depth(self) -> int:
        """Number of queued items."""
        return len(self._queue) + len(self._waiting) + len(self._decided) + len(self._reads) + len(self._repairs)

    # In the thread

    @property
    def _has_waiting(self) -> bool:
        return bool(self._waiting or self._reads or self._repairs)

    def run_once(self) -> bool:
        """Process the queued items in one round. Return False if there was nothing to do."""
        for item in self._queue.drain(limits.MAILBOX_DRAIN_ITEMS_MAX):
            if item is None:
                self._stopping = True
            elif isinstance(item, PersistLane):
                self._waiting.append(item)
            elif isinstance(item, ReadLane):
                self._reads.append(item)
            elif isinstance(item, RepairLane):
                self._repairs.append(item)
            elif isinstance(item, LaneHeld):
                self._logs.set_replicated(item)
            elif isinstance(item, tuple):
                self._logs.forget(item)
            elif isinstance(item, bytes):
                self._guarded(lambda incarnation=item: self._suspect(incarnation))  # type: ignore[misc]  # binds the item now
            else:
                self._decided.append(item)
        if self.failed:  # the page cache is in an unknown state, so nothing more is written, but reads continue
            self._waiting.clear()
            self._decided.clear()
            self._repairs.clear()
            return self._read()
        wrote = self._guarded(self._round)
        # A read comes before a repair, because another gateway waits for the answer.
        return self._read() or self._guarded(self._repair) or wrote

    def _round(self) -> bool:
        with contextlib.suppress(DiskFull):  # on a full disk, retention is tried again in a later round and must not stop writing
            self._logs.apply_retention()
        # Each attempt to write to a full disk costs time, so pause between attempts.
        if self.full and time.monotonic() - self._full_at < limits.DISK_FULL_WAIT_US / US:
            return False
        try:
            wrote = self._write()
            indexed = self._index()
        except DiskFull as error:  # the remaining items stay queued for a later round
            self._full_at = time.monotonic()
            self.full = str(error)
            return False
        self.full = ""
        return wrote or indexed

    def _write(self) -> bool:
        """Write and sync the waiting frames, up to the size limit of one sync, and report them."""
        done = frames = size = 0
        full: DiskFull | None = None
        for action in self._waiting:
            if size >= limits.SYNC_BYTES_MAX:
                break
            try:
                self._logs.persist(action)
            except DiskFull as error:  # raised below, after the frames that are already written are synced and reported
                full = error
                break
            size += sum(frame.size for frame in action.frames)
            frames += len(action.frames)
            done += 1
        if done:
            began = time.monotonic_ns()
            self._logs.sync()
            if frames:
                self.counters.count((time.monotonic_ns() - began) // NS_PER_US, frames, size)
            self._report(LanePersisted(self._waiting[done - 1].token))  # the last token covers all earlier ones
            for _ in range(done):
                self._waiting.popleft()
        if full is not None:
            raise full
        return done > 0

    def _index(self) -> bool:
        done = 0
        while self._decided:
            # A run leaves the queue only after it is indexed, so that a full disk loses no run.
            self._logs.decided(self._decided[0])
            self._decided.popleft()
            done += 1
        if done:
            self._on_new_records()
        return done > 0

    def _read(self) -> bool:
        """Answer one read. Return False if there is none. A failed read does not stop writing."""
        if not self._reads:
            return False
        action = self._reads.popleft()
        frames: tuple[Frame, ...] = ()
        begin: LaneBegin | None = None
        try:
            frames = self._logs.read(action)
            # Without frames, the answer has the start of the lane, after which the other gateway continues its copy (lanes, U27).
            begin = None if frames else self._logs.begin(action)
        except Exception:  # noqa: BLE001 - the requesting gateway then reads from another one
            self._log.exception("a lane could not be read for another gateway", origin=action.origin, first=action.first)
        # Decided frames that are neither readable nor trimmed may be lost, so the scrubber checks the lane.
        if not frames and begin is None and not self.failed:
            self._guarded(lambda: self._suspect(action.incarnation))
        # Every read is reported, even without frames, because the stack counts open reads against `LANE_READS_MAX`.
        self._report(LaneRead(action.token, frames, begin))
        return True

    def _suspect(self, incarnation: bytes) -> bool:
        for lane in self._logs.suspect(incarnation):
            self._log.error("records of a lane cannot be read here", lane=lane.text, damaged=self._logs.damaged[lane])
        return True

    def _idle(self) -> bool:
        # Idle work precedes the scrub, because marks of synced frames are due within 10 ms (log, D10).
        soon = self._logs.idle()
        return self._scrub() or soon

    # Scrub and repair

    def _scrub(self, late: float = 0.0) -> bool:
        """Scrub a part of a lane if a scrub is at least `late` seconds overdue. Return True if the next part is due soon."""
        logs, now = self._logs, time.monotonic()
        # An idle thread (`late` is 0) scrubs a suspected lane at once, without waiting for the schedule.
        if self._scrub_guard.ended or (now < self._next_scrub_at + late and not (logs.urgent and not late)):
            return False
        try:
            found = self._scrub_guard.run(logs.scrub)
        except DiskFull:
            found = None  # a later scrub round writes the missing file
        if found is not None:
            self._report(found)
            if found.first:
                lane = LaneName(found.origin, found.incarnation)
                self._log.error("a part of a lane cannot be read", lane=lane.text, damaged=logs.damaged.get(lane, ""))
        for finding in logs.pop_messages():
            self._log.warning(_FINDING, finding=finding)
        round_done, self._rounds = logs.rounds > self._rounds, logs.rounds
        # The pause begins at the end of a step, so that the scrubber reads at most 4 MiB a second even from a slow disk.
        self._next_scrub_at = time.monotonic() + (limits.SCRUB_PAUSE_US if round_done else limits.SCRUB_WAIT_US) / US
        return logs.urgent

    def _repair(self) -> bool:
        """Scrub if a scrub is overdue, because a thread that is never idle scrubs only here. Then write one repair."""
        self._scrub(late=LATE_S)
        # A defect in the scrubber also ends repairs, because the scrubber's code checks and writes the frames.
        if not self._repairs or self._scrub_guard.ended:
            self._repairs.clear()
            return False
        action = self._repairs.popleft()
        lane = LaneName(action.origin, action.incarnation)
        try:
            left = self._scrub_guard.run(lambda: self._logs.repair(action))
        except DiskFull:
            left = None
        if left is None:  # report the same range as lost, so that the stack requests it again
            self._report(LaneCorrupt(*lane, action.frames[0].position, action.frames[-1].position))
        else:
            self._report(left)
            if not left.first and lane not in self._logs.damaged:
                self._log.info("an unreadable part of a lane is repaired", lane=lane.text, up_to=action.frames[-1].position)
        return True
