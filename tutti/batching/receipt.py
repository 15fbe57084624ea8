"""Receipts: what `send()` gives back. A receipt is two words; what it stands for is its batch's, shared by all records of it."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from tutti.common.durations import check_wait
from tutti.common.fork import after_fork
from tutti.data.client_protocol import OFFSET_UNKNOWN
from tutti.data.frames.frame import Kind
from tutti.data.names import check_name
from tutti.errors import TuttiError, UsageError

LOG = logging.getLogger("tutti.client")

#: Names the threads that must not wait for receipts, as they are the ones that bring them.
bringer = threading.local()


def outside(what: str, since: str = "it would hold up all outcomes") -> None:
    """Refuse to wait where outcomes are brought.

    Args:
        what: the call; it begins the message.
        since: why.

    Raises:
        UsageError: it is called in `on_delivery`.
    """
    if getattr(bringer, "here", False):
        raise UsageError(f"{what} inside on_delivery: {since}")


class Place(NamedTuple):
    """A position in a spool: after `records` records of segment `segment`. Positions have the order of sending."""

    segment: int
    records: int


class SpoolWait(Protocol):
    """What a receipt needs of a spool: to wait until a batch is durable there."""

    def await_spooled(self, batch: Batch, timeout: float | None) -> None:
        """Wait until `batch` is on the spool's disk.

        Raises:
            TimeoutError: it is not after `timeout` seconds.
        """


class QueryWait(Protocol):
    """What a receipt needs of queries: to wait until one has processed a record."""

    def wait(self, name: str, offset: int, count: int, timeout: float | None) -> int:
        """Wait until query `name` has processed `count` records from `offset` on; return its position.

        Raises:
            TimeoutError: it has not after `timeout` seconds.
        """


Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record as it was checked: ready to be put into a batch.

    `stamp` None: the clock's time. `payload`: bytes of key and value. `size`: bytes that it takes in a body.
    """

    value: bytes | None
    key: bytes | None
    stamp: int | None
    headers: Sequence[Header]
    payload: int
    size: int


class Resume(NamedTuple):
    """Where a producer goes on: the sequence of its last committed record (0: none) and the last committed progress (b"": none)."""

    sequence: int
    progress: bytes


class Spooled(NamedTuple):
    """What a spool holds.

    `records`: not committed yet, as far as is known, and `earlier`: of these those of earlier runs, which have no receipts.
    `used_bytes`: what the directory takes. `refused`: records that this run put aside as the log would not have them.
    `progress`: the application's last one that is on this disk, b"" if there is none.
    """

    records: int
    earlier: int
    used_bytes: int
    refused: int
    progress: bytes


class Failure:
    """Why batches failed, shared by all that failed together. `seen`: it was raised to the application."""

    __slots__ = ("error", "seen")

    def __init__(self, error: TuttiError) -> None:
        self.error = error
        self.seen = False

    def throw(self) -> None:
        """Raise a fresh copy, so that tracebacks of several receipts do not pile up in one exception."""
        self.seen = True
        raise copy.copy(self.error)


class Batch:
    """Records that travel together in one frame, from the first `send()` to their outcome.

    An open batch collects columns; a closed one has a body and is never changed, sent once or many times. Written by the sending
    thread while open and by the I/O thread afterwards; `done` is set last, so that who sees it sees the outcome.
    """

    __slots__ = (
        "__weakref__",
        "body",
        "callbacks",
        "charge",
        "codec",
        "copies",
        "count",
        "crc",
        "cut",
        "deadline",
        "done",
        "failure",
        "first_sequence",
        "headers",
        "keys",
        "kind",
        "lane",
        "latch",
        "max_timestamp",
        "min_timestamp",
        "offset",
        "passing",
        "place",
        "progress",
        "raw_length",
        "room",
        "serial",
        "settled",
        "size",
        "spool",
        "stamps",
        "times",
        "topic",
        "transmitted",
        "values",
        "whole",
    )

    def __init__(self, topic: str, room: int, deadline: float, passing: QueryWait | None = None) -> None:
        """Open a batch.

        Args:
            topic: of all its records.
            room: bytes that it may still take.
            deadline: monotonic time after which its outcome is not waited for.
            passing: where it is asked which queries have passed it; None for an unordered one, which no query reads.
        """
        self.topic = topic
        self.passing = passing
        self.room = room
        self.deadline = deadline
        self.keys: list[bytes | None] | None = None  # None while no record has one
        self.values: list[bytes | None] = []
        self.times: list[float] = []  # seconds, by the clock
        self.stamps: dict[int, int] | None = None  # index -> us, where the application named the time
        self.headers: dict[int, Sequence[Header]] | None = None
        self.callbacks: list[Any] | None = None  # receipt and callback by turns: no pairs for the garbage collector
        self.progress = b""
        self.kind = int(Kind.BATCH)
        self.whole = False  # one receipt stands for all its records
        self.body: bytes | memoryview = b""  # none while it is open, and after its outcome
        self.codec: Literal["", "lz4", "zstd"] | None = ""  # compression of the body; "": the producer's
        self.count = 0
        self.crc = 0
        self.raw_length = 0
        self.min_timestamp = 0
        self.max_timestamp = 0
        self.size = room  # of the body, bytes; of what it may become, while it is open
        self.charge = 0  # what it takes of the producer's buffer, bytes
        self.first_sequence = 0  # 0: not sent yet
        self.transmitted = False
        self.copies = 0  # that were sent and not turned away
        self.serial = 0  # of an unordered one: counts what went into any lane
        self.lane = ""  # that it went into
        self.cut = 0  # so many of its first records had committed before, where is not known
        self.offset = OFFSET_UNKNOWN
        self.failure: Failure | None = None
        self.spool: SpoolWait | None = None  # that it goes through
        self.place: Place | None = None  # in there; none before it is durable
        self.latch: Any = None  # a lock held until the outcome is there; made by the first who waits
        self.settled = False  # the outcome is known to the I/O thread
        self.done = False  # and to everybody

    def put(self, record: Record, progress: bytes, on_delivery: OnDelivery | None) -> Receipt:
        """Put in a record that there is space for. The caller has the batch to itself."""
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
        self.room -= record.size
        if progress:
            self.progress = progress
        self.values.append(record.value)
        if self.keys is not None:
            self.keys.append(record.key)
        self.times.append(time.time())
        return receipt

    @property
    def remaining(self) -> int:
        """Records in its body: all but those that were cut off."""
        return self.count - self.cut

    @property
    def last_sequence(self) -> int:
        """Sequence of its last record."""
        return self.first_sequence + self.count - self.cut - 1

    def settle(self, offset: int, failure: Failure | None = None) -> None:
        """Note its outcome, once; nobody is told yet."""
        self.offset = offset
        self.failure = failure
        self.settled = True

    def finish(self) -> None:
        """Let everybody see its outcome, and wake who waits. Callbacks are the caller's affair (`announce`)."""
        self.body = b""
        self.drop_columns()
        self.done = True
        if self.latch is not None:
            self.latch.release()

    def drop_columns(self) -> None:
        """Let go of the records: they are in the body, or nobody needs them any more."""
        self.values, self.times = [], []
        self.keys = self.stamps = self.headers = None

    def level(self) -> None:
        """Take off a record that was put in by half: an exception (as of Ctrl-C) may strike between two columns."""
        count = min(len(self.values), len(self.times), *([len(self.keys)] if self.keys is not None else []))
        del self.values[count:], self.times[count:]
        if self.keys is not None:
            del self.keys[count:]
        for named in (self.stamps, self.headers):
            if named is not None:
                named.pop(count, None)  # else they would be those of the next
        callbacks = self.callbacks
        if callbacks and callbacks[-2].index >= count:
            del callbacks[-2:]

    def announce(self) -> None:
        """Call the callbacks. What they raise is logged: it is the application's, and must not stop the delivery of others."""
        callbacks, self.callbacks = self.callbacks, None
        if callbacks is None:
            return
        error = self.failure.error if self.failure else None
        pairs = iter(callbacks)
        for receipt, callback in zip(pairs, pairs, strict=True):
            try:
                callback(error, receipt)
            except BaseException:  # also of sys.exit(), which would end the thread that brings all outcomes
                LOG.exception("on_delivery of a record to topic %s raised", self.topic)

    def wait(self, timeout: float | None) -> None:
        """Wait for the outcome.

        Raises:
            TimeoutError: there is none after `timeout` seconds.
            UsageError: called where outcomes are brought (in `on_delivery`), so that it could never come.
        """
        outside("result() of an undelivered record cannot be waited for", "it would never return")
        with _latches:
            latch = self.latch
            if latch is None:
                latch = threading.Lock()
                latch.acquire()
                self.latch = latch
        if self.done:  # `finish` sets it before it looks for the latch
            return
        if not latch.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX))):
            raise TimeoutError(f"no outcome after {timeout:g} s: the record is still on its way")
        latch.release()  # for the next who waits


_latches = threading.RLock()  # a signal handler may wait too, for a moment


def _renew_after_fork() -> None:
    global _latches  # noqa: PLW0603 - it may have been held by a thread that is not in the child
    _latches = threading.RLock()


after_fork(_renew_after_fork)


class Receipt(msgspec.Struct, gc=False, eq=False):
    """The promise of one `send()` (or `send_batch()`): its place in the committed log, or why it has none.

    Not tracked by the garbage collector, as there are millions; it refers to its batch, and the batch to it only while it has a
    callback to call.
    """

    batch: Batch
    index: int

    def done(self) -> bool:
        """Whether the outcome is there."""
        return self.batch.done

    def result(self, timeout: float | None = None) -> int:
        """Wait for the outcome and return the offset (of the first record, for a batch).

        It is -1 when the record committed and only its place is no longer known.

        Raises:
            Aborted: the record is in no committed log, ever.
            Fenced: a newer instance of the producer took over; whether the record committed is not known.
            TooLarge: the record or batch exceeds a limit.
            Refused: the gateway does not take it; nothing of it is in the log.
            Unknown: the producer's delivery deadline passed.
            TimeoutError: only this wait ended.
            UsageError: `timeout` is no number of seconds.
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
        """Wait until the record is safe in the producer's spool: durable on this disk, as is all that was sent before it.

        It commits then, once, whatever becomes of the process, the host and the gateways, as long as the disk is there: this
        producer sends it, or the next one with that spool.

        Raises:
            TimeoutError: it is not after `timeout` seconds, as when the disk is full.
            DiskFailed: the disk failed; whether it is there is not known.
            TooLarge, Fenced, ...: as `result`: it has failed before it was there.
            UsageError: the producer has no spool, `timeout` is no number, or it is called in `on_delivery`.
        """
        batch = self.batch
        if timeout is not None:
            check_wait(timeout)
        if batch.place is not None:
            return
        if batch.spool is None:
            if batch.failure is not None:
                batch.failure.throw()
            raise UsageError("this record goes through no spool: give the producer one, Producer(..., spool=DIR)")
        batch.spool.await_spooled(batch, timeout)

    def processed_by(self, query: str, timeout: float | None = None) -> int:
        """Wait until a Spark query, or a named reader, has processed the record (all of them, for a batch).

        A query that has a name (option `queryName` of the source) tells its position at the end of each micro-batch: what its sink
        has by then is the reply. Positions are those of the log: also a record that the query does not read, by its topics or
        because it began behind it, counts as processed when the position has passed it. A query that goes back, as with a new
        checkpoint, has passed the record when it gets there again, unless this producer has seen it pass before.

        Returns the query's position: what lies below it is processed.

        Raises:
            Aborted, Fenced, ...: as `result`: the record is not known to be committed.
            TimeoutError: there was no outcome, or the query had not passed the record, after `timeout` seconds. The message says
                how far it is, or that no query of that name has told its position.
            Unavailable: no gateway could be asked for a minute.
            UsageError: the record is unordered, the name is none, `timeout` is no number, or it is called in `on_delivery`.
        """
        check_name("query", query)
        if timeout is not None:
            check_wait(timeout)
        batch = self.batch
        outside("processed_by() cannot be waited for")
        if batch.passing is None:
            raise UsageError("an unordered record has no place in the log that queries read: send it with ordering='total'")
        deadline = None if timeout is None else time.monotonic() + timeout
        offset = self.result(timeout)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return batch.passing.wait(query, offset, self.count, left)

    @property
    def offset(self) -> int | None:
        """The offset (of the first record, for a batch) once committed, else None; -1 when it is no longer known."""
        return self._offset() if self.batch.done and self.batch.failure is None else None

    @property
    def count(self) -> int:
        """How many records it stands for."""
        return self.batch.count if self.batch.whole else 1

    @property
    def topic(self) -> str:
        """The topic sent to."""
        return self.batch.topic

    @property
    def lane(self) -> str:
        """The lane that an unordered record went into, as `Reader` takes it (`origin`); empty until then, and of ordered ones."""
        return self.batch.lane

    @property
    def left(self) -> bool:
        """Whether it was handed to a connection. What failed and was not is in no log, whatever its error says of others."""
        return self.batch.transmitted

    @property
    def error(self) -> TuttiError | None:
        """Why it failed, None while it did not."""
        return self.batch.failure.error if self.batch.done and self.batch.failure else None

    def _offset(self) -> int:
        batch = self.batch
        if batch.offset == OFFSET_UNKNOWN or self.index < batch.cut:
            return OFFSET_UNKNOWN
        return batch.offset + self.index - batch.cut

    def __repr__(self) -> str:
        """One line for people."""
        if not self.batch.done:
            return f"<Receipt topic={self.batch.topic} on its way>"
        if self.batch.failure:
            return f"<Receipt topic={self.batch.topic} failed: {self.batch.failure.error}>"
        return f"<Receipt topic={self.batch.topic} offset={self._offset()} count={self.count}>"


#: Called in the I/O thread with the error (None: committed) and the receipt.
OnDelivery = Callable[[TuttiError | None, Receipt], Any]
