"""The feed: where `send()` puts records and the I/O thread takes batches from.

Rules
- One order for the whole producer, over all topics: there is one open batch, and another topic closes it. Closed batches queue up
  in the order in which they were closed; sequences follow that order.
- A batch is closed when it is full, when nothing is in flight (so that a lone record leaves at once), when the topic changes,
  behind a record with `progress` when the next has none (progress belongs to a batch's last record), or when its linger is over.
- While the I/O thread takes in what came, it sends nothing, so that a lone record waits until it is through with that (`cork`):
  all that the callbacks of one announcing send leaves as one batch, and not the first of them alone.
- What has no outcome is charged to the buffer; when that is full the sender waits, or is told.
- A stop (an abort, a fence, the end) takes everything out under the lock: no record slips in between what failed and what follows.

Two locks. `lock` guards everything but the open batch's columns. Those are its taker's, a generator (taker.py) that `send` calls
without `lock`, for a third of the time: two threads cannot be within it, and a Ctrl-C in there leaves it ended, with whole records,
and the batch where it was. (What is compiled in its place is never met in the middle.) Who has `lock` ends the taker (`_halt`) and
has the batch alone then; if another thread is in the middle of one record, it waits a moment. `takers` has it under the open
batch's topic, so that no record comes into a batch of another one. A signal handler in between would wait for its own thread:
`apart` refuses it.
"""

from __future__ import annotations

import collections
import copy
import os
import threading
import time
from collections.abc import Callable, Iterable

from tutti import limits
from tutti.batching.append import Put, Taker, take
from tutti.batching.encoder import BODY_OVERHEAD_BYTES, Conformed, encode_open, encode_whole, largest_record
from tutti.batching.options import FeedOptions
from tutti.batching.receipt import Batch, Failure, OnDelivery, QueryWait, Receipt, Record, Resume, bringer, outside
from tutti.common.reentrancy import apart, is_from_call
from tutti.data.client_protocol import OFFSET_UNKNOWN
from tutti.errors import Aborted, BufferFull, TooLarge, TuttiError, UsageError

_MOMENT_S = 50e-6  # in which a thread is through with a record


class Bell(threading.Condition):
    """A condition that costs next to nothing where nobody waits."""

    def notify_all(self) -> None:
        """As `threading.Condition.notify_all`."""
        if self._waiters:  # type: ignore[attr-defined]  # kept by Condition itself
            super().notify_all()


class Feed:
    """Records on their way from the application's threads to the I/O thread."""

    def __init__(self, options: FeedOptions, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin empty; `clock` gives the time of deadlines, seconds."""
        self.options = options
        self._clock = clock
        self.wake: Callable[[], None] = nobody  # makes the I/O thread look
        self.lock = threading.RLock()
        self.changed = Bell(self.lock)
        self.roomy = Bell(self.lock)
        self.queue: collections.deque[Batch] = collections.deque()
        self.closed = self.queue  # where batches go that were closed
        self._none = Batch("", 0, 0.0)  # in place of an open batch
        self._open = self._none
        self._taker: Taker | None = None  # that was made last
        self.takers: dict[str, Put] = {}  # what it is called by, under the open batch's topic
        self.pending = 0  # closed batches without an outcome
        self.aside = 0  # of them those that wait for a gateway which takes nothing new now
        self.pending_records = 0
        self.buffered = 0  # their bytes
        self.corked = False  # the I/O thread takes in what came, and sends nothing meanwhile
        self.linger_until: float | None = None
        self.born_failed: collections.deque[Batch] = collections.deque()  # to be announced
        self.failures: list[Failure] = []
        self.stopped: TuttiError | None = None  # why nothing may be sent now
        self.ended = False  # and never again
        self.opened: Resume | None = None  # what the current epoch began with; None while there is none
        self.committed = Resume(0, b"")
        self.uses_progress = False
        self.passing: QueryWait | None = None  # of ordered records, once it is known of which log
        self.frame_bytes_max = limits.BODY_BYTES_MAX
        self.raw_bytes_max = limits.RAW_BYTES_MAX

    # -- the application's threads

    def apart(self) -> None:
        """Refuse what comes from a signal handler whose thread was interrupted in here: it would wait for itself.

        Raises:
            UsageError: it did. Nothing has changed.
        """
        apart(self.lock, self._taker)

    def add(self, topic: str, record: Record, progress: bytes, on_delivery: OnDelivery | None) -> Receipt:
        """Take one record in; the long way, for all that does not go by the taker.

        Raises:
            BufferFull: there is no room and `on_full` is "raise".
            TuttiError: why the producer was stopped.
        """
        size = record.size
        if record.payload > limits.RECORD_BYTES_MAX:
            what = f"the record of {record.payload} bytes (key and value)"
            return self._stillborn(topic, what, limits.RECORD_BYTES_MAX, "a record", on_delivery)
        if size + BODY_OVERHEAD_BYTES > self.frame_bytes_max:
            return self._stillborn(topic, f"the record of {size} bytes", self.frame_bytes_max, "one batch", on_delivery)
        with self.lock:
            while True:
                self.check()
                receipt = self._try_put(topic, record, progress, on_delivery)
                if receipt is not None:
                    break
                self.close_open()
                if not self._await_room(max(size, self.options.batch_bytes)):
                    self._open = self.new_batch(topic, max(size, self.options.batch_bytes))
            if progress:
                self.uses_progress = True
            if self.options.linger > 0:
                if receipt.index == 0:
                    self.linger_until = self._clock() + self.options.linger
                    self.wake()
            elif self.pending <= self.aside and not self.corked:
                self.close_open()
                return receipt
            self._admit()
            return receipt

    def add_whole(self, topic: str, records: Conformed, progress: bytes, on_delivery: OnDelivery | None) -> Receipt:
        """Take a record batch in as one frame.

        Raises:
            BufferFull, TuttiError: as `add`.
        """
        batch = self.new_batch(topic, 0)
        batch.progress = progress
        encode_whole(batch, records, self.options.compression)
        what = f"the record batch of {batch.count} records"
        if batch.size > self.frame_bytes_max:
            what += f" ({batch.size} bytes as it travels)"
            return self._stillborn(topic, what, self.frame_bytes_max, "one batch: slice it", on_delivery, batch.count)
        if batch.raw_length > self.raw_bytes_max:
            what += f" ({batch.raw_length} bytes without compression)"
            return self._stillborn(topic, what, self.raw_bytes_max, "one batch: slice it", on_delivery, batch.count)
        if batch.raw_length > limits.RECORD_BYTES_MAX and (largest := largest_record(records.batch)) > limits.RECORD_BYTES_MAX:
            what += f" (one of {largest} bytes, key and value)"
            return self._stillborn(topic, what, limits.RECORD_BYTES_MAX, "a record", on_delivery, batch.count)
        return self.add_closed(batch, on_delivery)

    def add_closed(self, batch: Batch, on_delivery: OnDelivery | None = None) -> Receipt:
        """Queue a batch that has its body, behind all that was sent before. Raises as `add`."""
        receipt = Receipt(batch, 0)
        batch.charge = batch.size
        with self.lock:
            self.check()
            self.close_open()
            while self._await_room(batch.charge):
                self.close_open()  # another thread may have sent while this one waited
            if on_delivery is not None:
                batch.callbacks = [receipt, on_delivery]
            if batch.progress:
                self.uses_progress = True
            self.pending += 1
            self.pending_records += batch.count
            self.buffered += batch.charge
            self.closed.append(batch)
            self.offered()
        return receipt

    def _stillborn(self, topic: str, what: str, limit: int, whose: str, on_delivery: OnDelivery | None, count: int = 0) -> Receipt:
        """A receipt that failed before anything was sent: it is told as the gateway's answers are, whose limit it is."""
        batch = Batch(topic, 0, 0.0, self.passing)
        batch.whole, batch.count = bool(count), count or 1
        receipt = Receipt(batch, 0)
        failure = Failure(TooLarge(f"{what} for topic {topic!r} exceeds the limit of {limit} bytes for {whose}; nothing was sent"))
        with self.lock:
            self.check()
            if on_delivery is not None:
                batch.callbacks = [receipt, on_delivery]
            batch.settle(OFFSET_UNKNOWN, failure)
            batch.finish()
            self._remember(failure)
            self.born_failed.append(batch)
        self.wake()
        return receipt

    def check(self) -> None:
        """Raise why nothing may be sent now, if so. Called with the lock."""
        if self.stopped is not None:
            raise copy.copy(self.stopped)

    def _try_put(self, topic: str, record: Record, progress: bytes, on_delivery: OnDelivery | None) -> Receipt | None:
        """Put the record into the open batch if it belongs there and fits. Called with the lock."""
        batch = self._halt()
        if batch.topic != topic or batch.room < record.size or (batch.progress and not progress):
            return None
        try:
            return batch.put(record, progress, on_delivery)
        except BaseException:
            batch.level()
            raise

    def _halt(self) -> Batch:
        """The open batch, which the caller has to itself from now on. Called with the lock."""
        self.takers.clear()
        while self._taker is not None:
            try:
                self._taker.close()
                break
            except ValueError as error:  # another thread is within it
                if not is_from_call(error):
                    raise
                time.sleep(_MOMENT_S)
        return self._open

    def _admit(self) -> None:
        """Let records into the open batch without the lock, but for one with progress, which those without may not join."""
        batch = self._open
        if not batch.progress:
            self._taker, self.takers[batch.topic] = take(batch)

    def new_batch(self, topic: str, room: int) -> Batch:
        """A batch that takes `room` bytes, whose outcome is waited for from now on."""
        return Batch(topic, room, self._clock() + self.options.delivery_timeout, self.passing)

    def _await_room(self, need: int) -> bool:
        """Wait until the buffer has room for `need` bytes; whether it was waited for. Called with the lock."""
        self.check()
        waited = False
        while lack := self.lack(need):
            if not self.options.block or getattr(bringer, "here", False):
                why = "on_full is 'raise'" if not self.options.block else "on_delivery cannot wait for the thread it runs in"
                raise BufferFull(f"{lack}, and {why}: send again later, or {self.remedy}")
            self.roomy.wait(limits.POLL_US_MAX / 1e6)
            waited = True
            self.check()
        return waited

    remedy = "enlarge buffer_bytes"

    def lack(self, need: int) -> str:
        """What there is too little of for `need` more bytes; empty if there is room. Called with the lock."""
        # What alone exceeds the buffer passes when the buffer is empty: its own limits were checked.
        if self.buffered and self.buffered + need > self.options.buffer_bytes:
            limit = self.options.buffer_bytes
            return f"{self.buffered} bytes wait for their outcome, {need} more exceed buffer_bytes={limit}"
        return ""

    def offered(self) -> None:
        """A batch was closed: have it taken."""
        self.wake()

    def close_open(self) -> None:
        """Close the open batch, if it has records, and queue it. Called with the lock."""
        self.linger_until = None
        batch = self._halt()
        batch.count = len(batch.values)
        batch.charge = batch.size - batch.room
        # From here to the end of `append` nothing can be interrupted.
        self._open = self._none
        if batch.count:
            self.pending += 1
            self.pending_records += batch.count
            self.buffered += batch.charge
            self.closed.append(batch)
            self._seal(batch)
            self.offered()

    def _seal(self, batch: Batch) -> None:
        if not batch.body and not batch.done:
            encode_open(batch, self.options.compression)

    def undelivered(self) -> int:
        """Records without an outcome."""
        with self.lock:
            return self.pending_records + self._open_records()

    def _open_records(self) -> int:
        """Records in the open batch; one more may be coming in just now."""
        return len(self._open.values)

    def flush(self, timeout: float | None) -> int:
        """Close the open batch and wait until all records have an outcome, up to `timeout` seconds; how many still have none.

        Raises:
            UsageError: called in `on_delivery`.
        """
        outside("flush() cannot be called", "it would wait for itself")
        self.apart()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            self.close_open()
            while self.pending_records or self._open_records():
                left = limits.POLL_US_MAX / 1e6 if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    break
                self.changed.wait(min(left, limits.POLL_US_MAX / 1e6))
                if deadline is None or deadline > time.monotonic():
                    self.close_open()
            return self.pending_records + self._open_records()

    def wait_opened(self, deadline: float) -> Resume | None:
        """Wait for an epoch to be open; None when `deadline` (monotonic) passed first.

        Raises:
            TuttiError: why there will never be one.
            UsageError: there is none yet, and it is called in `on_delivery`.
        """
        self.apart()
        if self.opened is None:
            outside("resume() cannot wait for an epoch")
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
        """Take note of batches that are settled, and let everybody see it: who sees one outcome sees the counts that go with it."""
        with self.lock:
            if committed is not None:
                self.committed = committed
            for batch in batches:
                self.pending -= 1
                self.pending_records -= batch.count
                self.buffered -= batch.charge
                if batch.failure is not None:
                    self._remember(batch.failure)
                batch.finish()
            # Not for each batch: a sender that fills a quarter of the buffer at a time works, one that fills a batch only switches.
            if self.buffered <= self.options.buffer_bytes * 3 // 4:
                self.roomy.notify_all()
            self.close_idle()
            self.changed.notify_all()

    def cork(self) -> None:
        """Keep lone records back until `uncork`, which comes before anything is sent."""
        self.corked = True

    def uncork(self) -> None:
        """Close what was kept back meanwhile."""
        self.corked = False
        # Without the lock, as it is done each time that the thread wakes up: who put a record in looks at `corked` after that.
        if self.pending <= self.aside and self._open_records():
            self.close_idle()

    def close_idle(self) -> None:
        """Close the open batch if nothing is in flight that it could wait behind."""
        with self.lock:
            if self.pending <= self.aside and not self.options.linger and not self.corked:
                self.close_open()

    def head(self) -> Batch | None:
        """The batch that leaves next. It has its body, also if who closed it was kept from encoding it."""
        if not self.queue:
            return None
        batch = self.queue[0]
        if not batch.body:
            with self.lock:
                self._seal(batch)
        return batch

    def expire_linger(self, now: float) -> None:
        """Close the open batch if its linger is over."""
        until = self.linger_until
        if until is None or until > now:
            return
        with self.lock:
            if self.linger_until == until:
                self.close_open()

    def set_opened(self, opened: Resume | None) -> None:
        """An epoch began, or the one that was is over."""
        with self.lock:
            self.opened = opened
            if opened is not None:
                self.committed = opened
            self.changed.notify_all()

    def seize(self, stop: TuttiError | None, ended: bool = False) -> list[Batch]:
        """Take out everything that was not sent, the open batch included; with `stop`, nothing more comes in until it is lifted."""
        with self.lock:
            if not self.ended:
                self.stopped, self.ended = stop or self.stopped, ended
            self.close_open()
            taken = list(self.queue)
            self.queue.clear()
            self.changed.notify_all()
            self.roomy.notify_all()
            return taken

    def close(self) -> None:
        """Let nothing more in, for good."""
        with self.lock:
            self.stopped = self.stopped if self.ended and self.stopped else UsageError("the producer is closed: open another")
            self.ended = True

    def lift_stop(self) -> None:
        """Let records in again, after `resume()`. It answers the aborts so far: whoever asks where to go on has been shown them."""
        with self.lock:
            for failure in self.failures:
                failure.seen = failure.seen or isinstance(failure.error, Aborted)
            if not self.ended:
                self.stopped = None

    def _remember(self, failure: Failure) -> None:
        if failure in self.failures:
            return
        if len(self.failures) >= limits.FAILURES_KEPT_MAX:
            self.failures = [kept for kept in self.failures if not kept.seen]
        if len(self.failures) < limits.FAILURES_KEPT_MAX:
            self.failures.append(failure)

    def first_failure(self) -> Failure | None:
        """The first failure that the application was not shown."""
        with self.lock:
            return next((failure for failure in self.failures if not failure.seen), None)

    def orphan(self, batches: Iterable[Batch], parent: int) -> None:
        """In a forked child: nothing here will ever be delivered from this process; say so to whoever asks."""
        self.lock = threading.RLock()
        self.changed, self.roomy = Bell(self.lock), Bell(self.lock)
        error = UsageError(
            f"this Producer was opened in process {parent} and cannot be used in process {os.getpid()}, forked from it: "
            "open a Producer of its own there"
        )
        failure = Failure(error)
        failure.seen = True
        for batch in (*batches, *self.queue, *(() if self._open is self._none else (self._open,))):
            batch.callbacks = None
            if not batch.done:
                batch.settle(OFFSET_UNKNOWN, failure)
                batch.finish()
        self.queue.clear()
        self._open, self._taker = self._none, None
        self.takers.clear()
        self.pending = self.pending_records = self.buffered = 0
        self.stopped, self.ended, self.opened = error, True, None


def nobody() -> None:
    """In place of the I/O thread, before there is one and after it has ended."""
