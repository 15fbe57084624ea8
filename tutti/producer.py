"""Producer: hands records to the group and gets each one's place in the committed log."""

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
from tutti.batching.accumulator import Feed
from tutti.batching.append import swiftly
from tutti.batching.encoder import Compression, check_progress, check_record, conform
from tutti.batching.options import FeedOptions, check_bytes, options_of
from tutti.batching.receipt import Header, OnDelivery, Receipt, Resume, Spooled, outside
from tutti.common.address import parse_url
from tutti.common.credentials import Credentials, given
from tutti.common.durations import check_seconds, check_wait
from tutti.common.reentrancy import is_from_call
from tutti.data.names import check_name, nameless_name
from tutti.delivery.ordered import Delivery
from tutti.delivery.session import Identity
from tutti.delivery.unordered import Lanes
from tutti.errors import Unavailable, UsageError
from tutti.io.producer_io import Pump
from tutti.lifecycle import tune, watch
from tutti.sources.query_wait import Passing
from tutti.spool.accumulator import SpooledFeed
from tutti.spool.commit_mark import unwrap
from tutti.spool.delivery import SpooledDelivery
from tutti.spool.disk_thread import Spooler
from tutti.spool.store import Store

Timestamp = Any  # an aware datetime, or an int of microseconds since 1970, UTC
LOG = logging.getLogger("tutti.client")
_NOWHERE: dict[str, Callable[[Any], Receipt | None]] = {}


class Producer:
    """Sends records in order, each once, and tells where each one is.

    One order holds over everything that a producer sends, over all topics, also across reconnects, other gateways and restarts.
    Unordered records are in order among those that went into the same gateway's lane, and with no others. A producer may be used
    by several threads. It belongs to the process that opened it: in a forked child every call raises `UsageError`, and
    so does a receipt that was on its way; open another there.

    Leaving `with` delivers everything and raises the error of the first failed receipt that was not raised before. When the block
    itself raises, what was sent gets two seconds, and the block's error is the one that is seen.

    Args:
        url: `tutti://HOST:P[,HOST:P...]`; other gateways of the group are found out.
        producer: its name. One that starts again goes on behind what it committed (`resume`) and fences its older self.
            Without a name it gets a random one, which is forgotten when idle for an hour.
        linger: seconds that a batch waits for more records. 0 sends at once when nothing is in flight, and fills batches otherwise.
        batch_bytes: an open batch is sent when it has so many, 1 KiB to 4 MiB; at most half of `buffer_bytes` is used.
        buffer_bytes: what may wait for its outcome, at least 64 KiB; unordered records have a buffer of their own.
        on_full: what `send` does when the buffer is full: "block" waits, "raise" raises `BufferFull`.
        compression: of bodies: None, "lz4" or "zstd".
        delivery_timeout: seconds from `send()` after which an outcome is not waited for any more (`Unknown`).
        connect_timeout: seconds to find a gateway and begin an epoch.
        spool: a directory on this host for what is not committed yet, of this producer alone, which needs a name then. What is on
            its disk (`Receipt.spooled`) commits, once and in the order sent, also after a crash of the process or the host: the
            next producer of this name with that spool sends it first. No gateway is needed to open it, nothing times out, and
            after an abort it goes on by itself.
        spool_bytes: what the spool may take, at least 16 MiB; `on_full` says what happens above it.
        credentials: what it is let in with: a `Credentials`, or the path of a file with them; those that `TUTTI_TOKEN_FILE` names
            when left out.

    Raises:
        DirectoryRefused, WrongDirectory, Damaged: the spool is used by another process or belongs to another producer, or what it
            holds cannot be read.
        ConfigError: the url is none, or names a port that speaks something else.
        UsageError: an option or the name is wrong, or this is not Linux.
        Unavailable: no gateway let it in within `connect_timeout`; the message says what was met at each.
        Refused: the gateway does not take this producer (NotAllowed: not with these credentials).
    """

    staged = False  # whether what is sent waits for a transaction
    puts_denied_aside = False  # with a spool: whether a topic that the credentials do not allow is refused as others are

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
        """Connect and begin an epoch; with a spool these are not waited for."""
        self._pump: Pump | None = None
        if spool is None:
            outside("a Producer cannot be opened", "it waits for a gateway; do it in another thread")
        if not hasattr(os, "eventfd"):
            raise UsageError(f"a Producer runs on Linux and this is {sys.platform}: run it on a Linux machine or in a container")
        addresses = parse_url(url)
        known = given(credentials)
        instance = secrets.token_bytes(16)
        name = check_name("producer", producer) if producer is not None else nameless_name(instance)
        options = options_of(linger, batch_bytes, buffer_bytes, on_full, compression, delivery_timeout)
        options = options._replace(staged=self.staged, puts_denied_aside=self.puts_denied_aside)
        check_seconds("connect_timeout", connect_timeout)
        tune()
        identity = Identity(name, instance, secrets.token_bytes(16))
        self._spool = None if spool is None else _open_spool(spool, spool_bytes, producer, options)
        if self._spool is None:
            self._feed = Feed(options)
            self._pump = Pump(Delivery(identity, self._feed), addresses, known)
        else:
            self._feed, spooler = self._spool
            self._pump = Pump(SpooledDelivery(identity, self._feed), addresses, known)
            self._pump.spooler = spooler
            self._feed.passing = Passing(self._pump.route, self._feed.log, known)
        self._takers = self._feed.takers
        self._beside = _NOWHERE  # the same of unordered records, from the first on
        self._feed.wake = self._pump.wake
        self._topics: set[str] = set()
        self._closed = False
        watch(self._pump)
        self._pump.start()
        if spool is not None:
            return
        try:
            if self._feed.wait_opened(time.monotonic() + connect_timeout) is None:
                raise Unavailable(self._pump.report(connect_timeout))
        except BaseException:
            self._pump.stop()
            raise
        self._feed.passing = Passing(self._pump.route, self._delivery.log, known)

    @property
    def name(self) -> str:
        """The producer's name; a random one begins with `~`."""
        return self._delivery.identity.name

    @property
    def epoch(self) -> int:
        """The epoch that is open, or was last."""
        return self._delivery.epoch

    @property
    def _running(self) -> Pump:
        if self._pump is None:
            raise UsageError("the producer was never opened")
        return self._pump

    @property
    def _delivery(self) -> Delivery:
        return self._running.delivery

    @swiftly
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
        """Send one record; returns at once, unless the buffer is full and `on_full` is "block".

        Args:
            topic: made when it is first used.
            value, key: bytes or None.
            timestamp: aware datetime or int microseconds since 1970, UTC; the present time if not given.
            headers: pairs (name, bytes or None).
            progress: up to 256 bytes that commit with the record and come back by `resume()`: a position in the source.
            on_delivery: called as `on_delivery(error, receipt)`, error None when committed, in an I/O thread, which other
                producers of the process may share: it may send and must not wait. What it raises is logged, also of `sys.exit()`.
            ordering: "total", or "unordered": into the lane of the gateway that takes it. Neither waits for the other.

        Returns the receipt; that of a record which exceeds a limit has failed with `TooLarge`, and nothing is sent.

        Raises:
            UsageError: an argument is wrong, the producer is closed, or a signal handler calls while its thread is in here.
            BufferFull: the buffer is full and `on_full` is "raise".
            Fenced: another instance of the producer took over, or an operator fenced or forgot it.
            Aborted: a producer that uses progress was stopped by an abort: call `resume()`.
        """
        # The short way, for most records: the open batch's taker (see feed.py), if there is one of that topic and it has room.
        takers = self._takers if ordering == "total" else self._beside if ordering == "unordered" else _NOWHERE
        receipt: Receipt | None = None
        try:
            if takers and timestamp is None and progress is None and not headers:
                if key is None and on_delivery is None and value.__class__ is bytes:
                    receipt = takers[topic](value)
                elif on_delivery is None or callable(on_delivery):
                    receipt = takers[topic]((value, key, on_delivery))
                if receipt is not None:
                    return receipt
        except (KeyError, StopIteration, ValueError, TypeError) as error:  # no taker, no room; another thread is within it
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
        feed = self._check(topic, on_delivery, ordering, progress)
        record = check_record(value, key, timestamp, headers)
        return feed.add(topic, record, check_progress(progress), on_delivery)

    def send_batch(
        self,
        topic: str,
        record_batch: pa.RecordBatch,
        progress: bytes | None = None,
        on_delivery: OnDelivery | None = None,
        ordering: str = "total",
    ) -> Receipt:
        """Send a record batch as one frame: all of it commits at consecutive offsets, or none.

        It is never split. What exceeds the limits (8 MiB as it travels, 32 MiB without compression, 4 MiB a record) gets a receipt
        that has failed with `TooLarge`: slice it (`record_batch.slice`), 256 KiB to 1 MiB is the best size.

        Args:
            topic: its topic.
            record_batch: columns value (binary, required), key (binary), timestamp (timestamp with zone), headers
                (list<struct<key: string, value: binary>>), in any order; nothing else. A missing timestamp is the present time.
            progress: as in `send`; belongs to the last record.
            on_delivery: as in `send`, called once.
            ordering: as in `send`.

        Returns:
            One receipt: the offset of the first record, and `count`.

        Raises:
            UsageError: an argument, a column or its type is wrong; the batch is empty.
            BufferFull, Fenced, Aborted: as `send`.
        """
        feed = self._check(topic, on_delivery, ordering, progress)
        records = conform(record_batch, time.time_ns() // 1000)
        return feed.add_whole(topic, records, check_progress(progress), on_delivery)

    def _check(self, topic: object, on_delivery: OnDelivery | None, ordering: str, progress: bytes | None) -> Feed:
        """Refuse what is wrong before it is looked at; where the record goes."""
        self._apart()
        if not isinstance(topic, str) or topic not in self._topics:
            name = check_name("topic", topic)
            if len(self._topics) < limits.TOPICS_MAX:
                self._topics.add(name)
        if on_delivery is not None and not callable(on_delivery):
            raise UsageError(f"on_delivery is a function of (error, receipt), not {type(on_delivery).__name__}")
        if ordering == "total":
            return self._feed
        if ordering == "unordered" and self._spool is not None:
            raise UsageError("unordered records have no place in a spool, which goes by the one order: use a producer without one")
        if ordering != "unordered":
            raise UsageError(f"ordering {ordering!r} is not known: use 'total' or 'unordered'")
        if progress:
            raise UsageError(
                "progress belongs to a producer's one order, which unordered records have no place in: send it with 'total'"
            )
        return self._unordered()

    def _unordered(self) -> Feed:
        """Where unordered records go, made with the first of them."""
        pump, first = self._running, self._feed
        if pump.lanes is None:
            with first.lock:
                if first.ended:
                    first.check()
                if pump.lanes is None:
                    feed = Feed(first.options)
                    feed.frame_bytes_max, feed.raw_bytes_max = first.frame_bytes_max, first.raw_bytes_max
                    pump.carry(Lanes(pump.delivery, feed, lambda: secrets.token_bytes(16)))
                    self._beside = feed.takers
        return pump.feeds[1]

    def _apart(self) -> None:
        """Refuse a signal handler that interrupted its thread in here: whatever it asks for may wait for what that thread has."""
        self._feed.apart()
        if self._pump is not None and self._pump.lanes is not None:
            self._pump.lanes.feed.apart()

    def flush(self, timeout: float | None = None) -> int:
        """Send what is held back and wait for all outcomes, up to `timeout` seconds; returns how many records still have none.

        Every record gets an outcome by its delivery deadline, so this ends also without a timeout. With a spool there is no such
        deadline, and it lasts as long as an outage does.

        Raises:
            UsageError: called in `on_delivery`, in a forked child, or in a signal handler whose thread is in here.
        """
        if timeout is not None:
            check_wait(timeout)
        self._apart()
        return self._running.flush(timeout)

    def resume(self, timeout: float = limits.REQUEST_TIMEOUT_US / 1e6) -> Resume:
        """Where to go on: (sequence of the last committed record, last committed progress); (0, b"") when there is none.

        After an abort it waits for the next epoch and lets a producer that uses progress send again. With a spool, what that holds
        counts as committed: it will be.

        Raises:
            Unavailable: no epoch was open within `timeout` seconds.
            Fenced: another instance of the producer took over, or an operator fenced or forgot it.
            UsageError: called in `on_delivery` while there is no epoch, or in a signal handler whose thread is in here.
        """
        check_wait(timeout)
        self._apart()
        delivery, deadline = self._delivery, time.monotonic() + timeout
        if self._feed.wait_opened(deadline) is None:
            trouble = f"; last trouble: {delivery.trouble}" if delivery.trouble else ""
            raise Unavailable(f"producer {self.name!r} has no open epoch after {timeout:g} s{trouble}")
        self._feed.lift_stop()
        if self._spool is not None:
            return self._spool[0].resume(deadline)
        sequence, progress = self._feed.committed
        return Resume(sequence, unwrap(progress)[1])  # where an earlier run had a spool, its part is none of the application's

    @property
    def spool(self) -> Spooled:
        """What its spool holds at this moment.

        Raises:
            UsageError: it has none.
        """
        if self._spool is None:
            raise UsageError("this producer has no spool: give it one, Producer(..., spool=DIR)")
        return self._spool[0].spooled()

    def __len__(self) -> int:
        """How many records have no outcome yet."""
        return self._running.undelivered()

    def __bool__(self) -> bool:
        """A producer is true, also when it has nothing on its way."""
        return True

    def close(self) -> None:
        """Deliver everything, then end. Does not raise for failed receipts; leaving `with` does.

        With a spool it ends after `delivery_timeout` at the latest: what is not committed by then is on the disk, and stays there.

        Raises:
            UsageError: called in `on_delivery`, or in a signal handler whose thread is in here. The producer goes on.
        """
        self._close(None)

    def _close(self, timeout: float | None) -> None:
        if self._closed or self._pump is None or self._pump.pid != os.getpid():
            return
        outside("close() cannot be called", "it waits for what is under way; let on_delivery set a flag")
        self._apart()
        self._closed = True
        try:
            if timeout is None and self._spool is not None:
                timeout = self._feed.options.delivery_timeout
            left = self._pump.flush(timeout)
            if left and self._spool is None:
                LOG.error("producer %s was closed with %d records not delivered", self.name, left)
        finally:
            for feed in self._pump.feeds:
                feed.close()
            self._pump.stop()

    def __enter__(self) -> Self:
        """The producer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Deliver everything; raise the first failure that was not raised before, unless the block itself raised."""
        if kind is not None:
            self._close(limits.EXIT_FLUSH_US / 1e6)
            return
        self._close(None)
        for feed in self._running.feeds:
            failure = feed.first_failure()
            if failure is not None:
                failure.throw()

    def __del__(self) -> None:
        """Without `close`: what was sent is still delivered, then its part of an I/O thread ends."""
        pump = getattr(self, "_pump", None)
        if pump is not None and pump.pid == os.getpid():
            pump.release()


def _open_spool(
    spool: str | os.PathLike[str], spool_bytes: int, producer: str | None, options: FeedOptions
) -> tuple[SpooledFeed, Spooler]:
    """The spool's feed, and the thread that is to move what is in it."""
    if producer is None:
        raise UsageError(
            "a producer with a spool needs a name, by which the next one goes on: Producer(url, producer=NAME, spool=DIR)"
        )
    try:
        path = os.fsdecode(spool)
    except TypeError:
        path = ""
    if not path:
        raise UsageError(f"spool is the path of a directory, not {spool!r}")
    if options.staged:
        raise UsageError("what is staged goes through no spool")
    check_bytes("spool_bytes", spool_bytes)
    if spool_bytes < limits.SPOOL_BYTES_MIN:
        raise UsageError(f"spool_bytes={spool_bytes} is too small: at least {limits.SPOOL_BYTES_MIN}")
    store = Store(path, producer, min(limits.SPOOL_SEGMENT_BYTES, spool_bytes // 8))
    feed = SpooledFeed(options, store, spool_bytes)
    return feed, Spooler(feed, store)
