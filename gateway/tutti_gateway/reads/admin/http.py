"""HTTP server of the admin port: health, metrics, status, records and the console (docs/reference/reads.md).

The server limits the number of connections and the bytes of headers, and accepts no request bodies. One time limit covers a
request and its answer: when it has passed, the server closes the connection, even of a slow client. At the connection limit, the
server closes an idle connection in favour of a new one (`tutti.runtime.listener`). A client of another protocol (gRPC, ZeroMQ) gets
an error that names the right port.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tutti.errors import NotAllowed
from tutti.runtime.http_server import UVICORN_SETTINGS, BoundedProtocol, Server, problem
from tutti.security.tokens import UNAUTHENTICATED, Access
from tutti_gateway.core import limits
from tutti_gateway.reads.common.authorization import ReadsAuthorizer

US = 1_000_000
METHODS = ("GET", "HEAD")
_WRONG_PORT = (
    "this is the admin port of a Tutti gateway and speaks HTTP/1.1; {spoken} belongs to another port: "
    "clients and tools use the gateway's base port (tutti://HOST:P), Arrow Flight readers P+2"
)

#: With these headers a browser loads nothing from other hosts, and no other page can embed the console.
_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class PageResponse(NamedTuple):
    """An HTTP response: status code, content type, body and additional headers."""

    status: int
    media_type: str
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})


QueryParameters = Mapping[str, str]
"""The query parameters of a request; of a repeated parameter the last one counts."""

Page = Callable[[QueryParameters], PageResponse]
"""Makes the response of a page; runs in a worker thread, so it may wait a moment."""


class AdminProtocol(BoundedProtocol):
    """A connection of the admin port; its time limit covers a request and the answer."""

    wrong_port = _WRONG_PORT

    def timeout_s(self) -> float:
        """Return the time limit for a request and its answer, seconds."""
        return limits.HTTP_REQUEST_US_MAX / US


def error_response(status: int, message: str) -> PageResponse:
    """Return an error response."""
    return PageResponse(status, "application/json", problem(status, message[: limits.ERROR_TEXT_BYTES_MAX]))


class BodyRejection:
    """Middleware that refuses a request with a body before reading the body."""

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
                # The body stays unread, so the connection cannot carry another request.
                answer = Response(body, status, {"connection": "close"}, "application/json")
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


METRICS = "/metrics"
#: Pages that need no token: liveness probes have none, and the console's page asks the user for a token.
_OPEN = frozenset({"/", "/healthz", "/readyz"})
_CONSOLE = "/console/"
#: Pages that every valid token may see. `/v1/records` needs the right to read its topic, `/v1/topics` to read all topics.
_FOR_ALL = frozenset({METRICS, "/v1/status", "/v1/history"})


def check_page(access: Access, path: str, topic: str | None) -> None:
    """Check that a caller may see a page.

    Args:
        access: the permissions of the caller.
        path: path of the page.
        topic: the topic whose records the caller requests, None for all topics.

    Raises:
        NotAllowed: the caller has no permission to see the page.
    """
    if path in ("/v1/records", "/v1/topics"):
        access.require_read(None if topic is None else [topic])
    elif path not in _FOR_ALL:
        access.require_admin(f"see {path}")


def application(pages: Mapping[str, Page], guard: ReadsAuthorizer | None = None, *, open_metrics: bool = False) -> ASGIApp:
    """Return the application that serves `pages` by path to the callers that `guard` authorizes."""
    open_pages = _OPEN | {METRICS} if open_metrics else _OPEN

    def check(request: Request, path: str) -> Response | None:
        """Return the refusal if the caller has no permission to see the page at `path`, otherwise None.

        `path` is the route. The url of the request would be unsafe here, because the client controls it through the header `Host`.
        """
        if guard is None or path in open_pages or path.startswith(_CONSOLE):
            return None
        try:
            access = guard.access_of(request.headers.get("authorization", ""))
            # An empty topic means all topics here as in the page, or a caller could read topics without permission.
            topic = request.query_params.get("topic") or None
            guard.enforce(lambda: check_page(access, path, topic if path == "/v1/records" else None))
        except NotAllowed as error:
            known = error.code != UNAUTHENTICATED
            status = HTTPStatus.FORBIDDEN if known else HTTPStatus.UNAUTHORIZED
            # RFC 9110, section 15.5.2, requires the header `WWW-Authenticate` in an answer with code 401.
            headers = {} if known else {"www-authenticate": "Bearer"}
            return Response(problem(status, str(error)), status, headers, "application/json")
        return None

    def handler(path: str, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            if denied := check(request, path):
                return denied
            # A page may wait a second for the gateway, so a worker thread builds it and the event loop stays free.
            status, media_type, body, headers = await asyncio.to_thread(page, dict(request.query_params))
            return Response(body, status, {**_HEADERS, **headers}, media_type)

        return handle

    async def refused(_request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
        message = {
            404: f"there is no such page; the pages are {', '.join(pages)}",
            405: f"the admin port accepts only {' and '.join(METHODS)}",
        }.get(status, "an internal error occurred; see the log of the reads process")
        # The headers of an error 405 contain `Allow`, which RFC 9110, section 15.5.6, requires.
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        return Response(problem(status, message), status, {**_HEADERS, **headers}, "application/json")

    routes = [Route(path, handler(path, page), methods=list(METHODS)) for path, page in pages.items()]
    return BodyRejection(Starlette(routes=routes, exception_handlers={HTTPException: refused, Exception: refused}))


class AdminServer:
    """HTTP server of the admin port, in a separate thread."""

    def __init__(
        self,
        listener: socket.socket,
        pages: Mapping[str, Page],
        guard: ReadsAuthorizer | None = None,
        tls: tuple[str, str] | None = None,
        *,
        open_metrics: bool = False,
    ) -> None:
        """Prepare to serve pages; `start` starts.

        Args:
            listener: a bound or listening socket.
            pages: the pages by path.
            guard: authorizes callers, or is None if every caller may see every page.
            tls: files of the certificate and its key, or None for plain HTTP.
            open_metrics: whether metrics need no token.
        """
        self._listener = listener
        certificate, key = tls or (None, None)
        config = uvicorn.Config(
            application(pages, guard, open_metrics=open_metrics),
            ssl_certfile=certificate,
            ssl_keyfile=key,
            http=AdminProtocol,
            **UVICORN_SETTINGS,
            backlog=limits.HTTP_CONNECTIONS_MAX,
            timeout_keep_alive=limits.HTTP_REQUEST_US_MAX // US // 2,
            # One second is below `READS_STOP_US_MAX` (2 s), so the thread ends before `stop` gives up.
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=limits.HTTP_HEADER_BYTES_MAX,
        )
        self._server = Server(config, limits.HTTP_CONNECTIONS_MAX, limits.HTTP_REQUEST_US_MAX / US)
        self._thread = threading.Thread(target=self._run, name="admin-http", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving, and wait a moment for the thread."""
        self._server.end()
        self._thread.join(timeout=limits.READS_STOP_US_MAX / US)

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))
