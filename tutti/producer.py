"""Producer: sends records to the group and returns the offset of each record in the committed log."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa

from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.appender import with_fast_path
from tutti.batching.encoder import Compression, check_progress, check_record, validated_batch
from tutti.batching.future import check_callback, is_plain
from tutti.batching.options import check_bytes, checked_options
from tutti.batching.receipt import Header, OnDelivery, Receipt, Resume, Spooled, reject_in_callback
from tutti.common.credentials import Credentials, given
from tutti.common.deadlines import check_seconds, check_wait
from tutti.common.gateway_url import SCHEME, default_noted, url_or_default
from tutti.common.reentrancy import is_from_call
from tutti.common.stats import ProducerStats, records_text
from tutti.data.names import check_name, nameless_name
from tutti.delivery.ordered import OrderedDelivery
from tutti.delivery.session import Identity
from tutti.delivery.unordered import UnorderedDelivery
from tutti.errors import Unavailable, UsageError, misuse
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
    """Sends records in order, exactly once, and returns a receipt for each record.

    A producer has one order over all topics. The order holds across reconnects, failover and restarts. Unordered records keep their
    order only within the lane of one gateway. Several threads may share a producer. A producer works only in the process that
    opened it. In a forked child, every call and every pending receipt raises `UsageError`; open another producer there.

    A producer with a name continues after its last committed record when it restarts (`resume`), and fences its previous instance.
    A producer without a name gets a random name, and the log deletes its state after an idle hour.

    At the end of the `with` block, the producer delivers all records. Then the producer raises the first failure that the
    application has not seen. If the block itself raises, the producer has two seconds to deliver, and the block's error propagates.

    A spool is a directory on this host for uncommitted records. Each producer with a spool needs its own directory and a name. A
    record that is durable in the spool (`Receipt.spooled`) commits once, in the order sent, even after a crash of the process or
    host. The next producer with the same name and spool sends the uncommitted records first. A producer with a spool can be opened
    while no gateway is available, and its deliveries do not time out. After an abort, a producer with a spool continues without
    `resume`.

    Args:
        url: some gateways of the group, as tutti://HOST:P[,HOST:P...]; the producer discovers the others. The default is the
            environment variable `TUTTI_URL`, or tutti://127.0.0.1:7400.
        producer: name of the producer (None: a random name).
        linger: seconds that a batch waits for more records; with 0, a batch is sent at once while no batch is in flight.
        batch_bytes: size at which an open batch is sent, 1 KiB to 4 MiB; limited to half of `buffer_bytes`.
        buffer_bytes: limit of the bytes without an outcome, at least 64 KiB; unordered records have a buffer of the same size.
        on_full: behaviour of `send` when the buffer is full: "block" waits, "raise" raises `BufferFull`.
        compression: compression of batches: None, "lz4" or "zstd".
        delivery_timeout: seconds from `send()` to the failure of a record without an outcome: with `Unknown`, or with `Aborted` if
            the record was never sent.
        connect_timeout: seconds to find a gateway and begin an epoch.
        spool: directory of the producer's spool (None: no spool).
        spool_bytes: maximum size of the spool, at least 16 MiB; when the spool is full, `on_full` applies.
        credentials: a `Credentials`, or the path of a credentials file (by default the file that `TUTTI_TOKEN_FILE` names).

    Raises:
        DirectoryRefused, WrongDirectory, Damaged: the spool is in use by another process, belongs to another producer, or is
            corrupt.
        ConfigError: the url is malformed, or names a port of a different protocol.
        UsageError: an option or the name is wrong, or this system is not Linux.
        Unavailable: no gateway accepted the producer within `connect_timeout`; the message contains the result at each address.
        Refused: the gateway rejects this producer (`NotAllowed`: rejects its credentials).
    """

    overflow_bytes = 0  # bytes of records above a full buffer that `send` accepts without waiting
    staged = False  # True if records stay invisible until a transaction commits them
    # True if the spool moves a batch to `refused/` when the producer lacks the right to write to the batch's topic
    dead_letters_denied = False

    def __init__(
        self,
        url: str | None = None,
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
            # A producer with a spool opens without waiting, so only a producer without a spool is rejected in a callback.
            reject_in_callback("a Producer cannot be opened", "opening waits for a gateway; open the Producer in another thread")
        if not hasattr(os, "eventfd"):
            raise UsageError(f"a Producer runs on Linux and this is {sys.platform}: run it on a Linux machine or in a container")
        addresses = url_or_default(url)
        self._url = SCHEME + ",".join(map(str, addresses))
        known = given(credentials)
        instance = secrets.token_bytes(16)
        name = check_name("producer", producer) if producer is not None else nameless_name(instance)
        options = checked_options(linger, batch_bytes, buffer_bytes, on_full, compression, delivery_timeout)
        options = options._replace(
            staged=self.staged, dead_letters_denied=self.dead_letters_denied, overflow_bytes=self.overflow_bytes
        )
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
        self._unordered_appenders = _NO_APPENDERS  # replaced when the application sends the first unordered record
        self._accumulator.wake = self._io.wake
        self._topics: set[str] = set()
        self._closed = False
        # Register before the start, because a fork or the interpreter's exit may happen at any time after it.
        register(self._io)
        self._io.start()
        if spool is not None:
            return
        try:
            with default_noted(url):
                if self._accumulator.wait_opened(time.monotonic() + connect_timeout) is None:
                    raise Unavailable(self._io.report(connect_timeout))
        except BaseException:
            self._io.stop()
            raise
        # `QueryWait` needs the log's uuid, which the first Welcome of a gateway contains.
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
    def closed(self) -> bool:
        """True after `close`, and after the end of a `with` block."""
        return self._closed

    def stats(self) -> ProducerStats:
        """Return the current counters and gauges of the producer, also after `close`.

        The call takes some microseconds and needs no gateway.
        """
        found = self._opened_io.stats()
        if self._spool is None:
            return found
        content = self._spool.spooled()
        return replace(found, records_spooled=content.records, bytes_spooled=content.used_bytes)

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
            timestamp: aware datetime or int microseconds since 1970, UTC; the default is the current time.
            headers: pairs (name, bytes or None).
            progress: up to 256 bytes that commit with the record, such as a source position; see `resume`.
            on_delivery: callback `on_delivery(error, receipt)`, with None as `error` for a committed record.
            ordering: "total", or "unordered" for the lane of the gateway that receives the record.

        The callback runs in an I/O thread, which other producers of the process share. The callback may send and must not block. An
        exception in the callback is logged, even `SystemExit`.

        Returns:
            The receipt. A record that exceeds a limit is not sent, and its receipt has failed with `TooLarge`.

        Raises:
            UsageError: an argument is wrong, the producer is closed, or the caller is a signal handler that interrupted this
                producer.
            BufferFull: the buffer is full and `on_full` is "raise".
            Fenced: another instance of the producer took over, or an operator fenced the producer or deleted its state.
            Aborted: a record was aborted, which stops a producer that uses progress; call `resume()`.
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
                elif on_delivery is None or is_plain(on_delivery):
                    receipt = appenders[topic]((value, key, on_delivery))
                if receipt is not None:
                    return receipt
        except (KeyError, StopIteration, ValueError, TypeError) as error:
            # Use the slow path if no batch of the topic is open, the batch is full, or another thread is appending.
            if not is_from_call(error):
                raise
        accumulator = self._check(topic, on_delivery, ordering, progress)
        record = check_record(value, key, timestamp, headers)
        return accumulator.add(topic, record, b"" if progress is None else self._check_progress(progress), on_delivery)

    def send_batch(
        self,
        topic: str,
        record_batch: pa.RecordBatch,
        progress: bytes | None = None,
        on_delivery: OnDelivery | None = None,
        ordering: str = "total",
    ) -> Receipt:
        """Send a record batch as one frame. Either all records of the batch commit, at consecutive offsets, or none.

        The producer never splits a batch. A batch above a limit (8 MiB encoded, 32 MiB without compression, 4 MiB for a record) is
        not sent, and its receipt has failed with `TooLarge`. Split a large batch with `record_batch.slice`, best into slices of
        256 KiB to 1 MiB.

        Args:
            topic: name of the topic.
            record_batch: columns value (binary, required), key (binary), timestamp (timestamp with zone, by default the current
                time) and headers (list<struct<key: string, value: binary>>), in any order; no other column.
            progress: as in `send`; commits with the last record.
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
            # Cache valid names, because a lookup is faster than the check; bound the cache, because callers choose the names.
            if len(self._topics) < limits.TOPICS_MAX:
                self._topics.add(name)
        if on_delivery is not None and not is_plain(on_delivery):
            check_callback(on_delivery)  # raises, and its message says why
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
        """Validate and return the progress. With a spool, the limit is lower, because each progress also contains the spool's
        mark.
        """
        data = check_progress(progress)
        if self._spool is not None and len(data) > APPLICATION_PROGRESS_BYTES_MAX:
            limit = f"with a spool, at most {APPLICATION_PROGRESS_BYTES_MAX} are allowed"
            raise UsageError(f"progress has {len(data)} bytes; {limit}")
        return data

    def _unordered(self) -> Accumulator:
        """Return the accumulator of unordered records, which the first unordered record creates."""
        io, first = self._opened_io, self._accumulator
        if io.lanes is None:
            with first.lock:
                if first.ended:
                    first.check()
                if io.lanes is None:
                    # Create the accumulator under the lock, because two threads may send their first unordered records at once.
                    accumulator = Accumulator(first.options)
                    if (welcome := self._delivery.session.welcome) is not None:
                        accumulator.set_limits(welcome)
                    io.add_lanes(UnorderedDelivery(io.delivery, accumulator, lambda: secrets.token_bytes(16)))
                    self._unordered_appenders = accumulator.appenders
        return io.accumulators[1]

    def _reject_reentry(self) -> None:
        """Raise if a signal handler calls the producer that it interrupted in the same thread, because the call could deadlock."""
        self._accumulator.reject_reentry()
        if self._io is not None and self._io.lanes is not None:
            self._io.lanes.accumulator.reject_reentry()

    def flush(self, timeout: float | None = None) -> int:
        """Send open batches and wait up to `timeout` seconds for all outcomes. Return the number of records without an outcome.

        Without a timeout, `flush` returns by the delivery deadline of the last record. With a spool, records have no
        deadline, so `flush` without a timeout waits until an outage ends.

        Raises:
            UsageError: called in `on_delivery`, in a forked child, or in a signal handler that interrupted this producer.
        """
        if timeout is not None:
            check_wait(timeout)
        self._reject_reentry()
        return self._opened_io.flush(timeout)

    def resume(self, timeout: float = limits.REQUEST_TIMEOUT_US / 1e6) -> Resume:
        """Return the sequence of the last committed record and the last committed progress; (0, b"") if no record committed.

        After an abort, `resume` waits for the next epoch and allows a producer that uses progress to send again. With a spool,
        spooled records count as committed, because the log will contain each of them.

        Raises:
            Unavailable: no epoch was open within `timeout` seconds.
            Fenced: another instance of the producer took over, or an operator fenced the producer or deleted its state.
            UsageError: called in `on_delivery` without an open epoch, or in a signal handler that interrupted this producer.
        """
        check_wait(timeout)
        self._reject_reentry()
        return self._resume(time.monotonic() + timeout, timeout)

    def _resume(self, deadline: float, timeout: float) -> Resume:
        """Wait until `deadline` (monotonic), which an error reports as the end of a wait of `timeout` seconds."""
        session = self._delivery.session
        if self._accumulator.wait_opened(deadline) is None:
            trouble = f"; last error: {session.trouble}" if session.trouble else ""
            raise Unavailable(f"producer {self.name!r} has no open epoch after {timeout:g} s{trouble}")
        # Accept records only now, because the next record must follow the sequence that this method returns.
        self._accumulator.lift_stop()
        if self._spool is not None:
            return self._spool.resume(deadline)
        sequence, progress = self._accumulator.committed
        # If an earlier run had a spool, the progress in the log begins with the spool's mark.
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

    def __repr__(self) -> str:
        """Return a one-line description: name, url, state, gateway, epoch, and the number of records without an outcome."""
        io = getattr(self, "_io", None)  # missing if the constructor failed early
        if io is None:
            return "<Producer never opened>"
        found = io.stats()
        ended = "closed" if self._closed else "ended" if io.ended else ""
        state = ended or (f"connected to {found.gateway}" if found.connected else "connecting")
        counts = f"epoch {found.epoch}, {records_text(found.records_buffered)} undelivered"
        return f"<{type(self).__name__} {self.name!r} of {self._url}, {state}, {counts}>"

    def __bool__(self) -> bool:
        """Return True, because `__len__` alone would make an idle producer false."""
        return True

    def close(self) -> None:
        """Deliver all records, then end the producer. Failures do not raise here, only at the end of a `with` block.

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
            # Spooled records have no delivery deadline, so without this limit `close` would wait until an outage ends.
            if timeout is None and self._spool is not None:
                timeout = self._accumulator.options.delivery_timeout
            # Keep the accumulators open during the flush, because callbacks may send until all records have outcomes.
            left = self._io.flush(timeout)
            if left and self._spool is None:
                LOG.error("producer %r was closed with %s not delivered", self.name, records_text(left))
        finally:
            for accumulator in self._io.accumulators:
                accumulator.close()
            self._io.stop()

    if not TYPE_CHECKING:  # a type checker reports this use
        __aenter__ = __aexit__ = misuse(
            "a Producer needs `with`: use `with Producer(...) as p`, or `async with AsyncProducer(...)`"
        )

    def __enter__(self) -> Self:
        """Return the producer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Deliver all records. Raise the first failure that the application has not seen, unless the block itself raised."""
        if kind is not None:
            self._close(limits.EXIT_FLUSH_US / 1e6)
            return
        self._close(None)
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise the first failure that the application has not seen."""
        # An error of ordered records takes precedence over an error of unordered records.
        for accumulator in self._opened_io.accumulators:
            failure = accumulator.first_failure()
            # Raise only the first failure; the application finds the others in their receipts.
            if failure is not None:
                failure.throw()

    def __del__(self) -> None:
        """End the I/O of a producer that was not closed, as soon as all its records have outcomes."""
        # `_io` is missing if the constructor failed early; in a forked child, the I/O belongs to the parent.
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
