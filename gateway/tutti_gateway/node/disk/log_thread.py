"""The disk thread: does the disk work of the ordered log, so that the socket thread does not wait for the disk.

A lone small write is an exception: the socket thread syncs the write itself, and the disk thread watches it (`inline_sync.py`).

A round drains the queue. One gathered write contains the frames of the queued Persists, up to a size limit. One fdatasync makes
these frames durable, and one `Persisted` reports the highest token (group commit). Then the round writes index rows; a few rows may
wait, so that they are written together with rows of later runs. At its end, the round answers one read for another gateway. Without
such a read, the round scrubs if a scrub is overdue, and then writes one repair. An idle thread does the background work of the log.

Writes keep the order of the stack's actions. Hard state is written after the frames of earlier Persists are durable, and is durable
before frames of later Persists are written. A truncation or a snapshot runs alone, after everything queued before it is durable.
The stack reads only durable frames, so a read needs no queued write, and the thread answers reads even after writing has failed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from structlog.typing import FilteringBoundLogger

from tutti.data.frames.frame import Frame, Kind, sizes_of
from tutti.data.hard_state import HardState
from tutti.errors import DiskFull, invariant
from tutti.log.files.options import FreeSpace
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Deliver, Persist, ReadLog, ReadSnapshot, RepairLog
from tutti_gateway.core.protocol.events import Event, LogRead, Persisted, SnapshotRead, SpaceChanged
from tutti_gateway.log.upkeep.retention import BlockedSegments
from tutti_gateway.node.common.counters import DiskCounters
from tutti_gateway.node.common.interfaces import Log
from tutti_gateway.node.common.thread_names import name_thread
from tutti_gateway.node.disk.inline_sync import InlineSync
from tutti_gateway.node.disk.scrub_schedule import LATE_S, ScrubSchedule
from tutti_gateway.node.disk.worker_thread import DiskWorker

US = 1_000_000
NS_PER_US = 1000
_URGENT = frozenset({Kind.ABORT, Kind.VIEW, Kind.ROSTER})


class LogThread(DiskWorker[Persist | ReadLog | ReadSnapshot | Deliver | RepairLog | int]):
    """Executes the stack's disk actions on the ordered log, in its own thread or, in tests, by `run_once`."""

    def __init__(
        self,
        writer: Log,
        report: Callable[[Event], None],
        on_new_records: Callable[[], None],
        log: FilteringBoundLogger,
    ) -> None:
        """Prepare the thread; `start` starts it.

        Args:
            writer: the log, which from now on only this thread and, in `sync_inline`, the loop use.
            report: receives events for the stack; called in the disk thread.
            on_new_records: called in the socket thread or the disk thread when new records can be read.
            log: receives messages for the operator.
        """
        super().__init__("disk", report, log)
        self._writer = writer
        self._on_new_records = on_new_records
        self._waiting: deque[Persist] = deque()  # actions that were taken from the queue, and whose frames are not durable yet
        self._decided: deque[Deliver] = deque()
        self._reads: deque[ReadLog | ReadSnapshot] = deque()
        self._corrupt_at_start = writer.corrupt_end is not None
        self.scrub_schedule = ScrubSchedule(writer.scrubber, report, log)
        self._rows_wait = False  # True while index rows wait for free disk space
        self._decided_at = 0.0  # time since which the oldest run waits for its index rows; 0 if none waits
        self._now = self._space_checked_at = self._retention_checked_at = 0.0
        self._handlers: dict[type, Callable[[Any], None]] = {
            Persist: self._waiting.append,
            Deliver: self._decided.append,
            ReadLog: self._reads.append,
            ReadSnapshot: self._reads.append,
            RepairLog: self.scrub_schedule.put,
            int: self.scrub_schedule.suspect,
            type(None): self._stop_asked,
        }
        self.space = FreeSpace(0, False, "")
        # Returns the reason why the lane thread finds the disk full, which both threads share; empty text if it is not full.
        self.other_full: Callable[[], str] = str
        self.group_time_us: Callable[[], int] = int  # returns the time of the group's clock; 0 while it is unknown
        self._full_at = 0.0
        self._reported_low = False
        self.counters = DiskCounters()
        self.inline = InlineSync()
        self.decided = 0  # last decided position, which the driver sets before it puts an action
        # Runs the loop in the disk thread. Returns True at the end of the loop, and False if the other thread has taken it over.
        self.run_loop: Callable[[], bool] = bool

    # For the socket thread

    def put(self, action: Persist | ReadLog | ReadSnapshot | RepairLog) -> None:
        """Queue an action: a truncation, frames or hard state to make durable, a read, or frames that replace lost ones."""
        if isinstance(action, Persist):
            # Frames and hard state in one Persist would have no order, but an acceptance must follow its frames (flush, F10).
            invariant(not action.frames or action.scalars is None, f"Persist {action.token} has frames and hard state")
            if self.inline.suits(action, self.decided) and not (self._waiting or self._rows_wait or self.failed or self.full):
                self._queue.put_quietly(action)
                self.inline.due = True
                return
        self._queue.put(action)

    def suspect(self, position: int) -> None:
        """Queue a scrub of a position that a reader could not read."""
        self._queue.put(position)

    def deliver(self, action: Deliver) -> None:
        """Queue a decided run for indexing, and wake readers. Until the run is indexed, readers scan its frames."""
        self._queue.put_lazily(action)  # does not end a nap of the thread, because no client waits for index rows
        self._on_new_records()

    def sync_inline(self, alone: bool) -> bool:
        """Write and sync the queued frames in the calling thread, which has the loop. Otherwise wake the disk thread to do so.

        Args:
            alone: False if other work waits for the loop, so that the disk thread must sync.

        Return False if the disk thread has taken the loop over meanwhile. The calling thread must then call `serve`.
        """
        self.inline.due = False
        if not alone or not self.inline.begin():
            self._queue.rouse(from_nap=True)
            return True
        self._queue.rouse(from_nap=False)  # a thread in a nap wakes soon enough to watch this sync
        try:
            self._take()
            if not self.failed:
                self._guarded(self._write)
        finally:
            kept = self.inline.end()
        if self._stopping or self._has_waiting:  # the disk thread does everything that is not a write
            self._queue.rouse(from_nap=True)
        return kept

    @property
    def pinned(self) -> BlockedSegments | None:
        """The data that retention would trim if a named reader did not block it; None if there is none."""
        return self._writer.retention.blocked

    def scrub_status(self) -> dict[str, object]:
        """Return the values for the status: the unreadable range, and the numbers of losses, repaired frames and scrub rounds."""
        status = self.scrub_schedule.to_dict(found_at_start=int(self._corrupt_at_start))
        end = self._writer.corrupt_end
        if end is not None and not status["lost"]:
            text = f"positions {end.first} to {end.last} at the end of the log cannot be read"
            status |= {"lost": [end.first, end.last], "told": text}
        return status

    @property
    def depth(self) -> int:
        """Number of queued items."""
        return len(self._queue) + len(self._waiting) + len(self._decided) + len(self._reads) + self.scrub_schedule.waiting

    # In the disk thread

    @property
    def _has_waiting(self) -> bool:
        return bool(self._waiting or self._reads or self.scrub_schedule.waiting)

    def serve(self) -> None:
        """Work as the disk thread until the stop. If an inline sync of the other thread stalls, run the loop in its place."""
        while not self._work():
            name_thread("loop")
            if self.run_loop():
                return
            name_thread("disk")
        self._end()

    def _run(self) -> None:
        name_thread("disk")
        self.serve()

    def _acquire(self) -> bool:
        if self.inline.acquire():
            return True
        self._thread = self.inline.thread  # the stalled thread becomes the disk thread, for whose end `stop` waits
        return False

    def _release(self) -> None:
        self.inline.release()

    def _nap_us(self) -> int:
        # An inline sync does not end a nap that began before it, so the next nap ends when the mark of that sync is due.
        nap_us = super()._nap_us()
        since_us = int((time.monotonic() - self.inline.ended) * US)
        return nap_us - since_us if since_us < nap_us else nap_us

    def _is_needed(self) -> bool:
        return self.inline.under_way  # the inline sync may have taken the queued frames just before this thread sleeps

    def _take(self) -> None:
        for item in self._queue.drain(limits.MAILBOX_DRAIN_ITEMS_MAX):
            self._handlers[type(item)](item)

    def run_once(self) -> bool:
        """Process the queued items in one round. Return False if there was nothing to do."""
        self._take()
        if self.failed:  # the page cache is in an unknown state, so nothing more is written, but reads continue
            self._waiting.clear()
            self._decided.clear()
            self.scrub_schedule.drop()
            return self._read()
        self._now = time.monotonic()
        wrote = self._guarded(self._round)
        # A round answers only one read, so that queued writes wait for at most one read.
        if self._reads and self._read():
            return True
        return (self.scrub_schedule.wanted(self._now, late=LATE_S) and self._guarded(self._repair)) or wrote

    def _stop_asked(self, _item: None) -> None:
        self._stopping = True

    def _repair(self) -> bool:
        """Scrub if a scrub is overdue, because a thread that is never idle scrubs only here. Then write one repair."""
        try:
            self.scrub_schedule.scrub(late=LATE_S)
        except DiskFull:
            return False
        return self.scrub_schedule.repair()

    def _read(self) -> bool:
        """Answer one read. Return False if there is none. A failed read does not stop writing."""
        if not self._reads:
            return False
        action = self._reads.popleft()
        if isinstance(action, ReadSnapshot):
            self._report(self._read_snapshot(action))
            return True
        frames: tuple[Frame, ...] = ()
        stop = action.first - 1
        try:
            frames, stop = self._writer.read(action.first, action.last)
        except Exception:  # noqa: BLE001 - the requesting gateway then reads from another one
            self._log.exception("the log could not be read for another gateway", first=action.first, last=action.last)
        if not frames:  # the frame was trimmed or is lost: a scrub of its position shows which
            self.scrub_schedule.suspect(action.first)
        self._report(LogRead(action.token, frames, stop))
        return True

    def _read_snapshot(self, action: ReadSnapshot) -> SnapshotRead:
        try:
            return SnapshotRead(action.token, *self._writer.retention.read_snapshot(action.position, action.at))
        except Exception:  # noqa: BLE001 - the requesting gateway then reads from another one
            self._log.exception("the first snapshot of the log could not be read for another gateway")
            # An empty chunk makes the requesting gateway ask another source for the snapshot.
            return SnapshotRead(action.token, action.position, 0, b"")

    def _idle(self) -> bool:
        # Idle work precedes the scrub, because the vote mark is due within 10 ms after a sync (log, D10).
        soon = self._writer.idle()
        return self._scrub() or soon

    def _scrub(self) -> bool:
        try:
            return self.scrub_schedule.scrub()
        except DiskFull:
            return False  # a later scrub round writes the missing file

    def _round(self) -> bool:
        # Check periodically, not only after writes: other processes use the disk, too, and records reach their maximum age.
        if self._now - self._space_checked_at >= limits.SPACE_CHECK_US / US:
            self._check_space()
            self._check_retention()
        waited = self._rows_wait and self._index()
        # While index rows wait for disk space, no frames are written, so that the queue of decided runs stays bounded.
        wrote = not self._rows_wait and self._write()
        # A round that wrote frames may postpone a few index rows, so that later runs share one index write.
        return (bool(self._decided) and not (wrote and self._rows_may_wait()) and self._index()) or wrote or waited

    def _rows_may_wait(self) -> bool:
        """True if the queued runs are few and have not waited long, so that their index rows can wait for rows of later runs."""
        runs = self._decided
        if not self._decided_at:
            self._decided_at = self._now
        # Readers scan frames that have no index row yet, and at most 64 waiting frames keep such a scan short.
        few = runs[-1].frames[-1].position - runs[0].frames[0].position < limits.INDEX_FRAMES
        return few and self._now - self._decided_at < limits.INDEX_LATE_US / US and not self._stopping

    def _index(self) -> bool:
        """Index the decided runs. Return False if none was indexed. If the disk is full, the runs stay queued for a retry."""
        if self._rows_wait and self._in_full_backoff():
            return False
        self._decided_at = 0.0
        done = 0
        while self._decided:
            count, run = self._merged_run()
            # Runs leave the queue only after their rows are written, so that a full disk loses no run.
            try:
                self._writer.decided(run.frames, run.offsets, run.aborted)
            except DiskFull as error:
                self._rows_wait = True
                self._mark_full(error)
                break
            for _ in range(count):
                self._decided.popleft()
            done += count
        else:
            if self._rows_wait:
                self._rows_wait = False
                self._clear_full()
        return done > 0

    def _merged_run(self) -> tuple[int, Deliver]:
        """Merge the oldest runs, up to the first gap. Return the number of merged runs, and the merged run.

        A gap lies between two runs if a snapshot replaced the log in between.
        """
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
        """Write and sync the waiting Persists, up to the size limit of one sync, and report them."""
        waiting = self._waiting
        if not waiting or self._in_full_backoff():
            return False
        if (waiting[0].snapshot and not self._replace(waiting[0])) or (
            waiting[0].cut is not None and not self._truncate(waiting[0].cut)
        ):
            return False
        frames: list[Frame] = []
        token = size = 0
        done = 0
        scalars: HardState | None = None
        for action in waiting:
            # Hard state waits for the sync of earlier frames.
            # A truncation or a snapshot waits until it is first in the queue, and then runs alone.
            if (
                (action.scalars is not None and frames)
                or action.cut is not None
                or action.snapshot
                or size >= limits.SYNC_BYTES_MAX
            ):
                break
            if action.scalars is not None:
                # Each hard state has all values, so of several in a row only the newest needs a sync.
                scalars = action.scalars
            frames += action.frames
            size += sum(sizes_of(action.frames))
            token = action.token
            done += 1
        if not done:
            return False
        try:
            if scalars is not None:  # hard state must be durable before frames of later Persists are written
                self._writer.write_hard_state(scalars)
            if frames:
                self._append(frames)
                took_us = self._sync()
        except DiskFull as error:  # a later round repeats the write, and the log skips the frames that it already has
            self._mark_full(error)
            return False
        if self.full:
            self._clear_full()
        self._report(Persisted(token))  # reported before other work, because this gateway's vote waits for this event
        if frames:
            self.counters.count(took_us, len(frames), size)
            self.inline.measure(took_us)
        for _ in range(done):
            waiting.popleft()
        return True

    def _replace(self, action: Persist) -> bool:
        """Replace the log by the snapshot of the next action. Return False if the disk is full."""
        try:
            self._writer.replace(action.snapshot)
        except DiskFull as error:
            self._mark_full(error)
            return False
        self._waiting[0] = msgspec.structs.replace(action, snapshot=b"")  # a retry must not replace the log again
        self._on_new_records()
        return True

    def _append(self, frames: list[Frame]) -> None:
        """Write frames. On a full disk, use the reserved space if a waiting action is urgent, else raise `DiskFull`.

        These actions are urgent: hard state, a truncation, and a frame that lets the group continue (ABORT, VIEW, ROSTER).
        """
        try:
            self._writer.append(frames)
        except DiskFull:
            # An urgent action far back in the queue also opens the reserve, because writes keep their order (lifecycle, L13).
            if not any(_cannot_wait(action) for action in self._waiting):
                raise
            self._writer.append(frames, must=True)

    def _truncate(self, position: int) -> bool:
        """Truncate the log after `position`, as the next action requires. Return False if the disk is full."""
        try:
            self._writer.truncate(position)
        except DiskFull as error:
            self._mark_full(error)
            return False
        self._waiting[0] = msgspec.structs.replace(self._waiting[0], cut=None)  # a retry must not truncate again
        return True

    def _mark_full(self, error: DiskFull) -> None:
        self._full_at = time.monotonic()
        self.full = str(error)
        self._report_space()

    def _clear_full(self) -> None:
        if self.full:
            self.full = ""
            self._report_space()

    def _in_full_backoff(self) -> bool:
        """True during the pause between two attempts to write to a full disk."""
        return bool(self.full) and time.monotonic() - self._full_at < limits.DISK_FULL_WAIT_US / US

    def _sync(self) -> int:
        """Sync the log, and return the duration in microseconds."""
        began = time.monotonic_ns()
        self._writer.sync()
        return (time.monotonic_ns() - began) // NS_PER_US

    def _check_space(self) -> None:
        self._space_checked_at = self._now
        space, held = self._writer.space(), self._writer.retention.blocked
        # A named reader that blocks retention is the likely cause of low space, so the reason names it.
        self.space = space._replace(reason=f"{space.reason}; {held.message}") if space.low and held is not None else space
        self._report_space()

    def _check_retention(self) -> None:
        """Report the trim that retention allows to the stack. Repeat the report at each interval until the stack trims the log."""
        now = self._now
        if now - self._retention_checked_at >= limits.RETENTION_CHECK_US / US:
            self._retention_checked_at = now
            proposed = self._writer.retention.propose(self.group_time_us())
            if proposed is not None:
                self._report(proposed)

    def _report_space(self) -> None:
        """Report to the stack when the disk becomes low on free space, or has free space again.

        The disk also counts as low while a write waits for space, even if the last check found enough.
        """
        reason = self.full or self.other_full() or (self.space.reason if self.space.low else "")
        # The stack repeats the state in heartbeats (atomic, A9), so the thread reports only changes.
        if bool(reason) == self._reported_low:
            return
        self._reported_low = bool(reason)
        if reason:
            self._log.warning(
                "the disk is low on free space: new records are refused, reads continue",
                free_bytes=self.space.free_bytes,
                reason=reason,
            )
        else:
            self._log.info("the disk has free space again", free_bytes=self.space.free_bytes)
        self._report(SpaceChanged(self._reported_low, reason))


def _cannot_wait(action: Persist) -> bool:
    return action.scalars is not None or action.cut is not None or any(frame.kind in _URGENT for frame in action.frames)
