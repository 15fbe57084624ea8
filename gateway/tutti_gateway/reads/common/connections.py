"""The connections of the reads port: those that ask for nothing make room where descriptors run out.

The Flight library gives no way to end a connection, and takes as many as the system gives descriptors. So one is ended as by the
network, by the kernel's means; who wants something connects again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from urllib.parse import unquote

from tutti.runtime.reserved_fds import spared

LOG = logging.getLogger("tutti.reads")
_DESCRIPTORS = "/proc/self/fd"
_MAPPED = "::ffff:"  # begins an IPv4 address in IPv6's form

Peer = tuple[str, int]


class Call:
    """One call of a caller; it is over when nothing knows it any more."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer


class Connections:
    """Those of one port. Thread-safe.

    Attributes:
        port: its number, once it is known.
    """

    def __init__(self) -> None:
        """Nobody is connected."""
        self.port = 0
        self._lock = threading.Lock()
        self._calls: weakref.WeakSet[Call] = weakref.WeakSet()

    def call(self, peer: str) -> Call:
        """A call of `peer`, as the library names it, begins."""
        call = Call(peer_of(peer))
        with self._lock:
            self._calls.add(call)
        return call

    def end_idle(self) -> int:
        """End the connections that ask for nothing; who wants something connects again. How many there were."""
        with self._lock:
            busy = {call.peer for call in self._calls}
        return self._end(lambda peer: peer not in busy)

    def _end(self, which: Callable[[Peer], bool]) -> int:
        ended = 0
        for connection, peer in self._connected():
            if which(peer):
                with contextlib.suppress(OSError):  # it is gone
                    connection.shutdown(socket.SHUT_RDWR)
                    ended += 1
        return ended

    def _connected(self) -> Iterator[tuple[socket.socket, Peer]]:
        """The connections, each open for as long as it is looked at."""
        for name in spared(lambda: os.listdir(_DESCRIPTORS)):
            with contextlib.suppress(OSError):  # it is no socket, none that is connected, or was closed meanwhile
                if not os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
                    continue
                descriptor = spared(lambda number=int(name): os.dup(number))  # type: ignore[misc]  # bound at once
                with _socket_of(descriptor) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getsockname()[1] == self.port:
                        host, port = connection.getpeername()[:2]
                        yield connection, (_plain(host), port)


def _socket_of(descriptor: int) -> socket.socket:
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)  # by now the number was something else's
        raise


def peer_of(text: str) -> Peer:
    """The address in the library's name of a caller, as `ipv4:127.0.0.1:4000` or `ipv6:%5B::1%5D:4000`."""
    host, _, port = unquote(text.partition(":")[2]).rpartition(":")
    return _plain(host.removeprefix("[").removesuffix("]")), int(port) if port.isdecimal() else 0


def _plain(host: str) -> str:
    return host.partition("%")[0].removeprefix(_MAPPED)


class Crowd:
    """Notices, when it is asked, that connections use up the descriptors of this process."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._told = False

    def look(self) -> None:
        """Where none is left end the connections that ask for nothing."""
        try:
            os.close(os.dup(0))
        except OSError:
            ended = self._connections.end_idle()
            if ended or not self._told:
                LOG.error(
                    "no file descriptor is left: connections that ask for nothing are closed; raise the limit of open files",
                    extra={"fields": {"closed": ended}},
                )
            self._told = True
        else:
            if self._told:
                LOG.info("file descriptors are free again")
            self._told = False
