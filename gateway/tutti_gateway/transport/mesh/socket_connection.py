"""A connection to one other gateway over a plain socket, which reconnects until it is closed."""

from __future__ import annotations

import errno
import os
import random
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from tutti import limits as common_limits
from tutti.data.member_address import Address
from tutti.errors import FormatError
from tutti.zmtp.frame_reader import ConnectionEnded, FrameReader
from tutti.zmtp.framing import (
    HANDSHAKE_BYTES_MAX,
    PING,
    EncodedMessage,
    HandshakeError,
    NullHandshake,
    Rejected,
    UnknownServerKey,
    frame,
    pong,
)
from tutti.zmtp.listener import OUT_OF_RESOURCES
from tutti.zmtp.send_queue import SendQueue
from tutti_gateway.core import limits
from tutti_gateway.transport.mesh.peer_state import ConnectFailure, LinkEvent, LinkEventKind, PeerLink

if TYPE_CHECKING:  # at run time, only gateways with keys import the cryptography
    from tutti.zmtp.curve import CurveClientHandshake
    from tutti.zmtp.curve_stream import CurveReceiver

_US_PER_MS = 1000
_WINDOW_BYTES = 2 * limits.REFUSALS_A_CHECK_MAX  # each frame has at least two bytes, so this bounds the refusals of one read
# Errors of `connect` that may pass by themselves, for example while the peer's host or network starts.
_RETRYABLE = (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAGAIN, errno.ETIMEDOUT)
_READABLE, _WRITABLE = select.EPOLLIN, select.EPOLLOUT


class ConnectionOwner(Protocol):
    """The part of `SocketBackend` that a connection uses.

    Attributes:
        by_descriptor: outgoing connections, by the descriptor of their socket.
        unread: outgoing connections with decrypted data, which no descriptor signals.
    """

    epoll: select.epoll
    scratch: memoryview
    by_descriptor: dict[int, MeshConnection]
    unread: set[MeshConnection]
    clock_us: Callable[[], int]

    def handshake(self, link: PeerLink, identity: bytes) -> NullHandshake | CurveClientHandshake:
        """Return a new handshake for a connection to the link's gateway."""

    def warn(self, peer: str, reason: str) -> None:
        """Log a message for the operator."""


def set_keepalive(connection: socket.socket) -> None:
    """Make the kernel send without delay, and break a connection whose peer's host is silent for three heartbeats.

    Keepalive covers an idle connection, and the user timeout covers data in flight. Accepted connections inherit the options of
    their listener.
    """
    seconds = limits.MESH_BEAT_MS // 1000
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, seconds),
        (socket.TCP_KEEPINTVL, seconds),
        (socket.TCP_KEEPCNT, limits.MESH_BEATS_SILENT_MAX),
        (socket.TCP_USER_TIMEOUT, limits.MESH_BEATS_SILENT_MAX * limits.MESH_BEAT_MS),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class MeshConnection:
    """A connection to one other gateway.

    Attributes:
        link: link to which the connection belongs.
        deadline_us: time at which `tick` must run, by the owner's clock; 0 if there is none.
        closed: whether the connection is closed permanently and no longer reconnects.
    """

    def __init__(self, owner: ConnectionOwner, link: PeerLink, identity: bytes) -> None:
        """Create a connection, which `connect` starts. `identity` is the routing id that the peer assigns to the connection."""
        self.link = link
        self._owner = owner
        self._identity = identity
        self._address: Address | None = None
        self._socket: socket.socket | None = None
        self._handshake: NullHandshake | CurveClientHandshake | None = None
        self._receiver: CurveReceiver | None = None  # only for an encrypted connection
        self._reader: FrameReader | None = None  # set while the connection is up
        self._backoff_ms = limits.MESH_RECONNECT_MS_MIN
        self._send_queue: SendQueue | None = None  # set while there is a socket
        self._awaits_writable = False  # True while epoll watches for space in the socket buffer
        self._unanswered = 0  # number of PINGs since data last arrived
        self.deadline_us = 0
        self.closed = False

    def connect(self, address: Address) -> None:
        """Start to connect.

        Raises:
            OSError: the address is invalid.
        """
        self._address = address
        error = self._start_connect()
        if error is not None:
            raise error

    # Connecting

    def _start_connect(self) -> OSError | None:
        """Start an attempt to connect. Return an error only if further attempts would fail, too."""
        address = self._address
        self.deadline_us = 0
        if address is None:
            return None
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno not in OUT_OF_RESOURCES:
                return error
            reason = f"no socket is available for the connection to it: {error.strerror}; raise the limit of open files"
            self._owner.warn(self.link.name, reason)
            self._schedule_retry()
            return None
        connection.setblocking(False)
        set_keepalive(connection)
        try:  # the host is already numeric, but getaddrinfo also resolves the scope of an address such as fe80::1%eth0
            sockaddr = socket.getaddrinfo(address.host, address.port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4]
            code = connection.connect_ex(sockaddr)
        except OSError as error:
            connection.close()
            return error
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            self.link.connect_error = code
            if code not in _RETRYABLE:
                return OSError(code, os.strerror(code))
            self._schedule_retry()
            return None
        self._socket = connection
        self._send_queue = SendQueue(connection)
        self._set_deadline(limits.MESH_CONNECT_MS_MAX)
        self._owner.by_descriptor[connection.fileno()] = self
        # A connecting socket becomes writable when the attempt has succeeded or failed.
        self._owner.epoll.register(connection.fileno(), _WRITABLE)
        return None

    def _schedule_retry(self) -> None:
        """Schedule the next attempt, with exponential backoff, and with jitter so that gateways do not reconnect all at once."""
        self._set_deadline(int(self._backoff_ms * random.uniform(0.75, 1.25)))
        self._backoff_ms = min(2 * self._backoff_ms, limits.MESH_RECONNECT_MS_MAX)

    def _set_deadline(self, delay_ms: int) -> None:
        self.deadline_us = self._owner.clock_us() + delay_ms * _US_PER_MS

    def tick(self) -> Iterator[LinkEvent]:
        """Handle the deadline: abandon an attempt that takes too long, or start the next attempt."""
        if self._socket is None:
            if self._start_connect() is not None:
                self._schedule_retry()
        else:
            if self._handshake is None and self._reader is None:
                self.link.connect_error = errno.ETIMEDOUT
            yield from self._fail(ConnectFailure.DISCONNECTED, silent=True)

    def _fail(self, failure: ConnectFailure, *, silent: bool = False) -> Iterator[LinkEvent]:
        """Handle the end of the connection or of an attempt to connect, and schedule the next attempt.

        Args:
            failure: what failed.
            silent: True if this end gave up because the peer sent nothing; False if the peer or the system ended the connection.
        """
        # A refused TCP connection causes no event, because the core itself detects members that do not run.
        in_handshake, was_up = self._handshake is not None, self._reader is not None
        if not silent and (in_handshake or was_up):
            self.link.connect_error = None  # the peer may have ended; the next attempt shows it
        self._release()
        self._schedule_retry()
        if was_up:
            yield LinkEvent(self.link, LinkEventKind.DOWN)
        elif in_handshake:
            yield LinkEvent(self.link, LinkEventKind.CONNECT_FAILED, failure=failure)

    def _release(self) -> None:
        connection, self._socket = self._socket, None
        self._handshake = self._reader = self._receiver = None
        self._owner.unread.discard(self)
        if connection is not None:
            # The entry goes before the close, because a closed socket has the descriptor -1 and the kernel reuses its number.
            del self._owner.by_descriptor[connection.fileno()]
            connection.close()  # also removes it from epoll
        if self._send_queue is not None:
            self.link.lost += len(self._send_queue)
            self._send_queue = None
        self._awaits_writable = False

    def handle_event(self, mask: int) -> Iterator[LinkEvent]:
        """Handle an epoll event."""
        try:
            if self._reader is not None:
                if mask & _WRITABLE:
                    self._send()
                if mask & ~_WRITABLE:
                    yield from self._read(self._reader)
            elif self._handshake is not None:
                yield from self._continue_handshake(self._handshake)
            else:
                self._start_handshake()
        # BlockingIOError is a subclass of OSError, so its handler must precede the handler that breaks the connection.
        except BlockingIOError:
            return
        # Both key errors are subclasses of HandshakeError, so their handlers come first.
        except Rejected:
            yield from self._fail(ConnectFailure.KEY_REJECTED)
        except UnknownServerKey:
            yield from self._fail(ConnectFailure.OTHER_KEY)
        except HandshakeError:
            yield from self._fail(ConnectFailure.PROTOCOL_MISMATCH)
        except (OSError, ConnectionEnded, FormatError):
            yield from self._fail(ConnectFailure.DISCONNECTED)

    def _start_handshake(self) -> None:
        connection = self._connection()
        # The result of a non-blocking `connect` is not an exception, but waits in SO_ERROR.
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.link.connect_error = code
            raise OSError(code, "")
        # The kernel also accepts connections for a process that is about to end, so only the silence after this proves something.
        self.link.connect_error = None if self.link.connect_error else self.link.connect_error
        self._unanswered = 0
        self._handshake = handshake = self._owner.handshake(self.link, self._identity)
        connection.sendall(handshake.data_to_send())  # does not block, because the socket buffer is empty
        self._set_deadline(common_limits.HANDSHAKE_MS_MAX)
        self._owner.epoll.modify(connection.fileno(), _READABLE)

    def _continue_handshake(self, handshake: NullHandshake | CurveClientHandshake) -> Iterator[LinkEvent]:
        connection = self._connection()
        data = connection.recv(HANDSHAKE_BYTES_MAX)
        if not data:
            raise ConnectionEnded
        rest = handshake.receive_data(data)
        if answer := handshake.data_to_send():
            connection.sendall(answer)  # does not block, because the socket buffer has space for a whole handshake
        if rest is None:
            return
        source: socket.socket | CurveReceiver = connection
        if handshake.box is not None:
            from tutti.zmtp.curve_stream import CurveReceiver, CurveSendQueue  # noqa: PLC0415 - only with keys

            source = self._receiver = CurveReceiver(connection, handshake.box, rest, limits.REFUSAL_BYTES_MAX, lambda _: False)
            self._send_queue = CurveSendQueue(connection, handshake.box)
            rest = b""
        self._handshake = None
        self._reader = reader = FrameReader(
            source, self._owner.scratch, limits.REFUSAL_BYTES_MAX, lambda _: False, rest, _WINDOW_BYTES, on_command=self._on_command
        )
        self.deadline_us = self._unanswered = 0  # the connection is up: heartbeats now detect its end
        self.link.connect_error = 0
        self._backoff_ms = limits.MESH_RECONNECT_MS_MIN  # the first retry after a success comes quickly
        yield LinkEvent(self.link, LinkEventKind.UP)
        if rest or (self._receiver is not None and self._receiver.unread):
            yield from self._read(reader)

    def _connection(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionEnded
        return self._socket

    def _read(self, reader: FrameReader) -> Iterator[LinkEvent]:
        for parts, _ in reader.read():
            yield LinkEvent(self.link, LinkEventKind.MESSAGE, data=bytes(parts[0]))
        self._unanswered = 0  # any data proves that the peer is alive
        if self._receiver is not None and self._receiver.unread:
            self._owner.unread.add(self)

    def resume(self) -> Iterator[LinkEvent]:
        """Read decrypted data that waits in this process, because no descriptor signals such data."""
        yield from self.handle_event(_READABLE)

    def _on_command(self, command: bytes) -> None:
        self._send_control(pong(command))

    def _send_control(self, command: bytes) -> None:
        """Send a command, unless messages are queued: those also prove to the peer that this end is alive."""
        if command and not self._send_queue and self._enqueue(EncodedMessage([command], len(command))):
            self._send()

    def heartbeat(self, *, was_running: bool) -> Iterator[LinkEvent]:
        """Send a PING. Break the connection if no data has arrived since three PINGs.

        Args:
            was_running: whether this process ran since the last heartbeat; time in which it was suspended is not silence of the
                peer.
        """
        if self._handshake is not None:
            self._unanswered += 1
            if self._unanswered > 1:  # the peer has not answered for at least one interval of heartbeats
                self.link.connect_error = 0
        if self._reader is None:
            return
        if not was_running:
            self._unanswered = 0
        if self._send_queue:
            return  # the kernel breaks a connection whose data stays unacknowledged, so no PING is needed
        if self._unanswered < limits.MESH_BEATS_SILENT_MAX:
            self._unanswered += 1
            self._send_control(PING)
            return
        silent_s = limits.MESH_BEATS_SILENT_MAX * limits.MESH_BEAT_MS / 1000
        reason = f"the connection to it is open, but nothing arrived on it for {silent_s:g} s: it is replaced"
        self._owner.warn(self.link.name, f"{reason}; the gateway is suspended, or a middlebox drops the traffic")
        yield from self._fail(ConnectFailure.DISCONNECTED, silent=True)

    # Sending

    def send(self, messages: Sequence[EncodedMessage]) -> None:
        """Send messages, with one system call if the kernel accepts all.

        Queue the rest; messages that do not fit into the queue are lost.
        """
        link = self.link
        for message in messages:
            if self._enqueue(message):
                link.sent += 1
                link.sent_bytes += message.size
            else:
                link.lost += 1
        if not self._awaits_writable:
            self._send()

    def send_introduction(self, data: bytes) -> None:
        """Queue this gateway's introduction after the waiting messages. `link.sent` counts messages, but no introductions."""
        encoded = frame(data)
        if self._enqueue(EncodedMessage([encoded], len(encoded))) and not self._awaits_writable:
            self._send()

    def _enqueue(self, message: EncodedMessage) -> bool:
        """Queue a message. Return False if the queue is full or the connection is not up."""
        queue = self._send_queue
        if (
            queue is None
            or self._reader is None
            or len(queue) >= limits.MESH_HIGH_WATER_MARK
            or queue.bytes + message.size > limits.MESH_QUEUE_BYTES_MAX
        ):
            return False
        queue.append(message)
        return True

    def _send(self) -> None:
        """Send queued messages. If some remain, watch for space in the socket buffer."""
        queue = self._send_queue
        if queue is None:
            return
        try:  # noqa: SIM105 - `contextlib.suppress` costs three calls for each message
            queue.send()
        except OSError:
            pass  # the next read reports the broken connection
        if bool(queue) != self._awaits_writable:
            self._awaits_writable = bool(queue)
            self._owner.epoll.modify(self._connection().fileno(), _READABLE | _WRITABLE if queue else _READABLE)

    def close(self) -> None:
        """Close the connection permanently, and drop queued messages."""
        self.closed = True
        self.deadline_us = 0
        self._release()

    def linger(self, until_us: int) -> None:
        """Send the queued messages until `until_us` at the latest, then close the connection."""
        if self._send_queue is not None and not self.closed:
            self._send_queue.linger((until_us - self._owner.clock_us()) / 1e6)
        self.close()
