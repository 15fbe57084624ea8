"""Server-sent events: a limited number of streams of committed records, each at the speed of its reader."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pyarrow as pa
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tutti.errors import TuttiError
from tutti.reader import Reader
from tutti.reading.json_lines import with_key
from tutti.runtime.http_server import HALF_CLOSED
from tutti_connect.http import limits
from tutti_connect.http.interface.operations import EVENTS
from tutti_connect.http.interface.problems import Problem, problem_of
from tutti_connect.http.read.record_pages import events

ReaderOpener = Callable[[], Reader]
Result = TypeVar("Result")


class Streams:
    """The open streams. The event loop calls the methods; each stream waits for records in a thread of the pool."""

    def __init__(self) -> None:
        """Start without streams."""
        self.open = 0
        self.ending = False
        self._threads = ThreadPoolExecutor(limits.STREAMS_MAX, "stream")

    async def begin(self, open_reader: ReaderOpener, key: bytes | None, still_allowed: Callable[[], bool]) -> EventStream:
        """Open a reader, and return the stream of its records. The stream ends when `still_allowed` returns False.

        Raises:
            Problem: 429: all streams of this process are in use.
            TuttiError: as `Reader`.
        """
        if self.open >= limits.STREAMS_MAX:
            raise Problem(429, f"all {limits.STREAMS_MAX} streams of this process are in use: retry later, or at another process")
        self.open += 1
        try:
            return EventStream(self, await self.in_thread(open_reader), key, still_allowed)
        except BaseException:
            self.open -= 1
            raise

    async def in_thread(self, call: Callable[[], Result]) -> Result:
        """Run a blocking call in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def end(self) -> None:
        """End all streams at their next poll."""
        self.ending = True
        self._threads.shutdown(wait=False, cancel_futures=True)


class EventStream(Response):
    """The answer of one stream. The stream polls the next batch only after the caller has taken the previous one.

    A slow caller therefore holds at most one batch in memory. The server closes the connection of a caller that does not read
    (`server.py`).
    """

    media_type = EVENTS

    def __init__(self, streams: Streams, reader: Reader, key: bytes | None, still_allowed: Callable[[], bool]) -> None:
        """Prepare without sending."""
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._streams, self._reader, self._key, self._still_allowed = streams, reader, key, still_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the caller disconnects."""
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with contextlib.suppress(RuntimeError):  # raised if the thread pool has shut down, which ends the stream
                await self._follow(send, disconnected, scope["state"])
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            disconnected.cancel()
            self._streams.open -= 1
            self._reader.close()

    async def _follow(self, send: Send, disconnected: asyncio.Future[None], state: Mapping[str, object]) -> None:
        poll = partial(self._reader.poll, limits.STREAM_POLL_S)
        sent = time.monotonic()
        # Send an id before the first record, so that a client that reconnects continues here and not at a newer "latest".
        await send(_part(b"retry: %d\nid: %d\n\n" % (int(limits.RETRY_AFTER_S * 1000), self._reader.position - 1)))
        while not (disconnected.done() or self._streams.ending) and self._still_allowed():
            try:
                batch = await self._streams.in_thread(poll)
            except TuttiError as error:
                problem = problem_of(error)
                await send(_part(b"event: error\ndata: " + problem.body() + b"\n\n"))
                return
            for part in () if batch is None else _parts(batch):
                rows = with_key(part, self._key)
                if disconnected.done():
                    return
                if rows.num_rows:
                    sent = time.monotonic()
                    await send(_part(events(rows)))
            # A caller that has closed its sending side might be gone, which only a failed write detects: send heartbeats often.
            silence_s = limits.STREAM_POLL_S if state[HALF_CLOSED] else limits.HEARTBEAT_S
            if time.monotonic() - sent >= silence_s:
                sent = time.monotonic()
                await send(_part(_heartbeat(self._reader.position)))


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts; each part is sent in one write."""
    return (batch.slice(at, limits.STREAM_ROWS) for at in range(0, batch.num_rows, limits.STREAM_ROWS))


def _heartbeat(position: int) -> bytes:
    """Return a heartbeat: a comment, and an id without data, which only sets the position from which the client continues."""
    return b": heartbeat\nid: %d\n\n" % (position - 1)


def _part(body: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
