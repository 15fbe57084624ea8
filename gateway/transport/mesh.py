"""The ZeroMQ mesh: one ROUTER that all others send to, and one DEALER to each of them (design, section 8).

Each direction of a pair has a connection of its own, so that a gateway sends without being asked and who is unreachable is known by
its number. A connection begins with an introduction; what comes before it, or after one that was refused, is not taken. Nothing is
queued for a connection that does not stand: what is sent then is lost, and counted. ZeroMQ connects again by itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Container, Iterable, Sequence

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.core import limits
from gateway.core.events import LinkChanged, Received
from gateway.core.messages import Message
from gateway.data.addresses import Address, parse_member
from gateway.data.frame import Buffer
from gateway.errors import FormatError, TuttiError
from gateway.transport.codec import (
    INTRODUCTION,
    REFUSAL,
    Refusal,
    decode,
    decode_refusal,
    encode,
    encode_introduction,
    encode_refusal,
)
from gateway.transport.group_port import bind
from gateway.transport.guests import Guest, Guests
from gateway.transport.handshake import introduced
from gateway.transport.interface import Introduction, Trouble
from gateway.transport.keys import Keyring
from gateway.transport.link import NOT_SET_UP, UP, Link
from gateway.transport.names import Names
from gateway.transport.security import USER, Door
from gateway.transport.troubles import Troubles

WHO = ""  # the reason for which who never introduced itself is refused
#: Flags as numbers: ZeroMQ's names cost a microsecond where they are joined.
_LAST, _READABLE = int(zmq.NOBLOCK), int(zmq.POLLIN)
PARTS_MAX = 1 + limits.MESSAGE_BYTES_MAX // limits.JOINED_BODY_BYTES_MAX


class Mesh:
    """The transport over ZeroMQ. Owned by one thread."""

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
        self._listen = listen
        self._clock_us = clock_us
        self._links: dict[int, Link] = {}
        self._names = Names()
        self._guests = Guests(me, clock_us)
        self._troubles = Troubles()
        self._peers: dict[int, tuple[str, str]] = {}
        self._links_made = 0
        self.changes = 0
        self._malformed = self._untaken = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._door = Door(self._context, keyring, clock_us) if keyring is not None else None
        try:
            self._socket = bind(self._context, listen, self._door)
        except TuttiError:
            self._names.close()
            if self._door is not None:
                self._door.close()
            self._context.term()
            raise

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
        """Have a link to each peer, and to each guest that nobody told of."""
        wanted = self._guests.unnamed() | self._peers
        for number, link in list(self._links.items()):
            if wanted.get(number) != (link.name, link.address) or link.key != self._key_of(link.name):
                del self._links[number]
                link.close()
                self.changes += 1
        for number, (name, address) in wanted.items():
            if number not in self._links:
                self._connect(number, name, address)

    def _key_of(self, gateway: str) -> str:
        return self._door.key_of(gateway) if self._door is not None else ""

    def _connect(self, number: int, name: str, address: str) -> None:
        link = Link(number, name, address, self._key_of(name))
        if self._open(link):
            self._links[number] = link

    def _open(self, link: Link) -> bool:
        """Give it a socket and have that connect; False, and nothing is left of it, when none can be had."""
        self._links_made += 1
        self.changes += 1
        link.made_us = self._clock_us()
        try:
            link.open(self._context, self._me.process + self._links_made.to_bytes(4, "big"))
        except zmq.ZMQError as error:
            self._tell(link.name, f"no socket can be had for the connection to it: {error.strerror}; raise the limit of open files")
            return False
        self._begin(link)
        return True

    def _begin(self, link: Link) -> None:
        """Have its socket connect, or say why not."""
        if self._door is not None and not self._door.lead(link.socket, link.name):
            reason = "its public key is not listed: write it into the file that `security.public_keys` names, on every host"
            self._cut_off(link, reason)
            return  # until it is
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
        try:
            link.connect(Address(host, group.port))
        except zmq.ZMQError as error:
            self._astray(link, error)

    def _astray(self, link: Link, error: Exception) -> None:
        self._cut_off(link, f"its address {link.address!r} cannot be connected to: {error}; mend it in the roster")

    def _cut_off(self, link: Link, reason: str) -> None:
        link.refused = reason
        self._tell(link.name, reason)

    def _renew(self) -> None:
        """Connect again where ZeroMQ gave up, as after what was no handshake of a gateway, or no socket could be had."""
        now_us = self._clock_us()
        for number, link in list(self._links.items()):
            if not link.up and now_us - max(link.made_us, link.broke_us) > limits.MESH_RENEW_US:
                link.close()
                if not self._open(link):
                    del self._links[number]
        self._reach()

    def _introduce(self, link: Link) -> None:
        link.refused = ""  # until it says so again
        with contextlib.suppress(zmq.ZMQError):  # no connection: it is said when there is one
            link.socket.send(encode_introduction(self._me), zmq.NOBLOCK)

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
        made: dict[int, list[Buffer]] = {}
        for link in self._links.values():
            if not link.queue:
                continue
            queue, link.queue = link.queue, []
            if not link.up:
                link.lost += len(queue)
                continue
            for message in queue:
                parts = made.get(id(message))
                if parts is None:
                    parts = made[id(message)] = encode(message)
                link.put(parts)

    # Receiving

    def sockets(self) -> Sequence[object]:
        """What becomes readable when there is something to drain. Of links, on which there hardly ever is, only the descriptors:
        ZeroMQ's poll asks each of its sockets twice, which is two system calls each time.
        """
        links = self._links.values()
        door = [self._door.socket] if self._door is not None else []
        return [self._socket, self._names.fd, *door, *(fd for link in links for fd in link.fds)]

    def drain(self, messages_max: int, bytes_max: int, ready: Container[object] | None = None) -> list[Received | LinkChanged]:
        """What came, without waiting; looked for only at those of `sockets` that are `ready`, at all without it."""
        events: list[Received | LinkChanged] = []
        if self._door is not None and (ready is None or self._door.socket in ready):
            for knock in self._door.answer():
                self._tell(knock.address, f"a connection to the group port was turned away: {knock.reason}")
        if ready is None or self._names.fd in ready:
            self._found()
        for link in self._links.values():
            if ready is None or link.fds[0] in ready or link.fds[1] in ready:
                self._hear_of(link, events)
                self._read(link)
        if ready is None or self._socket in ready:
            self._receive(events, messages_max, bytes_max, ready is not None)
        return events

    def _receive(self, events: list[Received | LinkChanged], messages_max: int, bytes_max: int, found: bool) -> None:
        """Take messages; `found`: there is one, as far as is known."""
        socket = self._socket
        size = 0
        for _ in range(messages_max):
            # A receive in vain costs five times as much as to ask.
            if size >= bytes_max or not (found or int(socket.get(zmq.EVENTS)) & _READABLE):
                return
            found = False
            try:
                routing = socket.recv(_LAST)
            except zmq.Again:
                return
            first, parts, length = self._rest()
            size += length
            received = self._take(routing, first, parts, length)
            if received is not None:
                events.append(received)

    def _rest(self) -> tuple[zmq.Frame, list[Buffer], int]:
        """The first part behind the routing id, and the buffers of all; none when they are too many or too large."""
        receive = self._socket.recv
        first = part = receive(copy=False)
        size = len(part)
        parts: list[Buffer] = [part.buffer]
        kept = True
        while part.more:
            part = receive(copy=False)
            size += len(part)
            if kept and (len(parts) == PARTS_MAX or size > 2 * limits.MESSAGE_BYTES_MAX):
                kept = False
                parts.clear()
            if kept:
                parts.append(part.buffer)
        return first, parts, size

    def _take(self, routing: bytes, first: zmq.Frame, parts: list[Buffer], size: int) -> Received | None:
        if parts and parts[0][:1] == INTRODUCTION:
            self._meet(routing, parts[0], str(first.get(USER)) if self._door is not None else "")
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

    def _meet(self, routing: bytes, data: Buffer, holder: str) -> None:
        """Somebody introduces itself; `holder` is whose key it has, where there are keys."""
        try:
            introduction = introduced(data)
        except FormatError as error:
            self._malformed += 1
            self._tell("", f"somebody on the group port is no gateway of this release: {error}")
            self._refuse(routing, str(error))
            return
        if holder and holder != introduction.gateway:
            reason = f"it says that it is gateway {introduction.gateway!r}, and its key is that of {holder!r}: give it its own"
            self._tell(holder, reason)
            self._refuse(routing, reason)
            return
        link = next((link for link in self._links.values() if link.name == introduction.gateway), None)
        broke_us = link.broke_us if link is not None and link.up else self._clock_us()
        verdict = self._guests.met(routing, introduction, broke_us)
        if verdict.reason:
            self._tell(introduction.gateway, verdict.reason)
        if not verdict.number:
            self._refuse(routing, verdict.told)
        elif verdict.connect:
            self._reach()

    def _refuse(self, routing: bytes, reason: str) -> None:
        """Say on the connection that it came by why it is not taken."""
        refusal = Refusal(self._me.protocol, self._me.group, self._me.gateway, reason)
        with contextlib.suppress(zmq.ZMQError):  # it is gone, or does not read
            self._socket.send(routing, zmq.SNDMORE | zmq.NOBLOCK)
            self._socket.send(encode_refusal(refusal), zmq.NOBLOCK)

    def _hear_of(self, link: Link, events: list[Received | LinkChanged]) -> None:
        """What a connection's monitor tells."""
        while True:
            try:
                event = int(parse_monitor_message(link.monitor.recv_multipart(zmq.NOBLOCK))["event"])
            except zmq.Again:
                return
            if event & NOT_SET_UP:
                reason = link.turned_away(event)
                if reason:
                    self._cut_off(link, reason)
            elif event == UP:
                link.up = True
                link.connects += 1
                link.broken_off = 0
                self._introduce(link)
                events.append(LinkChanged(link.number, up=True))
            elif link.up:
                link.up = False
                link.broke_us = self._clock_us()
                events.append(LinkChanged(link.number, up=False))

    def _read(self, link: Link) -> None:
        """What the other end says on a connection of this one's, which is why it takes nothing."""
        for _ in range(limits.REFUSALS_A_LOOK_MAX):
            try:
                data = link.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            if data[:1] != REFUSAL or link.socket.get(zmq.RCVMORE):
                self._malformed += 1
                continue
            self._refused(link, data)

    def _refused(self, link: Link, data: bytes) -> None:
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
        """Nothing waits for time."""
        return None

    def troubles(self) -> list[Trouble]:
        """What went wrong since this was asked last. It is asked now and then: a moment to look after keys and links, too."""
        if self._door is not None:
            self._door.refresh()
        self._renew()
        for link in self._links.values():
            self._read(link)  # a send may have swallowed the wake-up
        if self._door is not None and self._door.trouble:
            self._tell(self._me.gateway, self._door.trouble)
        return self._troubles.take()

    def relieve(self) -> None:
        """Memory is short: drop what came and was not taken, and every connection that came in."""
        self._socket.close(0)
        self._guests.clear()
        self.changes += 1
        give_up_us = self._clock_us() + limits.PORT_WAIT_US
        while True:  # the old socket lets go of its address in ZeroMQ's own time
            try:
                self._socket = bind(self._context, self._listen, self._door)
            except TuttiError:
                if self._clock_us() > give_up_us:
                    raise
                time.sleep(limits.PORT_LOOK_US / 1_000_000)
            else:
                return

    def facts(self) -> dict[str, object]:
        """For the status."""
        return {
            "kind": "mesh",
            "keys": self._door is not None,
            "malformed": self._malformed,
            "not_taken": self._untaken,
            "untold": self._troubles.untold,
            "door": self._door.facts() if self._door is not None else None,
            "peers": [link.facts() for link in self._links.values()],
        }

    def close(self) -> None:
        """Stop; what was sent has a moment to leave."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._names.close()
        self._socket.close()
        if self._door is not None:
            self._door.close()
        self._context.term()


def _too_large(size: int) -> Message:
    raise FormatError(f"{size} bytes are more than a message may have, or in too many parts")
