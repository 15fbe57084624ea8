"""Spool: the stage between an accumulator and the delivery, which writes closed batches to the disk before they are sent.

Rules
- The disk thread writes the closed batches in the accumulator's `queue`. The delivery sends the batches in the spool's `queue`.
- The delivery gets a batch only after the batch is durable in the spool, and only in an open epoch.
- The batches in `queue` directly follow the batches in the window. While the delivery keeps up, the disk thread queues batches as
  soon as they are written. When the delivery lags, the disk thread reads batches back. Only batches in `queue` and in the window
  have a body in memory. Other batches are in memory only while a receipt or callback refers to them.
- At the start of each epoch, reading restarts at the position that the log reports (`began`). `restarts` counts these restarts, so
  that the spool can drop blocks that were read before a restart.
- The accumulator's lock guards the state of accumulator and spool, so that a record that moves between them is always counted once.
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
from tutti.batching.receipt import Batch, Failure, Resume, Spooled, SpoolPosition, reject_in_callback
from tutti.common.stats import records_text
from tutti.data.client_protocol import OFFSET_UNKNOWN
from tutti.data.frames.schema import compression_flags, compression_of
from tutti.errors import BufferFull, DiskFull, TuttiError, Unavailable, Unknown, UsageError
from tutti.spool.block_format import Block
from tutti.spool.commit_mark import EpochStart, State, advance_over_refused, committed_position, decode_mark
from tutti.spool.store import SpoolStore

LOG = logging.getLogger("tutti.client")


class Spool:
    """The state of a spool between the accumulator, the disk thread and the delivery.

    The accumulator's counts `pending` and `buffered` omit durable batches. Its count `pending_records` includes the uncommitted
    records in the spool.

    Attributes:
        accumulator: contains the records until they are durable in the spool.
        work: condition that wakes the disk thread.
        queue: durable batches for the delivery, in order, which follow the batches in the window.
        done: position up to which all records are committed or refused.
        known: position up to which the log is known to contain the spooled records.
        seek: position at which the disk thread must restart reading (None: it has restarted).
        ready_bytes: bytes of bodies in the queue and in the window.
        broken: the error that makes the spool unusable (None: the spool is usable).
        disk_full: the error of a full disk; empty otherwise.
        epoch_start: the log's report at the start of the epoch.
        log: uuid of the log that has the records.
        refusals: failures of refused batches that are not in `refused/` yet, by position.
        release: function that closes the directory.
    """

    remedy = "enlarge spool_bytes, or buffer_bytes"

    def __init__(self, accumulator: Accumulator, store: SpoolStore, spool_bytes: int) -> None:
        """Use the content of the store, and take the closed batches of the accumulator from now on."""
        self.accumulator = accumulator
        accumulator.spool = self
        self.work = threading.Condition(accumulator.lock)
        self.queue: collections.deque[Batch] = collections.deque()
        self.path = store.path
        self.done, self.known = store.state.done, store.state.known
        self.restarts = 0
        self.seek: SpoolPosition | None = None
        self.ready_bytes = 0
        self.broken: TuttiError | None = None
        self.disk_full = ""
        self.epoch_start = EpochStart()
        self.log = store.state.log
        self.refusals: dict[SpoolPosition, Failure] = {}
        self.release: Callable[[], None] = do_nothing
        self._store = store
        self._spool_bytes = spool_bytes
        self._flags = compression_flags(accumulator.options.compression)
        self._live: weakref.WeakValueDictionary[SpoolPosition, Batch] = weakref.WeakValueDictionary()
        # Spooled batches with callbacks, which stay in memory until their outcome, even without a receipt.
        self._watched: dict[SpoolPosition, Batch] = {}
        self._counts = store.counts()
        self._late: list[Batch] = []  # batches that were written after the end of the producer
        self._earlier = max(self._counts, default=0)  # number of the last segment of earlier runs
        self._used = store.used
        self._progress = store.progress
        self._refused = 0
        self._refused_ranges: dict[SpoolPosition, SpoolPosition] = {}  # refused batches above `done`: start -> end
        accumulator.pending_records = self._uncommitted()

    @property
    def state(self) -> State:
        """The state in `spool.json`."""
        return self._store.state

    # -- for the accumulator

    def exceeded_limit(self, need: int) -> str:
        """Return a text that names the exceeded limit of the buffer or of the spool. See `Accumulator.exceeded_limit`."""
        accumulator = self.accumulator
        buffered, limit = accumulator.buffered, accumulator.options.buffer_bytes
        waiting = buffered + need
        # On a full disk, let at most one batch wait in memory, because more records would only delay the error.
        if self.disk_full and waiting > accumulator.options.batch_bytes:
            return self.disk_full
        if buffered and waiting > limit:
            return f"{buffered} bytes wait for the disk, and {need} more exceed buffer_bytes={limit}"
        if accumulator.pending_records and self._used + waiting > self._spool_bytes:
            what = f"spool {self.path} has {self._used} uncommitted bytes"
            return f"{what}, and {need} more exceed spool_bytes={self._spool_bytes}"
        # Limit the batches with callbacks, because they stay in memory until their outcome, even during a long outage.
        if len(self._watched) >= limits.SPOOL_WATCHED_MAX:
            return f"{len(self._watched)} batches with callbacks have no outcome yet, which is the limit"
        return ""

    def watch(self, batch: Batch) -> None:
        """See `SpoolWait.watch`. `wrote` handles a batch that is not in the spool yet."""
        with self.accumulator.lock:
            position = batch.spool_position
            if position is not None and self._live.pop(position, None) is not None:
                self._watched[position] = batch

    def wake_disk_thread(self) -> None:
        """Wake the disk thread, because a batch is closed or the producer ends."""
        with self.accumulator.lock:
            self.work.notify()

    # -- the application's threads

    def await_spooled(self, batch: Batch, timeout: float | None) -> None:
        """Wait until a batch is durable in the spool.

        Raises:
            TimeoutError: the batch is not durable after `timeout` seconds.
            TuttiError: the batch failed before it was durable.
        """
        accumulator = self.accumulator
        reject_in_callback("spooled() cannot be waited for")
        accumulator.reject_reentry()
        deadline = None if timeout is None else time.monotonic() + timeout
        with accumulator.lock:
            while batch.spool_position is None:
                if batch.done:
                    if batch.failure is not None:
                        batch.failure.throw()
                    return
                accumulator.close_open()
                left = limits.POLL_US_MAX / 1e6 if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    why = f": {self.disk_full}" if self.disk_full else ""
                    raise TimeoutError(f"the record is not durable in the spool after {timeout:g} s{why}")
                accumulator.changed.wait(min(left, limits.POLL_US_MAX / 1e6))

    def spooled(self) -> Spooled:
        """Return the current content of the spool."""
        with self.accumulator.lock:
            return Spooled(self._uncommitted(), self._uncommitted(self._earlier), self._used, self._refused, self._progress)

    def resume(self, deadline: float) -> Resume:
        """Return the point at which the application continues: after the last committed or spooled record. Needs an open epoch.

        Raises:
            Unavailable: at `deadline` (monotonic), not all accepted records are written to the disk.
        """
        accumulator = self.accumulator
        with accumulator.lock:
            accumulator.close_open()
            while accumulator.queue and not accumulator.ended:
                if time.monotonic() >= deadline:
                    raise Unavailable(f"spool {self.path} has not written all sent records: {self.disk_full or 'its disk is slow'}")
                accumulator.changed.wait(limits.POLL_US_MAX / 1e6)
            if accumulator.ended:
                accumulator.check()
            # Count spooled records as committed: they get the sequences after the last committed one.
            left, committed = self._uncommitted(), accumulator.committed
            return Resume(committed.sequence + left, (self._progress if left else b"") or decode_mark(committed.progress)[1])

    def uncommitted(self) -> int:
        """Return the number of accepted records that are not known to be committed, in the spool and in memory.

        After the end of the producer, `Accumulator.undelivered` is lower, because records that stay in the spool have failed.
        """
        with self.accumulator.lock:
            return self._uncommitted() + sum(batch.count for batch in self.accumulator.queue) + self.accumulator.open_records()

    def _uncommitted(self, upto: int | None = None) -> int:
        """Return the number of spooled records without an outcome, in all segments or up to number `upto`. Called with the lock."""
        done, aside = self.done, self._refused_ranges.items()
        return sum(
            count - (done.records if number == done.segment else 0)
            for number, count in self._counts.items()
            if number >= done.segment and (upto is None or number <= upto)
        ) - sum(after.records - before.records for before, after in aside if upto is None or after.segment <= upto)

    # -- the disk thread

    def may_write(self) -> bool:
        """Return True if a closed batch is waiting and the spool has space for it. Called with the lock."""
        queue = self.accumulator.queue
        return bool(queue) and self._accepts(queue[0].charge)

    def _accepts(self, size: int) -> bool:
        # `send` checks the limits of the spool before it accepts a batch, unless batches may wait for space in the spool.
        if not self.accumulator.options.overflow_bytes or not self._uncommitted():
            return True
        return self._used + size <= self._spool_bytes and len(self._watched) < limits.SPOOL_WATCHED_MAX

    def group(self) -> list[Batch]:
        """Return the closed batches for the next write, encoded. Called with the lock."""
        group: list[Batch] = []
        size = 0
        for batch in self.accumulator.queue:
            if size >= limits.SPOOL_GROUP_BYTES or len(group) >= limits.SPOOL_GROUP_BATCHES:
                break
            if not self._accepts(size + batch.charge):
                break
            self.accumulator.seal(batch)
            group.append(batch)
            size += batch.size
        return group

    def wrote(self, store: SpoolStore, batches: Sequence[Batch], positions: Sequence[tuple[SpoolPosition, int]]) -> None:
        """Handle durable batches: queue each for the delivery if it is the next one, else release its body."""
        accumulator = self.accumulator
        with accumulator.lock:
            self.disk_full = ""
            for batch, (position, end) in zip(batches, positions, strict=True):
                accumulator.queue.popleft()
                accumulator.pending -= 1
                accumulator.buffered -= batch.charge
                batch.spool_position = position
                if accumulator.ended:
                    self._late.append(batch)
                elif batch.callbacks is not None or batch.calls is not None:
                    self._watched[position] = batch
                else:
                    self._live[position] = batch
                before = SpoolPosition(position.segment, position.records - batch.count)
                # `skip` returns False if the cursor lags; then the batch is read back later, after earlier batches.
                if self._may_queue(position.segment) and self.has_space(batch.size) and store.skip(before, position, end):
                    self._enqueue(batch)
                else:
                    batch.body = b""
            self._update_counts(store)
            accumulator.space_freed.notify_all()
            accumulator.close_idle()
            accumulator.changed.notify_all()
        accumulator.wake()

    def _may_queue(self, segment: int) -> bool:
        accumulator = self.accumulator
        return accumulator.opened is not None and self.seek is None and segment <= self.state.sent and not accumulator.ended

    def has_space(self, size: int) -> bool:
        """Return True if the queue has space for a body of that size. An empty queue accepts a body of any size."""
        return not self.ready_bytes or self.ready_bytes + size <= self.accumulator.options.buffer_bytes // 2

    def read(self, block: Block, restarts: int) -> None:
        """Queue a block that was read back. `restarts` is the value of `self.restarts` when the block was read."""
        with self.accumulator.lock:
            # Drop the block if an epoch began or ended since the disk thread read it.
            if restarts != self.restarts or self.accumulator.opened is None or self.accumulator.ended:
                return
            batch = self._batch_of(block)
            batch.body, batch.progress, batch.crc = block.body, block.progress, block.crc
            batch.raw_length, batch.size = block.raw_length, len(block.body)
            batch.min_timestamp, batch.max_timestamp = block.min_timestamp, block.max_timestamp
            if block.flags != self._flags:
                # Keep the compression of an earlier run, because the batch could exceed the frame limit without it.
                batch.codec = compression_of(block.flags)
            self._enqueue(batch)
        self.accumulator.wake()

    def _enqueue(self, batch: Batch) -> None:
        batch.charge = batch.size
        self.ready_bytes += batch.charge
        self.queue.append(batch)

    def refused(self, store: SpoolStore, block: Block, failure: Failure) -> None:
        """Fail a batch that a gateway refused and that is now in `refused/`."""
        with self.accumulator.lock:
            self.refusals.pop(block.position, None)
            batch = self._batch_of(block)
            self._refused += block.count
            batch.first_sequence = 0
            batch.resolve(OFFSET_UNKNOWN, failure)
            self._update_counts(store)
        LOG.error(
            "producer %r: the gateway refused %s to topic %r, which %s/refused keeps: %s",
            self.state.producer, records_text(block.count), block.topic, self.path, failure.error,
        )  # fmt: skip
        self.finished([batch])
        batch.announce()

    def state_without(self, block: Block) -> tuple[SpoolPosition, tuple[SpoolPosition, ...]]:
        """Return the values that `done` and `aside` will have when the refused batch in `block` is skipped."""
        with self.accumulator.lock:
            aside = {**self._refused_ranges, block.before: block.position}
            done = advance_over_refused(self.done, aside, self._counts)
            return done, tuple(sorted(before for before, after in aside.items() if after > done))

    def skip_refused(self, block: Block) -> None:
        """Skip a refused batch, whose refusal is already durable."""
        with self.accumulator.lock:
            self._refused_ranges[block.before] = block.position
            self._move_done(self.done)
            self._recount()

    def _recount(self) -> None:
        accumulator = self.accumulator
        accumulator.pending_records = self._uncommitted() + sum(batch.count for batch in accumulator.queue)

    def _batch_of(self, block: Block) -> Batch:
        """Return the batch object of a block: the one in its receipts, or a new one. Called with the lock."""
        # If the application still has receipts, use their batch object, because outcomes must be set on it.
        batch = self._watched.get(block.position) or self._live.get(block.position)
        if batch is None:
            batch = Batch(block.topic, 0, float("inf"), self.accumulator.query_wait)
            batch.spool_position, batch.atomic, batch.count = block.position, block.atomic, block.count
        return batch

    def pruned(self, store: SpoolStore) -> None:
        """Update the counts, because segments were deleted."""
        with self.accumulator.lock:
            self._update_counts(store)
            self.accumulator.space_freed.notify_all()
            self.accumulator.changed.notify_all()

    def set_disk_full(self, error: DiskFull) -> None:
        """Store the error of a full disk, so that `send` can report it. Closed batches wait until the disk has space."""
        with self.accumulator.lock:
            self.disk_full = str(error)

    def fail(self, error: TuttiError) -> None:
        """Mark the spool as unusable."""
        with self.accumulator.lock:
            self.broken = self.broken or error
            self.accumulator.space_freed.notify_all()
        self.accumulator.wake()

    def _update_counts(self, store: SpoolStore) -> None:
        self._counts, self._used, self._progress = store.counts(), store.used, store.progress

    def await_end(self) -> None:
        """Wait for the end of the delivery, which comes soon, because the delivery ends when the spool is unusable."""
        accumulator = self.accumulator
        with accumulator.lock:
            while not accumulator.ended:
                accumulator.changed.wait(limits.POLL_US_MAX / 1e6)

    def fail_unsent(self) -> None:
        """Fail batches that were written or closed after the end of the delivery."""
        accumulator = self.accumulator
        stopped = accumulator.stopped
        closed = isinstance(stopped, UsageError)  # the application closed the producer
        full = BufferFull(f"the producer was closed while the record waited for space in spool {self.path}: it was not sent")
        lost = Failure(self.broken or (full if closed else stopped) or Unknown("the producer ended"))
        # A full disk is the reason only for batches that are not on the disk; others fail with the error that ended the producer.
        reason = stopped if self.broken is None or isinstance(self.broken, DiskFull) else self.broken
        if reason is None or isinstance(reason, UsageError):
            reason = Unknown(f"the producer ended before the record had an outcome: the record stays in spool {self.path}")
        kept = Failure(reason)
        with accumulator.lock:
            # The batches in `_late` are on the disk, and the next run sends them; the batches in the queue are lost.
            batches = [*self._late, *accumulator.queue]
            accumulator.queue.clear()
            self._late.clear()
            accumulator.pending, accumulator.buffered = 0, 0
            for batch in batches:
                batch.resolve(OFFSET_UNKNOWN, lost if batch.spool_position is None else kept)
        self.finished(batches)
        for batch in batches:
            batch.announce()

    def _referenced(self) -> list[Batch]:
        """Return the spooled batches that have receipts or callbacks."""
        return [*self._watched.values(), *self._live.values()]

    # -- the I/O thread

    def head(self) -> Batch | None:
        """Return the next batch to send, with its body; None if no batch is ready."""
        return self.queue[0] if self.queue else None

    def began(self, log: str, start: EpochStart) -> None:
        """Handle the start of an epoch: read the spool again from the position that the log reports.

        Raises:
            Refused: the log and the spool do not belong together.
        """
        with self.accumulator.lock:
            state = msgspec.structs.replace(self.state, known=self.known, done=self.done)
            position = committed_position(state, start, self._counts)
            self.epoch_start, self.log, self.known = start, log, position
            self._move_done(position)
            # Also read the queue's batches again: they must follow the window's batches, which are read again from the disk.
            self.rewind(self.done)
            for refused in [refused for refused in self.refusals if refused <= position]:
                del self.refusals[refused]
            self._recount()

    def reached(self) -> tuple[SpoolPosition, SpoolPosition]:
        """Return `known` (the log contains all records up to it) and `done` (all batches up to it have outcomes)."""
        with self.accumulator.lock:
            return self.known, self.done

    def _move_done(self, position: SpoolPosition) -> None:
        """Advance `done` to that position, and then over the refused batches that follow."""
        self.done = advance_over_refused(max(self.done, position), self._refused_ranges, self._counts)
        for before in [before for before, after in self._refused_ranges.items() if after <= self.done]:
            del self._refused_ranges[before]

    def rewind(self, position: SpoolPosition) -> None:
        """Clear the queue, and let the disk thread read the spool again from that position."""
        with self.accumulator.lock:
            # Release only the bodies, which are also on the disk; receipts still refer to the batch objects.
            for batch in self.queue:
                self.ready_bytes -= batch.charge
                batch.body, batch.first_sequence = b"", 0
            self.queue.clear()
            self.restarts += 1
            self.seek = position
            self.work.notify()

    def release_bodies(self, batches: Iterable[Batch]) -> None:
        """Release the bodies of batches that were sent and did not commit, because the disk thread reads them again."""
        with self.accumulator.lock:
            for batch in batches:
                self.ready_bytes -= batch.charge
                batch.body = b""

    def finished(self, batches: Iterable[Batch], committed: Resume | None = None) -> None:
        """Record and publish outcomes, as `Accumulator.finished` does; also advance `known` and `done`."""
        accumulator = self.accumulator
        with accumulator.lock:
            ended = accumulator.ended
            if committed is not None:
                accumulator.committed = committed
            for batch in batches:
                accumulator.totals.add_outcome(batch.count, batch.charge, failed=batch.failure is not None)
                # Do not subtract a refused batch here, because `skip_refused` has already removed it from the count.
                if batch.failure is None or ended:
                    accumulator.pending_records = max(0, accumulator.pending_records - batch.count)
                # `ready_bytes` counts only batches with a body, that is, in the queue or in the window.
                if batch.body and batch.spool_position is not None:
                    self.ready_bytes -= batch.charge
                # Do not report `Unknown` at the end of the `with` block, because the record is safe in the spool.
                if batch.failure is not None and type(batch.failure.error) is not Unknown:
                    accumulator.keep_failure(batch.failure)
                if batch.spool_position is not None and not ended:
                    if batch.failure is None:
                        self.known = max(self.known, batch.spool_position)
                        self._move_done(batch.spool_position)
                    # The batch has its outcome, so `_batch_of` must not return it for a later block.
                    self._live.pop(batch.spool_position, None)
                    self._watched.pop(batch.spool_position, None)
                batch.finish()
            self.work.notify()
            accumulator.space_freed.notify_all()
            accumulator.close_idle()
            accumulator.changed.notify_all()

    def set_opened(self, opened: Resume | None) -> None:
        """Record the start or end of an epoch. Wake the disk thread, which reads only in an open epoch."""
        with self.accumulator.lock:
            self.accumulator.set_opened(opened)
            self.work.notify()

    def drain_unsent(self, stop: TuttiError | None, ended: bool = False) -> list[Batch]:
        """Reject new records. Return all spooled batches that have receipts or callbacks but no outcome.

        Closed batches that are not spooled yet stay in the accumulator, because the disk thread still writes them.
        """
        accumulator = self.accumulator
        with accumulator.lock:
            accumulator.stopped, accumulator.ended = accumulator.stopped if accumulator.ended else stop, ended
            accumulator.close_open()
            unresolved = {id(batch): batch for batch in (*self.queue, *self._referenced()) if not batch.resolved}
            self.queue.clear()
            accumulator.pending_records = 0  # the other spooled records stay in the spool, and no thread can wait for them
            self.work.notify()
            accumulator.changed.notify_all()
            accumulator.space_freed.notify_all()
            return list(unresolved.values())

    def orphan(self, batches: Iterable[Batch], parent: int) -> None:
        """See `Accumulator.orphan`."""
        self.release()
        self.accumulator.orphan([*batches, *self.queue, *self._referenced()], parent)
        self.work = threading.Condition(self.accumulator.lock)
        self.queue.clear()
        self._live.clear()
        self._watched.clear()
