"""Closes idle connections of the reads port when the process runs out of file descriptors.

The Flight library cannot close a connection, and accepts connections until no file descriptor is left. This module therefore shuts
down the library's sockets with system calls, as if the network had failed. An active client reconnects.
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

from tutti.runtime.reserved_fds import with_reserved_descriptor

LOG = logging.getLogger("tutti.reads")
_DESCRIPTORS = "/proc/self/fd"
_MAPPED = "::ffff:"  # prefix of an IPv4-mapped IPv6 address

Peer = tuple[str, int]


class Call:
    """One Flight call in progress. The call counts as ended when this object is garbage collected."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer


class Connections:
    """The connections of one port. Thread-safe.

    Attributes:
        port: number of the reads port; set after the Flight server has bound it.
    """

    def __init__(self) -> None:
        """Begin without calls."""
        self.port = 0
        self._lock = threading.Lock()
        # The set is weak, because the Flight library does not report the end of a call and only drops the objects of the call.
        self._calls: weakref.WeakSet[Call] = weakref.WeakSet()

    def call(self, peer: str) -> Call:
        """Register a new call of a peer, whose address has the library's notation (`peer_of`)."""
        call = Call(peer_of(peer))
        with self._lock:
            self._calls.add(call)
        return call

    def end_idle(self) -> int:
        """Close the connections without a call in progress; return their number."""
        with self._lock:
            busy = {call.peer for call in self._calls}
        return self._end(lambda peer: peer not in busy)

    def _end(self, which: Callable[[Peer], bool]) -> int:
        ended = 0
        for connection, peer in self._connected():
            if which(peer):
                with contextlib.suppress(OSError):  # the connection is closed already
                    # `shutdown` ends the connection for every duplicate of its descriptor, whereas `close` ends one duplicate.
                    connection.shutdown(socket.SHUT_RDWR)
                    ended += 1
        return ended

    def _connected(self) -> Iterator[tuple[socket.socket, Peer]]:
        """Yield each connection of the port with the peer's address. The yielded socket is a duplicate, closed at the next step."""
        # The reserved descriptor is needed here, because this code runs when the process has no descriptor left.
        for name in with_reserved_descriptor(lambda: os.listdir(_DESCRIPTORS)):
            with contextlib.suppress(OSError):  # not a connected socket, or closed in the meantime by another thread
                if not os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
                    continue
                # A duplicate keeps the socket, because the library may close the number and reuse it at any time.
                descriptor = with_reserved_descriptor(lambda number=int(name): os.dup(number))  # type: ignore[misc]  # binds the name
                with _socket_of(descriptor) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getsockname()[1] == self.port:
                        # The listening socket has the same port but no peer, so `getpeername` fails and the socket is skipped.
                        host, port = connection.getpeername()[:2]
                        yield connection, (_plain(host), port)


def _socket_of(descriptor: int) -> socket.socket:
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)  # not a socket: another thread has opened a file with this number
        raise


def peer_of(text: str) -> Peer:
    """Parse a peer's address in the library's notation, such as `ipv4:127.0.0.1:4000` or `ipv6:%5B::1%5D:4000`."""
    host, _, port = unquote(text.partition(":")[2]).rpartition(":")
    return _plain(host.removeprefix("[").removesuffix("]")), int(port) if port.isdecimal() else 0


def _plain(host: str) -> str:
    return host.partition("%")[0].removeprefix(_MAPPED)


class DescriptorGuard:
    """Closes idle connections when the process has no file descriptor left."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._logged = False

    def check(self) -> None:
        """Close idle connections if no file descriptor is left; called about once a second."""
        try:
            # `dup` fails exactly if no descriptor is left, and costs only two system calls a second.
            os.close(os.dup(0))
        except OSError:
            ended = self._connections.end_idle()
            if ended or not self._logged:
                LOG.error(
                    "no file descriptor is left: idle connections are closed; raise the limit of open files",
                    extra={"fields": {"closed": ended}},
                )
            self._logged = True
        else:
            if self._logged:
                LOG.info("file descriptors are free again")
            self._logged = False
