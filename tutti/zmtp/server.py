"""Server side of a port: handshakes, messages, answers and heartbeats of its connections, all of them bounded.

The owner's epoll may watch several servers and other descriptors; the owner passes each event to `handle_event`. All resources that
an unknown peer can use are limited: connections, memory of incomplete messages, and time until the first message.
"""

from __future__ import annotations

import contextlib
import enum
import select
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tutti import limits
from tutti.data.frames.frame import Buffer
from tutti.errors import FormatError
from tutti.zmtp.frame_reader import SCRATCH_BYTES, ConnectionEnded, FrameReader, MessageTooLarge
from tutti.zmtp.framing import HANDSHAKE_BYTES_MAX, PING, EncodedMessage, NullHandshake, frame, pong
from tutti.zmtp.listener import Acceptor
from tutti.zmtp.server_connection import Connection, PortLimits

if TYPE_CHECKING:
    from tutti.zmtp.curve import Box, CurveServerHandshake, KeyPair
    from tutti.zmtp.curve_stream import CurveReceiver

_READ, _WRITE, _CLOSED = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR
# A peer that sent this many bytes is read again without a poll, because a poll takes longer than a read without result.
_REQUEUE_BYTES = 64 * limits.KIB
# Typical number of frames in a message: `receive` limits frames, so that many empty parts do not delay other connections.
_FRAMES_A_MESSAGE = 2
_FRAMES_A_CONNECTION = 32  # smallest share of a connection in frames, because a read of fewer frames takes the same time
_DISCARDS_MAX = 64  # reads of unread data at the end of a connection
_PING = EncodedMessage([PING], len(PING))


class Message(NamedTuple):
    """One message of a peer.

    Attributes:
        routing: routing id of the connection.
        parts: the parts of the message. A message above the limits has none. For a large message of an unknown peer, the only part
            is the first byte.
        size: size of all parts in bytes.
    """

    routing: bytes
    parts: list[Buffer]
    size: int


class SendResult(enum.Enum):
    """Result of `send`.

    SENT: the message is sent or queued, or lost on a broken connection that still has received messages to read. FULL: the message
    is dropped, because too many messages are queued. DISCONNECTED: the server has closed the connection, so the message is dropped.
    """

    SENT = 1
    FULL = 2
    DISCONNECTED = 3


class Server:
    """All connections of one port. Owned by one thread.

    Attributes:
        acceptor: accepts the connections.
        writable_fd: readable when `flush` can send; the owner's epoll also watches it.
    """

    def __init__(
        self,
        port_limits: PortLimits,
        epoll: select.epoll,
        clock_us: Callable[[], int],
        *,
        is_known: Callable[[bytes], bool] | None = None,
        may_read: Callable[[bytes], bool] | None = None,
        warn: Callable[[str], None] = lambda _: None,
        keys: KeyPair | None = None,
        accepts_key: Callable[[str, bytes], bool] | None = None,
    ) -> None:
        """Create the server; `acceptor.listen` starts it.

        Args:
            port_limits: limits of the connections.
            epoll: watches the connections.
            clock_us: monotonic clock, us.
            is_known: returns True if large messages of this routing id may be buffered; by default all may.
            may_read: returns True if the connection of this routing id may be read; asked before each read, and again at each
                heartbeat of a connection that may not be read; None if all connections may be read.
            warn: logs a message for the operator.
            keys: key pair of the server, with which clients may encrypt (CURVE); `peer_key` returns the keys of such clients.
            accepts_key: returns True to accept a client by host and public key (empty for a client that does not encrypt); only
                with `keys`; by default the server accepts all clients.

        Raises:
            OSError: no descriptor is free.
        """
        self._keys = keys
        self._accepts_key = accepts_key
        self._limits = port_limits
        self._epoll = epoll
        self._clock_us = clock_us
        self._is_known = is_known
        self._may_read = may_read
        self._warn = warn
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._connections: dict[int, Connection] = {}
        self._inactive: dict[int, Connection] = {}  # connections that have sent no message yet, oldest first
        self._by_routing: dict[bytes, Connection] = {}
        self._established = 0
        self._ready: deque[Connection] = deque()  # connections to read, in turn; each `receive` continues with the next one
        self._assembling: set[Connection] = set()  # connections that may hold memory for an incomplete message
        self._queued_bytes = 0  # bytes queued in all connections
        self._heartbeat_us = 0
        self.acceptor = Acceptor(port_limits.name, port_limits.connections_max, port_limits.descriptor_shares, epoll, warn)
        self._writable = select.epoll()  # a separate epoll set, so that `flush` also works while the owner does not poll for reads
        self.writable_fd = self._writable.fileno()
        epoll.register(self.writable_fd, _READ)

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._connections)

    @property
    def unread(self) -> bool:
        """True if `receive` has connections to read that no poll signals."""
        return bool(self._ready)

    # Connections

    def handle_events(self, events: Iterable[tuple[int, int]]) -> None:
        """Handle events of the epoll of this server."""
        connections, ready = self._connections, self._ready
        for fd, mask in events:
            connection = connections.get(fd)
            if connection is None or connection.reader is None or connection.paused:
                self.handle_event(fd, mask)
            elif not connection.ready:
                connection.ready = True
                ready.append(connection)

    def handle_event(self, fd: int, mask: int) -> bool:
        """Handle an epoll event. Return False if the descriptor does not belong to this server."""
        connection = self._connections.get(fd)
        if connection is None:
            if fd == self.writable_fd:
                self.flush()
                return True
            if not self.acceptor.owns(fd):
                return False
            for sock in self.acceptor.accept(self.__len__, self._evict):
                self._accept(sock)
            return True
        if connection.paused and mask & _CLOSED:  # detect the end of a paused connection here, because `receive` does not read it
            self._break(connection)
            self._flush(connection)
        elif connection.reader is not None:
            self._mark_ready(connection)
        else:
            self._continue_handshake(connection)
        return True

    def _evict(self) -> bool:
        """Close the oldest inactive connection, or else the oldest connection of an unknown peer. Return False if it finds none."""
        victim = next(iter(self._inactive.values()), None)
        if victim is None and self._is_known is not None:
            victim = next((one for one in self._connections.values() if not self._is_known(one.routing)), None)
        if victim is not None:
            self._close(victim)
        return victim is not None

    def _accept(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        fd = sock.fileno()
        try:
            handshake = self._new_handshake(sock)
            sock.send(handshake.data_to_send())  # fits: the socket buffer is empty
        except OSError:
            sock.close()
            return
        self._connections[fd] = self._inactive[fd] = Connection(sock, self._clock_us(), handshake)
        self._epoll.register(fd, _READ)

    def _new_handshake(self, sock: socket.socket) -> NullHandshake | CurveServerHandshake:
        if self._keys is None:
            return NullHandshake(b"ROUTER", b"DEALER")
        from tutti.zmtp.curve import CurveServerHandshake  # noqa: PLC0415 - only ports with keys need the cryptography

        accepts_key = self._accepts_key
        if accepts_key is None:
            return CurveServerHandshake(self._keys)
        host = str(sock.getpeername()[0])
        return CurveServerHandshake(self._keys, lambda key: accepts_key(host, key))

    def _continue_handshake(self, connection: Connection) -> None:
        """Process received bytes of a handshake."""
        try:
            data = connection.socket.recv(HANDSHAKE_BYTES_MAX)
            if not data:
                raise ConnectionEnded
            try:
                rest = connection.handshake.receive_data(data)
            finally:
                if answer := connection.handshake.data_to_send():
                    # The answer fits into the socket buffer, because a handshake is short. After an error, it has the reason.
                    connection.socket.sendall(answer)
        except BlockingIOError:
            return
        except (OSError, ConnectionEnded, FormatError):
            self._close(connection)
            return
        if rest is None:
            return
        if self._accepts_key is not None:
            self._mark_active(connection)
        self._establish(connection, rest)

    def _mark_active(self, connection: Connection) -> None:
        """Protect a connection from eviction, and from the handshake timeout."""
        connection.active = True
        self._inactive.pop(connection.socket.fileno(), None)

    def _establish(self, connection: Connection, rest: bytes) -> None:
        """Start to read messages after the handshake. `rest` has the bytes that arrived after the handshake."""
        self._established += 1
        identity = connection.handshake.identity if self._limits.by_identity else b""
        # As in libzmq, only the server assigns ids that start with zero.
        # A peer that could choose such an id would replace the connection that has the id.
        if not identity or identity[0] == 0:
            identity = b"\0" + self._established.to_bytes(8, "big")
        # the id contains the key, so that no peer can replace the connection of another peer
        identity = connection.handshake.peer_key + identity
        earlier = self._by_routing.get(identity)
        if earlier is not None:  # the peer reconnected before this server detected the end of the old connection
            self._close(earlier)
        connection.routing = identity
        self._by_routing[identity] = connection
        sock: socket.socket | CurveReceiver = connection.socket
        if connection.handshake.box is not None:
            try:
                sock = self._encrypt(connection, connection.handshake.box, connection.handshake.peer_key, rest)
            except FormatError:
                self._close(connection)
                return
            rest = b""
        connection.reader = FrameReader(
            sock,
            self._scratch,
            limits.MESSAGE_BYTES_MAX,
            lambda size: self._may_buffer(connection, size),
            rest,
            parts_max=self._limits.parts_max,
            skips_oversized=self._limits.skips_oversized,
            on_command=lambda command: self._on_command(connection, command),
        )
        if rest or (connection.receiver is not None and connection.receiver.unread):
            self._mark_ready(connection)

    def _encrypt(self, connection: Connection, box: Box, peer_key: bytes, rest: bytes) -> CurveReceiver:
        """Return the receive side of an encrypted connection."""
        from tutti.zmtp.curve_stream import CurveReceiver, CurveSendQueue  # noqa: PLC0415 - as above

        connection.peer_key = peer_key
        connection.send_queue = CurveSendQueue(connection.socket, box)
        # With `accepts_key`, the handshake has already authenticated the peer, so only the memory is limited.
        may_buffer = self._may_buffer if self._accepts_key is None else self._reserve_assembly
        connection.receiver = CurveReceiver(
            connection.socket, box, rest, limits.MESSAGE_BYTES_MAX, lambda size: may_buffer(connection, size)
        )
        return connection.receiver

    def peer_key(self, routing: bytes) -> bytes | None:
        """Return the public key of a client; None if the client does not encrypt, or is disconnected."""
        connection = self._by_routing.get(routing)
        return None if connection is None else connection.peer_key

    def _may_buffer(self, connection: Connection, size: int) -> bool:
        """True if a message of this size may be buffered.

        Raises:
            FormatError: the incomplete messages of all connections exceed their memory limit, and this message is the largest.
        """
        return (self._is_known is None or self._is_known(connection.routing)) and self._reserve_assembly(connection, size)

    def _reserve_assembly(self, connection: Connection, size: int) -> bool:
        """Reserve memory for a message. Above the limit of all connections, close the connections with the largest reservations.

        Raises:
            FormatError: this connection has the largest reservation.
        """
        assembly = {one: one.assembly_bytes for one in self._assembling if one is not connection and one.assembly_bytes}
        assembly[connection] = size  # the memory that the whole message will need, not only the bytes received so far
        self._assembling = set(assembly)
        while sum(assembly.values()) > self._limits.assembly_bytes_max:
            largest = max(assembly, key=lambda one: assembly[one])
            self._warn(
                f"incomplete messages on the {self._limits.name} exceed {self._limits.assembly_bytes_max} bytes of memory: the "
                "gateway closes the connection with the largest incomplete message"
            )
            if largest is connection:
                raise FormatError(f"a message of {size} bytes exceeds the memory for incomplete messages")
            del assembly[largest]
            self._close(largest)
        return True

    def _on_command(self, connection: Connection, command: bytes) -> None:
        answer = pong(command)
        if answer and connection.reader is not None and len(connection.send_queue) < self._limits.queued_max:
            self._enqueue(connection, EncodedMessage([answer], len(answer)))

    # Messages

    def receive(self, messages_max: int, bytes_max: int) -> Iterator[Message]:
        """Yield received messages.

        Connections with data are read in turn, each up to its share while others wait.
        """
        ready = self._ready
        frames_left, size = _FRAMES_A_MESSAGE * messages_max, 0
        while ready and frames_left > 0 and size < bytes_max:
            connection = ready.popleft()
            connection.ready = False
            reader = connection.reader
            if reader is None:
                continue
            # Nothing is queued for most connections, and they may be read.
            if (connection.queued_bytes or connection.paused or self._may_read is not None) and self._pause_if_over_limit(
                connection
            ):
                continue
            connection.received_since_heartbeat = True
            try:
                lone = reader.read_lone()
                if lone is not None:
                    if not connection.active:
                        self._mark_active(connection)
                    length = len(lone)
                    size += length
                    frames_left -= _FRAMES_A_MESSAGE  # the message and its read
                    yield Message(connection.routing, [lone], length)
                    continue
                # Each waiting connection gets an equal share of the frames, but at least enough to justify a system call.
                for parts, length in reader.read(min(frames_left, max(frames_left // (1 + len(ready)), _FRAMES_A_CONNECTION))):
                    if not connection.active:
                        self._mark_active(connection)
                    yield Message(connection.routing, parts, length)
            except BlockingIOError:
                continue
            except MessageTooLarge as error:
                self._close(connection)
                yield Message(connection.routing, [], error.size)
                continue
            except (OSError, ConnectionEnded, FormatError):
                self._close(connection)
                continue
            size += reader.received_bytes
            frames_left -= reader.frames_read + 1  # the read itself counts as one frame, because it may return none
            if reader.buffer_full or reader.received_bytes >= _REQUEUE_BYTES:
                self._mark_ready(connection)  # append to the queue, after all others

    def _pause_if_over_limit(self, connection: Connection) -> bool:
        """Pause a connection that may not be read, or for which too many bytes are queued. Return True if it is paused.

        The pause keeps a peer that does not read its answers from causing more answers. `_flush` resumes the connection, at the
        latest with the next heartbeat.
        """
        held_back = self._may_read is not None and not connection.broken and not self._may_read(connection.routing)
        connection.received_since_heartbeat |= held_back  # the unread messages show that the peer is alive
        connection.paused = held_back or connection.queued_bytes > self._limits.pause_above_bytes
        if connection.paused:
            self._epoll.modify(connection.socket, 0)  # still reports EPOLLHUP and EPOLLERR
        return connection.paused

    def _mark_ready(self, connection: Connection) -> None:
        if not connection.ready:
            connection.ready = True
            self._ready.append(connection)

    def is_open(self, routing: bytes) -> bool:
        """True if the peer has not closed the connection, as far as the kernel knows. A closed one may have unread messages."""
        connection = self._by_routing.get(routing)
        if connection is None:
            return False
        poll = select.poll()
        poll.register(connection.socket, select.POLLRDHUP)
        return not poll.poll(0)

    def send(self, routing: bytes, data: Buffer) -> SendResult:
        """Send or queue one message, or drop the message, without blocking."""
        connection = self._by_routing.get(routing)
        if connection is None:
            return SendResult.DISCONNECTED
        if connection.send_queue.bytes and len(connection.send_queue) >= self._limits.queued_max:
            return SendResult.FULL
        encoded = frame(data)
        # `_flush` also resumes a paused connection.
        if connection.reader is None or connection.awaits_writable or connection.broken or connection.paused:
            self._enqueue(connection, EncodedMessage([encoded], len(encoded)))
            return SendResult.SENT if connection.reader is not None else SendResult.DISCONNECTED
        # Nothing is queued, as for most answers, so the kernel gets the message at once.
        try:
            connection.send_queue.send_first(encoded)
        except OSError:
            self._break(connection)
        if connection.send_queue.bytes:
            self._flush(connection)
            self._limit_queued_bytes()
        return SendResult.SENT

    def _enqueue(self, connection: Connection, message: EncodedMessage) -> None:
        if connection.broken:
            return
        connection.send_queue.append(message)
        if not connection.awaits_writable:
            self._flush(connection)
        else:
            self._account(connection)
        self._limit_queued_bytes()

    def _limit_queued_bytes(self) -> None:
        while self._queued_bytes > self._limits.queued_bytes_max:
            largest = max(self._connections.values(), key=lambda one: one.queued_bytes)
            self._warn(
                f"unread answers on the {self._limits.name} exceed {self._limits.queued_bytes_max} bytes: the connection with the "
                "most of them is closed"
            )
            self._close(largest)

    def _flush(self, connection: Connection) -> None:
        send_queue = connection.send_queue
        try:
            send_queue.send()
        except OSError:
            self._break(connection)
        # A shrinking queue shows that the peer acknowledges bytes, so a slow reader does not count as silent.
        connection.received_since_heartbeat |= send_queue.bytes < connection.queued_bytes
        self._account(connection)
        if bool(send_queue) != connection.awaits_writable:
            connection.awaits_writable = not connection.awaits_writable
            if connection.awaits_writable:
                self._writable.register(connection.socket, _WRITE)
            else:
                self._writable.unregister(connection.socket)
        if connection.paused and connection.queued_bytes <= self._limits.pause_above_bytes:
            connection.paused = False
            self._epoll.modify(connection.socket, _READ)
            self._mark_ready(connection)  # no descriptor signals decrypted messages, which may be waiting

    def _break(self, connection: Connection) -> None:
        """Stop sending after an error. `receive` still yields the messages that have arrived, and then closes the connection."""
        connection.broken = True
        connection.send_queue.clear()
        with contextlib.suppress(OSError):  # the peer may have closed the connection already
            connection.socket.shutdown(socket.SHUT_RDWR)
        self._mark_ready(connection)

    def _account(self, connection: Connection) -> None:
        """Update the total of queued bytes."""
        self._queued_bytes += connection.send_queue.bytes - connection.queued_bytes
        connection.queued_bytes = connection.send_queue.bytes

    def flush(self) -> None:
        """Send queued messages to connections with space in their socket buffers. Read nothing."""
        for fd, _ in self._writable.poll(0):
            connection = self._connections.get(fd)
            if connection is not None:
                self._flush(connection)

    def _close(self, connection: Connection) -> None:
        fd = connection.socket.fileno()
        if self._connections.pop(fd, None) is None:
            return
        self._inactive.pop(fd, None)
        if self._by_routing.get(connection.routing) is connection:
            del self._by_routing[connection.routing]
        self._queued_bytes -= connection.queued_bytes
        connection.queued_bytes = 0
        connection.reader = None
        connection.socket.close()  # closing also removes the socket from both epoll sets

    # Time

    def maintain(self, *, reads: bool = True) -> None:
        """Close silent connections, send heartbeats, and resume accepting; called about once a second.

        Args:
            reads: whether the owner reads now; otherwise silence of the peers is not counted.
        """
        now_us = self._clock_us()
        self.acceptor.maintain(now_us)
        since_us = now_us - limits.HANDSHAKE_MS_MAX * 1000  # one limit for the handshake and the first message together
        for connection in list(self._inactive.values()):
            if connection.accepted_us >= since_us:
                break  # all further connections are younger, because `_inactive` is in the order of acceptance
            # while the owner does not read, the peer's first message may have arrived unread
            if reads or connection.reader is None:
                self._close(connection)
        # Calls come about once in a heartbeat interval, so half an interval of tolerance avoids skipped heartbeats.
        if self._limits.heartbeat_us and 2 * (now_us - self._heartbeat_us) > self._limits.heartbeat_us:
            self._heartbeat_us = now_us
            for connection in list(self._connections.values()):
                self._heartbeat(connection, reads)

    def _heartbeat(self, connection: Connection, reads: bool) -> None:
        """Send a PING, and close the connection after too many silent intervals."""
        if connection.reader is None:
            return
        if connection.received_since_heartbeat or connection.ready or not reads:  # a ready connection has unread data
            connection.silent_heartbeats = 0
        else:
            connection.silent_heartbeats += 1
        connection.received_since_heartbeat = False
        if connection.silent_heartbeats > self._limits.heartbeats_max:
            self._close(connection)
        elif not connection.send_queue:
            self._enqueue(connection, _PING)

    def clear(self) -> None:
        """Close all connections, and drop their received messages."""
        for connection in list(self._connections.values()):
            self._close(connection)
        self._ready.clear()

    def close(self, until_us: int) -> None:
        """Stop listening, send queued messages until `until_us` at the latest, and close all connections."""
        self.acceptor.close()
        for connection in list(self._connections.values()):
            connection.send_queue.linger((until_us - self._clock_us()) / 1e6)
            _discard_unread(connection.socket)
            self._close(connection)
        self._writable.close()


def _discard_unread(connection: socket.socket) -> None:
    """End the sending side, and drop what the peer has sent: closing a socket with unread data would discard the last answers."""
    with contextlib.suppress(OSError):  # nothing is left to read, or the connection is broken
        connection.shutdown(socket.SHUT_WR)
        for _ in range(_DISCARDS_MAX):
            if not connection.recv(SCRATCH_BYTES):
                return
