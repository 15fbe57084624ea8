"""The mesh's connections by plain sockets, for groups without keys: the node's own thread moves the bytes, no other has to wake up.

One epoll watches all: the poll of who owns it sees one descriptor, however many gateways there are. Strangers are bounded in all
that they can take: connections, memory of messages that are not complete, time until they say something.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Container, Iterator, Sequence

from tutti import limits as common_limits
from tutti.data.addresses import Address
from tutti.errors import TuttiError
from tutti.zmtp.connection import Terms
from tutti.zmtp.frame_reader import SCRATCH_BYTES
from tutti.zmtp.framing import Formed, form
from tutti.zmtp.listener import open_port
from tutti.zmtp.server import Callers
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Message
from tutti_gateway.transport.codec import encode
from tutti_gateway.transport.mesh.backend import PARTS_MAX, Arrival, Clock, Knows, News, no_port
from tutti_gateway.transport.mesh.peer_link import Link
from tutti_gateway.transport.mesh.socket_connection import SocketLine, notice_silence

_US_PER_MS = 1000
_BEAT_US = limits.MESH_BEAT_MS * _US_PER_MS * 9 // 10  # `keep` is called about so often, and not to be missed by a little
_TERMS = Terms(
    name="group port",
    connections=limits.MESH_CONNECTIONS_MAX,
    assembly_bytes=limits.MESH_ASSEMBLY_BYTES_MAX,
    parts=PARTS_MAX,
    forgives=False,
    waiting=limits.MESH_STRANGERS_MAX,
    held_back_bytes=limits.MESH_ANSWERS_BYTES_MAX,
    waiting_bytes=limits.MESH_ANSWERS_BYTES_MAX,
    spares=1,
    named=True,
    beat_us=limits.MESH_BEAT_MS * _US_PER_MS,
    beats=limits.MESH_BEATS_SILENT_MAX,
)
_ANSWERS_BYTES = 64 * common_limits.KIB  # that wait in the kernel for one stranger


class Sockets:
    """The mesh's connections by plain sockets. Owned by one thread."""

    def __init__(self, listen: Address, clock_us: Clock, knows: Knows) -> None:
        """Listen.

        Args:
            listen: where the others connect to.
            clock_us: a monotonic clock, us.
            knows: of whom large messages are kept.

        Raises:
            TuttiError: the address cannot be had.
        """
        self.clock_us = clock_us
        self.changes = 0
        self.lines: dict[int, SocketLine] = {}
        self._all: list[SocketLine] = []
        self._later: list[News] = []  # of what was due
        self._told: list[tuple[str, str]] = []
        self._beat_us = clock_us()
        self._ran = False  # from one beat to the next
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        with contextlib.ExitStack() as opened:
            listener = opened.enter_context(_listen(listen))
            try:
                self.epoll = opened.enter_context(select.epoll())
                self._callers = Callers(_TERMS, self.epoll, clock_us, knows=knows, tell=lambda reason: self.tell("", reason))
            except OSError as error:
                raise TuttiError(f"nothing can watch the group port: {error.strerror}; raise the limit of open files") from error
            opened.pop_all()
        self._fd = self.epoll.fileno()
        self._callers.door.listen(listener)

    def tell(self, peer: str, reason: str) -> None:
        """An operator must know it."""
        self._told.append((peer, reason))

    # Links

    def line(self, link: Link, identity: bytes) -> SocketLine:
        """A connection for a link, not led anywhere yet."""
        self._all = [line for line in self._all if not line.closed]
        line = SocketLine(self, link, identity)
        self._all.append(line)
        return line

    def key_of(self, gateway: str) -> str:
        """There are no keys."""
        return ""

    def barred(self, gateway: str) -> str:
        """A connection may be made to everybody."""
        return ""

    def form(self, message: Message) -> Formed:
        """The message as lines take it."""
        return form(encode(message))

    def next_us(self) -> int | None:
        """Microseconds until a connection is tried again, or given up."""
        due = [line.due_us for line in self._all if line.due_us]
        return max(0, min(due) - self.clock_us()) if due else None

    def tick(self) -> None:
        """Try connections again, and give up those that take too long."""
        now_us = None
        for line in self._all:
            if line.due_us:
                now_us = now_us or self.clock_us()
                if line.due_us <= now_us:
                    self._later += line.tick()

    # What came

    def sockets(self) -> Sequence[object]:
        """What becomes readable when there is something new."""
        return [self._fd]

    @property
    def unread(self) -> bool:
        """Whether there is something new that no socket tells of."""
        return bool(self._later) or self._callers.unread

    def news(self, ready: Container[object] | None) -> list[News]:
        """What is new of links; connections that come in are taken, and those that have something are remembered."""
        news, self._later = self._later, []
        if ready is not None and self._fd not in ready:
            return news
        for fd, mask in self.epoll.poll(0):
            line = self.lines.get(fd)
            if line is not None:
                news += line.happened(mask)
                continue
            self._callers.happened(fd, mask)
        return news

    def arrivals(self, messages_max: int, bytes_max: int, ready: Container[object] | None) -> Iterator[Arrival]:
        """What came in by those that have something, each of them in its turn."""
        for routing, parts, size in self._callers.arrivals(messages_max, bytes_max):
            yield Arrival(routing, parts, size, "")

    def stands(self, routing: bytes) -> bool:
        """Whether a connection that came in still stands."""
        return self._callers.stands(routing)

    def answer(self, routing: bytes, data: bytes) -> None:
        """Say something on a connection that came in."""
        self._callers.say(routing, data)

    # The rest

    def keep(self) -> list[News]:
        """Ask at both ends of connections whether the other one is there, and leave those by which nothing comes."""
        passed_us = self.clock_us() - self._beat_us
        if passed_us >= _BEAT_US:
            self._beat_us += passed_us
            self._ran = passed_us < 3 * _BEAT_US
            for line in self._all:
                self._later += line.beat(ran=self._ran)
        self._callers.keep(reads=self._ran)
        return []

    def told(self) -> list[tuple[str, str]]:
        """What an operator must know."""
        told, self._told = self._told, []
        return told

    def relieve(self) -> None:
        """Drop every connection that came in, and what came by them."""
        self._callers.clear()

    def facts(self) -> dict[str, object]:
        """For the status."""
        return {"keys": False, "door": None, "refused": self._callers.door.refused}

    def close(self) -> None:
        """Stop; what was sent has a moment to leave."""
        until_us = self.clock_us() + limits.LINGER_MS_MAX * _US_PER_MS
        for line in self._all:
            line.leave(until_us)
        self._callers.close(until_us)
        self.epoll.close()


def _listen(address: Address) -> socket.socket:
    """Open the group port.

    Raises:
        TuttiError: the address cannot be had, or no socket.
    """
    try:
        return open_port(address.host, address.port, limits.MESH_CONNECTIONS_MAX, _prepare)
    except OSError as error:
        raise no_port(address, error.errno, error.strerror) from error


def _prepare(listener: socket.socket) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ANSWERS_BYTES)
    notice_silence(listener)
