"""Accumulator of a producer with a spool: closed batches go to the disk first, and from there to the I/O thread.

Rules
- The delivery gets a batch only after the batch is durable here, and only after the log reported its position in the spool.
- `queue` continues the window without a gap. While the delivery keeps up, it holds batches as they were written, otherwise batches
  that were read back. Other batches have no body in memory, and a batch without a receipt is not in memory at all.
- At the begin of each epoch, reading restarts at the log's position (`began`). `turn` counts these restarts, so that blocks
  read before a restart are dropped.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tutti import limits
from tutti.batching.accumulator import Accumulator, do_nothing
from tutti.batching.encoder import ValidatedBatch
from tutti.batching.options import BatchingOptions
from tutti.batching.receipt import Batch, Failure, OnDelivery, Receipt, Record, Resume, Spooled, SpoolPosition, reject_in_callback
from tutti.data.client_protocol import OFFSET_UNKNOWN
from tutti.data.frames.schema import compression_flags, compression_of
from tutti.errors import DiskFull, TuttiError, Unavailable, Unknown, UsageError
from tutti.spool.block_format import Block
from tutti.spool.commit_mark import (
    APPLICATION_PROGRESS_BYTES_MAX,
    EpochStart,
    State,
    advance_over_refused,
    committed_position,
    decode_mark,
)
from tutti.spool.store import SpoolStore

LOG = logging.getLogger("tutti.client")


class SpooledAccumulator(Accumulator):
    """Moves records to the spool, and from there to the I/O thread. Extends `Accumulator`; `work` wakes the disk thread."""

    remedy = "enlarge spool_bytes, or buffer_bytes"

    def __init__(
        self, options: BatchingOptions, store: SpoolStore, spool_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with the content of the spool."""
        super().__init__(options, clock)
        self.work = threading.Condition(self.lock)
        self.closed: collections.deque[Batch] = collections.deque()
        self.path = store.path
        self.done, self.known = store.state.done, store.state.known
        self.turn = 0
        self.seek: SpoolPosition | None = None  # position at which reading must restart; None once the disk thread has done so
        self.ready_bytes = 0  # bytes of bodies in the queue and in the window
        self.broken: TuttiError | None = None  # why the spool is unusable
        self.no_room = ""  # the error of a full disk; empty otherwise
        self.word = EpochStart()
        self.log = store.state.log
        self.refusals: dict[SpoolPosition, Failure] = {}
        self._store = store
        self._spool_bytes = spool_bytes
        self._flags = compression_flags(options.compression)
        self._live: weakref.WeakValueDictionary[SpoolPosition, Batch] = weakref.WeakValueDictionary()
        self._watched: dict[SpoolPosition, Batch] = {}  # spooled batches with callbacks, which may have no other reference
        self._counts = store.counts()
        self._late: list[Batch] = []  # batches written after the end of the producer
        self.release: Callable[[], None] = do_nothing  # closes the directory
        self._earlier = max(self._counts, default=0)  # the last segment of earlier runs
        self._used = store.used
        self._progress = store.progress
        self._refused = 0
        self._refused_ranges: dict[
            SpoolPosition, SpoolPosition
        ] = {}  # refused batches above `done`: start position -> end position
        self.pending_records = self._uncommitted()

    @property
    def state(self) -> State:
        """The state that `spool.json` holds."""
        return self._store.state

    # -- the application's threads

    def add(self, topic: str, record: Record, progress: bytes, on_delivery: OnDelivery | None) -> Receipt:
        """See `Accumulator.add`."""
        _check_progress_size(progress)
        return super().add(topic, record, progress, on_delivery)

    def add_whole(self, topic: str, records: ValidatedBatch, progress: bytes, on_delivery: OnDelivery | None) -> Receipt:
        """See `Accumulator.add_whole`."""
        _check_progress_size(progress)
        return super().add_whole(topic, records, progress, on_delivery)

    def lack(self, need: int) -> str:
        """See `Accumulator.lack`; also checks the limits of the spool."""
        waiting = self.buffered + need
        if self.no_room and waiting > self.options.batch_bytes:
            return self.no_room
        if self.buffered and waiting > self.options.buffer_bytes:
            return f"{self.buffered} bytes wait for the disk, and {need} more exceed buffer_bytes={self.options.buffer_bytes}"
        if self.pending_records and self._used + waiting > self._spool_bytes:
            limit = f"spool_bytes={self._spool_bytes}"
            return f"spool {self.path} has {self._used} uncommitted bytes, and {need} more exceed {limit}"
        if len(self._watched) >= limits.SPOOL_WATCHED_MAX:
            return f"{len(self._watched)} batches with on_delivery have no outcome yet, which is the limit"
        return ""

    def new_batch(self, topic: str, room: int) -> Batch:
        """See `Accumulator.new_batch`. The batch has no delivery deadline."""
        batch = Batch(topic, room, float("inf"), self.passing)
        batch.spool = self
        return batch

    def cork(self) -> None:
        """Do nothing: the disk thread writes batches while the I/O thread works."""

    def offered(self) -> None:
        """Notify the disk thread of a closed batch."""
        with self.lock:
            self.work.notify()

    def await_spooled(self, batch: Batch, timeout: float | None) -> None:
        """Wait until a batch is durable here.

        Raises:
            TimeoutError: the batch is not durable after `timeout` seconds.
            TuttiError: the batch failed before it was durable.
        """
        reject_in_callback("spooled() cannot be waited for")
        self.apart()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            while batch.place is None:
                if batch.done:
                    if batch.failure is not None:
                        batch.failure.throw()
                    return
                self.close_open()
                left = limits.POLL_US_MAX / 1e6 if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    why = f": {self.no_room}" if self.no_room else ""
                    raise TimeoutError(f"the record is not durable in the spool after {timeout:g} s{why}")
                self.changed.wait(min(left, limits.POLL_US_MAX / 1e6))

    def spooled(self) -> Spooled:
        """Return the current content of the spool."""
        with self.lock:
            return Spooled(self._uncommitted(), self._uncommitted(self._earlier), self._used, self._refused, self._progress)

    def resume(self, deadline: float) -> Resume:
        """Return where the application continues: after the last committed or spooled record. Called with an open epoch.

        Raises:
            Unavailable: the disk did not write all sent records by `deadline` (monotonic).
        """
        with self.lock:
            self.close_open()
            while self.closed and not self.ended:
                if time.monotonic() >= deadline:
                    raise Unavailable(f"spool {self.path} has not written all sent records: {self.no_room or 'its disk is slow'}")
                self.changed.wait(limits.POLL_US_MAX / 1e6)
            if self.ended:
                self.check()
            left = self._uncommitted()
            return Resume(
                self.committed.sequence + left, (self._progress if left else b"") or decode_mark(self.committed.progress)[1]
            )

    def _uncommitted(self, upto: int | None = None) -> int:
        """Return the number of spooled records without an outcome, in segments up to number `upto`. Called with the lock."""
        done, aside = self.done, self._refused_ranges.items()
        return sum(
            count - (done.records if number == done.segment else 0)
            for number, count in self._counts.items()
            if number >= done.segment and (upto is None or number <= upto)
        ) - sum(after.records - before.records for before, after in aside if upto is None or after.segment <= upto)

    # -- the disk thread

    def group(self) -> list[Batch]:
        """Return the closed batches of the next write. Called with the lock."""
        group: list[Batch] = []
        size = 0
        for batch in self.closed:
            if size >= limits.SPOOL_GROUP_BYTES or len(group) >= limits.SPOOL_GROUP_BATCHES:
                break
            self._seal(batch)
            group.append(batch)
            size += batch.size
        return group

    def wrote(self, store: SpoolStore, batches: Sequence[Batch], places: Sequence[tuple[SpoolPosition, int]]) -> None:
        """Handle durable batches: release their bodies, or queue them at once for the delivery."""
        with self.lock:
            self.no_room = ""
            for batch, (place, end) in zip(batches, places, strict=True):
                self.closed.popleft()
                self.pending -= 1
                self.buffered -= batch.charge
                batch.place = place
                if self.ended:
                    self._late.append(batch)
                elif batch.callbacks is not None:
                    self._watched[place] = batch
                else:
                    self._live[place] = batch
                before = SpoolPosition(place.segment, place.records - batch.count)
                if self._may_queue(place.segment) and self.has_space(batch.size) and store.passed(before, place, end):
                    self._hand_over(batch)
                else:
                    batch.body = b""
            self._update_counts(store)
            self.roomy.notify_all()
            self.close_idle()
            self.changed.notify_all()
        self.wake()

    def _may_queue(self, segment: int) -> bool:
        return self.opened is not None and self.seek is None and segment <= self.state.sent and not self.ended

    def has_space(self, size: int) -> bool:
        """Return True if a body of that size may be read for the delivery. One body may always be read."""
        return not self.ready_bytes or self.ready_bytes + size <= self.options.buffer_bytes // 2

    def read(self, block: Block, turn: int) -> None:
        """Queue a block that was read back in that turn."""
        with self.lock:
            if turn != self.turn or self.opened is None or self.ended:
                return
            batch = self._batch_of(block)
            batch.body, batch.progress, batch.crc = block.body, block.progress, block.crc
            batch.raw_length, batch.size = block.raw_length, len(block.body)
            batch.min_timestamp, batch.max_timestamp = block.min_timestamp, block.max_timestamp
            if block.flags != self._flags:
                # Another run may have used more compression, without which the batch could exceed the frame limit.
                batch.codec = compression_of(block.flags)
            self._hand_over(batch)
        self.wake()

    def _hand_over(self, batch: Batch) -> None:
        batch.charge = batch.size
        self.ready_bytes += batch.charge
        self.queue.append(batch)

    def refused(self, store: SpoolStore, block: Block, failure: Failure) -> None:
        """Fail a batch that the log refused, after it was written to `refused/`."""
        with self.lock:
            self.refusals.pop(block.place, None)
            batch = self._batch_of(block)
            self._refused += block.count
            batch.first_sequence = 0
            batch.settle(OFFSET_UNKNOWN, failure)
            self._update_counts(store)
        LOG.error(
            "%d records of producer %s to topic %s were refused and are kept in %s/refused: %s",
            block.count, self.state.producer, block.topic, self.path, failure.error,
        )  # fmt: skip
        self.finished([batch])
        batch.announce()

    def without(self, block: Block) -> tuple[SpoolPosition, tuple[SpoolPosition, ...]]:
        """Return the values of `done` and `aside` after this batch is skipped. The state is unchanged."""
        with self.lock:
            aside = {**self._refused_ranges, block.before: block.place}
            done = advance_over_refused(self.done, aside, self._counts)
            return done, tuple(sorted(before for before, after in aside.items() if after > done))

    def put_aside(self, block: Block) -> None:
        """Skip a batch, which is noted durably."""
        with self.lock:
            self._refused_ranges[block.before] = block.place
            self._move_done(self.done)
            self._recount()

    def uncommitted(self) -> int:
        """Return the number of records that the log does not have yet.

        After `close`, `undelivered` counts fewer: the disk thread gives their outcome to the records that it leaves in the spool.
        """
        with self.lock:
            return self._uncommitted() + sum(batch.count for batch in self.closed) + self._open_records()

    def _recount(self) -> None:
        self.pending_records = self._uncommitted() + sum(batch.count for batch in self.closed)

    def _batch_of(self, block: Block) -> Batch:
        """Return the batch that receipts refer to, or a new one for the block. Called with the lock."""
        batch = self._watched.get(block.place) or self._live.get(block.place)
        if batch is None:
            batch = Batch(block.topic, 0, float("inf"), self.passing)
            batch.place, batch.whole, batch.count = block.place, block.whole, block.count
        return batch

    def pruned(self, store: SpoolStore) -> None:
        """Update the counts after segments were deleted."""
        with self.lock:
            self._update_counts(store)
            self.roomy.notify_all()

    def lacks_room(self, error: DiskFull) -> None:
        """Store the error of a full disk, on which closed batches wait."""
        with self.lock:
            self.no_room = str(error)

    def fall(self, error: TuttiError) -> None:
        """Mark the spool as unusable."""
        with self.lock:
            self.broken = self.broken or error
            self.roomy.notify_all()
        self.wake()

    def _update_counts(self, store: SpoolStore) -> None:
        self._counts, self._used, self._progress = store.counts(), store.used, store.progress

    def await_end(self) -> None:
        """Wait for the end of the delivery. The wait is short, as the delivery checks if the spool is unusable."""
        with self.lock:
            while not self.ended:
                self.changed.wait(limits.POLL_US_MAX / 1e6)

    def leftovers(self) -> None:
        """Fail batches that were written or closed after the end of the delivery."""
        lost = Failure(self.broken or self.stopped or Unknown("the producer ended"))
        # A spooled batch fails with the error that ended the producer; a full disk concerns only batches that are not on the disk.
        reason = self.stopped if self.broken is None or isinstance(self.broken, DiskFull) else self.broken
        if reason is None or isinstance(reason, UsageError):  # the application closed the producer
            reason = Unknown(f"the producer ended before the record had an outcome: the record stays in spool {self.path}")
        kept = Failure(reason)
        with self.lock:
            batches = [*self._late, *self.closed]
            self.closed.clear()
            self._late.clear()
            self.pending, self.buffered = 0, 0
            for batch in batches:
                batch.settle(OFFSET_UNKNOWN, lost if batch.place is None else kept)
        self.finished(batches)
        for batch in batches:
            batch.announce()

    def _held(self) -> list[Batch]:
        """Return spooled batches that have receipts or callbacks."""
        return [*self._watched.values(), *self._live.values()]

    # -- the I/O thread

    def began(self, log: str, word: EpochStart) -> None:
        """Handle the begin of an epoch: read the spool from the log's position on.

        Raises:
            Refused: the log and the spool do not belong together.
        """
        with self.lock:
            place = committed_position(msgspec.structs.replace(self.state, known=self.known, done=self.done), word, self._counts)
            self.word, self.log, self.known = word, log, place
            self._move_done(place)
            self.go_back(self.done)
            for refused in [refused for refused in self.refusals if refused <= place]:
                del self.refusals[refused]
            self._recount()

    def reached(self) -> tuple[SpoolPosition, SpoolPosition]:
        """Return the position up to which the log has the spool, and the position up to which all batches have outcomes."""
        with self.lock:
            return self.known, self.done

    def _move_done(self, place: SpoolPosition) -> None:
        """Advance `done` to that position, and over refused batches that follow."""
        self.done = advance_over_refused(max(self.done, place), self._refused_ranges, self._counts)
        for before in [before for before, after in self._refused_ranges.items() if after <= self.done]:
            del self._refused_ranges[before]

    def go_back(self, place: SpoolPosition) -> None:
        """Clear the queue, and read the spool again from that position."""
        with self.lock:
            for batch in self.queue:
                self.ready_bytes -= batch.charge
                batch.body, batch.first_sequence = b"", 0
            self.queue.clear()
            self.turn += 1
            self.seek = place
            self.work.notify()

    def let_go(self, batches: Iterable[Batch]) -> None:
        """Release the bodies of batches that were sent and did not commit. They are read again."""
        with self.lock:
            for batch in batches:
                self.ready_bytes -= batch.charge
                batch.body = b""

    def finished(self, batches: Iterable[Batch], committed: Resume | None = None) -> None:
        """See `Accumulator.finished`. Committed batches are also done in the spool."""
        with self.lock:
            if committed is not None:
                self.committed = committed
            for batch in batches:
                if batch.failure is None or self.ended:  # a refused batch was skipped, and is not counted any more
                    self.pending_records = max(0, self.pending_records - batch.count)
                if batch.body and batch.place is not None:
                    self.ready_bytes -= batch.charge
                if batch.failure is not None:
                    self._keep_failure(batch.failure)
                if batch.place is not None and not self.ended:
                    if batch.failure is None:
                        self.known = max(self.known, batch.place)
                        self._move_done(batch.place)
                    self._live.pop(batch.place, None)
                    self._watched.pop(batch.place, None)
                batch.finish()
            self.work.notify()
            self.roomy.notify_all()
            self.close_idle()
            self.changed.notify_all()

    def set_opened(self, opened: Resume | None) -> None:
        """See `Accumulator.set_opened`; also wakes the disk thread."""
        with self.lock:
            super().set_opened(opened)
            self.work.notify()

    def seize(self, stop: TuttiError | None, ended: bool = False) -> list[Batch]:
        """See `Accumulator.seize`, at the end of the producer. The disk thread still writes closed batches."""
        with self.lock:
            self.stopped, self.ended = self.stopped if self.ended else stop, ended
            self.close_open()
            taken = {id(batch): batch for batch in (*self.queue, *self._held()) if not batch.settled}
            self.queue.clear()
            self.pending_records = 0  # a record without a receipt has no observable outcome
            self.work.notify()
            self.changed.notify_all()
            self.roomy.notify_all()
            return list(taken.values())

    def close(self) -> None:
        """See `Accumulator.close`."""
        with self.lock:
            super().close()
            self.work.notify()

    def orphan(self, batches: Iterable[Batch], parent: int) -> None:
        """See `Accumulator.orphan`."""
        self.release()
        super().orphan([*batches, *self.closed, *self._held()], parent)
        self.work = threading.Condition(self.lock)
        self.closed.clear()
        self._live.clear()
        self._watched.clear()

    def _keep_failure(self, failure: Failure) -> None:
        if type(failure.error) is not Unknown:  # a record that is `Unknown` is safe in the spool
            super()._keep_failure(failure)


def _check_progress_size(progress: bytes) -> None:
    if len(progress) > APPLICATION_PROGRESS_BYTES_MAX:
        raise UsageError(f"progress has {len(progress)} bytes; with a spool, at most {APPLICATION_PROGRESS_BYTES_MAX} are allowed")
