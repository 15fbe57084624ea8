"""A connection to one other gateway by a plain socket, made again and again until it is closed."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from tutti import limits as common_limits
from tutti.data.addresses import Address
from tutti.errors import FormatError
from tutti.zmtp.frame_reader import Ended, Stream
from tutti.zmtp.framing import HANDSHAKE_BYTES_MAX, PING, Formed, Handshake, Mismatch, OtherKey, Rejected, frame, pong
from tutti.zmtp.listener import NONE_LEFT
from tutti.zmtp.send_queue import Outgoing
from tutti_gateway.core import limits
from tutti_gateway.transport.mesh.peer_link import Away, Kind, Link, News

if TYPE_CHECKING:  # the crypto, for those alone who have keys
    from tutti.zmtp.curve import Calling
    from tutti.zmtp.curve_stream import Opening

_US_PER_MS = 1000
_WINDOW = 2 * limits.REFUSALS_A_CHECK_MAX  # bytes: a refusal has two at least, so that one look finds no more of them
_NOT_NOW = (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAGAIN, errno.ETIMEDOUT)
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT


class Watch(Protocol):
    """What a line needs of the sockets that it is one of.

    Attributes:
        unread: lines by which something came that no descriptor tells of any more.
    """

    epoll: select.epoll
    scratch: memoryview
    lines: dict[int, SocketLine]
    unread: set[SocketLine]
    clock_us: Callable[[], int]

    def handshake(self, link: Link, identity: bytes) -> Handshake | Calling:
        """A handshake with the gateway of a link."""

    def tell(self, peer: str, reason: str) -> None:
        """An operator must know it."""


def notice_silence(connection: socket.socket) -> None:
    """Send at once, and break connections whose other end's host is silent for three beats, by the kernel's means, with data on its
    way or without. Those that a socket accepts have it from that.
    """
    seconds = limits.MESH_BEAT_MS // 1000
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, seconds),
        (socket.TCP_KEEPINTVL, seconds),
        (socket.TCP_KEEPCNT, limits.MESH_BEATS_SILENT_MAX),
        (socket.TCP_USER_TIMEOUT, limits.MESH_BEATS_SILENT_MAX * limits.MESH_BEAT_MS),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class SocketLine:
    """A connection to one other gateway.

    Attributes:
        link: whose it is.
        due_us: when `tick` has something to do, on the wire's clock; 0: nothing.
        closed: it is made no more.
    """

    def __init__(self, watch: Watch, link: Link, identity: bytes) -> None:
        """`connect` comes next. `identity` is what it is known as at the other end."""
        self.link = link
        self._watch = watch
        self._identity = identity
        self._to: Address | None = None
        self._socket: socket.socket | None = None
        self._handshake: Handshake | Calling | None = None
        self._opening: Opening | None = None  # of one that is encrypted
        self._stream: Stream | None = None  # while the connection stands
        self._wait_ms = limits.MESH_RECONNECT_MS_MIN
        self._waiting: Outgoing | None = None  # while there is a socket
        self._full = False  # the kernel is to tell when there is room
        self._asked = 0  # beats, one after another, in which nothing came back
        self.due_us = 0
        self.closed = False

    def connect(self, to: Address) -> None:
        """Begin to connect.

        Raises:
            OSError: it cannot be an address.
        """
        self._to = to
        error = self._try()
        if error is not None:
            raise error

    # Connecting

    def _try(self) -> OSError | None:
        """Try to connect; what says that it is of no use."""
        to = self._to
        self.due_us = 0
        if to is None:
            return None
        family = socket.AF_INET6 if ":" in to.host else socket.AF_INET
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno not in NONE_LEFT:
                return error
            reason = f"no socket can be had for the connection to it: {error.strerror}; raise the limit of open files"
            self._watch.tell(self.link.name, reason)
            self._again()
            return None
        connection.setblocking(False)
        notice_silence(connection)
        try:  # with the scope that an address of one link has (fe80::1%eth0)
            place = socket.getaddrinfo(to.host, to.port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4]
            code = connection.connect_ex(place)
        except OSError as error:
            connection.close()
            return error
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            if code not in _NOT_NOW:
                return OSError(code, os.strerror(code))
            self._again()
            return None
        self._socket = connection
        self._waiting = Outgoing(connection)
        self._due(limits.MESH_CONNECT_MS_MAX)
        self._watch.lines[connection.fileno()] = self
        self._watch.epoll.register(connection.fileno(), _WRITE)
        return None

    def _again(self) -> None:
        """Try anew after a while, which is longer each time; not all lines at once."""
        self._due(int(self._wait_ms * random.uniform(0.75, 1.25)))
        self._wait_ms = min(2 * self._wait_ms, limits.MESH_RECONNECT_MS_MAX)

    def _due(self, after_ms: int) -> None:
        self.due_us = self._watch.clock_us() + after_ms * _US_PER_MS

    def tick(self) -> Iterator[News]:
        """It is due: the other end took too long, or it is time to try again."""
        if self._socket is None:
            if self._try() is not None:
                self._again()
        else:
            yield from self._fail(Away.BROKEN_OFF)

    def _fail(self, why: Away) -> Iterator[News]:
        """Something ended the connection, or the attempt to have one."""
        shaking, stood = self._handshake is not None, self._stream is not None
        self._let_go()
        self._again()
        if stood:
            yield News(self.link, Kind.DOWN)
        elif shaking:
            yield News(self.link, Kind.AWAY, why=why)

    def _let_go(self) -> None:
        connection, self._socket = self._socket, None
        self._handshake = self._stream = self._opening = None
        self._watch.unread.discard(self)
        if connection is not None:
            del self._watch.lines[connection.fileno()]
            connection.close()  # the kernel stops watching it with that
        if self._waiting is not None:
            self.link.lost += len(self._waiting)
            self._waiting = None
        self._full = False

    def happened(self, mask: int) -> Iterator[News]:
        """The kernel tells of the connection."""
        try:
            if self._stream is not None:
                if mask & _WRITE:
                    self._send()
                if mask & ~_WRITE:
                    yield from self._heard(self._stream)
            elif self._handshake is not None:
                yield from self._shake(self._handshake)
            else:
                self._greet()
        except BlockingIOError:
            return
        except Rejected:
            yield from self._fail(Away.KEPT_OUT)
        except OtherKey:
            yield from self._fail(Away.OTHER_KEY)
        except Mismatch:
            yield from self._fail(Away.MISMATCH)
        except (OSError, Ended, FormatError):
            yield from self._fail(Away.BROKEN_OFF)

    def _greet(self) -> None:
        connection = self._connection()
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, "")
        self._handshake = handshake = self._watch.handshake(self.link, self._identity)
        connection.sendall(handshake.said())  # the first bytes of a connection: there is room
        self._due(common_limits.HANDSHAKE_MS_MAX)
        self._watch.epoll.modify(connection.fileno(), _READ)

    def _shake(self, handshake: Handshake | Calling) -> Iterator[News]:
        connection = self._connection()
        data = connection.recv(HANDSHAKE_BYTES_MAX)
        if not data:
            raise Ended
        rest = handshake.take(data)
        if said := handshake.said():
            connection.sendall(said)  # as above
        if rest is None:
            return
        source: socket.socket | Opening = connection
        if handshake.box is not None:
            from tutti.zmtp.curve_stream import Opening, Sealing  # noqa: PLC0415 - as above

            source = self._opening = Opening(connection, handshake.box, rest, limits.REFUSAL_BYTES_MAX, lambda _: False)
            self._waiting = Sealing(connection, handshake.box)
            rest = b""
        self._handshake = None
        self._stream = stream = Stream(
            source, self._watch.scratch, limits.REFUSAL_BYTES_MAX, lambda _: False, rest, _WINDOW, command=self._command
        )
        self.due_us = self._asked = 0
        self._wait_ms = limits.MESH_RECONNECT_MS_MIN
        yield News(self.link, Kind.UP)
        if rest or (self._opening is not None and self._opening.unread):
            yield from self._heard(stream)

    def _connection(self) -> socket.socket:
        if self._socket is None:
            raise Ended
        return self._socket

    def _heard(self, stream: Stream) -> Iterator[News]:
        for parts, _ in stream.read():
            yield News(self.link, Kind.SAID, data=bytes(parts[0]))
        self._asked = 0
        if self._opening is not None and self._opening.unread:
            self._watch.unread.add(self)

    def resume(self) -> Iterator[News]:
        """Take more of what came, of which no descriptor tells any more."""
        yield from self.happened(_READ)

    def _command(self, command: bytes) -> None:
        self._mention(pong(command))

    def _mention(self, command: bytes) -> None:
        """Say that this end is there, unless what waits says so."""
        if command and not self._waiting and self._keep(Formed([command], len(command))):
            self._send()

    def beat(self, *, ran: bool) -> Iterator[News]:
        """One more beat is over: ask whether the other end is there, and leave a connection by which nothing came back for three,
        while the kernel found room for what was asked. Without `ran` this process did not run, which is nobody's silence.
        """
        if self._stream is None:
            return
        if not ran:
            self._asked = 0
        if self._waiting:
            return  # what would be asked waits behind it; where it waits for long the kernel breaks the connection
        if self._asked < limits.MESH_BEATS_SILENT_MAX:
            self._asked += 1
            self._mention(PING)
            return
        silent_s = limits.MESH_BEATS_SILENT_MAX * limits.MESH_BEAT_MS / 1000
        reason = f"nothing came back by the connection to it for {silent_s:g} s though that stands: it is made anew"
        self._watch.tell(self.link.name, f"{reason}; the gateway stands still, or something in between passes nothing on")
        yield from self._fail(Away.BROKEN_OFF)

    # Sending

    def put(self, messages: Sequence[Formed]) -> None:
        """Send messages, all with one system call where the kernel takes them; what it does not take waits, or is lost."""
        link = self.link
        for message in messages:
            if self._keep(message):
                link.sent += 1
                link.sent_bytes += message.size
            else:
                link.lost += 1
        if not self._full:
            self._send()

    def say(self, data: bytes) -> None:
        """Send what is no message of the group, behind what waits."""
        said = frame(data)
        if self._keep(Formed([said], len(said))) and not self._full:
            self._send()

    def _keep(self, message: Formed) -> bool:
        """Have a message wait for its turn; whether there is room, and somebody to send it to."""
        waiting = self._waiting
        if (
            waiting is None
            or self._stream is None
            or len(waiting) >= limits.MESH_HIGH_WATER_MARK
            or waiting.bytes + message.size > limits.MESH_QUEUE_BYTES_MAX
        ):
            return False
        waiting.put(message)
        return True

    def _send(self) -> None:
        """Send what waits, as far as the kernel takes it; the rest when it says that it has room."""
        waiting = self._waiting
        if waiting is None:
            return
        with contextlib.suppress(OSError):  # it broke, which is told in its own time
            waiting.send()
        if bool(waiting) != self._full:
            self._full = bool(waiting)
            self._watch.epoll.modify(self._connection().fileno(), _READ | _WRITE if waiting else _READ)

    def close(self) -> None:
        """Let go of it, and of what waits."""
        self.closed = True
        self.due_us = 0
        self._let_go()

    def leave(self, until_us: int) -> None:
        """Let go of it; what waits has until then to leave."""
        if self._waiting is not None and not self.closed:
            self._waiting.leave((until_us - self._watch.clock_us()) / 1e6)
        self.close()
