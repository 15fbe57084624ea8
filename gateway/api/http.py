"""The admin pages: health, readiness, metrics and status, over plain HTTP (docs/reads.md).

Bounds: so many connections, so many bytes of headers, no bodies, and one time limit from the start of a request to the end of its
answer, after which the connection is cut however slowly the other side reads or writes. Who speaks another language here (gRPC,
ZeroMQ) is told which port it wants.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.core import limits
from gateway.descriptors import TOO_MANY

US = 1_000_000
LOG = logging.getLogger("tutti.reads")
METHODS = ("GET", "HEAD")
_HTTP2_PREFACE = b"PRI * HTTP/2.0"
_ZEROMQ_GREETING = b"\xff"
_WRONG_PORT = (
    "this is the admin port of a Tutti gateway and speaks HTTP/1.1; {spoken} belongs to another port: "
    "clients and tools use the gateway's base port (tutti://HOST:P), Arrow Flight readers P+2"
)

Page = Callable[[], tuple[int, str, bytes]]
"""Makes an answer: status, media type, body. Runs in a thread of its own, so it may wait a moment."""


class AdminProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 connection with the bounds that it has no setting for."""

    _deadline: asyncio.TimerHandle | None = None
    _spoke = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the class above
        """Take a connection unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > limits.HTTP_CONNECTIONS_MAX:
            transport.abort()
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes from the other side; the first ones tell whether it speaks HTTP at all."""
        if not self._spoke:
            self._spoke = True
            if data.startswith(_ZEROMQ_GREETING):
                return self._refuse(HTTPStatus.BAD_REQUEST, _WRONG_PORT.format(spoken="ZeroMQ"))
            if data.startswith(_HTTP2_PREFACE):
                return self._refuse(HTTPStatus.BAD_REQUEST, _WRONG_PORT.format(spoken="gRPC"))
        return super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request, with the code that the parser suggests (400, 431, 501...)."""
        error = sys.exc_info()[1]
        status = HTTPStatus(getattr(error, "error_status_hint", HTTPStatus.BAD_REQUEST))
        self._refuse(status, f"{msg} {error}" if error else msg)

    def on_response_complete(self) -> None:
        """An answer was handed over: the time of the next request begins."""
        super().on_response_complete()
        self._arm()

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(limits.HTTP_REQUEST_US_MAX / US, self.transport.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        body = problem(status, message)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def problem(status: int, message: str) -> bytes:
    """The JSON of an error."""
    return msgspec.json.encode({"error": HTTPStatus(status).phrase, "message": message})


class NoBodies:
    """Refuses requests that carry a body before anything of it is read."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
                status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                body = problem(status, "requests to the admin port have no body")
                answer = Response(body, status, {"connection": "close"}, "application/json")
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def application(pages: Mapping[str, Page]) -> ASGIApp:
    """The application that serves `pages` by path."""

    def handler(page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def handle(_request: Request) -> Response:
            status, media_type, body = await asyncio.to_thread(page)
            return Response(body, status, media_type=media_type)

        return handle

    async def refused(_request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
        message = {
            404: f"there is no such page; there are {', '.join(pages)}",
            405: f"only {' and '.join(METHODS)} are taken",
        }.get(status, "the page could not be made; the log of the reads process says more")
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        return Response(problem(status, message), status, headers, "application/json")

    routes = [Route(path, handler(page), methods=list(METHODS)) for path, page in pages.items()]
    return NoBodies(Starlette(routes=routes, exception_handlers={HTTPException: refused, Exception: refused}))


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """That no descriptor is left for a connection is told once (`connections.Crowd`): asyncio says it of each that waits."""
    error = context.get("exception")
    if not (isinstance(error, OSError) and error.errno in TOO_MANY):
        loop.default_exception_handler(context)


class Server(uvicorn.Server):
    """uvicorn without its clock: that wakes ten times a second, a tenth of what an idle gateway costs, for a date that nobody is
    sent and to see whether it is to end, of which it is told here.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        """Nothing is served yet."""
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = asyncio.Event()

    async def main_loop(self) -> None:
        """Sleep until `end`."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_tell)
        if not self.should_exit:
            await self._told.wait()

    def end(self) -> None:
        """Have it end, from any thread and at any time."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._told.set)


class AdminServer:
    """The admin port, served by a thread of its own."""

    def __init__(self, listener: socket.socket, pages: Mapping[str, Page]) -> None:
        """Serve `pages` on a socket that listens (or is bound)."""
        self._listener = listener
        config = uvicorn.Config(
            application(pages),
            http=AdminProtocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            backlog=limits.HTTP_CONNECTIONS_MAX,
            timeout_keep_alive=limits.HTTP_REQUEST_US_MAX // US // 2,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=limits.HTTP_HEADER_BYTES_MAX,
        )
        self._server = Server(config)
        self._thread = threading.Thread(target=self._run, name="admin-http", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; waits for it a moment."""
        self._server.end()
        self._thread.join(timeout=limits.READS_STOP_US_MAX / US)

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))
