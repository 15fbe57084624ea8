"""The sockets of the mesh: connections to the other gateways, and accepted connections. The node's socket thread does all I/O.

One epoll watches all sockets, so the node's loop polls a single descriptor for any number of gateways. `tutti/zmtp` limits the
resources that an unknown peer can use: connections, memory for incomplete messages, and time until the first message.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING

from tutti import limits as common_limits
from tutti.data.member_address import Address
from tutti.errors import TuttiError
from tutti.zmtp.frame_reader import SCRATCH_BYTES
from tutti.zmtp.framing import NullHandshake
from tutti.zmtp.listener import OUT_OF_RESOURCES, RAISE_LIMIT, open_port
from tutti.zmtp.server import Message, Server
from tutti.zmtp.server_connection import PortLimits
from tutti_gateway.core import limits
from tutti_gateway.transport.mesh.peer_state import LinkEvent, PeerLink
from tutti_gateway.transport.mesh.socket_connection import MeshConnection, set_keepalive

if TYPE_CHECKING:  # at run time, only gateways with keys import the cryptography
    from tutti.zmtp.curve import CurveClientHandshake
    from tutti_gateway.transport.keys import Keyring
    from tutti_gateway.transport.mesh.authentication import KeyAuthenticator

_US_PER_MS = 1000
_HEARTBEAT_US = limits.MESH_BEAT_MS * _US_PER_MS * 9 // 10  # 10 % less, so that a slightly early call of `maintain` also sends
# A separate part has more than 8 KiB, so no valid message within the size limit has more parts.
PARTS_MAX = 1 + common_limits.MESSAGE_BYTES_MAX // limits.JOINED_BODY_BYTES_MAX
_LIMITS = PortLimits(
    name="group port",
    connections_max=limits.MESH_CONNECTIONS_MAX,
    assembly_bytes_max=limits.MESH_ASSEMBLY_BYTES_MAX,
    parts_max=PARTS_MAX,
    skips_oversized=False,
    queued_max=limits.MESH_INTRODUCED_MAX,  # only refusals and PONGs
    pause_above_bytes=limits.MESH_ANSWERS_BYTES_MAX,
    queued_bytes_max=limits.MESH_ANSWERS_BYTES_MAX,
    descriptor_shares=1,
    by_identity=True,  # a gateway that reconnects replaces its old connection, which may seem open for seconds
    heartbeat_us=limits.MESH_BEAT_MS * _US_PER_MS,
    heartbeats_max=limits.MESH_BEATS_SILENT_MAX,
)
_SEND_BUFFER_BYTES = 64 * common_limits.KIB  # small, because accepted connections send only refusals and PONGs


class SocketBackend:
    """The connections of the mesh. Owned by one thread. No call blocks.

    Attributes:
        fd: readable when socket events wait for `poll`.
        by_descriptor: outgoing connections by the descriptor of their socket.
        unread: outgoing connections with decrypted data, which no descriptor signals.
    """

    def __init__(
        self, listen: Address, clock_us: Callable[[], int], is_known: Callable[[bytes], bool], keyring: Keyring | None = None
    ) -> None:
        """Listen on the group port.

        Args:
            listen: address of the port.
            clock_us: monotonic clock, us.
            is_known: returns True if large messages of this routing id may be buffered.
            keyring: keys of this gateway, or None, which leaves connections unencrypted and trusts each introduction.

        Raises:
            TuttiError: the address is not available.
        """
        self.clock_us = clock_us
        self.by_descriptor: dict[int, MeshConnection] = {}
        self.unread: set[MeshConnection] = set()
        self._connections: list[MeshConnection] = []
        self._pending_events: list[LinkEvent] = []  # events from deadlines and heartbeats
        self._warnings: list[tuple[str, str]] = []
        self._heartbeat_us = clock_us()
        self._was_running = False  # False if the process was suspended since the last heartbeat
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._authenticator = self._new_authenticator(keyring)
        with contextlib.ExitStack() as opened:
            listener = opened.enter_context(_listen(listen))
            try:
                self.epoll = opened.enter_context(select.epoll())
                self._server = Server(
                    _LIMITS,
                    self.epoll,
                    clock_us,
                    is_known=is_known,
                    warn=lambda reason: self.warn("", reason),
                    keys=None if self._authenticator is None else self._authenticator.own,
                    accepts_key=None if self._authenticator is None else self._authenticator.accepts_key,
                )
            except OSError as error:
                raise TuttiError(f"the group port cannot be polled: {error.strerror}; raise the limit of open files") from error
            opened.pop_all()
        self.fd = self.epoll.fileno()
        self._server.acceptor.listen(listener)

    def _new_authenticator(self, keyring: Keyring | None) -> KeyAuthenticator | None:
        if keyring is None:
            return None
        from tutti_gateway.transport.mesh.authentication import KeyAuthenticator  # noqa: PLC0415 - crypto only with keys

        return KeyAuthenticator(keyring, self.clock_us, self.warn)

    def warn(self, peer: str, reason: str) -> None:
        """Log a message for the operator."""
        self._warnings.append((peer, reason))

    # Links

    def new_connection(self, link: PeerLink, identity: bytes) -> MeshConnection:
        """Return a new connection for a link. The peer closes an earlier connection that has the same identity."""
        self._connections = [connection for connection in self._connections if not connection.closed]
        connection = MeshConnection(self, link, identity)
        self._connections.append(connection)
        return connection

    def handshake(self, link: PeerLink, identity: bytes) -> NullHandshake | CurveClientHandshake:
        """Return a new handshake for a connection to the link's gateway."""
        if self._authenticator is None:
            return NullHandshake(b"DEALER", b"ROUTER", identity)
        return self._authenticator.client_handshake(link, identity)

    def key_of(self, gateway: str) -> str:
        """Return the listed key of a gateway, empty if there is none. A changed key needs a new link."""
        return "" if self._authenticator is None else self._authenticator.key_of(gateway)

    def blocked_reason(self, link: PeerLink) -> str:
        """Return the reason why a link must not connect; empty if the link may connect."""
        if self._authenticator is None or link.key:
            return ""
        return "its public key is not listed: write it into the file that `security.public_keys` names, on every host"

    def next_us(self) -> int | None:
        """Return the microseconds until the next deadline of a connection, or None if no connection has a deadline."""
        due_us = 0
        for connection in self._connections:
            deadline_us = connection.deadline_us
            if deadline_us and (not due_us or deadline_us < due_us):
                due_us = deadline_us
        return max(0, due_us - self.clock_us()) if due_us else None

    def tick(self) -> None:
        """Handle the deadlines of connections."""
        now_us = None
        for connection in self._connections:
            if connection.deadline_us:
                now_us = now_us or self.clock_us()
                if connection.deadline_us <= now_us:
                    self._pending_events += connection.tick()

    # Receiving

    @property
    def pending(self) -> bool:
        """True if link events or received messages wait here that `fd` does not signal."""
        return bool(self._pending_events or self.unread) or self._server.unread

    def poll(self, ready: Container[int] | None) -> list[LinkEvent]:
        """Handle socket events: accept connections, and mark accepted connections with data for `receive`. Return events of links.

        If `ready` is given without `fd`, return only the events that are already known.
        """
        events, self._pending_events = self._pending_events, []
        if ready is not None and self.fd not in ready:
            return events
        unread, self.unread = self.unread, set()  # `resume` adds a connection to `unread` again if decrypted data remains
        for one in unread:
            events += one.resume()
        # A handshake with keys takes 0.2 ms of CPU, so 64 events delay heartbeats and votes by at most 13 ms.
        for fd, mask in self.epoll.poll(0, limits.MESH_EVENTS_A_TURN_MAX):
            connection = self.by_descriptor.get(fd)
            if connection is not None:
                events += connection.handle_event(mask)
                continue
            self._server.handle_event(fd, mask)
        return events

    def receive(self, messages_max: int, bytes_max: int) -> Iterator[Message]:
        """Yield the messages that arrived before the last `poll`, up to about the limits. Connections take turns.

        The iterator is lazy, so the caller may answer a message or accept its sender before the next message is read.
        """
        return self._server.receive(messages_max, bytes_max)

    def gateway_of_key(self, routing: bytes) -> str | None:
        """Return the gateway whose key an accepted connection uses.

        Returns:
            The name of the gateway; empty if the key is no longer listed; None if the group uses no keys.
        """
        key = self._server.peer_key(routing)
        return None if self._authenticator is None else self._authenticator.name_of(key or b"")

    def is_open(self, routing: bytes) -> bool:
        """True if the peer has not closed an accepted connection. A closed connection may still have unread messages."""
        return self._server.is_open(routing)

    def reply(self, routing: bytes, data: bytes) -> None:
        """Send a message on an accepted connection. The message is lost if the peer is disconnected or does not read."""
        self._server.send(routing, data)

    # The rest

    def maintain(self) -> None:
        """Refresh the keys, send heartbeats, and close silent connections. Called about once a second."""
        if self._authenticator is not None:
            self._authenticator.refresh()
        passed_us = self.clock_us() - self._heartbeat_us
        if passed_us >= _HEARTBEAT_US:
            self._heartbeat_us += passed_us
            # A long gap between two calls means that this process was suspended, so the silence of peers proves nothing.
            self._was_running = passed_us < 3 * _HEARTBEAT_US
            for connection in self._connections:
                self._pending_events += connection.heartbeat(was_running=self._was_running)
        self._server.maintain(reads=self._was_running)

    def warnings(self) -> list[tuple[str, str]]:
        """Return the messages for the operator since the last call, each with the gateway or host, and the reason.

        Each call returns a lasting error of the key file again; the caller limits the rate of repeated messages.
        """
        warnings, self._warnings = self._warnings, []
        if self._authenticator is not None and self._authenticator.trouble:
            warnings.append(("", self._authenticator.trouble))
        return warnings

    def release_memory(self) -> None:
        """Close every accepted connection, and drop all received messages."""
        self._server.clear()

    def facts(self) -> dict[str, object]:
        """Return counters for the status."""
        authentication = None if self._authenticator is None else self._authenticator.facts()
        return {"keys": authentication is not None, "door": authentication, "refused": self._server.acceptor.refused}

    def close(self) -> None:
        """Stop. Allow a short time for sending queued messages."""
        # All connections share one deadline, so a stop takes at most a second for any number of peers that do not read.
        until_us = self.clock_us() + limits.LINGER_MS_MAX * _US_PER_MS
        for connection in self._connections:
            connection.linger(until_us)
        self._server.close(until_us)
        self.epoll.close()


def _listen(address: Address) -> socket.socket:
    """Open the group port.

    Raises:
        TuttiError: the address is not available, or no socket can be created.
    """
    try:
        return open_port(address.host, address.port, limits.MESH_CONNECTIONS_MAX, _prepare)
    except OSError as error:
        if error.errno in OUT_OF_RESOURCES:
            raise TuttiError(f"no socket is available for the group port: {error.strerror}; {RAISE_LIMIT}") from error
        raise TuttiError(
            f"the group port {address} cannot be opened: {error.strerror}; stop the process that uses it, or set `listen` or "
            "`ports.group` to a free address of this host"
        ) from error


def _prepare(listener: socket.socket) -> None:
    # Accepted sockets inherit the buffer size, and a size that is set explicitly switches off the kernel's automatic growth.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    set_keepalive(listener)
