"""Receipts and batches. A receipt contains its batch and an index, and all receipts of a batch share the batch's state."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from tutti.batching import future
from tutti.batching.future import FutureMethods, FutureState
from tutti.common.deadlines import check_wait
from tutti.data.client_protocol import OFFSET_UNKNOWN
from tutti.data.frames.frame import Kind
from tutti.data.names import check_name
from tutti.errors import Aborted, TuttiError, Unknown, UsageError

LOG = logging.getLogger("tutti.client")

#: `here` is set in the threads that set outcomes. A wait for a receipt in such a thread would never end.
outcome_thread = threading.local()


def reject_in_callback(what: str, since: str = "it would delay all outcomes") -> None:
    """Raise if the caller is a callback, because a thread that sets outcomes must not wait.

    Args:
        what: first part of the error message: the rejected call.
        since: second part of the error message: the reason.

    Raises:
        UsageError: called in `on_delivery`.
    """
    if getattr(outcome_thread, "here", False):
        raise UsageError(f"{what} inside on_delivery: {since}")


class SpoolPosition(NamedTuple):
    """A position in a spool: after `records` records of segment `segment`. An earlier position compares as less."""

    segment: int
    records: int


class SpoolWait(Protocol):
    """The part of a spool that receipts use: waits until a batch is durable."""

    def await_spooled(self, batch: Batch, timeout: float | None) -> None:
        """Wait until `batch` is durable in the spool.

        Raises:
            TimeoutError: the batch is not durable after `timeout` seconds.
        """

    def watch(self, batch: Batch) -> None:
        """Keep `batch`, which has a callback now, in memory until its outcome, and count it against the limit of such batches."""


class QueryWait(Protocol):
    """The part of query tracking that receipts use: waits until a query has processed a record."""

    def wait(self, name: str, offset: int, count: int, timeout: float | None) -> int:
        """Wait until query `name` has processed `count` records from `offset` on; return the query's position.

        Raises:
            TimeoutError: the query has not processed the records after `timeout` seconds.
        """


Header = tuple[str, bytes | None]


class Record(msgspec.Struct, gc=False, eq=False):
    """One validated record, ready to append to a batch.

    Attributes:
        value, key, headers: as in `send`.
        stamp: time in microseconds (None: the current time).
        payload: bytes of key and value.
        size: bytes of the record in an encoded batch.
    """

    value: bytes | None
    key: bytes | None
    stamp: int | None
    headers: Sequence[Header]
    payload: int
    size: int


class Resume(NamedTuple):
    """The point at which a producer resumes: its last committed sequence (0: none) and last committed progress (b"": none)."""

    sequence: int
    progress: bytes


class Spooled(NamedTuple):
    """The content of a spool.

    Attributes:
        records: number of records that are not known to be committed.
        earlier: number of these records that earlier runs spooled and that have no receipts in this run.
        used_bytes: size of the directory.
        refused: number of records of this run that the gateways refused.
        progress: the application's last spooled progress; b"" means none.
    """

    records: int
    earlier: int
    used_bytes: int
    refused: int
    progress: bytes


class Failure:
    """The error of failed batches, which all batches with the same cause share.

    The attribute `seen` is True if the application has already seen the error.
    """

    __slots__ = ("_unsent", "error", "seen")

    def __init__(self, error: TuttiError) -> None:
        self.error = error
        self.seen = False
        self._unsent: Failure | None = None

    def of(self, batch: Batch) -> Failure:
        """Return the failure of a batch: this failure, or `Aborted` in place of `Unknown` for a batch that was never sent."""
        # The next run of the producer sends a batch from its spool, so the outcome of this batch stays unknown.
        spooled = batch.spool is not None or batch.spool_position is not None
        if not isinstance(self.error, Unknown) or batch.transmitted or spooled:
            return self
        if self._unsent is None:
            self._unsent = Failure(Aborted(f"the record was never sent, so it is in no log: {self.error}"))
        return self._unsent

    def throw(self) -> None:
        """Raise a copy of the error, so that tracebacks do not accumulate in one exception object."""
        self.seen = True
        raise copy.copy(self.error)


class Batch:
    """Records that form one frame, from the first `send()` to their outcome.

    An open batch collects columns. A closed batch has one encoded body, which may be sent more than once. A thread that calls
    `send()` appends to the open batch, and may close and encode it. After that, only the I/O thread and the spool's disk thread
    modify the batch. `done` is set last, so that a thread that sees `done` also sees the outcome.
    """

    __slots__ = (
        "__weakref__",
        "atomic",
        "body",
        "callbacks",
        "calls",
        "charge",
        "codec",
        "copies",
        "count",
        "crc",
        "deadline",
        "done",
        "failure",
        "first_sequence",
        "free_bytes",
        "futures",
        "headers",
        "keys",
        "kind",
        "lane",
        "latch",
        "max_timestamp",
        "min_timestamp",
        "offset",
        "progress",
        "query_wait",
        "raw_length",
        "resolved",
        "serial",
        "size",
        "spool",
        "spool_position",
        "stamps",
        "times",
        "topic",
        "transmitted",
        "trimmed",
        "values",
    )

    def __init__(self, topic: str, free_bytes: int, deadline: float, query_wait: QueryWait | None = None) -> None:
        """Open a batch.

        Args:
            topic: topic of all records.
            free_bytes: number of bytes that the records may take.
            deadline: delivery deadline, monotonic time.
            query_wait: object that waits for queries (None for an unordered batch, because queries read only ordered records).
        """
        self.topic = topic
        self.query_wait = query_wait
        self.free_bytes = free_bytes
        self.deadline = deadline
        self.keys: list[bytes | None] | None = None  # None while no record has a key
        self.values: list[bytes | None] = []
        self.times: list[float] = []  # seconds, from the system clock
        self.stamps: dict[int, int] | None = None  # index -> us, for records with a timestamp from the application
        self.headers: dict[int, Sequence[Header]] | None = None
        # A flat list in which receipts and callbacks alternate, because the garbage collector would track a tuple for each pair.
        self.callbacks: list[Any] | None = None
        self.progress = b""
        self.kind = int(Kind.BATCH)
        self.atomic = False  # True if one receipt represents all records
        self.body: bytes | memoryview = b""  # encoded records; empty while the batch is open, and after its outcome
        self.codec: Literal["", "lz4", "zstd"] | None = ""  # compression of the body; "" means the producer's setting
        self.count = 0
        self.crc = 0
        self.raw_length = 0
        self.min_timestamp = 0
        self.max_timestamp = 0
        self.size = free_bytes  # size of the body in bytes; an upper bound while the batch is open
        self.charge = 0  # bytes counted against the producer's buffer
        self.first_sequence = 0  # sequence of the first record; 0 while the batch has no sequences
        self.transmitted = False
        self.copies = 0  # number of sent copies that a gateway has not refused
        self.serial = 0  # running number of an unordered batch, counted over all lanes
        self.lane = ""  # the lane of an unordered batch
        self.trimmed = 0  # number of leading records that another copy of the batch committed, at unknown offsets
        self.offset = OFFSET_UNKNOWN
        self.failure: Failure | None = None
        self.spool: SpoolWait | None = None  # the spool of the batch, if any
        self.spool_position: SpoolPosition | None = None  # position after the batch; None until the spool has the batch durably
        self.latch: Any = None  # a lock that the first waiter creates and that `finish` releases
        self.calls: dict[Callable[[], object], None] | None = None  # calls to make at the outcome; see `call_once`
        self.futures: dict[int, FutureState] | None = None  # index -> state, for receipts in `concurrent.futures.wait`
        self.resolved = False  # True if the I/O thread knows the outcome
        self.done = False  # True if the outcome is published to all threads

    def append(self, record: Record, progress: bytes, on_delivery: OnDelivery | None) -> Receipt:
        """Append a record that fits. The caller has exclusive access to the batch."""
        index = len(self.values)
        receipt = Receipt(self, index)
        if record.stamp is not None:
            self.stamps = {} if self.stamps is None else self.stamps
            self.stamps[index] = record.stamp
        if record.headers:
            self.headers = {} if self.headers is None else self.headers
            self.headers[index] = record.headers
        if on_delivery is not None:
            self.callbacks = [] if self.callbacks is None else self.callbacks
            self.callbacks += (receipt, on_delivery)
        if record.key is not None and self.keys is None:
            self.keys = [None] * index
        self.free_bytes -= record.size
        if progress:
            self.progress = progress
        self.values.append(record.value)
        if self.keys is not None:
            self.keys.append(record.key)
        self.times.append(time.time())
        return receipt

    @property
    def remaining(self) -> int:
        """The number of records in the body, which no longer contains the `trimmed` records."""
        return self.count - self.trimmed

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record."""
        return self.first_sequence + self.count - self.trimmed - 1

    def resolve(self, offset: int, failure: Failure | None = None) -> None:
        """Set the outcome once, without publishing it."""
        self.offset = offset
        self.failure = None if failure is None else failure.of(self)
        self.resolved = True

    def finish(self) -> None:
        """Publish the outcome and wake all waiters. The caller then runs the callbacks (`announce`)."""
        self.body = b""
        if self.values:
            self.drop_columns()
        self.done = True
        if self.latch is not None:
            self.latch.release()

    def drop_columns(self) -> None:
        """Release the columns, because the body contains the records, or because the batch has its outcome."""
        self.values, self.times = [], []
        self.keys = self.stamps = self.headers = None

    def discard_partial(self) -> None:
        """Remove an incomplete record, after an exception such as KeyboardInterrupt between two columns."""
        # A record is complete if every column contains it.
        count = min(len(self.values), len(self.times), *([len(self.keys)] if self.keys is not None else []))
        del self.values[count:], self.times[count:]
        if self.keys is not None:
            del self.keys[count:]
        for named in (self.stamps, self.headers):
            if named is not None:
                named.pop(count, None)  # otherwise the next record would get this timestamp and these headers
        callbacks = self.callbacks
        if callbacks and callbacks[-2].index >= count:
            del callbacks[-2:]

    def announce(self) -> None:
        """Call the callbacks. Log exceptions, so that a failing callback does not stop other deliveries."""
        # Break the reference cycle: the batch refers to callbacks and receipts, and a receipt refers to its batch.
        callbacks, self.callbacks = self.callbacks, None
        if callbacks is not None:
            error = self.failure.error if self.failure else None
            for at in range(0, len(callbacks), 2):
                try:
                    callbacks[at + 1](error, callbacks[at])
                except BaseException:  # includes SystemExit, which would end the I/O thread
                    LOG.exception("on_delivery of a record to topic %s raised", self.topic)
        if self.calls is not None:
            with future.lock:
                calls, self.calls = self.calls, None
            for call in calls or ():
                self._make(call)

    def _make(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException:  # includes SystemExit, which would end the I/O thread
            LOG.exception("a callback of a record to topic %s raised", self.topic)

    def call_once(self, call: Callable[[], object]) -> None:
        """Make a call in the I/O thread at the outcome, or at once if the outcome is known. Log an exception of the call."""
        with future.lock:
            self.calls = {} if self.calls is None else self.calls
            self.calls[call] = None
        if self.spool is not None:
            self.spool.watch(self)
        # Checked after the call is added, because `announce` reads `calls` after `finish` has set `done`.
        if self.done and self.forget_call(call):
            self._make(call)

    def forget_call(self, call: Callable[[], object]) -> bool:
        """Drop a call that `call_once` added. Return False if another thread makes or has made the call."""
        with future.lock:
            if self.calls is None or call not in self.calls:
                return False
            del self.calls[call]
            return True

    def wait(self, timeout: float | None) -> None:
        """Wait for the outcome.

        Raises:
            TimeoutError: the batch has no outcome after `timeout` seconds.
            UsageError: called in `on_delivery`. The wait would never end, because the same thread sets the outcomes.
        """
        reject_in_callback("result() of an undelivered record cannot be waited for", "result() would never return there")
        with future.lock:
            latch = self.latch
            if latch is None:
                latch = threading.Lock()
                latch.acquire()
                self.latch = latch
        if self.done:  # the latch is already set, so if `done` is still False, `finish` will find and release the latch
            return
        if not latch.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX))):
            raise TimeoutError(f"no outcome after {timeout:g} s: the record is still in flight")
        latch.release()  # wake the next waiter


class Receipt(msgspec.Struct, FutureMethods, gc=False, eq=False):
    """The result of one `send()` or `send_batch()`: an offset in the committed log, or an error.

    A receipt is a `concurrent.futures.Future[int]`: `concurrent.futures.wait`, `as_completed` and `asyncio.wrap_future` accept it.
    In a coroutine, `await receipt` returns what `result()` returns, and a cancelled `await` leaves the record in flight.

    The garbage collector does not track receipts, because there can be millions of them. A receipt always refers to its batch. A
    batch refers to a receipt only while the receipt's callback is due.
    """

    batch: Batch
    index: int

    def done(self) -> bool:
        """Return True if the outcome is known."""
        return self.batch.done

    def result(self, timeout: float | None = None) -> int:
        """Wait for the outcome and return the offset of the record, or of the first record of a batch.

        The offset is -1 if the record committed at an unknown offset.

        Raises:
            Aborted: the log does not contain the record and never will, for example because the record was never sent.
            Fenced: a newer instance of the producer took over. It is unknown whether the record committed.
            TooLarge: the record or batch exceeds a limit.
            Refused: the gateway rejected the record, so the log does not contain it.
            Unknown: the delivery deadline passed, or the producer ended. The record was sent, and may commit.
            TimeoutError: the record has no outcome after `timeout` seconds. The record may still commit.
            UsageError: `timeout` is not a number of seconds.
        """
        batch = self.batch
        if not batch.done:
            if timeout is not None:
                check_wait(timeout)
            batch.wait(timeout)
        if batch.failure is not None:
            batch.failure.throw()
        return self._offset()

    def spooled(self, timeout: float | None = None) -> None:
        """Wait until the record and all earlier records of the producer are durable in its spool on this disk.

        If the disk survives, a spooled record commits once, even after failures of the process, the host or the gateways. This
        producer, or the next producer with this spool, sends the record.

        Raises:
            TimeoutError: the record is not durable after `timeout` seconds, for example because the disk is full.
            DiskFailed: the disk failed. It is unknown whether the record is durable.
            TuttiError: the record failed before it was durable, for example with `TooLarge` or `Fenced`.
            UsageError: the producer has no spool, `timeout` is not a number, or `on_delivery` makes the call.
        """
        batch = self.batch
        if timeout is not None:
            check_wait(timeout)
        if batch.spool_position is not None:
            return
        if batch.spool is None:
            if batch.failure is not None:
                batch.failure.throw()
            raise UsageError("this record's producer has no spool: give it one, Producer(..., spool=DIR)")
        batch.spool.await_spooled(batch, timeout)

    def processed_by(self, query: str, timeout: float | None = None) -> int:
        """Wait until a Spark query or a named reader has processed the record, or all records of a batch.

        A query with a name (option `queryName` of the source) commits its position, an offset of the log, after each micro-batch.
        At that time the query's sink has the output of the micro-batch. A record below the position counts as processed, even if
        the query does not read the record's topic. If a query starts again at a lower offset, for example with a new checkpoint,
        the record counts as processed when the query reaches the record again. A producer that has already seen the record as
        processed keeps that result.

        Returns:
            The position of the query; all records below the position are processed.

        Raises:
            TuttiError: the record is not known to be committed, for example `Aborted` or `Fenced`.
            TimeoutError: the record has no outcome, or the query has not processed the record, after `timeout` seconds. The message
                contains the position of the query, or states that no query with that name has reported a position.
            Unavailable: no gateway answered for a minute.
            UsageError: the record is unordered, the name is malformed, `timeout` is not a number, or `on_delivery` makes the call.
        """
        check_name("query", query)
        if timeout is not None:
            check_wait(timeout)
        batch = self.batch
        reject_in_callback("processed_by() cannot be waited for")
        if batch.query_wait is None:
            raise UsageError("an unordered record is not in the log that queries read: send it with ordering='total'")
        deadline = None if timeout is None else time.monotonic() + timeout
        offset = self.result(timeout)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return batch.query_wait.wait(query, offset, self.count, left)

    @property
    def offset(self) -> int | None:
        """The offset of a committed record, or of the first record of a batch; -1 if it is unknown. None without a commit."""
        return self._offset() if self.batch.done and self.batch.failure is None else None

    @property
    def count(self) -> int:
        """The number of records that the receipt represents."""
        return self.batch.count if self.batch.atomic else 1

    @property
    def topic(self) -> str:
        """The topic of the record."""
        return self.batch.topic

    @property
    def lane(self) -> str:
        """The lane of an unordered record, in the form of `Reader(origin=...)`; empty for ordered and for unsent records."""
        return self.batch.lane

    @property
    def left(self) -> bool:
        """True if this process may have sent the record. A failed record that was not sent is in no log.

        Two cases are exceptions: a spooled record, which a later run sends, and a record in a forked child, which the parent sends.
        """
        return self.batch.transmitted

    @property
    def error(self) -> TuttiError | None:
        """The error of a failed record; None for other records."""
        return self.batch.failure.error if self.batch.done and self.batch.failure else None

    def _offset(self) -> int:
        batch = self.batch
        if batch.offset == OFFSET_UNKNOWN or self.index < batch.trimmed:
            return OFFSET_UNKNOWN
        return batch.offset + self.index - batch.trimmed

    def __repr__(self) -> str:
        """Return a one-line description."""
        if not self.batch.done:
            return f"<Receipt topic={self.batch.topic} on its way>"
        if self.batch.failure:
            return f"<Receipt topic={self.batch.topic} failed: {self.batch.failure.error}>"
        return f"<Receipt topic={self.batch.topic} offset={self._offset()} count={self.count}>"


#: A callback of the application. The I/O thread calls it with the error (None: the record committed) and the receipt.
OnDelivery = Callable[[TuttiError | None, Receipt], Any]
