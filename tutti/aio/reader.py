"""AsyncReader: a `Reader` for coroutines.

One thread of each reader makes the blocking calls of a plain `Reader`, one after another. While the application handles a batch,
the thread fetches the next batch, and no more. The fetched batch belongs to the AsyncReader, not to the coroutine that waits. So a
cancelled wait loses no batch: the next call returns that batch. The position counts returned records only.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from tutti import limits
from tutti.aio.thread_call import call_in_thread
from tutti.common.credentials import Credentials
from tutti.common.deadlines import check_wait
from tutti.common.stats import ReaderStats
from tutti.data.scan_request import ScanBatch
from tutti.errors import Unavailable, UsageError, misuse
from tutti.reader import Reader, Record, records_of
from tutti.sources.files import Paths
from tutti.sources.source import Bound

if TYPE_CHECKING:
    import pyarrow as pa

_FETCH_S = limits.ANSWER_WAIT_US_MAX / 1e6  # short, because a call that nobody waits for keeps the thread until it ends
_Answer = TypeVar("_Answer")


class _Fetched(NamedTuple):
    """A batch that the thread has fetched.

    Attributes:
        found: the records.
        lane, position, end: these attributes of the reader after the batch.
    """

    found: ScanBatch
    lane: str
    position: Any
    end: Any

    def rows(self, start: int, count: int | None = None) -> ScanBatch:
        """Return `count` records from index `start` on (None: all remaining records)."""
        batch, upto, column = self.found
        part = batch.slice(start, count)
        upto -= batch.num_rows - start - part.num_rows  # `ScanBatch.offsets` counts back from the end if there is no column
        return ScanBatch(part, upto, None if column is None else column.slice(start, count))


def _connect(reader: Reader, constructor: functools.partial[Reader]) -> Reader:
    """Run the constructor on an object that exists already, so that `_interrupt` can end its search for a gateway."""
    Reader.__init__(reader, *constructor.args, **constructor.keywords)
    return reader


def _fetch(reader: Reader) -> _Fetched | None:
    """Wait for the next batch of the plain reader. Return None if there is none for a second, or at the end of the range."""
    found = reader._take(_FETCH_S)
    return None if found is None else _Fetched(found, reader.lane, reader.position, reader.end)


class AsyncReader:
    """A `Reader` for coroutines: `async for batch in reader` gives the batches of a range, and no method blocks the event loop.

    `async with` opens the reader, and closes it at the end of the block. A reader that is not open yet opens at its first use. Any
    call can be cancelled: the next call returns the records that the cancelled call did not return. The reader fetches one batch
    ahead.

    A reader belongs to the event loop in which it was opened. Range, order, fail-over and named readers are those of `Reader`.

    Args:
        url, topics, start, end, follow, columns, name, path, archive, ordering, origin: as in `Reader`.
        connect_timeout, patience, credentials: as in `Reader`.

    Raises:
        TuttiError: opening the reader, and reading, raise the errors of `Reader`.
    """

    def __init__(
        self,
        url: str | None = None,
        topics: Sequence[str] | None = None,
        start: Bound | None = None,
        end: Bound | None = None,
        follow: bool = False,
        columns: Sequence[str] | None = None,
        name: str | None = None,
        *,
        path: Paths | None = None,
        archive: str | os.PathLike[str] | None = None,
        ordering: str = "total",
        origin: str | None = None,
        connect_timeout: float = limits.CONNECT_TIMEOUT_US / 1e6,
        patience: float = limits.READ_RETRY_US / 1e6,
        credentials: Credentials | str | Path | None = None,
    ) -> None:
        """Keep the arguments. `async with`, or the first call, connects and resolves the range."""
        self._connect = functools.partial(
            Reader,
            url,
            topics,
            start,
            end,
            follow,
            columns,
            name,
            path=path,
            archive=archive,
            ordering=ordering,
            origin=origin,
            connect_timeout=connect_timeout,
            patience=patience,
            credentials=credentials,
        )
        self._thread: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Future[Reader] | None = None
        self._unopened: Reader | None = None  # the reader that `_opening` connects
        self._reader: Reader | None = None
        self._closed = False
        self._fetching: asyncio.Future[_Fetched | None] | None = None  # the batch that the thread fetches or has fetched
        self._rest: tuple[_Fetched, int] | None = None  # a batch, and the number of its records that `records` has returned
        self._position: Any = None
        self._end: Any = None
        self._lane = ""

    async def open(self) -> Self:
        """Connect to a gateway and resolve the range, as `Reader` does. `async with` calls this method.

        Raises:
            UsageError: the reader is closed, or was opened in another event loop.
            TuttiError: an error of `Reader`, such as `Unavailable`, `OffsetOutOfRange` or `NotAllowed`.
        """
        await self._open()
        return self

    async def _open(self) -> Reader:
        self._check()
        if self._reader is None:
            if _failed(self._opening):
                self._opening = None  # no call has waited for this failure, and its cause may be over
            if self._opening is None:
                self._unopened = Reader.__new__(Reader)
                self._opening = self._in_thread(functools.partial(_connect, self._unopened, self._connect))
            opening = self._opening
            await asyncio.wait({opening})  # a cancelled wait leaves `_opening` to the next call
            if opening is self._opening:
                self._opening = None
                self._reader = opening.result()
                self._position, self._end = self._reader.position, self._reader.end
            return await self._open()
        return self._reader

    def _check(self) -> None:
        if self._closed:
            raise UsageError("the reader is closed: create a new one")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._thread = ThreadPoolExecutor(1, "tutti-reader")
        elif self._loop is not loop:
            raise UsageError("the AsyncReader was opened in another event loop: create an AsyncReader in each loop")

    def _in_thread(self, call: Callable[[], _Answer]) -> asyncio.Future[_Answer]:
        answer = asyncio.get_running_loop().run_in_executor(self._thread, call)
        answer.add_done_callback(_retrieve)
        return answer

    def _check_open(self) -> Reader:
        if self._reader is None:
            raise UsageError("the AsyncReader is not open: use `async with AsyncReader(...) as r`, or `await r.open()`")
        return self._reader

    @property
    def position(self) -> Any:
        """The next offset to read: the reader has returned every selected record below this offset.

        For a reader of all lanes, a dict from lane to offset.
        """
        self._check_open()
        return self._position

    @property
    def end(self) -> Any:
        """The exclusive end offset; None for no end. The range is complete when `position` reaches the end.

        For a reader of all lanes, a dict from lane to offset.
        """
        self._check_open()
        return self._end

    @property
    def log(self) -> str:
        """The uuid (hex) of the log in which the offsets are valid; empty if the log did not exist when the reader opened."""
        return self._check_open().log

    @property
    def lane(self) -> str:
        """The lane of the last batch, as in the keys of `position`; empty before the first batch, and for ordered records."""
        return self._lane

    @property
    def closed(self) -> bool:
        """True after `close`, and after the end of an `async with` block."""
        return self._closed

    def stats(self) -> ReaderStats:
        """Return the current counters and gauges, as `Reader.stats`.

        The counters include the batch that is fetched ahead. The position and the lag are those of the returned records.
        """
        stats = self._check_open().stats()
        if stats.position is None:  # a reader of lanes
            return stats
        ahead = stats.position - self._position
        return replace(stats, position=self._position, lag=None if stats.lag is None else stats.lag + ahead)

    def __repr__(self) -> str:
        return "<AsyncReader not open>" if self._reader is None else self._reader._description("AsyncReader", self.stats())

    def __aiter__(self) -> Self:
        """Return the reader itself, which continues at its position."""
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next batch; with `follow`, wait for it."""
        batch = self._return(await self._next(float("inf")))
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def poll(self, timeout: float = 0.0) -> pa.RecordBatch | None:
        """Return the next batch; None after `timeout` seconds without a batch, or at the end of the range (`position == end`).

        Raises:
            UsageError: `timeout` is not a number of seconds, or the reader is closed.
        """
        check_wait(timeout)
        return self._return(await self._next(timeout))

    def records(self) -> AsyncIterator[Record]:
        """Return an iterator of single records, 100 times slower than batches. `position` advances with each record.

        A cancelled `anext` does not end the iteration.
        """
        return _Records(self)

    def _advance(self, fetched: _Fetched, count: int, offset: int) -> tuple[_Fetched, int] | None:
        """Move the position after the first `count` records of a batch, the last of which is at `offset`. Return the rest."""
        if count == fetched.found.batch.num_rows:
            self._rest, self._position = None, fetched.position
        else:
            self._rest = (fetched, count)
            all_lanes = isinstance(fetched.position, dict)
            self._position = {**self._position, fetched.lane: offset + 1} if all_lanes else offset + 1
        return self._rest

    def _return(self, fetched: _Fetched | None) -> pa.RecordBatch | None:
        """Move the position after a batch, and return the batch."""
        if fetched is None:
            return None
        self._lane, self._position, self._end = fetched.lane, fetched.position, fetched.end
        return fetched.found.batch

    async def _next(self, timeout: float) -> _Fetched | None:
        """Return the next batch without moving the position; None after `timeout` seconds, or at the end of the range."""
        reader = await self._open()
        deadline = time.monotonic() + timeout
        self._forget_failure(reader)
        while self._rest is None:
            if self._fetching is None:
                if self._position == self._end:
                    return None
                self._fetching = self._in_thread(functools.partial(_fetch, reader))
            fetching = self._fetching
            left = deadline - time.monotonic()
            # A cancelled wait leaves `_fetching` to the next call.
            await asyncio.wait({fetching}, timeout=None if left == float("inf") else max(0.0, left))
            self._check()
            if fetching is not self._fetching:
                continue  # another coroutine has taken this batch
            if not fetching.done():
                return None
            self._fetching = None
            fetched = fetching.result()
            if fetched is not None:
                if fetched.position != fetched.end:
                    self._fetching = self._in_thread(functools.partial(_fetch, reader))
                return fetched
            self._position, self._end = reader.position, reader.end  # after records of other topics
        (fetched, count), self._rest = self._rest, None
        return fetched._replace(found=fetched.rows(count))

    def _forget_failure(self, reader: Reader) -> None:
        """Forget a failed fetch that no call has waited for, because the cause may be over. Otherwise, the next fetch fails too."""
        fetching = self._fetching
        if fetching is None or not _failed(fetching):
            return
        self._fetching = None
        if isinstance(fetching.exception(), Unavailable):
            # `patience` has passed in this outage, so the next fetch raises at once if it finds no gateway either.
            reader._silent_since = time.monotonic() - reader._patience

    async def save(self) -> None:
        """Commit the position under the reader's name, durably, as `Reader.save` does.

        A cancelled call may commit the position.

        Raises:
            UsageError: the reader has no name, reads files, or is closed.
            Refused: the committed offset is above the position (code "offset").
        """
        reader = await self._open()
        # In another thread than the fetch, which may wait for records that do not exist yet.
        await call_in_thread(functools.partial(reader._save, self._position))

    async def close(self) -> None:
        """Release connections and files. Afterwards, `position` and `end` stay valid, and every other call raises `UsageError`.

        The call does not wait for a fetch: the thread of the reader ends within a second, or after a connection attempt.
        """
        if self._closed or self._thread is None:
            self._closed = True
            return
        self._closed = True
        for pending in (self._opening, self._fetching):
            if pending is not None:
                pending.add_done_callback(_close_unused)
        closing = None
        self._interrupt()
        if self._reader is not None:
            closing = self._thread.submit(self._reader.close)
        self._thread.shutdown(wait=False)
        if closing is not None and (self._fetching is None or self._fetching.done()):
            await asyncio.shield(asyncio.wrap_future(closing))

    def _interrupt(self) -> None:
        """End the call that the thread makes: a fetch, or an attempt to open."""
        reader = self._reader or self._unopened
        if reader is not None:
            reader._interrupt()

    if not TYPE_CHECKING:  # a type checker reports these uses
        __enter__ = __exit__ = misuse(
            "an AsyncReader needs `async with`: use `async with AsyncReader(...) as r`, or a plain Reader"
        )
        __iter__ = misuse("an AsyncReader needs `async for`: use `async for batch in reader`, or a plain Reader")

    async def __aenter__(self) -> Self:
        """Open the reader and return it."""
        return await self.open()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the reader."""
        await self.close()

    def __del__(self) -> None:
        """End the thread of a reader that was not closed."""
        # A constructor that raised has set no attributes.
        thread: ThreadPoolExecutor | None = getattr(self, "_thread", None)
        if thread is not None and not self._closed:
            self._interrupt()
            thread.shutdown(wait=False)


class _Records:
    """The iterator of `AsyncReader.records`: an object, because a cancelled wait would end an asynchronous generator."""

    def __init__(self, reader: AsyncReader) -> None:
        self._reader = reader
        self._rest: tuple[_Fetched, int] | None = None  # the batch in progress, and the number of its records that were returned
        self._turn: Iterator[tuple[int, Record]] = iter(())  # the next records of the batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        reader = self._reader
        while True:
            if self._rest is None or self._rest is not reader._rest:  # the batch is complete, or another call moved the position
                fetched = await reader._next(float("inf"))
                if fetched is None:
                    raise StopAsyncIteration
                reader._lane, reader._end = fetched.lane, fetched.end
                self._rest, self._turn = (fetched, 0), iter(())
                reader._rest = self._rest
            fetched, count = self._rest
            for offset, record in self._turn:
                self._rest = reader._advance(fetched, count + 1, offset)
                return record
            # Few records at a time, so that other coroutines can run in between.
            await asyncio.sleep(0)
            if self._rest is reader._rest:
                self._turn = records_of(fetched.rows(count, limits.ASYNC_RECORDS_A_TURN))

    if not TYPE_CHECKING:  # a type checker reports this use
        __await__ = misuse("records() is not a coroutine: use `async for record in reader.records()`")


def _retrieve(call: asyncio.Future[Any]) -> None:
    """Mark the error of a call as retrieved, because asyncio logs the error of a call that nobody waits for."""
    if not call.cancelled():
        call.exception()


def _failed(call: asyncio.Future[Any] | None) -> bool:
    return call is not None and call.done() and call.exception() is not None


def _close_unused(pending: asyncio.Future[Any]) -> None:
    """Retrieve the result of a call that outlived the AsyncReader, and close it if it is a reader."""
    if pending.exception() is None and isinstance(pending.result(), Reader):
        pending.result().close()
