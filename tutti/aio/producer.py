"""AsyncProducer: a `Producer` for coroutines.

`send` puts the record into the buffer of a plain `Producer` and returns the receipt of that producer. So a record costs the event
loop no task, no future and no wake-up. A future exists only while a coroutine awaits the receipt (`tutti.common.loop_wakeups`).
Without a compiled send path, a record costs one more Python call than in a plain producer.

If the buffer is full, the record waits in a `WaitQueue`, and the event loop moves the records of the queue into the buffer. A later
record of the same ordering never overtakes the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from tutti import limits
from tutti.aio.receipt import AsyncReceipt
from tutti.aio.wait_queue import WaitingReceipt, WaitQueue
from tutti.batching.accumulator import do_nothing
from tutti.batching.appender import Append, with_fast_path
from tutti.batching.encoder import Compression, check_record
from tutti.batching.options import checked_options
from tutti.batching.receipt import Header, OnDelivery, Receipt, Resume, Spooled
from tutti.common.credentials import Credentials
from tutti.common.deadlines import check_wait
from tutti.common.loop_wakeups import running_loop
from tutti.common.stats import ProducerStats
from tutti.errors import Aborted, BufferFull, UsageError
from tutti.producer import Producer, Timestamp

if TYPE_CHECKING:
    import pyarrow as pa

LOG = logging.getLogger("tutti.client")
_NO_HEADERS: tuple[Header, ...] = ()
_NO_APPENDERS: dict[str, Append] = {}
_TOTAL = "total"
_NOT_OPEN = ("a placeholder for a queue with a record, with which `send` calls `_check`",)
_RETRY_S = limits.ASYNC_RETRY_US / 1e6
_POLL_S = limits.ANSWER_WAIT_US_MAX / 1e6


class AsyncProducer:
    """A `Producer` for coroutines: `await producer.send(...)` gives the offset, and no method blocks the event loop.

    `async with` opens the producer. At the end of the block, the producer delivers all records, and then raises the first failure
    that the application has not seen. If the block itself raises, the producer has two seconds to deliver, and the block's error
    propagates. Order, identity, epochs, fencing and the spool are those of `Producer`.

    A producer belongs to the event loop in which it was opened. In another loop, its methods raise `UsageError`. Only
    `send(topic, value, key)` works in another loop too, as long as the buffer has space.

    Args:
        url, producer, linger, batch_bytes, buffer_bytes, compression, delivery_timeout: as in `Producer`.
        connect_timeout, spool, spool_bytes, credentials: as in `Producer`.
        on_full: behaviour of `send` when the buffer is full. With "block", the record waits for space, and only the coroutine that
            awaits its receipt waits too. With "raise", `send` raises `BufferFull`.

    Raises:
        UsageError: an option is wrong. Opening raises the other errors of `Producer`.
    """

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
        """Check the options, without a connection. `async with`, or `open`, connects."""
        checked_options(linger, batch_bytes, buffer_bytes, on_full, compression, delivery_timeout)
        self._buffer_bytes = buffer_bytes
        self._connect = functools.partial(
            Producer,
            url,
            producer,
            linger=linger,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            on_full="raise",  # `send` of the plain producer must never block the event loop
            compression=compression,
            delivery_timeout=delivery_timeout,
            connect_timeout=connect_timeout,
            spool=spool,
            spool_bytes=spool_bytes,
            credentials=credentials,
        )
        self._waits_for_space = on_full == "block"
        # Spooled records have no delivery deadline, so without this limit the end of `async with` would wait until an outage ends.
        self._exit_timeout = delivery_timeout if spool is not None else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Future[Producer] | None = None  # the running attempt to connect, which outlives a cancelled `open`
        self._producer: Producer | None = None
        self._closed = False
        self._queues: tuple[WaitQueue, ...] = ()  # of ordered and of unordered records
        self._queued_records: Collection[object] = _NOT_OPEN
        # The open batch of the plain producer, for the compiled path of `send`; empty while that path must not overtake a queue.
        self._appenders = _NO_APPENDERS

    async def open(self) -> Self:
        """Connect and begin an epoch, as `Producer` does. `async with` calls this method.

        Raises:
            UsageError: the producer is open or closed.
            TuttiError: an error of `Producer`: `Unavailable`, `Refused`, `ConfigError` or `DirectoryRefused`.
        """
        if self._loop is not None or self._closed:
            raise UsageError("the AsyncProducer is open or closed already: create another")
        loop = asyncio.get_running_loop()
        if self._opening is None or self._opening.get_loop() is not loop:
            self._opening = asyncio.ensure_future(asyncio.to_thread(self._connect))
        try:
            # After a cancelled call, the next call takes the same attempt: a second one of the same name would fence the first.
            self._producer = await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._opening = None  # the application may try again
            raise
        self._loop = loop
        self._queues = WaitQueue(self._enable_fast_path), WaitQueue(do_nothing)
        self._send = self._producer.send
        self._queued_records = self._queues[0].records
        self._enable_fast_path()
        return self

    def _enable_fast_path(self) -> None:
        # The compiled path is inside of the plain producer. A call through `Producer.send` takes 1.6 times as long.
        self._appenders = _NO_APPENDERS if self._closed else self._opened._appenders

    @property
    def name(self) -> str:
        """The name of the producer; a random name begins with `~`."""
        return self._opened.name

    @property
    def epoch(self) -> int:
        """The current epoch, or the last one if no epoch is open."""
        return self._opened.epoch

    @property
    def spool(self) -> Spooled:
        """The current content of the spool.

        Raises:
            UsageError: the producer has no spool, or is not open.
        """
        return self._opened.spool

    @property
    def closed(self) -> bool:
        """True after `close`, and after the end of an `async with` block."""
        return self._closed

    def stats(self) -> ProducerStats:
        """Return the current counters and gauges, as `Producer.stats`. A record counts as soon as the buffer has space for it."""
        return self._opened.stats()

    def __repr__(self) -> str:
        return f"<AsyncProducer {'not open' if self._producer is None else repr(self._producer)}>"

    @property
    def _opened(self) -> Producer:
        if self._producer is None:
            raise UsageError("the AsyncProducer is not open: use `async with AsyncProducer(...) as p`, or `await p.open()`")
        return self._producer

    def _check(self) -> Producer:
        """Return the plain producer.

        Raises:
            UsageError: the producer is not open, or belongs to another event loop.
        """
        producer = self._opened
        if self._closed:
            raise UsageError("the producer is closed: open another")
        if running_loop() is not self._loop:
            raise UsageError(
                "the AsyncProducer was opened in another event loop: open an AsyncProducer in each loop, or share a Producer"
            )
        return producer

    @with_fast_path
    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        timestamp: Timestamp = None,
        headers: Iterable[Header] = _NO_HEADERS,
        progress: bytes | None = None,
        on_delivery: OnDelivery | None = None,
        ordering: str = _TOTAL,
    ) -> AsyncReceipt:
        """Send one record and return its receipt at once; `await` the receipt for the offset.

        The record is sent without an `await` too. If the buffer is full and `on_full` is "block", the record waits for space, after
        all earlier records. A coroutine that sends many records without awaiting their receipts calls `drain` between them.

        Args:
            topic, value, key, timestamp, headers, progress, ordering: as in `Producer.send`.
            on_delivery: as in `Producer.send`: a callback that runs in an I/O thread, not in the event loop. A record that fails
                while it waits for space has no callback.

        Raises:
            UsageError: an argument is wrong, or the producer is not open, is closed, or was opened in another event loop.
            BufferFull: the buffer is full and `on_full` is "raise"; with "block", 256 MiB of records wait for space.
            Fenced, Aborted: as `Producer.send`.
        """
        # The path for most records that the compiled path of `with_fast_path` does not take. As the compiled path, it works in any
        # event loop and thread, so it does not check the loop: the check would cost more than the send.
        plain = timestamp is None and headers is _NO_HEADERS and progress is None and on_delivery is None and ordering is _TOTAL
        if plain and not self._queued_records:
            try:
                return self._send(topic, value, key)
            except BufferFull:
                pass  # `_send_or_wait` tries again
        # A retry must find the headers again.
        headers = tuple(headers) if isinstance(headers, Iterator) else headers
        producer, queue = self._check(), self._queues[ordering == "unordered"]
        if not queue.records:
            try:
                return producer.send(topic, value, key, timestamp, headers, progress, on_delivery, ordering)
            except BufferFull:
                if not self._waits_for_space:
                    raise
        # A record that waits is checked and copied now, because the application may reuse a bytearray or a list after this call.
        queue.accumulator = producer._check(topic, on_delivery, ordering, progress)
        sent_progress = None if progress is None else producer._check_progress(progress)
        record = check_record(value, key, timestamp, headers)
        call = functools.partial(
            producer.send, topic, record.value, record.key, record.stamp, record.headers, sent_progress, on_delivery, ordering
        )
        return self._wait_for_space(call, queue, topic, 1, record.size)

    def send_batch(
        self,
        topic: str,
        record_batch: pa.RecordBatch,
        progress: bytes | None = None,
        on_delivery: OnDelivery | None = None,
        ordering: str = "total",
    ) -> AsyncReceipt:
        """Send a record batch as one frame, as `Producer.send_batch` does; `await` the receipt for the first offset.

        Args:
            topic, record_batch, progress, ordering: as in `Producer.send_batch`.
            on_delivery: as in `send`.

        Raises:
            UsageError, BufferFull, Fenced, Aborted: as `send`.
        """
        producer, queue = self._check(), self._queues[ordering == "unordered"]
        if not queue.records:
            try:
                return producer.send_batch(topic, record_batch, progress, on_delivery, ordering)
            except BufferFull:
                if not self._waits_for_space:
                    raise
        queue.accumulator = producer._check(topic, on_delivery, ordering, progress)
        sent_progress = None if progress is None else producer._check_progress(progress)
        call = functools.partial(producer.send_batch, topic, record_batch, sent_progress, on_delivery, ordering)
        size, count = getattr(record_batch, "nbytes", 0), getattr(record_batch, "num_rows", 1)
        return self._wait_for_space(call, queue, topic, count, size)

    def _wait_for_space(self, call: Callable[[], Receipt], queue: WaitQueue, topic: str, count: int, size: int) -> AsyncReceipt:
        """Add a record to the queue; `call` sends the record as soon as the buffer has space."""
        waiting = WaitingReceipt(topic, count, size + limits.ASYNC_RECORD_BYTES, call)
        queue.append(waiting)
        if queue is self._queues[0]:
            self._appenders = _NO_APPENDERS
        return waiting

    async def drain(self) -> None:
        """Let other coroutines run; if records wait for space in the buffer, wait until a quarter of the buffer is free.

        `asyncio.StreamWriter.drain` is the model. A cancelled call has no effect: `drain` sends nothing itself.

        Raises:
            UsageError: the producer is not open, is closed, or was opened in another event loop.
        """
        self._check()
        await asyncio.sleep(0)
        for queue in self._queues:
            if queue.records:
                await queue.empty.wait()
                # Without a reserve, the next records would wait too, and a waiting record costs the loop ten times as much.
                while queue.accumulator is not None and queue.accumulator.buffered > self._buffer_bytes * 3 // 4:
                    await asyncio.sleep(_RETRY_S)

    async def flush(self, timeout: float | None = None) -> int:
        """Send open batches and wait up to `timeout` seconds for all outcomes. Return the number of records without an outcome.

        Raises:
            UsageError: `timeout` is not a number of seconds, or the producer is not open, is closed, or was opened in another event
                loop.
        """
        if timeout is not None:
            check_wait(timeout)
        producer = self._check()
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                for queue in self._queues:
                    await queue.empty.wait()
        while True:
            # Short calls, because a cancelled `flush` leaves its thread behind until the call ends.
            left = max(0.0, deadline - time.monotonic())
            undelivered = await asyncio.to_thread(producer.flush, min(left, _POLL_S))
            if not undelivered or left <= _POLL_S:
                return undelivered + sum(queue.waiting() for queue in self._queues)

    async def resume(self, timeout: float = limits.REQUEST_TIMEOUT_US / 1e6) -> Resume:
        """Return the sequence of the last committed record and the last committed progress, as `Producer.resume` does.

        Raises:
            Unavailable: no epoch was open within `timeout` seconds.
            Fenced: another instance of the producer took over, or an operator fenced the producer or deleted its state.
            UsageError: the producer is not open, is closed, or was opened in another event loop.
        """
        producer = self._check()
        for queue in self._queues:
            # After an abort, the producer refuses the records of the queue. After `producer.resume`, it would accept them.
            queue.move(len(queue.records))
        return await asyncio.to_thread(producer.resume, timeout)

    def __len__(self) -> int:
        """Return the number of records without an outcome."""
        return len(self._opened) + sum(queue.waiting() for queue in self._queues)

    def __bool__(self) -> bool:
        """Return True, because `__len__` alone would make an idle producer false."""
        return True

    async def close(self) -> None:
        """Deliver all records, then end the producer. Failures do not raise here, only at the end of `async with`."""
        if self._closed:
            return
        if self._producer is None:
            self._closed = True
            if self._opening is not None:
                self._opening.add_done_callback(_close_unused)
            return
        failed = await self._deliver()
        await self._end(functools.partial(self._producer.__exit__, failed, None, None) if failed else self._producer.close)

    async def _deliver(self) -> type[BaseException] | None:
        """Wait for all outcomes. Return the exception type for `Producer.__exit__` if spooled records have no outcome in time."""
        self._check()  # before `try`, because a call in another loop must not end the producer
        try:
            left = await self.flush(self._exit_timeout)
        except BaseException as error:  # cancelled: the producer has two seconds to deliver
            await self._end(functools.partial(self._opened.__exit__, type(error), error, None))
            raise
        return TimeoutError if left else None

    async def _end(self, close: Callable[[], None]) -> None:
        """End the producer by calling `close` in a thread. Records that wait for space fail."""
        self._closed = True
        self._queued_records, self._appenders = _NOT_OPEN, _NO_APPENDERS
        error = Aborted("the producer was closed before the record was sent, so the record is in no log")
        unsent = sum(queue.fail(error) for queue in self._queues)
        if unsent:
            LOG.error("producer %s was closed with %d records not sent", self.name, unsent)
        await asyncio.shield(asyncio.to_thread(close))

    async def __aenter__(self) -> Self:
        """Open the producer and return it."""
        return await self.open()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Deliver all records. Raise the first failure that the application has not seen, unless the block itself raised."""
        if self._closed:
            return
        ended = await self._deliver() if kind is None else kind
        await self._end(functools.partial(self._opened.__exit__, ended, error, trace))
        for queue in self._queues:
            if kind is None and queue.first_refused is not None and not queue.first_refused.seen:
                queue.first_refused.throw()


def _close_unused(opening: asyncio.Future[Producer]) -> None:
    """End the producer of an attempt to connect that outlived a cancelled `open` and a `close`."""
    if not opening.cancelled() and opening.exception() is None:
        opening.get_loop().run_in_executor(None, opening.result().close)
