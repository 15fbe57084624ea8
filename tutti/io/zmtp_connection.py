"""ZMTP connection: one connection to the client port of one gateway, over a plain socket. The connection acts as a DEALER that does
not reconnect.

A broken connection is dropped with all messages queued in it. The sender knows which messages have no answer, and sends them again
in order over a new connection. The owning thread does the connection's I/O itself, so that no other thread has to wake up.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import select
import socket
import time
import weakref
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from tutti import limits
from tutti.common.fork import after_fork
from tutti.common.gateway_url import Address
from tutti.data.frames.frame import Buffer
from tutti.errors import FormatError
from tutti.runtime.dns import Resolver, addresses, ip_literal
from tutti.zmtp.frame_reader import SCRATCH_BYTES, ConnectionEnded, FrameReader
from tutti.zmtp.framing import HANDSHAKE_BYTES_MAX, PING, EncodedMessage, NullHandshake, encode_message, pong
from tutti.zmtp.send_queue import SendQueue

if TYPE_CHECKING:
    from tutti.common.credentials import Credentials
    from tutti.zmtp.curve import CurveClientHandshake
    from tutti.zmtp.curve_stream import CurveReceiver

_MS = 1000
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_KEEPALIVE_S = limits.CLIENT_KEEPALIVE_MS / _MS
_UNANSWERED_MAX = limits.CLIENT_SILENCE_MS_MAX // limits.CLIENT_KEEPALIVE_MS


_connections: weakref.WeakSet[ZmtpConnection] = weakref.WeakSet()


class ConnectionEvent(enum.Enum):
    """Event of a connection."""

    UP = "up"
    REFUSED = "refused"  # no process listens, or the host is unreachable; `trouble` has the reason
    DOWN = "down"  # the connection ended; without an earlier UP, the peer does not use ZMTP


class ZmtpConnection:
    """A connection to `address`, used by one thread.

    Attributes:
        is_ready: True if `fileno` had an event that `wait` must handle; set by the I/O thread.
    """

    def __init__(self, address: Address, credentials: Credentials | None = None) -> None:
        """Start to connect; `next_event()` returns the result. With `credentials`, the gateway must have one of the keys in them.

        Raises:
            OSError: no descriptor is free.
        """
        self.address = address
        self.up = False
        self.was_up = False
        self.readable = self.has_events = True
        self.is_ready = False
        self._credentials = credentials
        self._refused = ""
        self._events: deque[ConnectionEvent] = deque()
        self._received: deque[bytes | FormatError] = deque()
        self._socket: socket.socket | None = None
        self._handshake: NullHandshake | CurveClientHandshake | None = None
        self._opening: CurveReceiver | None = None
        self._stream: FrameReader | None = None
        self._outgoing: SendQueue | None = None
        self._keepalive_at = 0.0  # time at which the current keepalive interval ends
        self._unanswered = 0  # number of successive keepalive intervals in which nothing arrived
        self._mask = 0
        self._poll = select.epoll()
        self._lookup: Resolver | None = None
        _connections.add(self)
        found = ip_literal(address.host)
        if found:
            self._connect(found)
        else:
            self._lookup = Resolver(_resolve)
            self._lookup.address(address.host)
            self._poll.register(self._lookup.fd, _READ)

    def orphan(self) -> None:
        """In a forked child, mark the connection as broken, because it belongs to the parent."""
        self._poll.close()  # a change here would change the parent's epoll instance
        self._poll = select.epoll()
        self._close_lookup()
        self._received.clear()
        self._events.clear()
        self._end(ConnectionEvent.DOWN)

    # Connecting

    @property
    def trouble(self) -> str:
        """The reason why there is no connection, if this client knows it; empty if only a port probe can find it."""
        if self._lookup is not None:
            return "the host name is not resolved yet: no name server answered in time"
        return self._refused

    def _close_lookup(self) -> None:
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = None

    def _connect(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            self._refuse(connection_failure(error))
            return
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            to = socket.getaddrinfo(host, self.address.port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4]
            code = connection.connect_ex(to)
        except OSError:
            code = errno.EINVAL
        # The socket becomes writable once the connection is established or has failed.
        if code in (0, errno.EINPROGRESS):
            self._watch(_WRITE)
        else:
            self._refuse(os.strerror(code).lower())

    def _refuse(self, trouble: str) -> None:
        self._refused = trouble
        self._end(ConnectionEvent.REFUSED)

    def _watch(self, mask: int) -> None:
        if self._socket is not None and mask != self._mask:
            (self._poll.modify if self._mask else self._poll.register)(self._socket, mask)
            self._mask = mask

    def _end(self, event: ConnectionEvent) -> None:
        connection, self._socket = self._socket, None
        self._handshake = self._stream = self._outgoing = self._opening = None
        self._events.append(event)
        self.has_events = True
        if connection is not None:
            connection.close()  # closing also removes the descriptor from epoll

    def _on_socket_event(self, mask: int) -> None:
        """Handle an event of the socket."""
        connection = self._socket
        if connection is None:
            return
        try:
            if self._stream is not None:
                if mask & ~_WRITE:
                    self._read(self._stream)
                if mask & _WRITE:
                    self._send()
            elif self._handshake is not None:
                self._continue_handshake(connection, self._handshake)
            elif code := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._refuse(os.strerror(code).lower())
            else:
                self._greet(connection)
                self._watch(_READ)
        except BlockingIOError:
            return
        except FormatError as error:
            if self._stream is not None:
                self._received.append(error)
            elif self._credentials is not None:
                self._refused = str(error)
            self._end(ConnectionEvent.DOWN)
        except (OSError, ConnectionEnded):
            self._end(ConnectionEvent.DOWN)

    def _greet(self, connection: socket.socket) -> None:
        """Send the first bytes of a connection, which fit into the empty socket buffer."""
        handshake = NullHandshake(b"DEALER", b"ROUTER") if self._credentials is None else self._credentials.calling()
        self._handshake = handshake
        connection.sendall(handshake.data_to_send())

    def _continue_handshake(self, connection: socket.socket, handshake: NullHandshake | CurveClientHandshake) -> None:
        data = connection.recv(HANDSHAKE_BYTES_MAX)
        if not data:
            if self._credentials is not None:
                self._refused = "the gateway ended the connection: it has no keys, or its keys are not those of the credentials"
            raise ConnectionEnded
        # The bytes after the handshake belong to the stream, because the peer sends without waiting.
        rest = handshake.receive_data(data)
        if answer := handshake.data_to_send():
            connection.sendall(answer)  # fits, as in `_greet`
        if rest is None:
            return
        self._handshake = None
        source: socket.socket | CurveReceiver = connection
        self._outgoing = SendQueue(connection)
        if handshake.box is not None:
            from tutti.zmtp.curve_stream import CurveReceiver, CurveSendQueue  # noqa: PLC0415 - crypto only for clients with keys

            self._outgoing = CurveSendQueue(connection, handshake.box)
            source = self._opening = CurveReceiver(connection, handshake.box, rest, limits.ANSWER_BYTES_MAX, lambda _: True)
            rest = b""
        scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._stream = FrameReader(source, scratch, limits.ANSWER_BYTES_MAX, lambda _: True, rest, on_command=self._command)
        self._keepalive_at = time.monotonic() + _KEEPALIVE_S
        self._events.append(ConnectionEvent.UP)
        # These bytes have already been read, so epoll reports no event for them.
        if rest or (self._opening is not None and self._opening.unread):
            self._read(self._stream)

    def _command(self, command: bytes) -> None:
        answer = pong(command)
        if answer and self._outgoing is not None:
            self._outgoing.append(EncodedMessage([answer], len(answer)))
            self._send()

    def next_event(self) -> ConnectionEvent | None:
        """Return the next event of the connection, or None. The end of the connection is reported after all received messages."""
        if not self._events:
            self._poll_events(0.0)
        # Messages that arrived before the end are handled first.
        if not self._events or (self._received and self._events[0] is ConnectionEvent.DOWN):
            return None
        event = self._events.popleft()
        self.up = event is ConnectionEvent.UP
        self.was_up = self.was_up or self.up
        return event

    # Messages

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Send one message. Return False if the queue is full. Large parts are not copied, so the caller must not change them."""
        outgoing = self._outgoing
        if outgoing is None:
            return True  # the connection has broken: the message is lost, and `next_event` reports the end
        if len(outgoing) >= limits.CLIENT_WINDOW_FRAMES:
            return False
        outgoing.append(encode_message(parts))
        # Only the first message is written at once. Later ones wait until the socket is writable.
        if len(outgoing) == 1:
            self._send()
        return True

    def _send(self) -> None:
        outgoing = self._outgoing
        if outgoing is None:
            return
        try:
            outgoing.send()
        except OSError:
            self._outgoing = None
            if self._socket is not None:
                with contextlib.suppress(OSError):  # the peer may also have closed its end
                    self._socket.shutdown(socket.SHUT_RDWR)
        self._watch(_READ | _WRITE if self._outgoing else _READ)  # the next read gets the remaining messages, then the end

    def _read(self, stream: FrameReader) -> None:
        self._unanswered = 0
        opening = self._opening
        while True:
            for parts, _ in stream.read():
                self._received.append(bytes(parts[0]))
            if opening is None or not opening.unread:
                return

    def receive(self) -> bytes | None:
        """Return the next message of the gateway, or None.

        Raises:
            FormatError: the peer sent a message that no gateway sends. No further message is returned.
        """
        if not self._received:
            return None
        message = self._received.popleft()
        if isinstance(message, FormatError):
            raise message
        return message

    # Waiting

    def is_alive(self) -> bool:
        """Return True unless the kernel has seen the end of the connection. Unread messages do not hide the end."""
        if self._socket is None:
            return False
        # POLLRDHUP reports the end of the stream even while messages before it are unread.
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return not poll.poll(0)

    def wait(self, timeout_s: float) -> None:
        """Wait for a message, an event, space in the send buffer, or the timeout.

        Afterwards, `readable` and `has_events` are up to date.
        """
        self.is_ready = False
        self._poll_events(self._wait_limit_s(timeout_s))
        self.readable, self.has_events = bool(self._received), bool(self._events)

    def _poll_events(self, timeout_s: float) -> None:
        """Handle the kernel's events."""
        for fd, mask in self._poll.poll(timeout_s):
            self._on_poll(fd, mask)

    def _on_poll(self, fd: int, mask: int) -> None:
        names = self._lookup
        if names is None or fd != names.fd:
            self._on_socket_event(mask)
            return
        found = names.drain()[self.address.host]
        # Unregister before the lookup closes its descriptor, because the new socket may get the same number.
        self._poll.unregister(fd)
        self._close_lookup()
        if found:
            self._connect(found)
        else:
            self._refuse(f"the host name is unknown ({names.error(self.address.host)})")

    def due(self) -> float:
        """Return the monotonic time at which `wait` must run, to return events or send a ping, if nothing arrives before."""
        if self._received or self._events:
            return 0.0
        return inf if self._stream is None else self._keepalive_at

    def _wait_limit_s(self, timeout_s: float) -> float:
        """Return the longest wait: 0 if something is ready, otherwise up to the next keepalive action."""
        if self._received or self._events:
            return 0.0
        if self._stream is None:
            return max(0.0, timeout_s)
        now = time.monotonic()
        if now >= self._keepalive_at:
            self._keepalive(now)
        return 0.0 if self._events else max(0.0, min(timeout_s, self._keepalive_at - now))

    def _keepalive(self, now: float) -> None:
        """Count a keepalive interval without received data. Time during which this process is suspended does not count."""
        self._keepalive_at = now + _KEEPALIVE_S
        self._unanswered += 1
        if self._unanswered > _UNANSWERED_MAX:
            self._end(ConnectionEvent.DOWN)
        # A ping is useful only if no queued message makes the peer answer.
        elif self._unanswered > 1 and self._outgoing is not None and not self._outgoing:
            self._outgoing.append(EncodedMessage([PING], len(PING)))
            self._send()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `wait` would return."""
        return self._poll.fileno()

    def close(self, linger_s: float = 0.0) -> None:
        """Drop the connection. Allow `linger_s` seconds for sending queued messages."""
        _connections.discard(self)
        self._close_lookup()
        connection, self._socket = self._socket, None
        if connection is not None:
            if self._outgoing:
                self._outgoing.linger(linger_s)
            connection.close()
        self.up = False
        self._handshake = self._stream = self._outgoing = self._opening = None
        self._poll.close()


def connection_failure(error: OSError) -> str:
    """Return the error text for a connection that cannot be created."""
    return f"the connection cannot be created: {error.strerror}; raise the limit of open files of this process"


def _after_fork() -> None:
    for connection in list(_connections):
        connection.orphan()


after_fork(_after_fork)


def _resolve(host: str) -> str:
    """Return the address to connect to, preferring IPv4, on which gateways listen by default."""
    return min(addresses(host), key=lambda address: ":" in address)
