"""Accumulator: the application's threads append records to batches, and the sender sends the closed batches.

Rules
- A producer has one order over all topics. Only one batch is open at a time, and a record of another topic closes the open batch.
  Closed batches are queued in the order of closing, and sequences follow that order.
- A batch closes when it is full, when its linger is over, or when the topic changes. Without linger, the batch closes at once if no
  batch is in flight. A batch also closes between a record with `progress` and a record without, because the progress of a batch
  belongs to its last record.
- The I/O thread sends nothing while it handles answers (`cork`), so that the records which callbacks send meanwhile form one batch.
- Each record counts against the buffer until it has an outcome. When the buffer is full, `send` waits or raises `BufferFull`.
- An abort, a fence or the end of the producer removes all unsent records under `lock`. If the producer also stops accepting
  records, both happen in one step, so that no record is queued in between.

Two kinds of exclusion protect the state. `lock` guards everything except the columns of the open batch. The columns belong to the
appender (appender.py). `send` calls the appender without `lock`, which takes a third of the time. Two threads cannot run one
appender at the same time. Ctrl-C in the Python appender leaves only complete records, and Ctrl-C cannot interrupt the C appender. A
thread that holds `lock` closes the appender (`_close_appender`) before it uses the batch, and waits if another thread is appending.
`appenders` maps the topic of the open batch to the batch's appender, so that a batch gets only records of its topic. If a signal
handler interrupts these steps and calls the producer, the call would deadlock, so `reject_reentry` rejects the call.
"""

from __future__ import annotations

import collections
import copy
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from math import inf
from typing import Any, Protocol

from tutti import limits
from tutti.batching.appender import Append, Appender, open_appender
from tutti.batching.encoder import BODY_OVERHEAD_BYTES, ValidatedBatch, encode_open, encode_record_batch, largest_record
from tutti.batching.options import BatchingOptions
from tutti.batching.receipt import (
    Batch,
    Failure,
    OnDelivery,
    QueryWait,
    Receipt,
    Record,
    Resume,
    SpoolWait,
    outcome_thread,
    reject_in_callback,
)
from tutti.common.reentrancy import apart, is_from_call
from tutti.common.stats import AccumulatorTotals
from tutti.data.client_protocol import OFFSET_UNKNOWN, Welcome
from tutti.errors import Aborted, BufferFull, TooLarge, TuttiError, UsageError

_APPEND_WAIT_S = 50e-6  # pause between attempts to close the appender; longer than one append


class QuietCondition(threading.Condition):
    """A condition whose `notify_all` returns at once if nobody waits. Coroutines wait too, for `next_change()`."""

    def __init__(self, lock: threading.RLock) -> None:
        """Create a condition without waiters."""
        super().__init__(lock)
        self.lock = lock
        self.changes = 0  # number of notifications
        self.calls: dict[Callable[[], object], None] = {}  # calls to make at the next notification

    def notify_all(self) -> None:
        """See `threading.Condition.notify_all`."""
        self.changes += 1
        if self._waiters:  # type: ignore[attr-defined]  # a private attribute of Condition
            super().notify_all()
        if self.calls:
            calls, self.calls = self.calls, {}
            for call in calls:
                call()

    def next_change(self) -> Change:
        """Return the next notification as an event that a coroutine can await."""
        return Change(self, self.changes)


class Change:
    """A notification that had not happened when this object was created. So no change between a check and `await` is missed."""

    def __init__(self, condition: QuietCondition, changes: int) -> None:
        self._condition, self._changes = condition, changes

    def call_once(self, call: Callable[[], object]) -> None:
        """See `tutti.common.loop_wakeups.Event`. The thread that notifies makes the call with the condition's lock."""
        with self._condition.lock:
            if self._condition.changes == self._changes:
                self._condition.calls[call] = None
                return
        call()

    def forget_call(self, call: Callable[[], object]) -> bool:
        """Drop a call. Return False if the call was made."""
        with self._condition.lock:
            return self._condition.calls.pop(call, call) is None

    def __await__(self) -> Generator[Any, None, None]:
        """Wait in the running event loop for the notification."""
        from tutti.common.loop_wakeups import wait_for_call  # noqa: PLC0415 - only asynchronous applications load asyncio

        return wait_for_call(self)


class SpoolStage(SpoolWait, Protocol):
    """The part of a spool that an accumulator uses. The spool gets the closed batches before the sender does."""

    remedy: str

    def exceeded_limit(self, need: int) -> str:
        """Return a text that names the limit which `need` more bytes would exceed; empty if the bytes fit. Called with the lock."""

    def wake_disk_thread(self) -> None:
        """Notify the disk thread of a closed batch."""


class Accumulator:
    """Holds the records that the application's threads send, until the sender or a spool gets the closed batches."""

    def __init__(self, options: BatchingOptions, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty accumulator; `clock` returns the time that deadlines use, in seconds."""
        self.options = options
        self._clock = clock
        self.wake: Callable[[], None] = do_nothing  # function that wakes the I/O thread
        self.lock = threading.RLock()
        self.changed = QuietCondition(self.lock)
        self.space_freed = QuietCondition(self.lock)
        self.queue: collections.deque[Batch] = collections.deque()  # closed batches
        self.spool: SpoolStage | None = None  # the spool, which takes closed batches before the sender does; None without a spool
        self._no_batch = Batch("", 0, 0.0)  # placeholder while no batch is open
        self._open = self._no_batch
        self._appender: Appender | None = None  # the appender of the open batch; None while the batch has none
        self.appenders: dict[str, Append] = {}  # topic of the open batch -> appender of the open batch
        self.pending = 0  # closed batches without an outcome
        self.pinned = 0  # pending batches in lanes that get no new batches; the open batch closes without waiting for pinned ones
        self.pending_records = 0
        self.buffered = 0  # bytes of pending batches
        self.totals = AccumulatorTotals()
        self.corked = False  # True while the I/O thread handles answers and sends nothing
        self.linger_until: float | None = None
        # batches that exceed a limit and failed at once; the I/O thread still has to run their callbacks
        self.rejected: collections.deque[Batch] = collections.deque()
        self.failures: list[Failure] = []
        self.stopped: TuttiError | None = None  # the error that `send` raises at present
        self.ended = False  # True if the producer accepts no records any more
        # last committed sequence and progress at the start of the open epoch; None while no epoch is open
        self.opened: Resume | None = None
        self.committed = Resume(0, b"")
        self.uses_progress = False
        # object with which `Receipt.processed_by` waits for queries; None for unordered records, and until an epoch opens
        self.query_wait: QueryWait | None = None
        self.frame_bytes_max = limits.BODY_BYTES_MAX
        self.raw_bytes_max = limits.RAW_BYTES_MAX
        self.batch_bytes = options.batch_bytes  # size at which an open batch closes
        self._batch_records = inf  # the same limit as a number of records, because of a quota

    # -- the application's threads

    def reject_reentry(self) -> None:
        """Reject a call by a signal handler that interrupted this accumulator in the same thread, because the call would deadlock.

        Raises:
            UsageError: a signal handler makes the call. The state is unchanged.
        """
        apart(self.lock, self._appender)

    def add(self, topic: str, record: Record, progress: bytes, on_delivery: OnDelivery | None) -> Receipt:
        """Append a record under the lock: the slow path, for records that the appender does not accept.

        Raises:
            BufferFull: the buffer is full, and `on_full` is "raise" or the caller is a callback.
            TuttiError: the error that stopped the producer.
        """
        size = record.size
        if record.payload > limits.RECORD_BYTES_MAX:
            what = f"the record of {record.payload} bytes (key and value)"
            return self._failed_receipt(topic, what, limits.RECORD_BYTES_MAX, "a record", on_delivery)
        if size + BODY_OVERHEAD_BYTES > self.frame_bytes_max:
            return self._failed_receipt(topic, f"the record of {size} bytes", self.frame_bytes_max, "one batch", on_delivery)
        with self.lock:
            while True:
                if self.stopped is not None:
                    self.check()
                batch = self._open if self._appender is None else self._close_appender()
                if batch is not self._no_batch:
                    # The progress of a batch belongs to its last record, so a record without progress must not follow one with it.
                    if batch.topic == topic and batch.free_bytes >= size and (progress or not batch.progress):
                        try:
                            receipt = batch.append(record, progress, on_delivery)
                        except BaseException:
                            batch.discard_partial()
                            raise
                        break
                    self.close_open()
                # A batch has a limit of bytes only, so the first record stands for the size of all records.
                need = max(size, int(min(self.batch_bytes, self._batch_records * size)))
                # After a wait, try to append first, because another thread may have opened a batch during the wait.
                if not (self.exceeded_limit(need) and self._await_space(need)):
                    self._open = self.new_batch(topic, need)
            if progress:
                self.uses_progress = True
            if self.options.linger > 0:
                if receipt.index == 0:
                    self.linger_until = self._clock() + self.options.linger
                    self.wake()
            # No batch is in flight, so a wait for more records would only add latency.
            elif self.pending <= self.pinned and not self.corked:
                self.close_open()
                return receipt
            # Most batches that callbacks open get no second record, so an appender would be closed at once.
            if receipt.index or not self.corked:
                self._open_appender()
            return receipt

    def add_batch(self, topic: str, records: ValidatedBatch, progress: bytes, on_delivery: OnDelivery | None) -> Receipt:
        """Queue a record batch as one frame.

        Raises:
            BufferFull, TuttiError: as `add`.
        """
        batch = self.new_batch(topic, 0)
        batch.progress = progress
        encode_record_batch(batch, records, self.options.compression)
        what = f"the record batch of {batch.count} records"
        if batch.size > self.frame_bytes_max:
            what += f" ({batch.size} bytes encoded)"
            return self._failed_receipt(topic, what, self.frame_bytes_max, "one batch: slice it", on_delivery, batch.count)
        if batch.raw_length > self.raw_bytes_max:
            what += f" ({batch.raw_length} bytes without compression)"
            return self._failed_receipt(topic, what, self.raw_bytes_max, "one batch: slice it", on_delivery, batch.count)
        if batch.raw_length > limits.RECORD_BYTES_MAX and (largest := largest_record(records.batch)) > limits.RECORD_BYTES_MAX:
            what += f" (one of {largest} bytes, key and value)"
            return self._failed_receipt(topic, what, limits.RECORD_BYTES_MAX, "a record", on_delivery, batch.count)
        return self.add_closed(batch, on_delivery)

    def add_closed(self, batch: Batch, on_delivery: OnDelivery | None = None) -> Receipt:
        """Queue a batch that has its body, after all earlier records. Raises as `add`."""
        receipt = Receipt(batch, 0)
        batch.charge = batch.size
        with self.lock:
            self.check()
            self.close_open()
            while self._await_space(batch.charge):
                self.close_open()  # during the wait, another thread may have opened a batch, which must be sent first
            if on_delivery is not None:
                batch.callbacks = [receipt, on_delivery]
            if batch.progress:
                self.uses_progress = True
            self.pending += 1
            self.pending_records += batch.count
            self.buffered += batch.charge
            self.totals.add_sent(batch.count, batch.charge)
            self.queue.append(batch)
            self._notify_consumer()
        return receipt

    def _failed_receipt(
        self, topic: str, what: str, limit: int, scope: str, on_delivery: OnDelivery | None, count: int = 0
    ) -> Receipt:
        """Return a receipt that has failed with `TooLarge`. The I/O thread runs the callback, as for other failures."""
        batch = Batch(topic, 0, 0.0, self.query_wait)
        batch.atomic, batch.count = bool(count), count or 1
        receipt = Receipt(batch, 0)
        failure = Failure(TooLarge(f"{what} for topic {topic!r} exceeds the limit of {limit} bytes for {scope}; nothing was sent"))
        with self.lock:
            self.check()
            if on_delivery is not None:
                batch.callbacks = [receipt, on_delivery]
            batch.resolve(OFFSET_UNKNOWN, failure)
            batch.finish()
            self.keep_failure(failure)
            self.totals.add_sent(batch.count, 0)
            self.totals.add_outcome(batch.count, 0, failed=True)
            self.rejected.append(batch)
        self.wake()
        return receipt

    def set_limits(self, welcome: Welcome) -> None:
        """Take the limits of a gateway. With a quota, a batch has at most what the quota allows in `QUOTA_BATCH_US`."""
        self.frame_bytes_max = min(welcome.frame_bytes_max, limits.BODY_BYTES_MAX)
        self.raw_bytes_max = min(welcome.raw_bytes_max, limits.RAW_BYTES_MAX)
        share = limits.QUOTA_BATCH_US / 1e6
        quota_bytes = welcome.bytes_per_s * share if welcome.bytes_per_s else inf
        self.batch_bytes = int(min(self.options.batch_bytes, quota_bytes))
        self._batch_records = max(1, int(welcome.records_per_s * share)) if welcome.records_per_s else inf

    def check(self) -> None:
        """Raise the error that stopped the producer; do nothing if the producer is not stopped. Called with the lock."""
        # Raise a copy, because each raise would add a traceback to the one exception object.
        if self.stopped is not None:
            raise copy.copy(self.stopped)

    def _close_appender(self) -> Batch:
        """Close the appender and return the open batch, for exclusive use by the caller. Called with the lock."""
        self.appenders.clear()
        # From here on, no thread can start an append, but another thread may still be inside one.
        while self._appender is not None:
            try:
                self._appender.close()
                self._appender = None
            except ValueError as error:  # another thread is appending
                if not is_from_call(error):
                    raise
                time.sleep(_APPEND_WAIT_S)
        return self._open

    def _open_appender(self) -> None:
        """Allow appends without the lock, unless the batch has progress: then only records with progress may follow."""
        batch = self._open
        if not batch.progress:
            self._appender, self.appenders[batch.topic] = open_appender(batch)

    def new_batch(self, topic: str, free_bytes: int) -> Batch:
        """Return an empty open batch for `free_bytes` bytes. Its delivery deadline counts from now; a spooled batch has none."""
        deadline = self._clock() + self.options.delivery_timeout if self.spool is None else inf
        batch = Batch(topic, free_bytes, deadline, self.query_wait)
        batch.spool = self.spool
        return batch

    def _await_space(self, need: int) -> bool:
        """Wait until the buffer has `need` free bytes. Return True if the caller had to wait. Called with the lock."""
        waited = False
        while exceeded := self.exceeded_limit(need):
            if not self.options.block or getattr(outcome_thread, "here", False):
                if self.options.overflow_bytes:
                    raise BufferFull(f"{exceeded}: call `await producer.drain()` between records, or await the receipts")
                why = "on_full is 'raise'" if not self.options.block else "on_delivery runs in the thread that frees the buffer"
                remedy = "enlarge buffer_bytes" if self.spool is None else self.spool.remedy
                raise BufferFull(f"{exceeded}, and {why}: retry later, or {remedy}")
            self.space_freed.wait(limits.POLL_US_MAX / 1e6)
            waited = True
            self.check()
        return waited

    def exceeded_limit(self, need: int) -> str:
        """Return a text that names the limit which `need` more bytes would exceed; empty if the bytes fit. Called with the lock."""
        overflow = self.options.overflow_bytes
        if overflow:
            limit = self.options.buffer_bytes + overflow
            if self.buffered and self.buffered + need > limit:
                return f"{self.buffered} bytes have no outcome yet, and the limit is buffer_bytes + {overflow} = {limit}"
            return ""
        if self.spool is not None:
            return self.spool.exceeded_limit(need)
        # An empty buffer accepts a batch of any size, because a batch above the buffer's size could otherwise never be sent.
        if self.buffered and self.buffered + need > self.options.buffer_bytes:
            limit = self.options.buffer_bytes
            return f"{self.buffered} bytes have no outcome yet, and {need} more exceed buffer_bytes={limit}"
        return ""

    def overflows(self) -> bool:
        """Return True if closed batches wait for space in the buffer or in the spool, as `overflow_bytes` allows."""
        with self.lock:
            return self.buffered > self.options.buffer_bytes or (self.spool is not None and bool(self.spool.exceeded_limit(0)))

    def has_reserve(self) -> bool:
        """Return True if a quarter of the buffer is free and the spool is not full, or if the producer has ended."""
        with self.lock:
            if self.buffered > self.options.buffer_bytes * 3 // 4:
                return self.ended
            return self.ended or self.spool is None or not self.spool.exceeded_limit(0)

    def _notify_consumer(self) -> None:
        """Wake the I/O thread (with a spool, the disk thread), because a batch is closed."""
        if self.spool is None:
            self.wake()
        else:
            self.spool.wake_disk_thread()

    def close_open(self) -> None:
        """Close the open batch and queue it if it has records. Called with the lock."""
        self.linger_until = None
        batch = self._open if self._appender is None else self._close_appender()
        batch.count = len(batch.values)
        batch.charge = batch.size - batch.free_bytes
        # No signal handler can run between here and `queue.append`, because these lines call no Python function.
        self._open = self._no_batch
        if batch.count:
            self.pending += 1
            self.pending_records += batch.count
            self.buffered += batch.charge
            self.queue.append(batch)
            encode_open(batch, self.options.compression)
            self.totals.add_sent(batch.count, batch.charge)
            self._notify_consumer()

    def seal(self, batch: Batch) -> None:
        """Encode a closed batch, unless it has its body already."""
        if not batch.body and not batch.done:
            encode_open(batch, self.options.compression)

    def undelivered(self) -> int:
        """Return the number of records without an outcome."""
        with self.lock:
            return self.pending_records + self.open_records()

    def open_records(self) -> int:
        """Return the number of records in the open batch, possibly without a record that another thread is appending."""
        return len(self._open.values)

    def flush(self, timeout: float | None) -> int:
        """Close the open batch and wait up to `timeout` seconds for all outcomes. Return the number of records without an outcome.

        Raises:
            UsageError: called in `on_delivery`.
        """
        reject_in_callback("flush() cannot be called", "flush() would wait for the thread that runs it")
        self.reject_reentry()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            self.close_open()
            while self.pending_records or self.open_records():
                left = limits.POLL_US_MAX / 1e6 if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    break
                self.changed.wait(min(left, limits.POLL_US_MAX / 1e6))
                if deadline is None or deadline > time.monotonic():
                    self.close_open()
            return self.pending_records + self.open_records()

    def wait_opened(self, deadline: float) -> Resume | None:
        """Wait for an open epoch. Return None if `deadline` (monotonic) passed first.

        Raises:
            TuttiError: the producer has ended with this error, so no epoch will open.
            UsageError: called in `on_delivery` without an open epoch.
        """
        self.reject_reentry()
        if self.opened is None:
            reject_in_callback("resume() cannot wait for an epoch")
        with self.lock:
            while self.opened is None:
                if self.ended:
                    self.check()
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self.changed.wait(min(left, limits.POLL_US_MAX / 1e6))
            return self.opened

    # -- the I/O thread

    def finished(self, batches: Iterable[Batch], committed: Resume | None = None) -> None:
        """Record the outcomes of resolved batches and publish them.

        The counts change before `done` is set, so that a thread that sees an outcome also sees the new counts.
        """
        with self.lock:
            if committed is not None:
                self.committed = committed
            for batch in batches:
                count, charge, failure = batch.count, batch.charge, batch.failure
                self.pending -= 1
                self.pending_records -= count
                self.buffered -= charge
                self.totals.add_outcome(count, charge, failed=failure is not None)
                if failure is not None:
                    self.keep_failure(failure)
                batch.finish()
            # Wake blocked senders only when a quarter of the buffer is free; waking them for each batch costs a thread switch each.
            if self.buffered <= self.options.buffer_bytes * 3 // 4:
                self.space_freed.notify_all()
            if not self.corked:
                self.close_idle()
            self.changed.notify_all()

    def cork(self) -> None:
        """Keep the open batch open until `uncork`, even if no batch is in flight. The I/O thread calls `uncork` before it sends."""
        # With a spool, the disk thread writes while the I/O thread handles answers, so a delay would gain nothing.
        self.corked = self.spool is None

    def uncork(self) -> None:
        """End the effect of `cork`: close the open batch if no batch is in flight."""
        self.corked = False
        # Test without the lock, because every wakeup runs this line.
        # The test misses no record, because `send` checks `corked` after its append.
        if self._open.values and self.pending <= self.pinned:
            self.close_idle()

    def close_idle(self) -> None:
        """Close the open batch if no batch is in flight."""
        with self.lock:
            if self.pending <= self.pinned and not self.options.linger and not self.corked:
                self.close_open()

    def head(self) -> Batch | None:
        """Return the next batch to send, with its body. Encode the batch here if Ctrl-C prevented the encoding at its close."""
        if not self.queue:
            return None
        batch = self.queue[0]
        if not batch.body:
            with self.lock:
                self.seal(batch)
        return batch

    def expire_linger(self, now: float) -> None:
        """Close the open batch if its linger is over."""
        until = self.linger_until
        if until is None or until > now:
            return
        with self.lock:
            # While this thread waited for the lock, the batch may have closed and a new one may have opened.
            if self.linger_until == until:
                self.close_open()

    def set_opened(self, opened: Resume | None) -> None:
        """Record that an epoch has opened after the committed records up to `opened`; None records the end of the epoch."""
        with self.lock:
            self.opened = opened
            if opened is not None:
                self.committed = opened
            self.changed.notify_all()

    def drain_unsent(self, stop: TuttiError | None, ended: bool = False) -> list[Batch]:
        """Remove and return all unsent batches, including the open one. With `stop`, reject new records until `lift_stop`."""
        with self.lock:
            if not self.ended:
                # `add` uses the same lock, so each record is either in the returned batches or rejected by `add`.
                self.stopped, self.ended = stop or self.stopped, ended
            self.close_open()
            batches = list(self.queue)
            self.queue.clear()
            self.changed.notify_all()
            self.space_freed.notify_all()
            return batches

    def close(self) -> None:
        """Reject new records permanently."""
        with self.lock:
            self.stopped = self.stopped if self.ended and self.stopped else UsageError("the producer is closed: open another")
            self.ended = True

    def lift_stop(self) -> None:
        """Accept records again after `resume()`. Earlier aborts count as seen, because `resume()` returns what committed."""
        with self.lock:
            for failure in self.failures:
                failure.seen = failure.seen or isinstance(failure.error, Aborted)
            if not self.ended:
                self.stopped = None

    def keep_failure(self, failure: Failure) -> None:
        """Keep a failure for `first_failure`. Called with the lock."""
        if failure in self.failures:
            return
        # At the limit, drop the failures that the application has seen; if it has seen none, drop the new failure.
        if len(self.failures) >= limits.FAILURES_KEPT_MAX:
            self.failures = [kept for kept in self.failures if not kept.seen]
        if len(self.failures) < limits.FAILURES_KEPT_MAX:
            self.failures.append(failure)

    def first_failure(self) -> Failure | None:
        """Return the first failure that the application has not seen, or None."""
        with self.lock:
            return next((failure for failure in self.failures if not failure.seen), None)

    def orphan(self, batches: Iterable[Batch], parent: int) -> None:
        """In a forked child, fail all records, because only the parent delivers."""
        self.lock = threading.RLock()
        self.changed, self.space_freed = QuietCondition(self.lock), QuietCondition(self.lock)
        error = UsageError(
            f"this Producer was opened in process {parent} and cannot be used in process {os.getpid()}, which was forked from it: "
            "open a new Producer in the child"
        )
        failure = Failure(error)
        # The parent gets the outcomes, so the end of the `with` block in the child must not raise this failure.
        failure.seen = True
        for batch in (*batches, *self.queue, *(() if self._open is self._no_batch else (self._open,))):
            batch.callbacks = batch.calls = batch.futures = None  # only the parent calls back
            if not batch.done:
                batch.resolve(OFFSET_UNKNOWN, failure)
                batch.finish()
        self.queue.clear()
        self._open, self._appender = self._no_batch, None
        self.appenders.clear()
        self.pending = self.pending_records = self.buffered = 0
        self.stopped, self.ended, self.opened = error, True, None


def do_nothing() -> None:
    """Do nothing: the default for `wake` until an I/O thread runs."""
