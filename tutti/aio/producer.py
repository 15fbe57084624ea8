"""AsyncProducer: a `Producer` for coroutines.

`send` puts the record into the buffer of a plain `Producer` and returns the receipt of that producer. So a record costs the event
loop no task, no future and no wake-up. A future exists only while a coroutine awaits the receipt (`tutti.common.loop_wakeups`).
Without a compiled send path, a record costs one more Python call than in a plain producer.

If the buffer is full, the buffer takes up to 256 MiB more (`overflow_bytes`), because a blocked `send` would block the event loop.
`drain`, `flush` and `resume` wait for changes of the buffer as events, so these calls need no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn, Self

from tutti import limits
from tutti.aio.thread_call import call_in_thread
from tutti.batching.accumulator import Change
from tutti.batching.appender import Append, with_fast_path
from tutti.batching.encoder import Compression
from tutti.batching.future import check_callback
from tutti.batching.options import checked_options
from tutti.batching.receipt import Header, OnDelivery, Receipt, Resume, Spooled
from tutti.common.credentials import Credentials
from tutti.common.deadlines import check_wait
from tutti.common.stats import ProducerStats
from tutti.errors import Unavailable, UsageError, misuse
from tutti.producer import Producer, Timestamp

if TYPE_CHECKING:
    import pyarrow as pa

_NO_HEADERS: tuple[Header, ...] = ()
_NO_APPENDERS: dict[str, Append] = {}
_POLL_S = limits.POLL_US_MAX / 1e6
_EXIT_S = limits.EXIT_FLUSH_US / 1e6


class _OverflowingProducer(Producer):
    """A `Producer` whose buffer takes more records when it is full, because its caller cannot wait."""

    overflow_bytes = limits.ASYNC_OVERFLOW_BYTES


class AsyncProducer:
    """A `Producer` for coroutines: `await producer.send(...)` gives the offset, and no method blocks the event loop.

    `async with` opens the producer. At the end of the block, the producer delivers all records, and then raises the first failure
    that the application has not seen. If the block itself raises, the producer has two seconds to deliver, and the block's error
    propagates. Order, identity, epochs, fencing and the spool are those of `Producer`.

    An open producer works in every event loop and thread of the process, and several may share it. `send` and `send_batch` need no
    event loop.

    Args:
        url, producer, linger, batch_bytes, buffer_bytes, compression, delivery_timeout: as in `Producer`.
        connect_timeout, spool, spool_bytes, credentials: as in `Producer`.
        on_full: behaviour of `send` when the buffer is full. With "block", the record waits for space, and only coroutines that
            await its receipt or call `drain` wait too. With "raise", `send` raises `BufferFull`.

    Raises:
        UsageError: an option is wrong. Opening raises the other errors of `Producer`.
    """

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
        """Check the options, without a connection. `async with`, or `open`, connects."""
        checked_options(linger, batch_bytes, buffer_bytes, on_full, compression, delivery_timeout)
        self._connect = functools.partial(
            _OverflowingProducer if on_full == "block" else Producer,
            url,
            producer,
            linger=linger,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            on_full="raise",  # `send` must never block the event loop
            compression=compression,
            delivery_timeout=delivery_timeout,
            connect_timeout=connect_timeout,
            spool=spool,
            spool_bytes=spool_bytes,
            credentials=credentials,
        )
        # Spooled records have no delivery deadline, so without this limit the end of `async with` would wait until an outage ends.
        self._exit_timeout = delivery_timeout if spool is not None else None
        self._opening: asyncio.Future[Producer] | None = None  # the running attempt to connect, which outlives a cancelled `open`
        self._producer: Producer | None = None
        self._closed = False
        self._send: Callable[..., Receipt] = _not_open  # `send` of the plain producer while this producer is open
        self._appenders = _NO_APPENDERS  # the open batch of the plain producer, for the compiled path of `send`

    async def open(self) -> Self:
        """Connect and begin an epoch, as `Producer` does. `async with` calls this method.

        Raises:
            UsageError: the producer is open or closed.
            TuttiError: an error of `Producer`: `Unavailable`, `Refused`, `ConfigError` or `DirectoryRefused`.
        """
        if self._producer is not None or self._closed:
            raise UsageError("the AsyncProducer is open or closed already: create another")
        if self._opening is None or self._opening.get_loop() is not asyncio.get_running_loop():
            self._opening = call_in_thread(self._connect)
        try:
            # After a cancelled call, the next call takes the same attempt: a second one of the same name would fence the first.
            producer = await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._opening = None  # the application may try again
            raise
        if self._closed:
            raise UsageError("the AsyncProducer was closed while it opened: create another")
        self._producer, self._send, self._appenders = producer, producer.send, producer._appenders
        return self

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
        """Return the current counters and gauges, as `Producer.stats`."""
        return self._opened.stats()

    def __repr__(self) -> str:
        producer = self._producer
        return f"<AsyncProducer{' not open>' if producer is None else repr(producer).removeprefix(f'<{type(producer).__name__}')}"

    @property
    def _opened(self) -> Producer:
        if self._producer is None:
            _not_open()
        return self._producer

    def _check(self) -> Producer:
        """Return the plain producer.

        Raises:
            UsageError: the producer is not open or is closed.
        """
        if self._closed:
            _is_closed()
        return self._opened

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
        ordering: str = "total",
    ) -> Receipt:
        """Send one record and return its receipt at once; `await` the receipt for the offset.

        The record is sent without an `await` too. If the buffer is full and `on_full` is "block", the record waits for space, after
        all earlier records. A coroutine that sends many records without awaiting their receipts calls `drain` between them.

        Args:
            topic, value, key, timestamp, headers, progress, ordering: as in `Producer.send`.
            on_delivery: as in `Producer.send`: a callback that runs in an I/O thread, not in the event loop.

        Raises:
            UsageError: an argument is wrong, or the producer is not open or is closed.
            BufferFull: the buffer is full and `on_full` is "raise"; with "block", 256 MiB of records wait for space.
            Fenced, Aborted: as `Producer.send`.
        """
        if on_delivery is not None:
            check_callback(on_delivery)  # here, because `Producer` checks the callbacks of few records
        return self._send(topic, value, key, timestamp, headers, progress, on_delivery, ordering)

    def send_batch(
        self,
        topic: str,
        record_batch: pa.RecordBatch,
        progress: bytes | None = None,
        on_delivery: OnDelivery | None = None,
        ordering: str = "total",
    ) -> Receipt:
        """Send a record batch as one frame, as `Producer.send_batch` does; `await` the receipt for the first offset.

        Args:
            topic, record_batch, progress, ordering: as in `Producer.send_batch`.
            on_delivery: as in `send`.

        Raises:
            UsageError, BufferFull, Fenced, Aborted: as `send`.
        """
        return self._check().send_batch(topic, record_batch, progress, on_delivery, ordering)

    async def drain(self) -> None:
        """Let other coroutines run; if records wait for space in the buffer, wait until a quarter of the buffer is free.

        `asyncio.StreamWriter.drain` is the model. A cancelled call has no effect: `drain` sends nothing itself.

        Raises:
            UsageError: the producer is not open or is closed.
            TuttiError: the producer has ended with this error, for example `Fenced`.
        """
        producer = self._check()
        await asyncio.sleep(0)
        for accumulator in producer._opened_io.accumulators:
            waits = accumulator.overflows()
            while waits:
                change = accumulator.changed.next_change()
                waits = not accumulator.has_reserve()
                if waits:
                    await _wait(change, inf)
            if accumulator.ended:
                accumulator.check()

    async def flush(self, timeout: float | None = None) -> int:
        """Send open batches and wait up to `timeout` seconds for all outcomes. Return the number of records without an outcome.

        Raises:
            UsageError: `timeout` is not a number of seconds, or the producer is not open or is closed.
        """
        if timeout is not None:
            check_wait(timeout)
        producer = self._check()
        deadline = inf if timeout is None else time.monotonic() + timeout
        while True:
            changes = [(accumulator, accumulator.changed.next_change()) for accumulator in producer._opened_io.accumulators]
            undelivered = producer.flush(0.0)  # closes the open batches, and does not wait
            left = deadline - time.monotonic()
            if not undelivered or left <= 0:
                return undelivered
            for accumulator, change in changes:
                if accumulator.undelivered():
                    await _wait(change, left)
                    break

    async def resume(self, timeout: float = limits.REQUEST_TIMEOUT_US / 1e6) -> Resume:
        """Return the sequence of the last committed record and the last committed progress, as `Producer.resume` does.

        Raises:
            Unavailable: no epoch was open within `timeout` seconds.
            Fenced: another instance of the producer took over, or an operator fenced the producer or deleted its state.
            UsageError: `timeout` is not a number of seconds, or the producer is not open or is closed.
        """
        check_wait(timeout)
        producer = self._check()
        accumulator, deadline = producer._accumulator, time.monotonic() + timeout
        while True:
            change = accumulator.changed.next_change()
            try:
                return producer._resume(0.0, timeout)  # does not wait
            except Unavailable:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
            await _wait(change, left)

    def __len__(self) -> int:
        """Return the number of records without an outcome."""
        return len(self._opened)

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
        left = _EXIT_S  # the time for the remaining records if the wait is cancelled
        try:
            await self.flush(self._exit_timeout)
            left = 0.0
        finally:
            await self._end(left)

    async def _end(self, timeout: float) -> None:
        """End the producer, which has `timeout` seconds to deliver records without an outcome."""
        self._closed = True
        self._send, self._appenders = _is_closed, _NO_APPENDERS
        # In a thread, because the end also waits for the I/O thread, and for the disk of a spool.
        await asyncio.shield(call_in_thread(functools.partial(self._opened._close, timeout)))

    if not TYPE_CHECKING:  # a type checker reports this use
        __enter__ = __exit__ = misuse(
            "an AsyncProducer needs `async with`: use `async with AsyncProducer(...) as p`, or a plain Producer"
        )

    async def __aenter__(self) -> Self:
        """Open the producer and return it."""
        return await self.open()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Deliver all records. Raise the first failure that the application has not seen, unless the block itself raised."""
        if kind is None:
            await self.close()
            self._opened._raise_failure()
        elif not self._closed:
            await self._end(_EXIT_S)


async def _wait(change: Change, seconds: float) -> None:
    """Wait for a change, for at most `seconds`. Callers check again, because a change may be one of another kind."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(seconds, _POLL_S)):
            await change


def _not_open(*_: object) -> NoReturn:
    raise UsageError("the AsyncProducer is not open: use `async with AsyncProducer(...) as p`, or `await p.open()`")


def _is_closed(*_: object) -> NoReturn:
    raise UsageError("the producer is closed: open another")


def _close_unused(opening: asyncio.Future[Producer]) -> None:
    """End the producer of an attempt to connect that outlived a cancelled `open` and a `close`."""
    if not opening.cancelled() and opening.exception() is None:
        call_in_thread(opening.result().close)
