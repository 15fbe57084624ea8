"""The mesh's connections, to the others and from them, encrypted where there are keys: the node's own thread moves the bytes, no
other has to wake up.

One epoll watches all: the poll of who owns it sees one descriptor, however many gateways there are. Strangers are bounded in all
that they can take: connections, memory of messages that are not complete, time until they say something.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tutti import limits as common_limits
from tutti.data.addresses import Address
from tutti.data.frames.frame import Buffer
from tutti.errors import TuttiError
from tutti.zmtp.connection import Terms
from tutti.zmtp.frame_reader import SCRATCH_BYTES
from tutti.zmtp.framing import Handshake
from tutti.zmtp.listener import NONE_LEFT, RAISE, open_port
from tutti.zmtp.server import Callers
from tutti_gateway.core import limits
from tutti_gateway.transport.mesh.peer_link import Link, News
from tutti_gateway.transport.mesh.socket_connection import SocketLine, notice_silence

if TYPE_CHECKING:  # the crypto, for those alone who have keys
    from tutti.zmtp.curve import Calling
    from tutti_gateway.transport.keys import Keyring
    from tutti_gateway.transport.mesh.authentication import Door

_US_PER_MS = 1000
_BEAT_US = limits.MESH_BEAT_MS * _US_PER_MS * 9 // 10  # `keep` is called about so often, and not to be missed by a little
_TERMS = Terms(
    name="group port",
    connections=limits.MESH_CONNECTIONS_MAX,
    assembly_bytes=limits.MESH_ASSEMBLY_BYTES_MAX,
    parts=1 + common_limits.MESSAGE_BYTES_MAX // limits.JOINED_BODY_BYTES_MAX,
    forgives=False,
    waiting=limits.MESH_INTRODUCED_MAX,
    held_back_bytes=limits.MESH_ANSWERS_BYTES_MAX,
    waiting_bytes=limits.MESH_ANSWERS_BYTES_MAX,
    spares=1,
    named=True,
    beat_us=limits.MESH_BEAT_MS * _US_PER_MS,
    beats=limits.MESH_BEATS_SILENT_MAX,
)
_ANSWERS_BYTES = 64 * common_limits.KIB  # that wait in the kernel for one stranger


class Arrival(NamedTuple):
    """One message that came in: by which connection, its parts, and its bytes.

    Of one that is too large, or in too many parts, there are no parts; of a large one of who is not let in, its first byte alone.
    """

    routing: bytes
    parts: list[Buffer]
    size: int


class Sockets:
    """The mesh's connections. Owned by one thread; nothing waits.

    Attributes:
        fd: readable when there is something new.
        unread: lines by which something came that no descriptor tells of any more.
    """

    def __init__(
        self, listen: Address, clock_us: Callable[[], int], knows: Callable[[bytes], bool], keyring: Keyring | None = None
    ) -> None:
        """Listen.

        Args:
            listen: where the others connect to.
            clock_us: a monotonic clock, us.
            knows: whether large messages are kept of the end of an incoming connection.
            keyring: this gateway's keys; None: nothing is encrypted, and gateways are who they say they are.

        Raises:
            TuttiError: the address cannot be had.
        """
        self.clock_us = clock_us
        self.lines: dict[int, SocketLine] = {}
        self.unread: set[SocketLine] = set()
        self._all: list[SocketLine] = []
        self._later: list[News] = []  # of what was due
        self._told: list[tuple[str, str]] = []
        self._beat_us = clock_us()
        self._ran = False  # from one beat to the next
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._door = self._guarded(keyring)
        with contextlib.ExitStack() as opened:
            listener = opened.enter_context(_listen(listen))
            try:
                self.epoll = opened.enter_context(select.epoll())
                self._callers = Callers(
                    _TERMS,
                    self.epoll,
                    clock_us,
                    knows=knows,
                    tell=lambda reason: self.tell("", reason),
                    keys=None if self._door is None else self._door.own,
                    admits=None if self._door is None else self._door.admits,
                )
            except OSError as error:
                raise TuttiError(f"nothing can watch the group port: {error.strerror}; raise the limit of open files") from error
            opened.pop_all()
        self.fd = self.epoll.fileno()
        self._callers.door.listen(listener)

    def _guarded(self, keyring: Keyring | None) -> Door | None:
        if keyring is None:
            return None
        from tutti_gateway.transport.mesh.authentication import Door  # noqa: PLC0415 - as above

        return Door(keyring, self.clock_us, self.tell)

    def tell(self, peer: str, reason: str) -> None:
        """An operator must know it."""
        self._told.append((peer, reason))

    # Links

    def line(self, link: Link, identity: bytes) -> SocketLine:
        """A connection for a link, not led anywhere yet. One that comes in with the identity of another one takes its place."""
        self._all = [line for line in self._all if not line.closed]
        line = SocketLine(self, link, identity)
        self._all.append(line)
        return line

    def handshake(self, link: Link, identity: bytes) -> Handshake | Calling:
        """A handshake with the gateway of a link."""
        if self._door is None:
            return Handshake(b"DEALER", b"ROUTER", identity)
        return self._door.calling(link, identity)

    def key_of(self, gateway: str) -> str:
        """The listed key of a gateway; empty where there is none. A link has to be made anew when it changes."""
        return "" if self._door is None else self._door.key_of(gateway)

    def barred(self, link: Link) -> str:
        """Why no connection may be made for that link; empty if one may."""
        if self._door is None or link.key:
            return ""
        return "its public key is not listed: write it into the file that `security.public_keys` names, on every host"

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

    @property
    def pending(self) -> bool:
        """Whether there is something new that `fd` does not tell of."""
        return bool(self._later or self.unread) or self._callers.unread

    def news(self, ready: Container[int] | None) -> list[News]:
        """What is new of links, looked for where `fd` is `ready`, or without it; connections that come in are taken, and those that
        have something are remembered.
        """
        news, self._later = self._later, []
        if ready is not None and self.fd not in ready:
            return news
        unread, self.unread = self.unread, set()
        for one in unread:
            news += one.resume()
        for fd, mask in self.epoll.poll(0, limits.MESH_EVENTS_A_TURN_MAX):
            line = self.lines.get(fd)
            if line is not None:
                news += line.happened(mask)
                continue
            self._callers.happened(fd, mask)
        return news

    def arrivals(self, messages_max: int, bytes_max: int) -> Iterator[Arrival]:
        """What came in by those that have something, each of them in its turn; about so much at most, after `news`. Its taker may
        answer each one, or let its sender in, before it asks for the next one.
        """
        return map(Arrival._make, self._callers.arrivals(messages_max, bytes_max))

    def holder(self, routing: bytes) -> str | None:
        """The gateway whose key the other end of an incoming connection has, empty if that is not listed any more; None without
        keys.
        """
        key = self._callers.peer(routing)
        return None if self._door is None else self._door.name_of(key or b"")

    def stands(self, routing: bytes) -> bool:
        """Whether a connection that came in still stands. Of one that ended more may be unread."""
        return self._callers.stands(routing)

    def answer(self, routing: bytes, data: bytes) -> None:
        """Say something on a connection that came in; it is lost where that is gone, or does not read."""
        self._callers.say(routing, data)

    # The rest

    def keep(self) -> None:
        """Called about once a second: look after the keys, ask at both ends of connections whether the other one is there, and
        leave those by which nothing comes.
        """
        if self._door is not None:
            self._door.refresh()
        passed_us = self.clock_us() - self._beat_us
        if passed_us >= _BEAT_US:
            self._beat_us += passed_us
            self._ran = passed_us < 3 * _BEAT_US
            for line in self._all:
                self._later += line.beat(ran=self._ran)
        self._callers.keep(reads=self._ran)

    def told(self) -> list[tuple[str, str]]:
        """What an operator must know since this was asked last: which gateway or host it is about, and what; what is wrong with the
        file of keys, each time.
        """
        told, self._told = self._told, []
        if self._door is not None and self._door.trouble:
            told.append(("", self._door.trouble))
        return told

    def relieve(self) -> None:
        """Drop every connection that came in, and what came by them."""
        self._callers.clear()

    def facts(self) -> dict[str, object]:
        """For the status."""
        door = None if self._door is None else self._door.facts()
        return {"keys": door is not None, "door": door, "refused": self._callers.door.refused}

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
        if error.errno in NONE_LEFT:
            raise TuttiError(f"no socket can be had for the group port: {error.strerror}; {RAISE}") from error
        raise TuttiError(
            f"the group port {address} cannot be opened: {error.strerror}; end who holds it, or set `listen` or `ports.group` to "
            "an address of this host that is free"
        ) from error


def _prepare(listener: socket.socket) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ANSWERS_BYTES)
    notice_silence(listener)
