"""HTTP/1.1 for whoever faces strangers: uvicorn's connection with the bounds that it has no setting for, and its server without a
clock. What the bounds are, each port says for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, ClassVar

import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.descriptors import TOO_MANY

_HTTP2_PREFACE = b"PRI * HTTP/2.0"
_ZEROMQ_GREETING = b"\xff"
#: What uvicorn is told by each port that faces strangers: HTTP/1.1 alone, logs of our own, no word of what serves, no proxy.
PLAIN: dict[str, Any] = {
    "ws": "none",
    "lifespan": "off",
    "loop": "asyncio",
    "log_config": None,
    "access_log": False,
    "server_header": False,
    "date_header": False,
    "proxy_headers": False,
}
CROWDED = "crowded"  # all places for connections were taken


def problem(status: int, message: str) -> bytes:
    """The JSON of an error."""
    return msgspec.json.encode({"error": HTTPStatus(status).phrase, "message": message})


class BoundedProtocol(H11Protocol):
    """A connection with a time after which it is cut however slowly the other side reads or writes.

    The time begins with the connection and again with the end of each answer. Who speaks another protocol is told so.
    """

    #: What who speaks another protocol is told; `{spoken}` is that.
    wrong_port: ClassVar[str]
    #: How many connections got no further than this in this process: by the status that they were answered, or CROWDED.
    turned_away: ClassVar[Counter[str]]
    _deadline: asyncio.TimerHandle | None = None
    _spoke = False

    def __init_subclass__(cls) -> None:
        """Each port counts its own."""
        cls.turned_away = Counter()

    @abstractmethod
    def patience_s(self) -> float:
        """Seconds until it is cut."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the class above
        """Take a connection: its handshake is over, where there is one."""
        super().connection_made(transport)
        self.arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes from the other side; the first ones tell whether it speaks HTTP at all."""
        if not self._spoke:
            self._spoke = True
            if data.startswith(_ZEROMQ_GREETING):
                return self.refuse(HTTPStatus.BAD_REQUEST, self.wrong_port.format(spoken="ZeroMQ"))
            if data.startswith(_HTTP2_PREFACE):
                return self.refuse(HTTPStatus.BAD_REQUEST, self.wrong_port.format(spoken="gRPC"))
        return super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request, with the code that the parser suggests (400, 431, 501...)."""
        error = sys.exc_info()[1]
        status = HTTPStatus(getattr(error, "error_status_hint", HTTPStatus.BAD_REQUEST))
        self.refuse(status, f"{msg} {error}" if error else msg)

    def on_response_complete(self) -> None:
        """An answer was handed over: the time of the next request begins."""
        self.arm()
        super().on_response_complete()

    def arm(self) -> None:
        """Begin the time anew."""
        self.disarm()
        self._deadline = self.loop.call_later(self.patience_s(), self.expired)

    def disarm(self) -> None:
        """Let it have as much time as it needs: something else bounds it."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def expired(self) -> None:
        """Its time is over."""
        self.transport.abort()

    def refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer and close, whatever was asked."""
        self.turned_away[str(status.value)] += 1
        body = problem(status, message)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """That no descriptor is left for a connection is told once (`connections.Crowd`): asyncio says it of each that waits."""
    error = context.get("exception")
    if not (isinstance(error, OSError) and error.errno in TOO_MANY):
        loop.default_exception_handler(context)


class _Taken(socket.socket):
    """A connection that counts until it is closed."""

    count: set[int] | None = None

    def close(self) -> None:
        """It is over."""
        if self.count is not None:
            self.count.discard(id(self))
        super().close()


class _Listener(socket.socket):
    """A socket that listens and hands out so many connections at once, those too whose TLS handshake is not over: asyncio tells
    nobody of these, and each has its buffers. One more is closed.
    """

    def __init__(self, like: socket.socket, most: int, turned_away: Counter[str]) -> None:
        super().__init__(like.family, like.type, like.proto, os.dup(like.fileno()))
        self._most = most
        self._turned_away = turned_away
        self._count: set[int] = set()

    def accept(self) -> tuple[socket.socket, Any]:
        """As that of any socket."""
        while True:
            found, address = super().accept()
            if len(self._count) < self._most:
                taken = _Taken(found.family, found.type, found.proto, found.detach())
                taken.count = self._count
                self._count.add(id(taken))
                return taken, address
            found.close()
            self._turned_away[CROWDED] += 1


class Server(uvicorn.Server):
    """uvicorn with bounds of connections, and of the time that a TLS handshake has; and without its clock: that wakes ten times a
    second, a tenth of what an idle gateway costs, for a date that nobody is sent and to see whether it is to end, of which it is
    told here.
    """

    def __init__(self, config: uvicorn.Config, connections_max: int, handshake_s: float) -> None:
        """Nothing is served yet.

        Args:
            config: of uvicorn; where its protocol is a `BoundedProtocol`, that counts who is turned away.
            connections_max: connections at once, at each socket.
            handshake_s: seconds for a TLS handshake.
        """
        super().__init__(config)
        self._connections_max = connections_max
        self._handshake_s = handshake_s
        counted = getattr(config.http, "turned_away", None)
        self._turned_away: Counter[str] = counted if counted is not None else Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs it, who calls `end`."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve at the sockets."""
        await self.lifespan.startup()
        config = self.config

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn does
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        self.servers = [
            await asyncio.get_running_loop().create_server(
                protocol,
                sock=_Listener(listener, self._connections_max, self._turned_away),
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=self._handshake_s if config.ssl else None,
            )
            for listener in sockets or []
        ]
        self.started = True

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
