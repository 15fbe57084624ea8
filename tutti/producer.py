"""Producer: sends records to the group and returns the offset of each in the committed log."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import pyarrow as pa

from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.appender import with_fast_path
from tutti.batching.encoder import Compression, check_progress, check_record, validated_batch
from tutti.batching.options import check_bytes, checked_options
from tutti.batching.receipt import Header, OnDelivery, Receipt, Resume, Spooled, reject_in_callback
from tutti.common.credentials import Credentials, given
from tutti.common.deadlines import check_seconds, check_wait
from tutti.common.gateway_url import parse_url
from tutti.common.reentrancy import is_from_call
from tutti.data.names import check_name, nameless_name
from tutti.delivery.ordered import OrderedDelivery
from tutti.delivery.session import Identity
from tutti.delivery.unordered import UnorderedDelivery
from tutti.errors import Unavailable, UsageError
from tutti.fork_and_exit import register, tune_allocator
from tutti.io.producer_io import ProducerIO
from tutti.sources.query_wait import QueryWait
from tutti.spool.commit_mark import APPLICATION_PROGRESS_BYTES_MAX, decode_mark
from tutti.spool.delivery import SpooledDelivery
from tutti.spool.disk_thread import DiskThread
from tutti.spool.spool import Spool
from tutti.spool.store import SpoolStore

Timestamp = Any  # an aware datetime, or an int of microseconds since 1970, UTC
LOG = logging.getLogger("tutti.client")
_NO_APPENDERS: dict[str, Callable[[Any], Receipt | None]] = {}


class Producer:
    """Sends records in order, exactly once, and returns a receipt for each.

    A producer has one order over all topics. The order holds across reconnects, failover and restarts. Unordered records keep their
    order only within the lane of one gateway. Several threads may share a producer. A producer belongs to the process that opened
    it. In a forked child, every call and every pending receipt raises `UsageError`; open another producer there.

    At the end of the `with` block, the producer delivers everything, and raises the error of the first failed receipt that was not
    raised before. If the block itself raises, the producer has two seconds to deliver its records, and the block's error
    propagates.

    Args:
        url: `tutti://HOST:P[,HOST:P...]`. The producer discovers the other gateways of the group.
        producer: name of the producer. A restarted producer continues after its last committed record (`resume`) and fences its
            previous instance. A producer without a name gets a random name, and its state is deleted after an idle hour.
        linger: seconds that a batch waits for more records. With 0, a batch is sent at once while no batch is in flight.
        batch_bytes: size at which an open batch is sent, 1 KiB to 4 MiB; limited to half of `buffer_bytes`.
        buffer_bytes: bytes of records without an outcome, at least 64 KiB. Unordered records have a separate buffer.
        on_full: behaviour of `send` when the buffer is full: "block" waits, "raise" raises `BufferFull`.
        compression: compression of batches: None, "lz4" or "zstd".
        delivery_timeout: seconds from `send()` to the failure of a record that has no outcome (`Unknown`).
        connect_timeout: seconds to find a gateway and begin an epoch.
        spool: directory on this host for uncommitted records. Each producer needs its own directory, and needs a name. A record
            that is durable in the spool (`Receipt.spooled`) commits once, in the order sent, even after a crash of the process or
            host. The next producer with this name and spool sends the uncommitted records first. A producer with a spool can be
            opened while no gateway is available, and its deliveries do not time out. After an abort, the producer continues without
            `resume`.
        spool_bytes: maximum size of the spool, at least 16 MiB; above it, `on_full` applies.
        credentials: a `Credentials`, or the path of a credentials file. The default is the file that `TUTTI_TOKEN_FILE` names.

    Raises:
        DirectoryRefused, WrongDirectory, Damaged: the spool is in use by another process, belongs to another producer, or is
            corrupt.
        ConfigError: the url is malformed, or names a port of a different protocol.
        UsageError: an option or the name is wrong, or this system is not Linux.
        Unavailable: no gateway accepted the producer within `connect_timeout`. The message has the result of each address.
        Refused: the gateway rejects this producer (`NotAllowed`: rejects its credentials).
    """

    staged = False  # True if records stay invisible until a transaction commits them
    dead_letters_denied = False  # True if a spool moves a batch to `refused/` when the producer has no right to write its topic

    def __init__(
        self,
        url: str,
        producer: str | None = None,
        *,
        linger: float = 0.0,
        batch_bytes: int = limits.BATCH_BYTES,
        buffer_bytes: int = limits.BUFFER_BYTES,
        on_full: Literal["block", "raise"] = "block",
        compression: Compression = None,
        delivery_timeout: float = limits.DELIVERY_TIMEOUT_US / 1e6,
        connect_timeout: float = limits.CONNECT_TIMEOUT_US / 1e6,
        spool: str | os.PathLike[str] | None = None,
        spool_bytes: int = limits.SPOOL_BYTES,
        credentials: Credentials | str | Path | None = None,
    ) -> None:
        """Connect and begin an epoch. With a spool, return without waiting for the connection or the epoch."""
        self._io: ProducerIO | None = None
        if spool is None:
            # With a spool, opening does not wait, so a callback may open a producer.
            reject_in_callback("a Producer cannot be opened", "opening waits for a gateway; open the Producer in another thread")
        if not hasattr(os, "eventfd"):
            raise UsageError(f"a Producer runs on Linux and this is {sys.platform}: run it on a Linux machine or in a container")
        addresses = parse_url(url)
        known = given(credentials)
        instance = secrets.token_bytes(16)
        name = check_name("producer", producer) if producer is not None else nameless_name(instance)
        options = checked_options(linger, batch_bytes, buffer_bytes, on_full, compression, delivery_timeout)
        options = options._replace(staged=self.staged, dead_letters_denied=self.dead_letters_denied)
        check_seconds("connect_timeout", connect_timeout)
        tune_allocator()
        identity = Identity(name, instance, secrets.token_bytes(16))
        self._accumulator = Accumulator(options)
        self._spool: Spool | None = None
        if spool is None:
            self._io = ProducerIO(OrderedDelivery(identity, self._accumulator), addresses, known)
        else:
            self._spool, disk_thread = _open_spool(spool, spool_bytes, producer, self._accumulator)
            self._io = ProducerIO(SpooledDelivery(identity, self._spool), addresses, known)
            self._io.disk_thread = disk_thread
            self._accumulator.query_wait = QueryWait(self._io.endpoints, self._spool.log, known)
        self._appenders = self._accumulator.appenders
        # the appenders of unordered records; filled when the first unordered record is sent
        self._unordered_appenders = _NO_APPENDERS
        self._accumulator.wake = self._io.wake
        self._topics: set[str] = set()
        self._closed = False
        # Register before the start, so that a fork or the interpreter's exit finds the producer.
        register(self._io)
        self._io.start()
        if spool is not None:
            return
        try:
            if self._accumulator.wait_opened(time.monotonic() + connect_timeout) is None:
                raise Unavailable(self._io.report(connect_timeout))
        except BaseException:
            self._io.stop()
            raise
        # Set this only after the start: the first Welcome names the log, which `QueryWait` needs.
        self._accumulator.query_wait = QueryWait(self._io.endpoints, self._delivery.session.log, known)

    @property
    def name(self) -> str:
        """The name of the producer; a random name begins with `~`."""
        return self._delivery.name

    @property
    def epoch(self) -> int:
        """The current epoch, or the last one if no epoch is open."""
        return self._delivery.session.epoch

    @property
    def _opened_io(self) -> ProducerIO:
        if self._io is None:
            raise UsageError("the producer was never opened")
        return self._io

    @property
    def _delivery(self) -> OrderedDelivery:
        return self._opened_io.delivery

    @with_fast_path
    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        timestamp: Timestamp = None,
        headers: Iterable[Header] = (),
        progress: bytes | None = None,
        on_delivery: OnDelivery | None = None,
        ordering: str = "total",
    ) -> Receipt:
        """Send one record. Return at once, unless the buffer is full and `on_full` is "block".

        Args:
            topic: name of the topic, which is created with its first record.
            value, key: bytes or None.
            timestamp: aware datetime or int microseconds since 1970, UTC; default: the current time.
            headers: pairs (name, bytes or None).
            progress: up to 256 bytes that commit with the record, such as a source position. `resume()` returns the last committed
                progress.
            on_delivery: called as `on_delivery(error, receipt)`; `error` is None if the record committed. The callback runs in an
                I/O thread, which other producers of the process share. The callback may send and must not block. An exception in
                the callback is logged, even `SystemExit`.
            ordering: "total", or "unordered" for the lane of the gateway that receives the record. The orderings are independent.

        Returns:
            The receipt. A record that exceeds a limit is not sent, and its receipt has failed with `TooLarge`.

        Raises:
            UsageError: an argument is wrong, the producer is closed, or the caller is a signal handler that interrupted this
                producer.
            BufferFull: the buffer is full and `on_full` is "raise".
            Fenced: another instance of the producer took over, or an operator fenced the producer or deleted its state.
            Aborted: an abort has stopped a producer that uses progress; call `resume()`.
        """
        # Fast path for most records: append to the open batch without a lock, if the batch has this topic and free space.
        appenders = (
            self._appenders if ordering == "total" else self._unordered_appenders if ordering == "unordered" else _NO_APPENDERS
        )
        receipt: Receipt | None = None
        try:
            if appenders and timestamp is None and progress is None and not headers:
                if key is None and on_delivery is None and value.__class__ is bytes:
                    receipt = appenders[topic](value)
                elif on_delivery is None or callable(on_delivery):
                    receipt = appenders[topic]((value, key, on_delivery))
                if receipt is not None:
                    return receipt
        except (KeyError, StopIteration, ValueError, TypeError) as error:  # no appender, no free space, or a concurrent append
            if not is_from_call(error):
                raise
        return self._send(topic, value, key, timestamp, headers, progress, on_delivery, ordering)

    def _send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        timestamp: Timestamp,
        headers: Iterable[Header],
        progress: bytes | None,
        on_delivery: OnDelivery | None,
        ordering: str,
    ) -> Receipt:
        accumulator = self._check(topic, on_delivery, ordering, progress)
        record = check_record(value, key, timestamp, headers)
        return accumulator.add(topic, record, self._check_progress(progress), on_delivery)

    def send_batch(
        self,
        topic: str,
        record_batch: pa.RecordBatch,
        progress: bytes | None = None,
        on_delivery: OnDelivery | None = None,
        ordering: str = "total",
    ) -> Receipt:
        """Send a record batch as one frame. All of its records commit at consecutive offsets, or none does.

        A batch is never split. A batch above a limit (8 MiB encoded, 32 MiB without compression, 4 MiB for a record) is not sent,
        and its receipt has failed with `TooLarge`. Split such a batch with `record_batch.slice`, at best into 256 KiB to 1 MiB.

        Args:
            topic: name of the topic.
            record_batch: columns value (binary, required), key (binary), timestamp (timestamp with zone) and headers
                (list<struct<key: string, value: binary>>) in any order; no other column. The default timestamp is the current time.
            progress: as in `send`; it belongs to the last record.
            on_delivery: as in `send`; called once for the batch.
            ordering: as in `send`.

        Returns:
            One receipt, with the offset of the first record and the `count` of records.

        Raises:
            UsageError: an argument, a column or the type of a column is wrong, or the batch is empty.
            BufferFull, Fenced, Aborted: as `send`.
        """
        accumulator = self._check(topic, on_delivery, ordering, progress)
        records = validated_batch(record_batch, time.time_ns() // 1000)
        return accumulator.add_batch(topic, records, self._check_progress(progress), on_delivery)

    def _check(self, topic: object, on_delivery: OnDelivery | None, ordering: str, progress: bytes | None) -> Accumulator:
        """Validate the arguments and return the accumulator for the record."""
        self._reject_reentry()
        if not isinstance(topic, str) or topic not in self._topics:
            name = check_name("topic", topic)
            # Valid names are cached, because the check takes longer than a lookup. The cache is bounded, because callers choose the
            # topics.
            if len(self._topics) < limits.TOPICS_MAX:
                self._topics.add(name)
        if on_delivery is not None and not callable(on_delivery):
            raise UsageError(f"on_delivery must be a function of (error, receipt), not {type(on_delivery).__name__}")
        if ordering == "total":
            return self._accumulator
        if ordering == "unordered" and self._spool is not None:
            raise UsageError("a producer with a spool sends no unordered records: use a producer without a spool for them")
        if ordering != "unordered":
            raise UsageError(f"ordering {ordering!r} is unknown: use 'total' or 'unordered'")
        if progress:
            raise UsageError("progress needs the total order, and this record is unordered: send it with ordering='total'")
        return self._unordered()

    def _check_progress(self, progress: bytes | None) -> bytes:
        """Validate and return the progress. In a producer with a spool, the spool's mark takes a part of the progress limit."""
        data = check_progress(progress)
        if self._spool is not None and len(data) > APPLICATION_PROGRESS_BYTES_MAX:
            limit = f"with a spool, at most {APPLICATION_PROGRESS_BYTES_MAX} are allowed"
            raise UsageError(f"progress has {len(data)} bytes; {limit}")
        return data

    def _unordered(self) -> Accumulator:
        """Return the accumulator of unordered records; create it with the first record."""
        io, first = self._opened_io, self._accumulator
        if io.lanes is None:
            with first.lock:
                if first.ended:
                    first.check()
                if io.lanes is None:
                    # Keep the lock, because two threads may send their first unordered records at the same time.
                    accumulator = Accumulator(first.options)
                    accumulator.frame_bytes_max, accumulator.raw_bytes_max = first.frame_bytes_max, first.raw_bytes_max
                    io.add_lanes(UnorderedDelivery(io.delivery, accumulator, lambda: secrets.token_bytes(16)))
                    self._unordered_appenders = accumulator.appenders
        return io.accumulators[1]

    def _reject_reentry(self) -> None:
        """Reject a call by a signal handler that interrupted this producer in the same thread. The call could deadlock."""
        self._accumulator.reject_reentry()
        if self._io is not None and self._io.lanes is not None:
            self._io.lanes.accumulator.reject_reentry()

    def flush(self, timeout: float | None = None) -> int:
        """Send open batches and wait up to `timeout` seconds for all outcomes. Return the number of records without an outcome.

        Every record has an outcome by its delivery deadline, so `flush` also returns without a timeout. With a spool there is no
        delivery deadline. During an outage, `flush` without a timeout then waits until the outage ends.

        Raises:
            UsageError: called in `on_delivery`, in a forked child, or in a signal handler that interrupted this producer.
        """
        if timeout is not None:
            check_wait(timeout)
        self._reject_reentry()
        return self._opened_io.flush(timeout)

    def resume(self, timeout: float = limits.REQUEST_TIMEOUT_US / 1e6) -> Resume:
        """Return the sequence of the last committed record and the last committed progress; (0, b"") if there is none.

        After an abort, `resume` waits for the next epoch and allows a producer that uses progress to send again. With a spool,
        spooled records count as committed, because they will be committed.

        Raises:
            Unavailable: no epoch was open within `timeout` seconds.
            Fenced: another instance of the producer took over, or an operator fenced the producer or deleted its state.
            UsageError: called in `on_delivery` without an open epoch, or in a signal handler that interrupted this producer.
        """
        check_wait(timeout)
        self._reject_reentry()
        session, deadline = self._delivery.session, time.monotonic() + timeout
        if self._accumulator.wait_opened(deadline) is None:
            trouble = f"; last error: {session.trouble}" if session.trouble else ""
            raise Unavailable(f"producer {self.name!r} has no open epoch after {timeout:g} s{trouble}")
        # Accept records only now, because they must belong to the epoch whose position this method returns.
        self._accumulator.lift_stop()
        if self._spool is not None:
            return self._spool.resume(deadline)
        sequence, progress = self._accumulator.committed
        # An earlier run may have had a spool. The spool's mark then precedes the application's progress.
        return Resume(sequence, decode_mark(progress)[1])

    @property
    def spool(self) -> Spooled:
        """The current content of the spool.

        Raises:
            UsageError: the producer has no spool.
        """
        if self._spool is None:
            raise UsageError("this producer has no spool: give it one, Producer(..., spool=DIR)")
        return self._spool.spooled()

    def __len__(self) -> int:
        """Return the number of records without an outcome."""
        return self._opened_io.undelivered()

    def __bool__(self) -> bool:
        """Return True, even if no record is in flight."""
        return True

    def close(self) -> None:
        """Deliver everything, then end the producer. Failed receipts do not raise here, only at the end of a `with` block.

        With a spool, `close` returns after `delivery_timeout` at the latest, and uncommitted records stay in the spool.

        Raises:
            UsageError: called in `on_delivery`, or in a signal handler that interrupted this producer. The producer stays open.
        """
        self._close(None)

    def _close(self, timeout: float | None) -> None:
        if self._closed or self._io is None or self._io.pid != os.getpid():
            return
        reject_in_callback("close() cannot be called", "close() waits for records in flight; set a flag in on_delivery instead")
        self._reject_reentry()
        self._closed = True
        try:
            # Records in a spool have no deadline. Without this limit, `close` would wait for the end of an outage.
            if timeout is None and self._spool is not None:
                timeout = self._accumulator.options.delivery_timeout
            # Keep the accumulators open, because callbacks may send until everything has an outcome.
            left = self._io.flush(timeout)
            if left and self._spool is None:
                LOG.error("producer %s was closed with %d records not delivered", self.name, left)
        finally:
            for accumulator in self._io.accumulators:
                accumulator.close()
            self._io.stop()

    def __enter__(self) -> Self:
        """Return the producer, which delivers everything at the end of the `with` block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Deliver everything. Raise the first failure that was not raised before, unless the block itself raised."""
        if kind is not None:
            self._close(limits.EXIT_FLUSH_US / 1e6)
            return
        self._close(None)
        # An error of ordered records takes precedence over an error of unordered records.
        for accumulator in self._opened_io.accumulators:
            failure = accumulator.first_failure()
            # The first failure is raised; the others stay in their receipts.
            if failure is not None:
                failure.throw()

    def __del__(self) -> None:
        """Deliver all sent records of a producer that was not closed, then end its I/O."""
        # The constructor may have failed before it set the attribute; in a forked child, the I/O belongs to the parent.
        io = getattr(self, "_io", None)
        if io is not None and io.pid == os.getpid():
            io.release()


def _open_spool(
    spool: str | os.PathLike[str], spool_bytes: int, producer: str | None, accumulator: Accumulator
) -> tuple[Spool, DiskThread]:
    """Return the spool that takes the accumulator's batches, and the thread that writes and reads the spool."""
    if producer is None:
        raise UsageError("a producer with a spool needs a name, to resume after a restart: Producer(url, producer=NAME, spool=DIR)")
    try:
        path = os.fsdecode(spool)
    except TypeError:
        path = ""
    if not path:
        raise UsageError(f"spool must be the path of a directory, not {spool!r}")
    if accumulator.options.staged:
        raise UsageError("a staging producer cannot use a spool")
    check_bytes("spool_bytes", spool_bytes)
    if spool_bytes < limits.SPOOL_BYTES_MIN:
        raise UsageError(f"spool_bytes={spool_bytes} is too small: at least {limits.SPOOL_BYTES_MIN}")
    store = SpoolStore(path, producer, min(limits.SPOOL_SEGMENT_BYTES, spool_bytes // 8))
    stage = Spool(accumulator, store, spool_bytes)
    return stage, DiskThread(stage, store)
