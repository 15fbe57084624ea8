"""The mesh's connections by ZeroMQ, encrypted: one ROUTER that all others send to, and one DEALER to each of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container, Iterator, Sequence

import zmq

from tutti import limits as common_limits
from tutti.data.addresses import Address
from tutti.data.frames.frame import Buffer
from tutti.errors import TuttiError
from tutti.zmtp.framing import Formed
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Message
from tutti_gateway.transport.codec import encode
from tutti_gateway.transport.keys import Keyring
from tutti_gateway.transport.mesh.backend import PARTS_MAX, Arrival, Clock, News, NoSocket
from tutti_gateway.transport.mesh.peer_link import Link
from tutti_gateway.transport.mesh.zeromq_connection import ZeroMQLine
from tutti_gateway.transport.mesh.zeromq_listener import GroupPort
from tutti_gateway.transport.mesh.zeromq_reserved_fds import SpareFiles
from tutti_gateway.transport.mesh.zeromq_zap import USER, Door

#: Flags as numbers: ZeroMQ's names cost a microsecond where they are joined.
_LAST, _READABLE = int(zmq.NOBLOCK), int(zmq.POLLIN)


class ZeroMQ:
    """The mesh's connections by ZeroMQ. Owned by one thread; ZeroMQ's own moves the messages."""

    def __init__(self, listen: Address, clock_us: Clock, keyring: Keyring | None) -> None:
        """Bind.

        Args:
            listen: where the others connect to.
            clock_us: a monotonic clock, us.
            keyring: this gateway's keys; None: nothing is encrypted, and gateways are who they say they are.

        Raises:
            TuttiError: the address cannot be bound.
        """
        self._clock_us = clock_us
        self._lines: list[ZeroMQLine] = []
        self._told: list[tuple[str, str]] = []
        self.changes = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        with contextlib.ExitStack() as opened:
            opened.callback(self._context.term)
            self._door = Door(self._context, keyring, clock_us) if keyring is not None else None
            if self._door is not None:
                opened.callback(self._door.close)
            self._port = opened.enter_context(contextlib.closing(GroupPort(self._context, listen, self._door)))
            # The first message without a copy begins pyzmq's collector, which needs a module and sockets: now they can be had.
            zmq.Frame(bytes(1), copy=False, copy_threshold=0)
            self._spare = SpareFiles(self._port, lambda reason: self._told.append(("", reason)))
            opened.pop_all()

    # Links

    def line(self, link: Link, identity: bytes) -> ZeroMQLine:
        """A connection for a link, not led anywhere yet."""
        self._lines = [line for line in self._lines if not line.closed]
        self.changes += 1
        try:
            line = ZeroMQLine(self._context, link, identity)
        except zmq.ZMQError as error:
            raise NoSocket(error.strerror) from error
        if self._door is not None:
            self._door.lead(line.socket, link.name)
        self._lines.append(line)
        return line

    def key_of(self, gateway: str) -> str:
        """The listed key of a gateway."""
        return self._door.key_of(gateway) if self._door is not None else ""

    def barred(self, gateway: str) -> str:
        """Why no connection to that gateway may be made now."""
        if self._door is None or self.key_of(gateway):
            return ""
        return "its public key is not listed: write it into the file that `security.public_keys` names, on every host"

    def form(self, message: Message) -> Formed:
        """The message as lines take it: its parts."""
        parts = encode(message)
        return Formed(parts, sum(map(len, parts)))

    # What came

    def sockets(self) -> Sequence[object]:
        """What becomes readable when there is something new. Of links, on which there hardly ever is, only the descriptors:
        ZeroMQ's poll asks each of its sockets twice, which is two system calls each time.
        """
        door = [self._door.socket] if self._door is not None else []
        return [self._port.socket, *door, *(fd for line in self._lines if not line.closed for fd in line.fds)]

    @property
    def unread(self) -> bool:
        """Its sockets tell of everything, or `keep` finds it."""
        return False

    def news(self, ready: Container[object] | None) -> list[News]:
        """What is new of links, and who knocks at the door."""
        if self._door is not None and (ready is None or self._door.socket in ready):
            for knock in self._door.answer():
                self._told.append((knock.address, f"a connection to the group port was turned away: {knock.reason}"))
        news: list[News] = []
        for line in self._lines:
            if not line.closed and (ready is None or line.fds[0] in ready or line.fds[1] in ready):
                news += line.news()
        return news

    def arrivals(self, messages_max: int, bytes_max: int, ready: Container[object] | None) -> Iterator[Arrival]:
        """What came in. Where the socket is `ready` there is something, as far as is known."""
        socket = self._port.socket
        if ready is not None and socket not in ready:
            return
        found = ready is not None
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
            yield Arrival(routing, parts, length, str(first.get(USER)) if self._door is not None else "")

    def _rest(self) -> tuple[zmq.Frame, list[Buffer], int]:
        """The first part behind the routing id, and the buffers of all; none when they are too many or too large."""
        receive = self._port.socket.recv
        first = part = receive(copy=False)
        size = len(part)
        parts: list[Buffer] = [part.buffer]
        kept = True
        while part.more:
            part = receive(copy=False)
            size += len(part)
            if kept and (len(parts) == PARTS_MAX or size > 2 * common_limits.MESSAGE_BYTES_MAX):
                kept = False
                parts.clear()
            if kept:
                parts.append(part.buffer)
        return first, parts, size

    def stands(self, routing: bytes) -> bool:
        """Not known: ZeroMQ does not tell which connection ended."""
        return True

    def answer(self, routing: bytes, data: bytes) -> None:
        """Say something on a connection that came in."""
        with contextlib.suppress(zmq.ZMQError):  # it is gone, or does not read
            self._port.socket.send(routing, zmq.SNDMORE | zmq.NOBLOCK)
            self._port.socket.send(data, zmq.NOBLOCK)

    # The rest

    def next_us(self) -> int | None:
        """Nothing waits for time: ZeroMQ's thread looks after its own."""
        return None

    def tick(self) -> None:
        """Nothing is due."""

    def keep(self) -> list[News]:
        """Look after keys and descriptors, and what is heard of links whose wake-up a send swallowed."""
        if self._door is not None:
            self._door.refresh()
        self._spare.look()
        return [news for line in self._lines if not line.closed for news in line.heard()]

    def told(self) -> list[tuple[str, str]]:
        """Who was turned away, whether descriptors ran out; what is wrong with the file of keys, each time that this is asked."""
        told, self._told = self._told, []
        if self._door is not None and self._door.trouble:
            told.append(("", self._door.trouble))
        return told

    def relieve(self) -> None:
        """Drop every connection that came in, and what came by them."""
        self._port.close(0)
        self.changes += 1
        give_up_us = self._clock_us() + limits.PORT_WAIT_US
        while True:  # the old socket lets go of its address in ZeroMQ's own time
            try:
                self._port.open()
            except TuttiError:
                if self._clock_us() > give_up_us:
                    raise
                time.sleep(limits.PORT_LOOK_US / 1_000_000)
            else:
                return

    def facts(self) -> dict[str, object]:
        """For the status."""
        return {"keys": self._door is not None, "door": self._door.facts() if self._door is not None else None}

    def close(self) -> None:
        """Stop; what was sent has a moment to leave."""
        for line in self._lines:
            if not line.closed:
                line.close()
        self._port.close()
        self._spare.close()
        if self._door is not None:
            self._door.close()
        self._context.term()
