"""Transport within one process, for tests: gateways that share a `MemoryNetwork` communicate without sockets.

Introductions, refusals and encoding are those of a network. A seed decides which messages are lost, duplicated or reordered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from random import Random

import msgspec

from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import LinkChanged, Received
from tutti_gateway.core.protocol.messages import Message
from tutti_gateway.transport.codec import decode, encode
from tutti_gateway.transport.inbound_peers import InboundPeers
from tutti_gateway.transport.interface import Introduction, Trouble
from tutti_gateway.transport.trouble_log import TroubleLog


class MemoryNetwork:
    """The network between memory transports.

    Attributes:
        loss, duplication, reordering: probability that a message is lost, arrives twice, or arrives before the one sent ahead of
            it.
        lost: number of messages that did not arrive, for any reason.
    """

    def __init__(self, seed: int = 0, *, loss: float = 0.0, duplication: float = 0.0, reordering: float = 0.0) -> None:
        """Create a network without gateways."""
        self.loss, self.duplication, self.reordering = loss, duplication, reordering
        self.lost = 0
        self._chance = Random(seed)
        self._transports: dict[str, MemoryTransport] = {}
        self._disconnected: set[frozenset[str]] = set()

    def add(self, transport: MemoryTransport) -> None:
        """Add a gateway; it replaces an earlier one with the same name."""
        self.remove(transport.name)
        self._transports[transport.name] = transport
        self.refresh_links()

    def remove(self, name: str) -> None:
        """Remove a gateway."""
        if self._transports.pop(name, None) is not None:
            self.refresh_links()

    def disconnect(self, one: str, other: str) -> None:
        """Disconnect two gateways."""
        self._disconnected.add(frozenset((one, other)))
        self.refresh_links()

    def reconnect(self, one: str, other: str) -> None:
        """Undo `disconnect`."""
        self._disconnected.discard(frozenset((one, other)))
        self.refresh_links()

    def refresh_links(self) -> None:
        """Update the links of every gateway."""
        for transport in self._transports.values():
            transport.refresh_links()

    def reachable(self, sender: str, to: str) -> MemoryTransport | None:
        """Return the transport of the other gateway; None if it is not reachable."""
        return None if frozenset((sender, to)) in self._disconnected else self._transports.get(to)

    def deliver(self, sender: MemoryTransport, to: str, data: bytes) -> None:
        """Carry one message, or lose it."""
        transport, chance = self.reachable(sender.name, to), self._chance.random
        if transport is None or chance() < self.loss:
            self.lost += 1
            return
        for _ in range(2 if chance() < self.duplication else 1):
            if not transport.enqueue(sender.name, data, reordered=chance() < self.reordering):
                self.lost += 1


class MemoryTransport:
    """Transport of one gateway. One thread owns all transports of a network."""

    def __init__(self, me: Introduction, network: MemoryNetwork, clock_us: Callable[[], int]) -> None:
        """Join a network; `clock_us` returns monotonic time, us."""
        self.name = me.gateway
        self._me = me
        self._network = network
        self._clock_us = clock_us
        self._inbound = InboundPeers(me, clock_us)
        self._troubles = TroubleLog()
        self._peers: dict[int, str] = {}
        self._up: dict[int, Introduction] = {}
        self._queue: list[tuple[int, Message]] = []
        self._received: deque[tuple[str, bytes]] = deque()
        self._link_changes: list[LinkChanged] = []
        self._sent = 0
        network.add(self)

    @property
    def introduction(self) -> Introduction:
        """What this gateway states about itself."""
        return self._me

    def introduce(self, number: int, log: bytes) -> None:
        """Set this gateway's number and log."""
        self._me = self._inbound.me = msgspec.structs.replace(self._me, number=number, log=log)
        self._inbound.reassess()
        self._network.refresh_links()

    def set_peers(self, peers: Sequence[tuple[int, str, str]]) -> None:
        """Set the gateways to connect to."""
        self._inbound.set_numbers({name: number for number, name, _ in peers})
        self._peers = {number: name for number, name, _ in peers}
        self.refresh_links()

    def refresh_links(self) -> None:
        """Update the links to other gateways."""
        wanted = {number: name for number, (name, _) in self._inbound.unlisted().items()} | self._peers
        for number, name in wanted.items():
            transport = self._network.reachable(self.name, name)
            introduction_there = transport.introduction if transport is not None else None
            known = self._up.get(number)
            # A restarted process is a new connection: the core must see the break in between.
            if known is not None and (introduction_there is None or introduction_there.process != known.process):
                del self._up[number]
                self._link_changes.append(LinkChanged(number, up=False))
            if introduction_there is not None and number not in self._up:
                self._up[number] = introduction_there
                self._link_changes.append(LinkChanged(number, up=True))

    def send(self, to: int, message: Message) -> None:
        """Queue a message. The next `flush` sends it, or it is lost."""
        self._queue.append((to, message))

    def flush(self) -> None:
        """Send the queued messages."""
        queue, self._queue = self._queue, []
        encoded: dict[int, bytes] = {}
        for to, message in queue:
            peer = self._up.get(to)
            if peer is None:
                self._network.lost += 1
                continue
            data = encoded.get(id(message))
            if data is None:
                data = encoded[id(message)] = bytes(encode(message, single_part=True)[0])
            self._sent += 1
            self._network.deliver(self, peer.gateway, data)

    def enqueue(self, sender: str, data: bytes, *, reordered: bool) -> bool:
        """Queue a received message. Return False if the queue is full."""
        if len(self._received) >= limits.MESH_HIGH_WATER_MARK:
            return False
        self._received.append((sender, data))
        if reordered and len(self._received) > 1:
            self._received[-1], self._received[-2] = self._received[-2], self._received[-1]
        return True

    def drain(self, messages_max: int, bytes_max: int, ready: Container[int] | None = None) -> list[Received | LinkChanged]:
        """Return received messages and link changes."""
        events: list[Received | LinkChanged] = []
        events += self._link_changes
        self._link_changes = []
        size = 0
        while self._received and messages_max and size < bytes_max:
            sender, data = self._received.popleft()
            messages_max -= 1
            size += len(data)
            received = self._receive(sender, data)
            if received is not None:
                events.append(received)
        return events

    def _receive(self, sender: str, data: bytes) -> Received | None:
        transport = self._network.reachable(self.name, sender)
        if transport is None:
            return None
        theirs = transport.introduction
        peer = self._inbound.received_from(sender.encode())
        if peer is None or peer.introduction != theirs:
            verdict = self._inbound.assess_introduction(sender.encode(), theirs, self._clock_us())
            if verdict.reason:
                self._troubles.report(sender, verdict.reason, self._clock_us())
            if verdict.connect:
                self.refresh_links()
            peer = self._inbound.received_from(sender.encode())
        if peer is None or not peer.number:
            return None
        return Received(peer.number, decode([data]), peer.incarnation)

    @property
    def unread(self) -> bool:
        """False: the owner knows when to drain."""
        return False

    def descriptors(self) -> Sequence[int]:
        """Return none: the owner knows when to drain."""
        return ()

    def next_us(self) -> int | None:
        """Return None: no timer is pending."""
        return None

    def troubles(self) -> list[Trouble]:
        """Return the problems since the last call."""
        return self._troubles.drain()

    def release_memory(self) -> None:
        """Drop received messages."""
        self._network.lost += len(self._received)
        self._received.clear()

    def facts(self) -> dict[str, object]:
        """Return figures for the status."""
        return {"kind": "memory", "sent": self._sent, "lost": self._network.lost, "peers": sorted(self._up)}

    def close(self) -> None:
        """Leave the network."""
        self._network.remove(self.name)
