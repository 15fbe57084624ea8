"""One connection to one gateway's client port: a DEALER that never reconnects by itself, and its monitor.

A connection that broke is dropped whole, with everything queued in it, and a new one is made: what was sent and not answered is
known to its sender, which sends it again in order. ZeroMQ's own reconnect would keep some of it and not the rest.
"""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.client.forking import after_fork
from gateway.client.url import Address
from gateway.core import limits
from gateway.data.frame import Buffer
from gateway.errors import FormatError

_ZERO_COPY_BYTES_MIN = 128 * limits.KIB  # below it a copy costs less than the thread that frees what was not copied
_MS = 1000
_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}
_contexts_lock = threading.Lock()


class News(enum.Enum):
    """What a link's monitor tells."""

    UP = "up"
    REFUSED = "refused"  # nobody listens
    DOWN = "down"  # of a connection that was never up: who is there speaks no ZeroMQ


_NEWS = {
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): News.UP,
    int(zmq.EVENT_CLOSED): News.REFUSED,
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): News.DOWN,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): News.DOWN,
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): News.DOWN,
    int(zmq.EVENT_DISCONNECTED): News.DOWN,
}


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    """The process's own context: one made before a fork is of no use in the child."""
    pid = os.getpid()
    with _contexts_lock:
        if pid not in _contexts:
            _contexts[pid] = zmq.Context(io_threads=1)
        return _contexts[pid]


def _renew_after_fork() -> None:
    global _contexts_lock  # noqa: PLW0603 - it may have been held by a thread that is not in the child
    _contexts_lock = threading.Lock()


after_fork(_renew_after_fork)


class Link:
    """A connection to `address`; made, used and closed by one thread."""

    def __init__(self, address: Address, wake: int | None = None) -> None:
        """Begin to connect; `news()` tells how it goes. `wait` also returns when the descriptor `wake` has something to read."""
        self.address = address
        self.up = False
        self.was_up = False
        self.readable = self.has_news = self.woken = True
        self._wake = wake
        self._writable = False
        timeout_ms = limits.ADDRESS_TIMEOUT_US // _MS
        socket = _context().socket(zmq.DEALER)
        socket.linger = 0
        socket.set(zmq.RECONNECT_IVL, -1)
        socket.set(zmq.CONNECT_TIMEOUT, timeout_ms)
        socket.set(zmq.HANDSHAKE_IVL, timeout_ms)
        socket.set(zmq.HEARTBEAT_IVL, limits.LINK_BEAT_MS)
        socket.set(zmq.HEARTBEAT_TIMEOUT, limits.LINK_SILENT_MS_MAX)
        socket.set(zmq.IPV6, 1 if ":" in address.host else 0)
        socket.set(zmq.MAXMSGSIZE, limits.ANSWER_BYTES_MAX)
        socket.set(zmq.SNDHWM, limits.CLIENT_WINDOW_FRAMES)
        socket.set(zmq.RCVHWM, 0)  # a full queue and a heartbeat on a broken connection end the process; the window bounds answers
        socket.copy_threshold = _ZERO_COPY_BYTES_MIN
        self.socket = socket
        self.monitor = socket.get_monitor_socket(
            zmq.EVENT_CLOSED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self.monitor, zmq.POLLIN)
        if wake is not None:
            self._poller.register(wake, zmq.POLLIN)
        try:
            socket.connect(address.endpoint)
        except BaseException:
            self.close()
            raise

    def news(self) -> News | None:
        """The next thing that happened to the connection, None when nothing did."""
        while True:
            try:
                event = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return None
            news = _NEWS.get(int(event["event"]))
            if news is not None:
                self.up = news is News.UP
                self.was_up = self.was_up or self.up
                return news

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Send one message; False when the connection takes no more now. Large parts are not copied: they must not change."""
        try:
            if len(parts) == 1 and len(parts[0]) < _ZERO_COPY_BYTES_MIN:
                self.socket.send(parts[0], zmq.NOBLOCK)
            else:
                self.socket.send_multipart(parts, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def receive(self) -> bytes | None:
        """The next message of the gateway, None when there is none.

        Raises:
            FormatError: a message of several parts, which no gateway sends.
        """
        try:
            message = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        if self.socket.get(zmq.RCVMORE):
            raise FormatError(f"{self.address} sent a message of several parts, which no gateway does")
        return bytes(message)

    def wait(self, timeout_s: float, writable: bool = False) -> None:
        """Wait for a message, news, something at the wake descriptor, (`writable`) room to send, or the end of the time.

        Afterwards `readable`, `has_news` and `woken` say what there is: asking in vain costs as much as a message does.
        """
        if writable != self._writable:
            self._poller.modify(self.socket, zmq.POLLIN | (zmq.POLLOUT if writable else 0))
            self._writable = writable
        ready = dict(self._poller.poll(int(timeout_s * _MS) + 1 if timeout_s > 0 else 0))
        self.readable = bool(ready.get(self.socket, 0) & zmq.POLLIN)
        self.has_news = self.monitor in ready
        self.woken = self._wake in ready

    def close(self, linger_s: float = 0.0) -> None:
        """Drop the connection. What is queued in it has `linger_s` to leave, behind the caller's back."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(int(linger_s * _MS))


def wait_any(links: Sequence[tuple[Link, bool]], wake: int, timeout_s: float) -> bool:
    """As `Link.wait` for several links at once, each with whether it waits for room; whether `wake` has something to read."""
    poller = zmq.Poller()
    poller.register(wake, zmq.POLLIN)
    for link, writable in links:
        poller.register(link.socket, zmq.POLLIN | (zmq.POLLOUT if writable else 0))
        poller.register(link.monitor, zmq.POLLIN)
    ready = dict(poller.poll(int(timeout_s * _MS) + 1 if timeout_s > 0 else 0))
    for link, _ in links:
        link.readable = bool(ready.get(link.socket, 0) & zmq.POLLIN)
        link.has_news = link.monitor in ready
    return wake in ready
