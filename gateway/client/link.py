"""One connection to one gateway's client port, by a plain socket: the one end of a ZeroMQ DEALER, that never reconnects by itself.

A connection that broke is dropped whole, with everything queued in it, and a new one is made: what was sent and not answered is
known to its sender, which sends it again in order. The thread that owns it moves the bytes, so that no other has to wake up.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence

from gateway.client.forking import after_fork
from gateway.client.url import Address
from gateway.core import limits
from gateway.data.frame import Buffer
from gateway.errors import FormatError
from gateway.zmtp.form import GREETING, HANDSHAKE_BYTES_MAX, PING, Formed, Handshake, form, pong, ready
from gateway.zmtp.outgoing import Outgoing
from gateway.zmtp.stream import SCRATCH_BYTES, Ended, Stream

_MS = 1000
_HELLO = GREETING + ready(b"DEALER", b"")
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_BEAT_S = limits.LINK_BEAT_MS / _MS
_UNANSWERED_MAX = limits.LINK_SILENT_MS_MAX // limits.LINK_BEAT_MS


_links: weakref.WeakSet[Link] = weakref.WeakSet()


class News(enum.Enum):
    """What happened to a connection."""

    UP = "up"
    REFUSED = "refused"  # nobody listens, or the host is not there
    DOWN = "down"  # of a connection that was never up: who is there speaks no ZeroMQ


class Link:
    """A connection to `address`; made, used and closed by one thread."""

    def __init__(self, address: Address, wake: int | None = None) -> None:
        """Begin to connect; `news()` tells how it goes. `wait` also returns when the descriptor `wake` has something to read.

        Raises:
            OSError: no descriptor is left for it.
        """
        self.address = address
        self.up = False
        self.was_up = False
        self.readable = self.has_news = self.woken = True
        self._wake = wake
        self._news: deque[News] = deque()
        self._came: deque[bytes | FormatError] = deque()
        self._socket: socket.socket | None = None
        self._handshake: Handshake | None = None
        self._stream: Stream | None = None
        self._outgoing: Outgoing | None = None
        self._beat_s = 0.0  # when it is looked whether anything came
        self._unanswered = 0  # how often nothing did
        self._mask = 0
        self._poll = self._new_poll()
        _links.add(self)
        self._lookup = _Lookup(address) if _is_name(address.host) else None
        if self._lookup is not None:
            self._poll.register(self._lookup.fd, _READ)
        else:
            self._connect(address.host)

    def _new_poll(self) -> select.epoll:
        poll = select.epoll()
        if self._wake is not None:
            poll.register(self._wake, _READ)
        return poll

    def orphan(self) -> None:
        """In a forked child: the connection is the parent's, nothing is said or heard by it here; for this process it broke."""
        self._poll.close()  # else what is changed here is changed there
        self._poll = self._new_poll()
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = None
        self._came.clear()
        self._news.clear()
        self._end(News.DOWN)

    # Connecting

    def _connect(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:
            self._end(News.REFUSED)  # no descriptor is left: it is tried again
            return
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            to = socket.getaddrinfo(host, self.address.port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4]
            code = connection.connect_ex(to)
        except OSError:
            code = errno.EINVAL
        if code not in (0, errno.EINPROGRESS):
            self._end(News.REFUSED)
            return
        self._watch(_WRITE)

    def _watch(self, mask: int) -> None:
        if self._socket is not None and mask != self._mask:
            (self._poll.modify if self._mask else self._poll.register)(self._socket, mask)
            self._mask = mask

    def _end(self, news: News) -> None:
        connection, self._socket = self._socket, None
        self._handshake = self._stream = self._outgoing = None
        self._news.append(news)
        self.has_news = True
        if connection is not None:
            connection.close()  # the kernel stops watching it with that

    def _happened(self, mask: int) -> None:
        """The kernel tells of the connection."""
        connection = self._socket
        if connection is None:
            return
        try:
            if self._stream is not None:
                if mask & ~_WRITE:
                    self._read(self._stream)
                if mask & _WRITE:
                    self._send()
            elif self._handshake is not None:
                self._shake(connection, self._handshake)
            elif connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._end(News.REFUSED)
            else:
                self._handshake = Handshake(b"ROUTER")
                connection.sendall(_HELLO)  # the first bytes of a connection: there is room
                self._watch(_READ)
        except BlockingIOError:
            return
        except FormatError as error:
            if self._stream is not None:
                self._came.append(error)
            self._end(News.DOWN)
        except (OSError, Ended):
            self._end(News.DOWN)

    def _shake(self, connection: socket.socket, handshake: Handshake) -> None:
        data = connection.recv(HANDSHAKE_BYTES_MAX)
        if not data:
            raise Ended
        rest = handshake.take(data)
        if rest is None:
            return
        self._handshake = None
        self._outgoing = Outgoing(connection)
        scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._stream = Stream(connection, scratch, limits.ANSWER_BYTES_MAX, lambda _: True, rest, command=self._command)
        self._beat_s = time.monotonic() + _BEAT_S
        self._news.append(News.UP)
        if rest:
            self._read(self._stream)

    def _command(self, command: bytes) -> None:
        answer = pong(command)
        if answer and self._outgoing is not None:
            self._outgoing.put(Formed([answer], len(answer)))
            self._send()

    def news(self) -> News | None:
        """The next thing that happened to the connection, None when nothing did."""
        if not self._news:
            self._look(0.0)
            if not self._news:
                return None
        news = self._news.popleft()
        self.up = news is News.UP
        self.was_up = self.was_up or self.up
        return news

    # Messages

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Send one message; False when the connection takes no more now. Large parts are not copied: they must not change."""
        outgoing = self._outgoing
        if outgoing is None:
            return True  # it broke, as its news say: what was sent is lost
        if len(outgoing) >= limits.CLIENT_WINDOW_FRAMES:
            return False
        outgoing.put(form(parts))
        if len(outgoing) == 1:
            self._send()
        return True

    def _send(self) -> None:
        outgoing = self._outgoing
        if outgoing is None:
            return
        try:
            outgoing.send()
        except OSError:
            self._end(News.DOWN)
            return
        self._watch(_READ | _WRITE if outgoing else _READ)

    def _read(self, stream: Stream) -> None:
        self._unanswered = 0
        for parts, _ in stream.read():
            if len(parts) == 1:
                self._came.append(bytes(parts[0]))
            else:
                self._came.append(FormatError(f"{self.address} sent a message of several parts, which no gateway does"))

    def receive(self) -> bytes | None:
        """The next message of the gateway, None when there is none.

        Raises:
            FormatError: a message of several parts, which no gateway sends.
        """
        if not self._came:
            return None
        came = self._came.popleft()
        if isinstance(came, FormatError):
            raise came
        return came

    # Waiting

    def wait(self, timeout_s: float) -> None:
        """Wait for a message, news, something at the wake descriptor, room to send for what waits, or the end of the time.

        Afterwards `readable`, `has_news` and `woken` say what there is.
        """
        self.woken = self._look(self.patience_s(timeout_s))
        self.readable, self.has_news = bool(self._came), bool(self._news)

    def _look(self, timeout_s: float) -> bool:
        """What the kernel tells; whether the wake descriptor has something to read."""
        woken = False
        for fd, mask in self._poll.poll(timeout_s):
            if fd == self._wake:
                woken = True
            else:
                self._told(fd, mask)
        return woken

    def _told(self, fd: int, mask: int) -> None:
        if self._lookup is None or fd != self._lookup.fd:
            self._happened(mask)
            return
        host = self._lookup.host
        self._poll.unregister(fd)
        self._lookup.close()
        self._lookup = None
        if host:
            self._connect(host)
        else:
            self._end(News.REFUSED)

    def patience_s(self, timeout_s: float) -> float:
        """How long to wait at most: what is there already is not waited for, and a silent connection is asked whether it stands."""
        if self._came or self._news:
            return 0.0
        if self._stream is None:
            return max(0.0, timeout_s)
        now = time.monotonic()
        if now >= self._beat_s:
            self._beat(now)
        return 0.0 if self._news else max(0.0, min(timeout_s, self._beat_s - now))

    def _beat(self, now: float) -> None:
        """One more beat in which nothing came; what passes while this process does not run is none."""
        self._beat_s = now + _BEAT_S
        self._unanswered += 1
        if self._unanswered > _UNANSWERED_MAX:
            self._end(News.DOWN)
        elif self._unanswered > 1 and self._outgoing is not None and not self._outgoing:
            self._outgoing.put(Formed([PING], len(PING)))
            self._send()

    def fileno(self) -> int:
        """What becomes readable when `wait` would return."""
        return self._poll.fileno()

    def close(self, linger_s: float = 0.0) -> None:
        """Drop the connection. What is queued in it has `linger_s` to leave."""
        _links.discard(self)
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = None
        connection, self._socket = self._socket, None
        if connection is not None:
            if self._outgoing:
                self._outgoing.leave(linger_s)
            connection.close()
        self.up = False
        self._handshake = self._stream = self._outgoing = None
        self._poll.close()


def no_link(error: OSError) -> str:
    """What is said where no `Link` can be had."""
    return f"no connection can be made: {error.strerror}; raise the limit of open files of this process"


def _orphan_all() -> None:
    for link in list(_links):
        link.orphan()


after_fork(_orphan_all)


def wait_any(links: Sequence[Link], wake: int, timeout_s: float) -> bool:
    """As `Link.wait` for several links at once; whether `wake` has something to read."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    for link in links:
        poll.register(link, select.POLLIN)
    poll.poll(-(-min(link.patience_s(timeout_s) for link in links) * _MS // 1))
    for link in links:
        link.wait(0.0)
    return any(link.woken for link in links)


def _is_name(host: str) -> bool:
    """Whether the host has to be looked up."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except OSError:
            continue
        return False
    return True


class _Lookup:
    """A host's address, looked up beside the thread that moves messages. `fd` becomes readable when that is over; `host` is empty
    when it is not known.
    """

    def __init__(self, address: Address) -> None:
        self.host = ""
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._told = os.dup(self.fd)
        threading.Thread(target=self._run, args=(address,), name="tutti-lookup", daemon=True).start()

    def _run(self, address: Address) -> None:
        with contextlib.suppress(OSError):  # it is not known, as its emptiness says
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            self.host = str(min(found, key=lambda one: one[0] != socket.AF_INET)[4][0])  # one of IPv4 first, as gateways listen
        os.eventfd_write(self._told, 1)
        os.close(self._told)

    def close(self) -> None:
        """Nobody waits for it any more."""
        os.close(self.fd)
