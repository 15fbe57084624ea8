"""The disk thread: everything that waits for the disk happens here, so that the socket thread never does.

One round takes all that was queued meanwhile: frames of all Persists go down in one gathered write, one fdatasync makes them
durable, one `Persisted` with the highest token goes back. Rows of the index come after that, then one read for another member, one
piece of what is mended, and what the log wants done while idle last.

The order is the one the stack asked for: scalars are durable before frames of a later Persist are written, and frames of an earlier
one before the scalars. A cut is done alone, when everything asked for before it is durable. What is to be read is durable when it
is asked for, so reads wait for nothing, and are answered even when nothing can be written any more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from structlog.typing import FilteringBoundLogger

from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import Scalars
from tutti.errors import DiskFull, invariant
from tutti.log.files.options import Space
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Deliver, Mend, Persist, ReadLog, ReadSnapshot
from tutti_gateway.core.protocol.events import Event, LogRead, Persisted, SnapshotRead, SpaceChanged
from tutti_gateway.log.upkeep.retention import Held
from tutti_gateway.node.common.counters import DiskMeters
from tutti_gateway.node.common.interfaces import Log
from tutti_gateway.node.disk.scrub_schedule import LATE_S, Scrubbing
from tutti_gateway.node.disk.worker_thread import Working

US = 1_000_000
NS_PER_US = 1000
_URGENT = frozenset({Kind.ABORT, Kind.VIEW, Kind.ROSTER})


class Disk(Working[Persist | ReadLog | ReadSnapshot | Deliver | Mend | int]):
    """Carries out Persist, ReadLog and Deliver, in a thread of its own or, in tests, by `run_once`."""

    def __init__(
        self,
        writer: Log,
        report: Callable[[Event], None],
        moved: Callable[[], None],
        log: FilteringBoundLogger,
    ) -> None:
        """Prepare.

        Args:
            writer: the log; only this thread uses it from now on.
            report: takes events for the stack; called in the disk thread.
            moved: called, in either thread, when there is more to read.
            log: for what an operator must know.
        """
        super().__init__("disk", report, log)
        self._writer = writer
        self._moved = moved
        self._waiting: deque[Persist] = deque()  # taken from the queue, not yet durable
        self._decided: deque[Deliver] = deque()
        self._reads: deque[ReadLog | ReadSnapshot] = deque()
        self.scrubbing = Scrubbing(writer.mender, report, log)
        self._rows_wait = False  # what was decided found no room in the index
        self._decided_at = 0.0  # when the oldest of it was taken
        self._now = self._space_looked_at = self._retention_looked_at = 0.0
        self._sorted: dict[type, Callable[[Any], None]] = {
            Persist: self._waiting.append,
            Deliver: self._decided.append,
            ReadLog: self._reads.append,
            ReadSnapshot: self._reads.append,
            Mend: self.scrubbing.put,
            int: self.scrubbing.suspect,
            type(None): self._stop_asked,
        }
        self.space = Space(0, False, "")
        self.beside: Callable[[], str] = str  # why something else that writes to this disk finds no room
        self.group_time_us: Callable[[], int] = int  # the time that the voters' clocks agree on, 0 while it is not known
        self._full_at = 0.0
        self._told_low = False
        self.meters = DiskMeters()

    # For the socket thread

    def persist(self, action: Persist) -> None:
        """Queue a cut, and frames or scalars to be made durable."""
        invariant(not action.frames or action.scalars is None, f"Persist {action.token} has frames and scalars")
        self._queue.put(action)

    def read(self, action: ReadLog | ReadSnapshot) -> None:
        """Queue a read of the log, or of the state with which it begins."""
        self._queue.put(action)

    def mend(self, action: Mend) -> None:
        """Queue frames to be written where they were lost."""
        self._queue.put(action)

    def suspect(self, position: int) -> None:
        """Somebody could not read the position: it is looked at."""
        self._queue.put(position)

    def deliver(self, action: Deliver) -> None:
        """Queue a decided run to be indexed, and say that there is more to read: until it is indexed readers look at its frames."""
        self._queue.put_lazily(action)
        self._moved()

    @property
    def held(self) -> Held | None:
        """What retention would let go and a named reader holds back."""
        return self._writer.trimming.held

    def damage(self) -> dict[str, object]:
        """What of the log cannot be read, and what was mended."""
        return self.scrubbing.to_dict()

    @property
    def depth(self) -> int:
        """How many things wait."""
        return len(self._queue) + len(self._waiting) + len(self._decided) + len(self._reads) + self.scrubbing.waiting

    # In the disk thread

    @property
    def _pressing(self) -> bool:
        return bool(self._waiting or self._reads or self.scrubbing.waiting)

    def run_once(self) -> bool:
        """Do one round of what is queued; False when there was nothing to do."""
        for item in self._queue.take(limits.MAILBOX_ITEMS_A_TURN_MAX):
            self._sorted[type(item)](item)
        if self.failed:
            self._waiting.clear()
            self._decided.clear()
            self.scrubbing.drop()
            return self._read()
        self._now = time.monotonic()
        wrote = self._guarded(self._round)
        if self._reads and self._read():
            return True
        return (self.scrubbing.wanted(self._now, late=LATE_S) and self._guarded(self._mend)) or wrote

    def _stop_asked(self, _item: None) -> None:
        self._stopping = True

    def _mend(self) -> bool:
        """Write one piece of what was lost; a disk that never rests looks for it too, now and then."""
        try:
            self.scrubbing.look(late=LATE_S)
        except DiskFull:
            return False
        return self.scrubbing.mend()

    def _read(self) -> bool:
        """Answer one read; False if there was none. What cannot be read ends no writing."""
        if not self._reads:
            return False
        action = self._reads.popleft()
        if isinstance(action, ReadSnapshot):
            self._report(self._piece(action))
            return True
        frames: tuple[Frame, ...] = ()
        stop = action.first - 1
        try:
            frames, stop = self._writer.read(action.first, action.last)
        except Exception:  # noqa: BLE001 - whoever asks looks elsewhere
            self._log.exception("the log could not be read for another gateway", first=action.first, last=action.last)
        if not frames:
            self.scrubbing.suspect(action.first)
        self._report(LogRead(action.token, frames, stop))
        return True

    def _piece(self, action: ReadSnapshot) -> SnapshotRead:
        try:
            return SnapshotRead(action.token, *self._writer.trimming.piece(action.position, action.at))
        except Exception:  # noqa: BLE001 - likewise
            self._log.exception("the state with which the log begins could not be read for another gateway")
            return SnapshotRead(action.token, action.position, 0, b"")

    def _idle(self) -> bool:
        soon = self._writer.idle()
        return self._look() or soon

    def _look(self) -> bool:
        try:
            return self.scrubbing.look()
        except DiskFull:
            return False  # what was to be made again is so by a later round

    def _round(self) -> bool:
        if self._now - self._space_looked_at >= limits.SPACE_LOOK_US / US:
            self._look_at_space()
            self._look_at_retention()
        waited = self._rows_wait and self._index()
        wrote = not self._rows_wait and self._write()  # nothing more while rows wait, so that what waits stays bounded
        return (bool(self._decided) and not (wrote and self._may_wait()) and self._index()) or wrote or waited

    def _may_wait(self) -> bool:
        """Whether rows can be written together with those of later runs: few of them, and not for long."""
        runs = self._decided
        if not self._decided_at:
            self._decided_at = self._now
        few = runs[-1].frames[-1].position - runs[0].frames[0].position < limits.INDEX_FRAMES
        return few and self._now - self._decided_at < limits.INDEX_LATE_US / US and not self._stopping

    def _index(self) -> bool:
        """Index what was decided; False if nothing was. What finds no room stays in the queue and is tried again."""
        if self._rows_wait and self._waits_for_room():
            return False
        self._decided_at = 0.0
        done = 0
        while self._decided:
            count, run = self._together()
            try:
                self._writer.decided(run.frames, run.offsets, run.aborted)
            except DiskFull as error:
                self._rows_wait = True
                self._is_full(error)
                break
            for _ in range(count):
                self._decided.popleft()
            done += count
        else:
            if self._rows_wait:
                self._rows_wait = False
                self._has_room()
        return done > 0

    def _together(self) -> tuple[int, Deliver]:
        """The oldest runs that follow each other: how many, and all as one. There is a gap where the log was replaced."""
        runs = self._decided
        first = runs[0]
        if len(runs) == 1:
            return 1, first
        frames, offsets, aborted = list(first.frames), list(first.offsets), set(first.aborted)
        count = 1
        while count < len(runs) and len(frames) < limits.INDEX_FRAMES and runs[count].frames[0].position == frames[-1].position + 1:
            frames += runs[count].frames
            offsets += runs[count].offsets
            aborted |= runs[count].aborted
            count += 1
        return count, Deliver(tuple(frames), tuple(offsets), frozenset(aborted), runs[count - 1].next_offset)

    def _write(self) -> bool:
        """Make what waits durable, up to one sync's worth, and report it."""
        waiting = self._waiting
        if not waiting or self._waits_for_room():
            return False
        if (waiting[0].snapshot and not self._replace(waiting[0])) or (
            waiting[0].cut is not None and not self._cut(waiting[0].cut)
        ):
            return False
        frames: list[Frame] = []
        token = size = 0
        done = 0
        scalars: Scalars | None = None
        for action in waiting:
            if (
                (action.scalars is not None and frames)
                or action.cut is not None
                or action.snapshot
                or size >= limits.SYNC_BYTES_MAX
            ):
                break
            if action.scalars is not None:
                scalars = action.scalars
            frames += action.frames
            for frame in action.frames:
                size += frame.size
            token = action.token
            done += 1
        if not done:
            return False
        try:
            if scalars is not None:
                self._writer.write_scalars(scalars)
            if frames:
                self._append(frames)
                took_us = self._sync()
        except DiskFull as error:  # the same is tried again later: the log passes over what it has of it already
            self._is_full(error)
            return False
        if self.full:
            self._has_room()
        self._report(Persisted(token))
        if frames:
            self.meters.count(took_us, len(frames), size)
        for _ in range(done):
            waiting.popleft()
        return True

    def _replace(self, action: Persist) -> bool:
        """Replace the log, which comes next; False if there is no room for it."""
        try:
            self._writer.replace(action.snapshot)
        except DiskFull as error:
            self._is_full(error)
            return False
        self._waiting[0] = msgspec.structs.replace(action, snapshot=b"")  # done, whatever becomes of the rest
        self._moved()
        return True

    def _append(self, frames: list[Frame]) -> None:
        """Write frames; for batches that find no room what is reserved is used when something stands behind them that must not
        wait: a promise or a cut, or a frame that lets the group go on.
        """
        try:
            self._writer.append(frames)
        except DiskFull:
            if not any(_cannot_wait(action) for action in self._waiting):
                raise
            self._writer.append(frames, must=True)

    def _cut(self, behind: int) -> bool:
        """Cut the log, which comes next; False if there is no room for it."""
        try:
            self._writer.cut(behind)
        except DiskFull as error:
            self._is_full(error)
            return False
        self._waiting[0] = msgspec.structs.replace(self._waiting[0], cut=None)  # done, whatever becomes of the rest
        return True

    def _is_full(self, error: DiskFull) -> None:
        self._full_at = time.monotonic()
        self.full = str(error)
        self._tell_space()

    def _has_room(self) -> None:
        if self.full:
            self.full = ""
            self._tell_space()

    def _waits_for_room(self) -> bool:
        """Whether it is too early to try again what found no room."""
        return bool(self.full) and time.monotonic() - self._full_at < limits.DISK_FULL_WAIT_US / US

    def _sync(self) -> int:
        """Sync; how long it took, us."""
        began = time.monotonic_ns()
        self._writer.sync()
        return (time.monotonic_ns() - began) // NS_PER_US

    def _look_at_space(self) -> None:
        self._space_looked_at = self._now
        space, held = self._writer.space(), self._writer.trimming.held
        self.space = space._replace(reason=f"{space.reason}; {held.told}") if space.low and held is not None else space
        self._tell_space()

    def _look_at_retention(self) -> None:
        """Tell the stack what may go; it is told again as long as it is there."""
        now = self._now
        if now - self._retention_looked_at >= limits.RETENTION_LOOK_US / US:
            self._retention_looked_at = now
            proposed = self._writer.trimming.propose(self.group_time_us())
            if proposed is not None:
                self._report(proposed)

    def _tell_space(self) -> None:
        """Tell the stack when the disk begins or ceases to be low; a write that found no room counts as low whatever is free."""
        reason = self.full or self.beside() or (self.space.reason if self.space.low else "")
        if bool(reason) == self._told_low:
            return
        self._told_low = bool(reason)
        if reason:
            self._log.warning(
                "the disk runs low; new records are refused, reads go on", free_bytes=self.space.free_bytes, reason=reason
            )
        else:
            self._log.info("the disk has room again", free_bytes=self.space.free_bytes)
        self._report(SpaceChanged(self._told_low, reason))


def _cannot_wait(action: Persist) -> bool:
    return action.scalars is not None or action.cut is not None or any(frame.kind in _URGENT for frame in action.frames)
