"""The admin pages: health, metrics, status, records and the console, over plain HTTP (docs/reference/reads.md).

Bounds: so many connections, so many bytes of headers, no bodies, and one time limit from the start of a request to the end of its
answer, after which the connection is cut however slowly the other side reads or writes. For a connection too many the one that
waits longest without a request is closed (`tutti.runtime.listener`). Who speaks another language here (gRPC, ZeroMQ) is told which
port it wants.
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
from tutti.runtime.http_server import PLAIN, BoundedProtocol, Server, problem
from tutti.security.tokens import WHO, Access
from tutti_gateway.core import limits
from tutti_gateway.reads.common.authorization import Guard

US = 1_000_000
METHODS = ("GET", "HEAD")
_WRONG_PORT = (
    "this is the admin port of a Tutti gateway and speaks HTTP/1.1; {spoken} belongs to another port: "
    "clients and tools use the gateway's base port (tutti://HOST:P), Arrow Flight readers P+2"
)

#: A browser runs and asks nothing that is not of this port, and shows the console in no other page.
_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class Answer(NamedTuple):
    """What a page says."""

    status: int
    media_type: str
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})


Asked = Mapping[str, str]
"""The parameters behind the `?`, each once; the last counts where one stands there twice."""

Page = Callable[[Asked], Answer]
"""Makes an answer. Runs in a thread of its own, so it may wait a moment."""


class AdminProtocol(BoundedProtocol):
    """A connection of the admin port: its time is from the start of a request to the end of its answer."""

    wrong_port = _WRONG_PORT

    def patience_s(self) -> float:
        """Seconds for a request and its answer."""
        return limits.HTTP_REQUEST_US_MAX / US


def refusal(status: int, message: str) -> Answer:
    """The answer to who asked for what there is not."""
    return Answer(status, "application/json", problem(status, message[: limits.ERROR_TEXT_BYTES_MAX]))


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


METRICS = "/metrics"
#: Pages that take no token: who looks whether a gateway lives has none, and the console asks people for theirs.
_OPEN = frozenset({"/", "/healthz", "/readyz"})
_CONSOLE = "/console/"
#: Pages that any token opens; those of topics take one that may read them, all others one with `admin`.
_FOR_ALL = frozenset({METRICS, "/v1/status", "/v1/history"})


def check_page(access: Access, path: str, topic: str | None) -> None:
    """Refuse a page (of a topic; None: of all) that somebody may not see.

    Raises:
        NotAllowed: they may not.
    """
    if path in ("/v1/records", "/v1/topics"):
        access.require_read(None if topic is None else [topic])
    elif path not in _FOR_ALL:
        access.require_admin(f"see {path}")


def application(pages: Mapping[str, Page], guard: Guard | None = None, *, open_metrics: bool = False) -> ASGIApp:
    """The application that serves `pages` by path, to those whom `guard` lets in."""
    open_pages = _OPEN | {METRICS} if open_metrics else _OPEN

    def check(request: Request, path: str) -> Response | None:
        """The refusal of who may not see the page at `path`, which is the one that is served: the address of a request is made of
        what its `Host` says, too.
        """
        if guard is None or path in open_pages or path.startswith(_CONSOLE):
            return None
        try:
            access = guard.who(request.headers.get("authorization", ""))
            topic = request.query_params.get("topic") or None
            guard.checked(lambda: check_page(access, path, topic if path == "/v1/records" else None))
        except NotAllowed as error:
            known = error.code != WHO
            status = HTTPStatus.FORBIDDEN if known else HTTPStatus.UNAUTHORIZED
            headers = {} if known else {"www-authenticate": "Bearer"}
            return Response(problem(status, str(error)), status, headers, "application/json")
        return None

    def handler(path: str, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            if denied := check(request, path):
                return denied
            status, media_type, body, headers = await asyncio.to_thread(page, dict(request.query_params))
            return Response(body, status, {**_HEADERS, **headers}, media_type)

        return handle

    async def refused(_request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
        message = {
            404: f"there is no such page; there are {', '.join(pages)}",
            405: f"only {' and '.join(METHODS)} are taken",
        }.get(status, "the page could not be made; the log of the reads process says more")
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        return Response(problem(status, message), status, {**_HEADERS, **headers}, "application/json")

    routes = [Route(path, handler(path, page), methods=list(METHODS)) for path, page in pages.items()]
    return NoBodies(Starlette(routes=routes, exception_handlers={HTTPException: refused, Exception: refused}))


class AdminServer:
    """The admin port, served by a thread of its own."""

    def __init__(
        self,
        listener: socket.socket,
        pages: Mapping[str, Page],
        guard: Guard | None = None,
        tls: tuple[str, str] | None = None,
        *,
        open_metrics: bool = False,
    ) -> None:
        """Serve `pages` on a socket that listens (or is bound).

        Args:
            listener: the socket.
            pages: by path.
            guard: lets in who may see them; without it everybody may.
            tls: files of the certificate and its key; without them nothing is encrypted.
            open_metrics: whether metrics take no token.
        """
        self._listener = listener
        certificate, key = tls or (None, None)
        config = uvicorn.Config(
            application(pages, guard, open_metrics=open_metrics),
            ssl_certfile=certificate,
            ssl_keyfile=key,
            http=AdminProtocol,
            **PLAIN,
            backlog=limits.HTTP_CONNECTIONS_MAX,
            timeout_keep_alive=limits.HTTP_REQUEST_US_MAX // US // 2,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=limits.HTTP_HEADER_BYTES_MAX,
        )
        self._server = Server(config, limits.HTTP_CONNECTIONS_MAX, limits.HTTP_REQUEST_US_MAX / US)
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
