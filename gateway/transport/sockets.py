"""The mesh's connections by plain sockets, for groups without keys: the node's own thread moves the bytes, no other has to wake up.

One epoll watches all: the poll of who owns it sees one descriptor, however many gateways there are. Strangers are bounded in all
that they can take: connections, memory of messages that are not complete, time until they say something.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Container, Iterator, Sequence

from gateway.core import limits
from gateway.core.messages import Message
from gateway.data.addresses import Address
from gateway.errors import FormatError, TuttiError
from gateway.transport.codec import encode
from gateway.transport.link import Formed, Link
from gateway.transport.socket_line import SocketLine, notice_silence
from gateway.transport.stream import SCRATCH_BYTES, Ended, Stream, TooLarge
from gateway.transport.wire import Arrival, Clock, Knows, News
from gateway.transport.zmtp import GREETING, HANDSHAKE_BYTES_MAX, Handshake, form, frame, ready

_HELLO = GREETING + ready(b"ROUTER", b"")
_US_PER_MS = 1000
_ANSWERS_BYTES = 64 * limits.KIB  # that wait in the kernel for one stranger


class Caller:
    """A connection that came in. `routing` is empty until the handshake is over; `spoke`: there was a message."""

    def __init__(self, connection: socket.socket, since_us: int) -> None:
        self.socket = connection
        self.since_us = since_us
        self.handshake = Handshake(b"DEALER")
        self.stream: Stream | None = None
        self.routing = b""
        self.spoke = False


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
        self._knows = knows
        self.changes = 0
        self.lines: dict[int, SocketLine] = {}
        self._all: list[SocketLine] = []
        self._callers: dict[int, Caller] = {}
        self._routed: dict[bytes, Caller] = {}
        self._callers_made = 0
        self._readable: list[Caller] = []
        self._later: list[News] = []  # of what was due
        self._told: list[tuple[str, str]] = []
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._listener = _listen(listen)
        self._accepts = True
        self.epoll = select.epoll()
        self._fd = self.epoll.fileno()
        self.epoll.register(self._listener, select.EPOLLIN)

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

    def news(self, ready: Container[object] | None) -> list[News]:
        """What is new of links; connections that come in are taken, and those that have something are remembered."""
        news, self._later = self._later, []
        self._readable = []
        if ready is not None and self._fd not in ready:
            return news
        for fd, mask in self.epoll.poll(0):
            line = self.lines.get(fd)
            if line is not None:
                news += line.happened(mask)
                continue
            caller = self._callers.get(fd)
            if caller is None:
                self._accept()
            elif caller.stream is not None:
                self._readable.append(caller)
            else:
                self._greet(caller)
        return news

    def arrivals(self, messages_max: int, bytes_max: int, ready: Container[object] | None) -> Iterator[Arrival]:
        """What came in by those that have something, each of them in its turn."""
        messages = size = 0
        for caller in self._readable:
            for _ in range(limits.MESH_READS_A_TURN_MAX):
                stream = caller.stream
                if stream is None or messages >= messages_max or size >= bytes_max:
                    break  # the kernel tells again of what is left
                try:
                    for parts, length in stream.read():
                        messages += 1
                        caller.spoke = True
                        yield Arrival(caller.routing, parts, length, "")
                except BlockingIOError:
                    break
                except TooLarge as error:
                    yield Arrival(caller.routing, [], error.size, "")
                    self._drop(caller)
                    break
                except (OSError, Ended, FormatError):
                    self._drop(caller)
                    break
                size += stream.came
                if not stream.full:
                    break
        self._readable = []

    def answer(self, routing: bytes, data: bytes) -> None:
        """Say something on a connection that came in."""
        caller = self._routed.get(routing)
        if caller is None:
            return
        said = frame(data)
        try:
            whole = caller.socket.send(said) == len(said)
        except BlockingIOError:
            return  # it does not read
        except OSError:
            whole = False
        if not whole:
            self._drop(caller)

    # Connections that come in

    def _accept(self) -> None:
        for _ in range(limits.MESH_ACCEPTS_A_TURN_MAX):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self.tell("", f"no connection is taken on the group port: {error.strerror}; raise the limit of open files")
                    self._accepts = False
                    self.epoll.unregister(self._listener)
                    return
                continue  # it is gone already
            if len(self._callers) >= limits.MESH_CONNECTIONS_MAX:
                self._drop(
                    min(self._callers.values(), key=lambda one: (one.spoke and self._knows(one.routing), one.spoke, one.since_us))
                )
            self._take(connection)

    def _worth(self, caller: Caller) -> tuple[bool, bool, int]:
        """Who has least makes room: who said nothing, then whom nobody knows, each time the one that is there for longest."""
        return caller.spoke and self._knows(caller.routing), caller.spoke, caller.since_us

    def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        fd = connection.fileno()
        try:
            connection.send(_HELLO)  # the first bytes of a connection: there is room
        except OSError:
            connection.close()
            return
        self._callers[fd] = Caller(connection, self.clock_us())
        self.epoll.register(fd, select.EPOLLIN)

    def _greet(self, caller: Caller) -> None:
        """Something came of a connection whose handshake is not over."""
        try:
            data = caller.socket.recv(HANDSHAKE_BYTES_MAX)
            if not data:
                raise Ended
            rest = caller.handshake.take(data)
        except BlockingIOError:
            return
        except (OSError, Ended, FormatError):
            self._drop(caller)
            return
        if rest is None:
            return
        self._callers_made += 1
        identity = caller.handshake.identity
        if not identity or identity[0] == 0:  # nobody may choose what is given here
            identity = b"\0" + self._callers_made.to_bytes(8, "big")
        earlier = self._routed.get(identity)
        if earlier is not None:  # who connects again is the same, though its old connection was not given up yet
            self._drop(earlier)
        caller.routing = identity
        self._routed[identity] = caller
        caller.stream = Stream(caller.socket, self.scratch, limits.MESSAGE_BYTES_MAX, lambda size: self._keeps(caller, size), rest)
        if rest:
            self._readable.append(caller)

    def _keeps(self, caller: Caller, size: int) -> bool:
        """Whether a message of so many bytes is kept until it is complete; who takes most makes room for it, if need be.

        Raises:
            FormatError: the caller is the one.
        """
        if not self._knows(caller.routing):
            return False
        streams = {one: one.stream.held for one in self._callers.values() if one.stream is not None and one is not caller}
        streams[caller] = size
        while sum(streams.values()) > limits.MESH_ASSEMBLY_BYTES_MAX:
            most = max(streams, key=lambda one: streams[one])
            self.tell("", f"messages on the group port that are not complete take more than {limits.MESH_ASSEMBLY_BYTES_MAX} bytes")
            if most is caller:
                raise FormatError(f"no room for a message of {size} bytes")
            del streams[most]
            self._drop(most)
        return True

    def _drop(self, caller: Caller) -> None:
        if self._callers.pop(caller.socket.fileno(), None) is None:
            return
        if self._routed.get(caller.routing) is caller:
            del self._routed[caller.routing]
        caller.stream = None
        caller.socket.close()  # the kernel stops watching it with that

    # The rest

    def keep(self) -> list[News]:
        """Close connections that said nothing for long, and take others again when there may be descriptors for them."""
        if not self._accepts:
            self._accepts = True
            self.epoll.register(self._listener, select.EPOLLIN)
        since_us = self.clock_us() - limits.HANDSHAKE_MS_MAX * _US_PER_MS
        for caller in [caller for caller in self._callers.values() if not caller.spoke and caller.since_us < since_us]:
            self._drop(caller)
        return []

    def told(self) -> list[tuple[str, str]]:
        """What an operator must know."""
        told, self._told = self._told, []
        return told

    def relieve(self) -> None:
        """Drop every connection that came in, and what came by them."""
        for caller in list(self._callers.values()):
            self._drop(caller)

    def facts(self) -> dict[str, object]:
        """For the status."""
        return {"keys": False, "door": None}

    def close(self) -> None:
        """Stop; what was sent has a moment to leave."""
        until_us = self.clock_us() + limits.LINGER_MS_MAX * _US_PER_MS
        for line in self._all:
            line.leave(until_us)
        self.relieve()
        self._listener.close()
        self.epoll.close()


def _listen(address: Address) -> socket.socket:
    """Open the group port.

    Raises:
        TuttiError: the address cannot be had, or no socket.
    """
    six = ":" in address.host
    try:
        listener = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise TuttiError(f"no socket can be had for the group port: {error.strerror}; raise the limit of open files") from error
    try:
        if six:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # `::` is every address, those of IPv4 too
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ANSWERS_BYTES)
        notice_silence(listener)
        listener.setblocking(False)
        listener.bind((address.host, address.port))
        listener.listen(limits.MESH_CONNECTIONS_MAX)
    except OSError as error:
        listener.close()
        raise TuttiError(
            f"the group port {address} cannot be opened: {error.strerror}; end who holds it, or set `listen` or "
            "`ports.group` to an address of this host that is free"
        ) from error
    return listener
