"""The mesh: each gateway sends to each other gateway over a separate connection (docs/explanation/protocol/transport.md).

Each direction of a pair of gateways has a separate connection, which the sender opens, so that the sender knows the number of a
peer even while the peer is unreachable. A connection starts with an introduction. The receiver drops messages that precede the
introduction or follow a refused one. Messages for a link that is down are lost and counted, but not queued. `SocketBackend` does
the I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from tutti.data.frames.frame import Buffer
from tutti.data.member_address import Address, parse_member
from tutti.errors import FormatError, TuttiError
from tutti.runtime.dns import Resolver
from tutti.zmtp.frame_reader import ASSEMBLED_BYTES_MAX
from tutti.zmtp.framing import EncodedMessage, encode_message
from tutti.zmtp.server import Message as InboundMessage
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import LinkChanged, Received
from tutti_gateway.core.protocol.messages import Message
from tutti_gateway.transport.codec import (
    INTRODUCTION,
    REFUSAL,
    Refusal,
    decode,
    decode_refusal,
    encode,
    encode_introduction,
    encode_refusal,
)
from tutti_gateway.transport.handshake import parse_introduction
from tutti_gateway.transport.inbound_peers import InboundPeer, InboundPeers
from tutti_gateway.transport.interface import Introduction, Trouble
from tutti_gateway.transport.mesh.peer_state import LinkEvent, LinkEventKind, PeerLink
from tutti_gateway.transport.mesh.socket_backend import PARTS_MAX, SocketBackend
from tutti_gateway.transport.rate_limited_log import TroubleLog

if TYPE_CHECKING:  # at run time, only gateways with keys import the cryptography
    from tutti_gateway.transport.keys import Keyring

NOT_INTRODUCED = ""  # a refusal with this reason requests an introduction


class Mesh:
    """Transport over a TCP connection to each other gateway. Owned by one thread."""

    def __init__(self, me: Introduction, listen: Address, clock_us: Callable[[], int], keyring: Keyring | None = None) -> None:
        """Listen on the group port.

        Args:
            me: introduction of this gateway.
            listen: address to which the other gateways connect.
            clock_us: monotonic clock, us.
            keyring: keys of this gateway, or None, which leaves connections unencrypted and trusts each introduction.

        Raises:
            TuttiError: the address is not available.
        """
        self._me = me
        self._clock_us = clock_us
        self._links: dict[int, PeerLink] = {}
        self._inbound = InboundPeers(me, clock_us)
        self._troubles = TroubleLog()
        self._peers: dict[int, tuple[str, str]] = {}
        self._connections_made = 0
        self._malformed = self._rejected = 0
        self._backend = SocketBackend(listen, clock_us, self._inbound.is_accepted, keyring)
        self._resolver = Resolver()

    # Links

    def introduce(self, number: int, log: bytes) -> None:
        """Set this gateway's number and log, and send the new introduction to all peers."""
        if (number, log) != (self._me.number, self._me.log):
            self._me = self._inbound.me = msgspec.structs.replace(self._me, number=number, log=log)
            self._inbound.reassess()
            self._update_links()
            for link in self._links.values():
                self._introduce(link)

    def set_peers(self, peers: Sequence[tuple[int, str, str]]) -> None:
        """Set the gateways to connect to, and close the links to all others except active unlisted peers."""
        self._peers = {number: (name, address) for number, name, address in peers}
        # The numbers come first, because they decide which peers are unlisted and need a link of their own.
        self._inbound.set_numbers({name: number for number, name, _ in peers})
        self._update_links()

    def _update_links(self) -> None:
        """Keep one link to each gateway in this log, and to each active peer whose number this log does not have.

        A gateway that was removed and added again has a new number. Until this log has the new number, the link uses the number
        that the peer itself states.
        """
        wanted = self._inbound.unlisted()
        unlisted = {name for name, _ in wanted.values()}
        wanted |= {number: peer for number, peer in self._peers.items() if peer[0] not in unlisted}
        for number, link in list(self._links.items()):
            # A link with a changed key or address is closed, because it needs a new handshake or connection.
            if wanted.get(number) != (link.name, link.address) or link.key != self._backend.key_of(link.name):
                del self._links[number]
                link.connection.close()
        for number, (name, address) in wanted.items():
            if number not in self._links:
                self._connect(number, name, address)

    def _connect(self, number: int, name: str, address: str) -> None:
        link = self._links[number] = PeerLink(number, name, address, self._backend.key_of(name))
        self._open_connection(link)

    def _open_connection(self, link: PeerLink) -> None:
        """Create a new connection for a link and connect it, or report the obstacle."""
        self._connections_made += 1
        link.opened_us = self._clock_us()
        link.resolving = None
        # The routing id must be unique in this run, because a peer closes an earlier connection with the same id.
        link.connection = self._backend.new_connection(link, self._me.process + self._connections_made.to_bytes(4, "big"))
        reason = self._backend.blocked_reason(link)
        if reason:
            self._report_refusal(link, reason)
            return  # `_renew_connections` checks again
        try:
            link.resolving = parse_member(link.address).group
        except TuttiError as error:
            self._report_bad_address(link, error)
            return
        address = self._resolver.address(link.resolving.host)
        if address:
            self._connect_to(link, link.resolving, address)

    def _on_names_resolved(self) -> None:
        """Connect the links whose host names were resolved, or report the failure."""
        found = self._resolver.drain()
        for link in self._links.values():
            group = link.resolving
            if group is None or group.host not in found:
                continue
            if found[group.host]:
                self._connect_to(link, group, found[group.host])
            else:
                reason = f"the host name {group.host!r} of its address is not resolved: {self._resolver.error(group.host)}"
                self._report_refusal(link, f"{reason}; the lookup is repeated")

    def _connect_to(self, link: PeerLink, group: Address, host: str) -> None:
        link.resolving = None
        try:
            link.connection.connect(Address(host, group.port))
        except OSError as error:
            self._report_bad_address(link, error.strerror or str(error))

    def _report_bad_address(self, link: PeerLink, error: object) -> None:
        self._report_refusal(
            link, f"a connection to its address {link.address!r} is not possible: {error}; correct it in the roster"
        )

    def _report_refusal(self, link: PeerLink, reason: str) -> None:
        link.refusal = reason
        self._warn(link.name, reason)

    def _renew_connections(self) -> None:
        """Replace connections that have been down for a long time, because the host may have a new address."""
        now_us = self._clock_us()
        for link in self._links.values():
            # A connection retries much more often, but always at the address to which its host name was first resolved.
            if not link.up and now_us - max(link.opened_us, link.broke_us) > limits.MESH_RENEW_US:
                link.connection.close()
                self._open_connection(link)
        self._update_links()

    def _introduce(self, link: PeerLink) -> None:
        link.refusal = ""  # a new introduction gets a new answer
        link.connection.send_introduction(encode_introduction(self._me))

    def inbound_peers(self) -> Iterable[InboundPeer]:
        """Return the peers of accepted connections."""
        return self._inbound

    # Sending

    def send(self, to: int, message: Message) -> None:
        """Queue a message for the gateway with number `to`. The next `flush` sends or loses the message."""
        link = self._links.get(to)
        if link is not None:
            link.queue.append(message)

    def flush(self) -> None:
        """Send the queued messages. A message for several peers is encoded once."""
        self._backend.tick()
        encoded: dict[int, EncodedMessage] = {}
        for link in self._links.values():
            if not link.queue:
                continue
            queue, link.queue = link.queue, []
            if not link.up:  # dropped, because the core sends again what is still needed when the link is up
                link.lost += len(queue)
                continue
            messages = []
            # `encoded` finds a message by identity, because the core passes the same object for all receivers.
            for message in queue:
                wire_message = encoded.get(id(message))
                if wire_message is None:
                    wire_message = encoded[id(message)] = encode_message(encode(message))
                messages.append(wire_message)
            link.connection.send(messages)

    # Receiving

    @property
    def unread(self) -> bool:
        """True if received messages or link changes wait for `drain` that none of the `descriptors` signals."""
        return self._backend.pending

    def descriptors(self) -> Sequence[int]:
        """Return the descriptors that become readable when messages or link changes wait for `drain`."""
        return [self._backend.fd, self._resolver.fd]

    def drain(self, messages_max: int, bytes_max: int, ready: Container[int] | None = None) -> list[Received | LinkChanged]:
        """Return received messages and link changes, as `Transport.drain` does."""
        events: list[Received | LinkChanged] = []
        if ready is None or self._resolver.fd in ready:
            self._on_names_resolved()
        for event in self._backend.poll(ready):
            changed = self._handle_event(event)
            if changed is not None:
                events.append(changed)
        for inbound in self._backend.receive(messages_max, bytes_max):
            received = self._receive(inbound)
            if received is not None:
                events.append(received)
        return events

    def _receive(self, inbound: InboundMessage) -> Received | None:
        routing, parts, size = inbound
        if parts and parts[0][:1] == INTRODUCTION:
            self._receive_introduction(routing, parts[0])
            return None
        peer = self._inbound.received_from(routing)
        if peer is None:  # the peer never introduced itself, or was evicted from the table
            self._rejected += 1
            # A peer that was evicted from the table regards itself as introduced, so the refusal requests a new introduction.
            self._refuse(routing, NOT_INTRODUCED)
            return None
        if peer.number == 0:  # the peer is refused, and the answer to its introduction had the reason
            self._rejected += 1
            return None
        try:
            message = decode(parts) if parts else _too_large(size)  # without parts, the message was too large
        except FormatError as error:
            self._malformed += 1
            self._warn(peer.name, f"one of its messages was dropped: {error}")
            return None
        link = self._links.get(peer.number)
        if link is not None:
            link.received += 1
            link.received_bytes += size
        return Received(peer.number, message, peer.incarnation)

    def _receive_introduction(self, routing: bytes, data: Buffer) -> None:
        """Process an introduction. In a group with keys, its name must be the name that the key file lists for the connection's
        key.
        """
        try:
            introduction = parse_introduction(data)
        except FormatError as error:
            self._malformed += 1
            self._warn("", f"a peer on the group port is not a gateway of this release: {error}")
            self._refuse(routing, str(error))
            return
        owner = self._backend.gateway_of_key(routing)  # empty if the file no longer lists the key
        if owner is not None and owner != introduction.gateway:
            key_owner = f"that of {owner!r}: give each gateway its own key" if owner else "not listed any more"
            reason = f"it introduces itself as gateway {introduction.gateway!r}, and its key is {key_owner}"
            self._warn(owner, reason)
            self._refuse(routing, reason)
            return
        link = next((link for link in self._links.values() if link.name == introduction.gateway), None)
        # Only a link that is up shows that an earlier process of that name still runs. Otherwise, that process counts as ended.
        broke_us = link.broke_us if link is not None and link.up else self._clock_us()
        verdict = self._inbound.assess_introduction(routing, introduction, broke_us, self._backend.is_open)
        if verdict.reason:
            self._warn(introduction.gateway, verdict.reason)
        if not verdict.number:
            self._refuse(routing, verdict.refusal)
        elif verdict.connect:
            self._update_links()

    def _refuse(self, routing: bytes, reason: str) -> None:
        """Send a refusal on the connection of the refused message."""
        self._backend.reply(routing, encode_refusal(Refusal(self._me.protocol, self._me.group, self._me.gateway, reason)))

    def _handle_event(self, event: LinkEvent) -> LinkChanged | None:
        """Process an event of a link. Return the change of the link to report to the core, or None."""
        link = event.link
        if event.kind is LinkEventKind.MESSAGE:
            self._receive_refusal(link, event.data)
        elif event.kind is LinkEventKind.CONNECT_FAILED:
            reason = link.connect_failed(event.failure)
            if reason:
                self._report_refusal(link, reason)
        elif event.kind is LinkEventKind.UP:
            link.up = True
            link.connects += 1
            link.failed_attempts = 0
            self._introduce(link)
            # The core may send from now on, after the introduction, because a peer drops all earlier messages (transport, T6).
            return LinkChanged(link.number, up=True)
        elif link.up:
            link.up = False
            link.broke_us = self._clock_us()
            return LinkChanged(link.number, up=False)
        return None

    def _receive_refusal(self, link: PeerLink, data: bytes) -> None:
        """Process a refusal, the only kind of message that a peer may send on a connection that this gateway opened."""
        if data[:1] != REFUSAL:
            self._malformed += 1
            return
        try:
            # A malformed refusal is counted but not logged, because its text is unchecked data of a peer.
            refusal = decode_refusal(data)
        except FormatError:
            self._malformed += 1
            return
        if refusal.reason == NOT_INTRODUCED:
            self._introduce(link)
            return
        link.refusal = refusal.reason
        self._warn(link.name, f"{refusal.gateway} of group {refusal.group} at {link.address} refuses messages: {refusal.reason}")

    # The rest

    def _warn(self, peer: str, reason: str) -> None:
        self._troubles.report(peer, reason, self._clock_us())

    def next_us(self) -> int | None:
        """Return the microseconds until `flush` must run even if no message arrives, or None if nothing is due."""
        return self._backend.next_us()

    def maintain(self) -> list[Trouble]:
        """Refresh keys, send heartbeats and renew connections, as `Transport.maintain` requires."""
        self._backend.maintain()
        self._renew_connections()
        for peer, reason in self._backend.warnings():
            self._warn(peer, reason)
        return self._troubles.drain()

    def release_memory(self) -> None:
        """Drop received messages, and close every accepted connection."""
        self._inbound.clear()
        self._backend.release_memory()

    def facts(self) -> dict[str, object]:
        """Return counters for the status."""
        return self._backend.facts() | {
            "kind": "mesh",
            "malformed": self._malformed,
            "not_taken": self._rejected,
            "untold": self._troubles.suppressed,
            "differing": self._inbound.differing(),
            "peers": [link.facts() for link in self._links.values()],
        }

    def close(self) -> None:
        """Stop. Allow a short time for sending queued messages."""
        self._links.clear()
        self._resolver.close()
        self._backend.close()


def _too_large(size: int) -> Message:
    raise FormatError(
        f"a message of {size} bytes or more exceeds the limit of {ASSEMBLED_BYTES_MAX} bytes or of {PARTS_MAX} parts; its "
        "connection was closed"
    )
