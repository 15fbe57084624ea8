"""HTTP/1.1 server for untrusted clients: uvicorn with additional limits, and without its periodic timer.

Each port defines its own limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from abc import abstractmethod
from asyncio.sslproto import SSLProtocol, SSLProtocolState
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from tutti.errors import ConfigError
from tutti.runtime.http1 import ServerConnection
from tutti.runtime.listener import ConnectionLimit, Listener
from tutti.runtime.reserved_fds import TOO_MANY

_HTTP2_PREFACE = b"PRI * HTTP/2.0"
_ZEROMQ_GREETING = b"\xff"
#: uvicorn settings of every port for untrusted clients: plain HTTP/1.1, no uvicorn logs, no server header, no proxy headers.
UVICORN_SETTINGS: dict[str, Any] = {
    "ws": "none",
    "lifespan": "off",
    "loop": "asyncio",
    "log_config": None,
    "access_log": False,
    "server_header": False,
    "date_header": False,
    "proxy_headers": False,
}
HALF_CLOSED = "half_closed"  # key in `scope["state"]` of a request; its value is True if the client has closed its side
_RETRY_S = 1  # Retry-After of a 503 answer
_FULL = "the connection limit of this port is reached: retry later, and send each request at once"


def problem(status: int, message: str) -> bytes:
    """Return the JSON body of an error answer."""
    return msgspec.json.encode({"error": HTTPStatus(status).phrase, "message": message})


def _last_answer(status: HTTPStatus, message: str) -> bytes:
    """Return a complete error answer with `connection: close`."""
    body = problem(status, message)
    again = f"retry-after: {_RETRY_S}\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{again}connection: close\r\n\r\n"
    )
    return head.encode() + body


class BoundedProtocol(H11Protocol):
    """A connection with a deadline for each request, even if the client reads or writes slowly.

    The deadline of the first request counts from the start of the connection, and each later one from the previous answer. A client
    that speaks a different protocol gets an explanation. A client that closes its side still gets the answers to its complete
    requests.
    """

    #: Error text for clients that speak a different protocol, which replaces `{spoken}` in the text.
    wrong_port: ClassVar[str]
    #: Number of connections that the server closed itself, by HTTP status of the refusal, or `listener.CROWDED`.
    rejected: ClassVar[Counter[str]]
    #: Connection limit of the port; `Server` sets this attribute before the connection is made.
    limit: ConnectionLimit
    _deadline: asyncio.TimerHandle | None = None
    _protocol_checked = False
    _half_closed = False  # True if the client has closed its side
    _request_begun = False  # True if bytes of the next request have arrived
    _number = -1  # descriptor of the connection

    def __init_subclass__(cls) -> None:
        """Create a counter of rejected connections for each subclass, that is, for each port."""
        cls.rejected = Counter()

    def __init__(self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        """Create uvicorn's protocol with a stricter parser."""
        super().__init__(config, server_state, app_state)
        self.conn = ServerConnection(config.h11_max_incomplete_event_size)

    @abstractmethod
    def timeout_s(self) -> float:
        """Return the time limit of the next request, after which the connection is aborted."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's type
        """Register a new connection; with TLS, after its handshake."""
        super().connection_made(transport)
        self._number = transport.get_extra_info("socket").fileno()
        self.limit.opened(self._number, self.evict)
        self.arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after a lost connection."""
        self.disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received bytes; the first bytes show whether the client speaks HTTP."""
        if self.transport.is_closing():
            return None  # ignore TLS data that asyncio buffered before the server refused or closed the connection
        self._request_begun = True
        if not self._protocol_checked:
            self._protocol_checked = True
            if data.startswith(_ZEROMQ_GREETING):
                return self.refuse(HTTPStatus.BAD_REQUEST, self.wrong_port.format(spoken="ZeroMQ"))
            if data.startswith(_HTTP2_PREFACE):
                return self.refuse(HTTPStatus.BAD_REQUEST, self.wrong_port.format(spoken="gRPC"))
        return super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's method never keeps the connection
        """Handle a client that closes its side, as `nc -N` does after a request. Return True while an answer is in progress.

        A vanished client looks the same as a client that waits for its answer. The write to a vanished client fails, which ends the
        connection.
        """
        if self.transport.is_closing():
            return False
        self._half_closed = True
        self.conn.receive_data(b"")
        self.handle_events()  # refuses an incomplete request
        return not (self.transport.is_closing() or self.answered)

    def handle_events(self) -> None:
        """Process the parsed events; register a complete request, so that its connection is not evicted."""
        super().handle_events()
        if not self.answered:
            self.scope["state"][HALF_CLOSED] = self._half_closed
            if not self.cycle.more_body:
                self.limit.working(self._number)

    @property
    def answered(self) -> bool:
        """True if no answer is in progress."""
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        return cycle is None or cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request with the status that the parser suggests, such as 400 or 431."""
        error = sys.exc_info()[1]
        status = HTTPStatus(getattr(error, "error_status_hint", HTTPStatus.BAD_REQUEST))
        if self._can_refuse():
            self.refuse(status, f"{msg} {error}" if error else msg)
        else:
            self.transport.close()

    def _can_refuse(self) -> bool:
        """Return True if no answer has started.

        After the start of an answer, the client would read a refusal as a part of that answer, or as the answer to its next
        request.
        """
        return self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    def on_response_complete(self) -> None:
        """Set the deadline of the next request, because an answer is complete."""
        self._request_begun = False
        self.limit.waiting(self._number, answered=True)
        self.arm()
        super().on_response_complete()

    def arm(self) -> None:
        """Set the deadline to `timeout_s` from now."""
        self.disarm()
        self._deadline = self.loop.call_later(self.timeout_s(), self.expired)

    def disarm(self) -> None:
        """Cancel the deadline, for requests with a different time limit."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def expired(self) -> None:
        """Abort the connection at its deadline."""
        self.transport.abort()

    def evict(self) -> None:
        """Close the connection, so that a new one can be accepted. Answer an incomplete request with 503."""
        if self._request_begun and self._can_refuse() and not self.transport.is_closing():
            self._answer_last(HTTPStatus.SERVICE_UNAVAILABLE, _FULL)
        self.transport.abort()

    def refuse(self, status: HTTPStatus, message: str) -> None:
        """Send a last answer and close the connection."""
        self.rejected[str(status.value)] += 1
        self._answer_last(status, message)
        self.transport.close()

    def _answer_last(self, status: HTTPStatus, message: str) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True  # prevents another answer of the application
            self.cycle.message_event.set()
        self.transport.write(_last_answer(status, message))


def _handle_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore a lack of descriptors, which asyncio would log once for each waiting connection. Handle other errors as usual."""
    error = context.get("exception")
    if not (isinstance(error, OSError) and error.errno in TOO_MANY):
        loop.default_exception_handler(context)


#: Private parts of asyncio's `SSLProtocol` that `_Tls` uses or overrides.
#: asyncio has no public way to keep a TLS connection open after the client has closed its side.
_PRIVATE_PARTS = (
    "_state", "_app_protocol", "_app_transport", "_app_reading_paused",
    "_do_read", "_call_eof_received", "_start_shutdown", "_do_shutdown", "_on_shutdown_complete",
)  # fmt: skip


class _Tls(SSLProtocol):
    """TLS connection that stays open when the client closes its side first. (The base class would close both sides.)"""

    # The type stubs of asyncio omit the attributes `_state`, `_app_reading_paused` and `_app_protocol` of the base class.
    _state: SSLProtocolState
    _app_reading_paused: bool
    _app_protocol: BoundedProtocol
    # The base class has no attributes `_client_closed` and `_awaits_answer`.
    _client_closed = False  # True if the client has closed TCP without closing TLS first
    _awaits_answer = False  # True if the client has closed its side and an answer is still in progress

    def eof_received(self) -> bool | None:  # type: ignore[override]  # the type of `asyncio.Protocol.eof_received`
        """Handle a client that closes TCP without closing TLS first."""
        if self._state is not SSLProtocolState.WRAPPED:
            closed: bool | None = super().eof_received()
            return closed
        self._client_closed = True
        self._do_read()
        return True

    def _do_read(self) -> None:
        super()._do_read()  # type: ignore[misc]  # not in the stubs
        if self._client_closed and self._state is SSLProtocolState.WRAPPED and not self._app_reading_paused:
            self._call_eof_received()
            self._start_shutdown()

    def _call_eof_received(self) -> None:
        if not (self._awaits_answer or self._app_transport.is_closing()):
            self._awaits_answer = self._app_protocol.eof_received()

    def _start_shutdown(self) -> None:
        """Close the connection. While an answer to a half-closed client is in progress, leave the close to `BoundedProtocol`."""
        if not self._awaits_answer or self._app_transport.is_closing():
            super()._start_shutdown()

    def _do_shutdown(self) -> None:
        """Send TLS's close_notify, from which the client learns that its answer is complete.

        Do not wait for the client's close_notify if the client has closed TCP, because none will arrive.
        """
        super()._do_shutdown()  # type: ignore[misc]  # not in the stubs
        if self._client_closed:
            self._on_shutdown_complete(None)  # type: ignore[attr-defined]  # not in the stubs


def _check_tls(protocol: SSLProtocol) -> None:
    """Check that asyncio of this Python version has the private parts that `_Tls` uses.

    Raises:
        ConfigError: a part is missing.
    """
    missing = [name for name in _PRIVATE_PARTS if not hasattr(protocol, name)]
    if missing:
        raise ConfigError(
            f"asyncio of Python {sys.version.split()[0]} lacks {', '.join(missing)} of SSLProtocol, which HTTPS needs: "
            "use Python 3.11 to 3.13"
        )


class Server(uvicorn.Server):
    """uvicorn's server without its periodic timer, and with limits for connections and for the TLS handshake.

    The timer of uvicorn wakes ten times a second, to update an unused date header and to check for the end of the server. The
    timer would take a tenth of the CPU time of an idle gateway. Without the timer, `end` wakes the server.
    """

    def __init__(self, config: uvicorn.Config, connections_max: int, handshake_s: float) -> None:
        """Prepare the server.

        Args:
            config: uvicorn's configuration, usually with a subclass of `BoundedProtocol`, which counts rejected connections.
            connections_max: limit of concurrent connections per socket.
            handshake_s: seconds for a TLS handshake.
        """
        super().__init__(config)
        self._connections_max = connections_max
        self._handshake_s = handshake_s
        counted = getattr(config.http, "rejected", None)
        self._rejected: Counter[str] = counted if counted is not None else Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not handle signals, because the caller handles them and ends the server with `end`."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving on the sockets."""
        await self.lifespan.startup()
        config = self.config
        loop = asyncio.get_running_loop()
        self.servers = []
        if config.ssl is not None:
            probe = _Tls(loop, asyncio.Protocol(), config.ssl, None, server_side=True)  # type: ignore[arg-type]  # as in `_protocol`
            _check_tls(probe)
            probe.connection_lost(None)
        refusal = b"" if config.ssl else _last_answer(HTTPStatus.SERVICE_UNAVAILABLE, _FULL)
        for listener in sockets or []:
            limit = ConnectionLimit(self._connections_max, self._rejected)
            made = partial(self._protocol, loop, limit)
            self.servers.append(await loop.create_server(made, sock=Listener(listener, limit, refusal), backlog=config.backlog))
        self.started = True

    def _protocol(self, loop: asyncio.AbstractEventLoop, limit: ConnectionLimit) -> asyncio.BaseProtocol:
        config = self.config
        made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn does
            config=config, server_state=self.server_state, app_state=self.lifespan.state
        )
        if isinstance(made, BoundedProtocol):
            made.limit = limit
        if config.ssl is None:
            return made
        return _Tls(loop, made, config.ssl, None, server_side=True, ssl_handshake_timeout=self._handshake_s)  # type: ignore[arg-type]  # asyncio accepts None as waiter, and a float

    async def main_loop(self) -> None:
        """Sleep until `end` is called."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_handle_exception)
        if not self.should_exit:
            await self._ended.wait()

    def end(self) -> None:
        """End the server. Callable from any thread at any time."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._ended.set)
