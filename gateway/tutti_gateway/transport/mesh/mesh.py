"""The mesh: every gateway sends to each of the others by a connection of its own (design, section 8).

Each direction of a pair has its connection, so that a gateway sends without being asked and who is unreachable is known by its
number. A connection begins with an introduction; what comes before it, or after one that was refused, is not taken. Nothing is
queued for a connection that does not stand: what is sent then is lost, and counted. `Sockets` moves the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from tutti.data.addresses import Address, parse_member
from tutti.data.frames.frame import Buffer
from tutti.errors import FormatError, TuttiError
from tutti.runtime.dns import Resolver
from tutti.zmtp.framing import Formed, form
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
from tutti_gateway.transport.handshake import introduced
from tutti_gateway.transport.inbound_peers import Guest, Guests
from tutti_gateway.transport.interface import Introduction, Trouble
from tutti_gateway.transport.mesh.peer_link import Kind, Link, News
from tutti_gateway.transport.mesh.socket_backend import Arrival, Sockets
from tutti_gateway.transport.warnings_limited import Troubles

if TYPE_CHECKING:  # the crypto, for those alone who have keys
    from tutti_gateway.transport.keys import Keyring

WHO = ""  # the reason for which who never introduced itself is refused


class Mesh:
    """The transport over connections to each of the others. Owned by one thread."""

    def __init__(self, me: Introduction, listen: Address, clock_us: Callable[[], int], keyring: Keyring | None = None) -> None:
        """Bind.

        Args:
            me: who this gateway is.
            listen: where the others connect to.
            clock_us: a monotonic clock, us.
            keyring: its keys; None: nothing is encrypted, and gateways are who they say they are.

        Raises:
            TuttiError: the address cannot be bound.
        """
        self._me = me
        self._clock_us = clock_us
        self._links: dict[int, Link] = {}
        self._guests = Guests(me, clock_us)
        self._troubles = Troubles()
        self._peers: dict[int, tuple[str, str]] = {}
        self._links_made = 0
        self._malformed = self._untaken = 0
        self._sockets = Sockets(listen, clock_us, self._guests.known, keyring)
        self._names = Resolver()

    # Who is who

    def introduce(self, number: int, log: bytes) -> None:
        """This gateway has that number and that log from now on."""
        if (number, log) != (self._me.number, self._me.log):
            self._me = self._guests.me = msgspec.structs.replace(self._me, number=number, log=log)
            self._guests.look_again()
            self._reach()
            for link in self._links.values():
                self._introduce(link)

    def peers(self, peers: Sequence[tuple[int, str, str]]) -> None:
        """Whom to talk to; who is not among them and no guest any more is left."""
        self._peers = {number: (name, address) for number, name, address in peers}
        self._guests.named({name: number for number, name, _ in peers})
        self._reach()

    def _reach(self) -> None:
        """Have a link to each peer, and to each guest by a number that nobody told of. By an older number no gateway answers."""
        wanted = self._guests.unnamed()
        later = {name for name, _ in wanted.values()}
        wanted |= {number: peer for number, peer in self._peers.items() if peer[0] not in later}
        for number, link in list(self._links.items()):
            if wanted.get(number) != (link.name, link.address) or link.key != self._sockets.key_of(link.name):
                del self._links[number]
                link.line.close()
        for number, (name, address) in wanted.items():
            if number not in self._links:
                self._connect(number, name, address)

    def _connect(self, number: int, name: str, address: str) -> None:
        link = self._links[number] = Link(number, name, address, self._sockets.key_of(name))
        self._open(link)

    def _open(self, link: Link) -> None:
        """Give it a line and have that connect, or say why not."""
        self._links_made += 1
        link.made_us = self._clock_us()
        link.awaits = None
        link.line = self._sockets.line(link, self._me.process + self._links_made.to_bytes(4, "big"))
        reason = self._sockets.barred(link)
        if reason:
            self._cut_off(link, reason)
            return  # until it is not
        try:
            link.awaits = parse_member(link.address).group
        except TuttiError as error:
            self._astray(link, error)
            return
        address = self._names.address(link.awaits.host)
        if address:
            self._lead(link, link.awaits, address)

    def _found(self) -> None:
        """Names were looked up: connect who waits for them, or say why not."""
        found = self._names.take()
        for link in self._links.values():
            group = link.awaits
            if group is None or group.host not in found:
                continue
            if found[group.host]:
                self._lead(link, group, found[group.host])
            else:
                reason = f"the host {group.host!r} of its address is not known: {self._names.wrong(group.host)}"
                self._cut_off(link, f"{reason}; it is looked up again and again")

    def _lead(self, link: Link, group: Address, host: str) -> None:
        link.awaits = None
        try:
            link.line.connect(Address(host, group.port))
        except OSError as error:
            self._astray(link, error.strerror or str(error))

    def _astray(self, link: Link, error: object) -> None:
        self._cut_off(link, f"its address {link.address!r} cannot be connected to: {error}; mend it in the roster")

    def _cut_off(self, link: Link, reason: str) -> None:
        link.refused = reason
        self._tell(link.name, reason)

    def _renew(self) -> None:
        """Connect from the beginning where that takes long: the host may have another address."""
        now_us = self._clock_us()
        for link in self._links.values():
            if not link.up and now_us - max(link.made_us, link.broke_us) > limits.MESH_RENEW_US:
                link.line.close()
                self._open(link)
        self._reach()

    def _introduce(self, link: Link) -> None:
        link.refused = ""  # until it says so again
        link.line.say(encode_introduction(self._me))

    def guests(self) -> Iterable[Guest]:
        """Who is at the other ends of the connections that came in."""
        return self._guests

    # Sending

    def send(self, to: int, message: Message) -> None:
        """Queue a message; it leaves at the next `flush`, or is lost."""
        link = self._links.get(to)
        if link is not None:
            link.queue.append(message)

    def flush(self) -> None:
        """Send what was queued. What several get is made into bytes once."""
        self._sockets.tick()
        made: dict[int, Formed] = {}
        for link in self._links.values():
            if not link.queue:
                continue
            queue, link.queue = link.queue, []
            if not link.up:
                link.lost += len(queue)
                continue
            messages = []
            for message in queue:
                formed = made.get(id(message))
                if formed is None:
                    formed = made[id(message)] = form(encode(message))
                messages.append(formed)
            link.line.put(messages)

    # Receiving

    @property
    def unread(self) -> bool:
        """Whether there is something to drain that none of `sockets` tells of."""
        return self._sockets.pending

    def sockets(self) -> Sequence[int]:
        """What becomes readable when there is something to drain."""
        return [self._sockets.fd, self._names.fd]

    def drain(self, messages_max: int, bytes_max: int, ready: Container[int] | None = None) -> list[Received | LinkChanged]:
        """What came, without waiting; looked for only at those of `sockets` that are `ready`, at all without it."""
        events: list[Received | LinkChanged] = []
        if ready is None or self._names.fd in ready:
            self._found()
        for news in self._sockets.news(ready):
            changed = self._hear(news)
            if changed is not None:
                events.append(changed)
        for arrival in self._sockets.arrivals(messages_max, bytes_max):
            received = self._take(arrival)
            if received is not None:
                events.append(received)
        return events

    def _take(self, arrival: Arrival) -> Received | None:
        routing, parts, size = arrival
        if parts and parts[0][:1] == INTRODUCTION:
            self._meet(routing, parts[0])
            return None
        guest = self._guests.heard(routing)
        if guest is None:
            self._untaken += 1
            self._refuse(routing, WHO)
            return None
        if guest.number == 0:
            self._untaken += 1
            return None
        try:
            message = decode(parts) if parts else _too_large(size)
        except FormatError as error:
            self._malformed += 1
            self._tell(guest.name, f"a message of it is not taken: {error}")
            return None
        link = self._links.get(guest.number)
        if link is not None:
            link.received += 1
            link.received_bytes += size
        return Received(guest.number, message, guest.incarnation)

    def _meet(self, routing: bytes, data: Buffer) -> None:
        """Somebody introduces itself; where there are keys, as the gateway that its key is listed for."""
        try:
            introduction = introduced(data)
        except FormatError as error:
            self._malformed += 1
            self._tell("", f"somebody on the group port is no gateway of this release: {error}")
            self._refuse(routing, str(error))
            return
        holder = self._sockets.holder(routing)
        if holder is not None and holder != introduction.gateway:
            whose = f"that of {holder!r}: give it its own" if holder else "not listed any more"
            reason = f"it says that it is gateway {introduction.gateway!r}, and its key is {whose}"
            self._tell(holder, reason)
            self._refuse(routing, reason)
            return
        link = next((link for link in self._links.values() if link.name == introduction.gateway), None)
        broke_us = link.broke_us if link is not None and link.up else self._clock_us()
        verdict = self._guests.met(routing, introduction, broke_us, self._sockets.stands)
        if verdict.reason:
            self._tell(introduction.gateway, verdict.reason)
        if not verdict.number:
            self._refuse(routing, verdict.told)
        elif verdict.connect:
            self._reach()

    def _refuse(self, routing: bytes, reason: str) -> None:
        """Say on the connection that it came by why it is not taken."""
        self._sockets.answer(routing, encode_refusal(Refusal(self._me.protocol, self._me.group, self._me.gateway, reason)))

    def _hear(self, news: News) -> LinkChanged | None:
        """Something is new of a link; what the core is told of it."""
        link = news.link
        if news.kind is Kind.SAID:
            self._said(link, news.data)
        elif news.kind is Kind.AWAY:
            reason = link.turned_away(news.why)
            if reason:
                self._cut_off(link, reason)
        elif news.kind is Kind.UP:
            link.up = True
            link.connects += 1
            link.broken_off = 0
            self._introduce(link)
            return LinkChanged(link.number, up=True)
        elif link.up:
            link.up = False
            link.broke_us = self._clock_us()
            return LinkChanged(link.number, up=False)
        return None

    def _said(self, link: Link, data: bytes) -> None:
        """The other end says why it takes nothing: nothing else is said there."""
        if data[:1] != REFUSAL:
            self._malformed += 1
            return
        try:
            refusal = decode_refusal(data)
        except FormatError:
            self._malformed += 1
            return
        if refusal.reason == WHO:
            self._introduce(link)
            return
        link.refused = refusal.reason
        self._tell(link.name, f"{refusal.gateway} of group {refusal.group} at {link.address} says: {refusal.reason}")

    # The rest

    def _tell(self, peer: str, reason: str) -> None:
        self._troubles.tell(peer, reason, self._clock_us())

    def next_us(self) -> int | None:
        """Microseconds until `flush` wants to be called although nothing came, None if it does not."""
        return self._sockets.next_us()

    def troubles(self) -> list[Trouble]:
        """What went wrong since this was asked last. It is asked now and then: a moment to look after keys and links, too."""
        self._sockets.keep()
        self._renew()
        for peer, reason in self._sockets.told():
            self._tell(peer, reason)
        return self._troubles.take()

    def relieve(self) -> None:
        """Memory is short: drop what came and was not taken, and every connection that came in."""
        self._guests.clear()
        self._sockets.relieve()

    def facts(self) -> dict[str, object]:
        """For the status."""
        return self._sockets.facts() | {
            "kind": "mesh",
            "malformed": self._malformed,
            "not_taken": self._untaken,
            "untold": self._troubles.untold,
            "differing": self._guests.differing(),
            "peers": [link.facts() for link in self._links.values()],
        }

    def close(self) -> None:
        """Stop; what was sent has a moment to leave."""
        self._links.clear()
        self._names.close()
        self._sockets.close()


def _too_large(size: int) -> Message:
    raise FormatError(f"{size} bytes are more than a message may have, or in too many parts")
