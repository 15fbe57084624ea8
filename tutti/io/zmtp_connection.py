"""ZMTP connection: a plain socket to the client port of one gateway, which acts as a ZeroMQ DEALER but never reconnects.

When a connection breaks, the messages in its queue are lost. The sender knows which messages have no answer, and sends them again
in order over a new connection. The thread that owns a connection performs the I/O itself, so that no other thread has to wake up.
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
from tutti.io.endpoints import UNKNOWN_HOST
from tutti.runtime.dns import Resolver, addresses, ip_literal
from tutti.zmtp.frame_reader import SCRATCH_BYTES, ConnectionEnded, FrameReader
from tutti.zmtp.framing import (
    HANDSHAKE_BYTES_MAX,
    JOINED_PART_MAX,
    PING,
    EncodedMessage,
    NullHandshake,
    encode_message,
    frame,
    pong,
)
from tutti.zmtp.send_queue import SendQueue

if TYPE_CHECKING:
    from tutti.common.credentials import Credentials
    from tutti.zmtp.curve import CurveClientHandshake
    from tutti.zmtp.curve_stream import CurveReceiver

_MS = 1000
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_KEEPALIVE_S = limits.CLIENT_KEEPALIVE_MS / _MS
_UNANSWERED_MAX = limits.CLIENT_SILENCE_MS_MAX // limits.CLIENT_KEEPALIVE_MS


_CLOSED = "the gateway closed the connection"
_connections: weakref.WeakSet[ZmtpConnection] = weakref.WeakSet()


class ConnectionEvent(enum.Enum):
    """Event of a connection."""

    UP = "up"
    REFUSED = "refused"  # no process listens, or the host is unreachable; `trouble` has the reason
    DOWN = "down"  # the connection ended; if it was never UP, the peer does not speak ZMTP


class ZmtpConnection:
    """A connection to `address`, used by one thread.

    Attributes:
        is_ready: True if `fileno` had an event that `wait` must handle; the I/O thread sets it.
        loss: the reason for the end of a connection that was up.
    """

    def __init__(self, address: Address, credentials: Credentials | None = None) -> None:
        """Start to connect; `next_event()` returns the result. The gateway must have one of the keys in `credentials`, if given.

        Raises:
            OSError: no descriptor is free.
        """
        self.address = address
        self.up = False
        self.was_up = False
        self.readable = self.has_events = True
        self.is_ready = False
        self.loss = _CLOSED
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
        self._unanswered = 0  # number of keepalive intervals since data last arrived
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
        """In a forked child, mark the connection as broken, because the parent uses it."""
        self._poll.close()  # close it first: parent and child share the epoll instance, so a change would affect the parent
        self._poll = select.epoll()
        self._close_lookup()
        self._received.clear()
        self._events.clear()
        self._end(ConnectionEvent.DOWN)

    # Connecting

    @property
    def trouble(self) -> str:
        """The reason why the connection failed; empty if only a port probe can determine the reason."""
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
        # The socket becomes writable as soon as the connection is established or has failed.
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
            connection.close()  # the kernel then removes the descriptor from the epoll instance

    def _on_socket_event(self, mask: int) -> None:
        """Continue to connect, shake hands, or transfer data, after an event of the socket."""
        connection = self._socket
        if connection is None:
            return
        try:
            if self._stream is not None:
                if mask & ~_WRITE:
                    self._read(self._stream, self._stream.read_lone())
                if mask & _WRITE:
                    self._send()
            elif self._handshake is not None:
                self._continue_handshake(connection, self._handshake)
            elif code := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._refuse(os.strerror(code).lower())
            else:
                self._greet(connection)
                self._watch(_READ)
        except (OSError, FormatError, ConnectionEnded) as error:
            self._on_error(error)

    def _on_error(self, error: OSError | FormatError | ConnectionEnded) -> None:
        """End the connection after an error, unless the socket has no data or no space at present."""
        if isinstance(error, BlockingIOError):
            return
        if isinstance(error, FormatError):
            if self._stream is not None:
                self._received.append(error)
                self.loss = str(error)
            elif self._credentials is not None:
                self._refused = str(error)
        elif isinstance(error, OSError):
            self.loss = _loss(error)
        self._end(ConnectionEvent.DOWN)

    def _greet(self, connection: socket.socket) -> None:
        """Send the start of the handshake, which always fits into the empty socket buffer."""
        handshake = NullHandshake(b"DEALER", b"ROUTER") if self._credentials is None else self._credentials.calling()
        self._handshake = handshake
        connection.sendall(handshake.data_to_send())

    def _continue_handshake(self, connection: socket.socket, handshake: NullHandshake | CurveClientHandshake) -> None:
        data = connection.recv(HANDSHAKE_BYTES_MAX)
        if not data:
            if self._credentials is not None:
                self._refused = "the gateway ended the connection: it has no keys, or its keys are not those of the credentials"
            raise ConnectionEnded
        # Bytes after the handshake (`rest`) belong to the message stream, because the peer does not wait for an answer.
        rest = handshake.receive_data(data)
        if answer := handshake.data_to_send():
            connection.sendall(answer)  # always fits into the socket buffer, as in `_greet`
        if rest is None:
            return
        self._handshake = None
        source: socket.socket | CurveReceiver = connection
        self._outgoing = SendQueue(connection)
        if handshake.box is not None:
            from tutti.zmtp.curve_stream import CurveReceiver, CurveSendQueue  # noqa: PLC0415 - needed only with keys

            self._outgoing = CurveSendQueue(connection, handshake.box)
            source = self._opening = CurveReceiver(connection, handshake.box, rest, limits.ANSWER_BYTES_MAX, lambda _: True)
            rest = b""
        scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._stream = FrameReader(source, scratch, limits.ANSWER_BYTES_MAX, lambda _: True, rest, on_command=self._command)
        self._keepalive_at = time.monotonic() + _KEEPALIVE_S
        self._events.append(ConnectionEvent.UP)
        # Handle the bytes in `rest` now, because they have left the socket, so epoll reports no event for them.
        if rest or (self._opening is not None and self._opening.unread):
            self._read(self._stream, self._stream.read_lone())

    def _command(self, command: bytes) -> None:
        answer = pong(command)
        if answer and self._outgoing is not None:
            self._outgoing.append(EncodedMessage([answer], len(answer)))
            self._send()

    def next_event(self) -> ConnectionEvent | None:
        """Return the next event of the connection, or None. The event DOWN comes only after all received messages."""
        if not self._events:
            self._poll_events(0.0)
        # The caller must first receive the messages that arrived before the end.
        if not self._events or (self._received and self._events[0] is ConnectionEvent.DOWN):
            return None
        event = self._events.popleft()
        self.up = event is ConnectionEvent.UP
        self.was_up = self.was_up or self.up
        return event

    # Messages

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Send one message. Return False if the queue is full. The caller must not change large parts, which are not copied."""
        outgoing = self._outgoing
        if outgoing is None:
            return True  # the connection is broken, so the message is lost, and `next_event` returns DOWN
        # While bytes are queued, the socket is not writable, and epoll will report when it is.
        queued = outgoing.bytes
        if queued:
            if len(outgoing) >= limits.CLIENT_WINDOW_FRAMES:
                return False
            outgoing.append(encode_message(parts))
            return True
        try:
            if len(parts) == 1 and len(parts[0]) <= JOINED_PART_MAX:
                outgoing.send_first(frame(parts[0]))
            else:
                outgoing.append(encode_message(parts))
                outgoing.send()
        except OSError as error:
            self._on_send_error(error)
        else:
            if outgoing.bytes:
                self._watch(_READ | _WRITE)
        return True

    def _send(self) -> None:
        outgoing = self._outgoing
        if outgoing is None:
            return
        try:
            outgoing.send()
        except OSError as error:
            self._on_send_error(error)
        else:
            self._watch(_READ | _WRITE if outgoing.bytes else _READ)

    def _on_send_error(self, error: OSError) -> None:
        """Send nothing more. The next read returns the remaining messages, and then the end."""
        self._outgoing = None
        self.loss = _loss(error)
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the connection may have ended in both directions already
                self._socket.shutdown(socket.SHUT_RDWR)
        self._watch(_READ)

    def _read(self, stream: FrameReader, lone: bytes | None) -> None:
        """Store the messages that have arrived. `lone` is the result of `stream.read_lone()`."""
        opening = self._opening
        while True:
            if lone is not None:
                self._received.append(lone)
            else:
                for parts, _ in stream.read():
                    self._received.append(bytes(parts[0]))
            self._unanswered = 0  # only now, because a read without data raises an error
            if opening is None or not opening.unread:
                return
            lone = stream.read_lone()

    def receive(self) -> bytes | None:
        """Return the next message of the gateway, or None.

        Raises:
            FormatError: the peer sent a message that no gateway sends. The connection is broken.
        """
        if not self._received:
            return None
        message = self._received.popleft()
        self.readable = bool(self._received)
        if isinstance(message, FormatError):
            raise message
        return message

    # Waiting

    def is_alive(self) -> bool:
        """Return False if the connection has ended, even if unread messages remain."""
        if self._socket is None:
            return False
        # POLLRDHUP reports the end of the stream even while earlier messages are unread.
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return not poll.poll(0)

    def wait(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for an event. Handle events and keepalive, then update `readable` and `has_events`."""
        self.is_ready = False
        self._poll_events(self._wait_limit_s(timeout_s))
        self.readable, self.has_events = bool(self._received), bool(self._events)

    def handle(self, now: float) -> bytes | None:
        """Handle what is due at `now`, as `wait(0.0)` does. Return a message that arrived alone; `receive` returns all others."""
        # Before the end of the handshake, `_keepalive_at` is 0.
        if self._mask != _READ or now >= self._keepalive_at:
            self.wait(0.0)
            return None
        self.is_ready = False
        # The connection only waits for data, so a read replaces the poll and saves a system call.
        stream = self._stream
        if stream is None:
            self._on_socket_event(_READ)
        else:
            try:
                lone = stream.read_lone()
                if lone is not None and self._opening is None and not (self._received or self.has_events):
                    self._unanswered = 0
                    return lone
                self._read(stream, lone)
            except (OSError, FormatError, ConnectionEnded) as error:
                self._on_error(error)
        self.readable, self.has_events = bool(self._received), bool(self._events)
        return None

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
        # Unregister the descriptor before it is closed, because the new socket may get the same number.
        self._poll.unregister(fd)
        self._close_lookup()
        if found:
            self._connect(found)
        else:
            self._refuse(f"{UNKNOWN_HOST} ({names.error(self.address.host)})")

    def due(self) -> float:
        """Return the monotonic time at which the caller must call `wait` if nothing arrives before; 0 for at once."""
        if self._received or self._events:
            return 0.0
        return inf if self._stream is None else self._keepalive_at

    def _wait_limit_s(self, timeout_s: float) -> float:
        """Return how long to wait: 0 if a message or an event is ready, otherwise at most until the next keepalive action."""
        if self._received or self._events:
            return 0.0
        if self._stream is None:
            return max(0.0, timeout_s)
        now = time.monotonic()
        if now >= self._keepalive_at:
            self._keepalive(now)
        return 0.0 if self._events else max(0.0, min(timeout_s, self._keepalive_at - now))

    def _keepalive(self, now: float) -> None:
        """Count keepalive intervals instead of time, so that the time while this process is suspended does not count."""
        self._keepalive_at = now + _KEEPALIVE_S
        self._unanswered += 1
        if self._unanswered > _UNANSWERED_MAX:
            self.loss = f"the gateway was silent for {_UNANSWERED_MAX * _KEEPALIVE_S:g} s"
            self._end(ConnectionEvent.DOWN)
        # Send a ping only if the send queue is empty, because any queued message makes the peer answer.
        elif self._unanswered > 1 and self._outgoing is not None and not self._outgoing:
            self._outgoing.append(EncodedMessage([PING], len(PING)))
            self._send()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `wait` has socket events to handle."""
        return self._poll.fileno()

    def close(self, linger_s: float = 0.0) -> None:
        """Close the connection, after up to `linger_s` seconds in which queued messages are sent."""
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


def _loss(error: OSError) -> str:
    """Return the reason for the end of a connection after an error of its socket."""
    return _CLOSED if error.errno == errno.EPIPE else (error.strerror or str(error)).lower()


def connection_failure(error: OSError) -> str:
    """Return the error text for a socket that cannot be created."""
    return f"the connection cannot be created: {error.strerror}; raise the limit of open files of this process"


def _after_fork() -> None:
    for connection in list(_connections):
        connection.orphan()


after_fork(_after_fork)


def _resolve(host: str) -> str:
    """Return an address of the host; prefer IPv4, because gateways listen on IPv4 by default."""
    return min(addresses(host), key=lambda address: ":" in address)
