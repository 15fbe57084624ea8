"""Listening socket with a connection limit that idle clients cannot exhaust."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Any

from tutti.runtime.reserved_fds import descriptor_bound, lowest_free_descriptor

_SHARES = 2  # number of shares (`spare_descriptors`) that the connections of a listener leave free for other files
CROWDED = "crowded"  # reason for which a connection was closed at the connection limit


class ConnectionLimit:
    """The open connections of a port. At the limit, a new connection makes this class evict a waiting connection.

    A connection is *waiting* while it has no complete, unanswered request. Connections that have never sent a complete request are
    evicted first. Among these, the eviction selects the network with the most waiting connections, and its longest-waiting
    connection. So a client with many connections evicts its own connections, and a client that sends its request at once gets an
    answer.
    """

    def __init__(self, connections_max: int, rejected: Counter[str]) -> None:
        """Allow `connections_max` connections; `rejected` counts evictions."""
        self._connections_max = connections_max
        self.rejected = rejected
        self._open: dict[int, tuple[str, Callable[[], None]]] = {}
        # Waiting connections by network, longest-waiting first; one table for connections without an answer, one for the others.
        self._waiting: tuple[dict[str, dict[int, None]], ...] = ({}, {})
        self._leaving: set[int] = set()

    @property
    def full(self) -> bool:
        """True if the limit is reached."""
        return len(self._open) >= self._connections_max

    def accepted(self, number: int, address: Any, close: Callable[[], None]) -> None:
        """Register an accepted connection from `address`. The function `close` ends the connection."""
        self._open[number] = _network(address[0]), close
        self.waiting(number, answered=False)

    def opened(self, number: int, close: Callable[[], None]) -> None:
        """Register that a connection is ready for requests. From now on, the function `close` ends the connection."""
        if number in self._open:
            self._open[number] = self._open[number][0], close

    def waiting(self, number: int, *, answered: bool) -> None:
        """Register that a connection waits for a request. `answered` is True if the connection has had an answer before."""
        if number in self._open:
            self.working(number)
            self._waiting[answered].setdefault(self._open[number][0], {})[number] = None

    def working(self, number: int) -> None:
        """Register a complete request, which protects its connection from eviction until the answer."""
        if number in self._open:
            network = self._open[number][0]
            for networks in self._waiting:
                if number in networks.get(network, ()):
                    del networks[network][number]
                    if not networks[network]:
                        del networks[network]

    def closed(self, number: int) -> None:
        """Register the end of a connection."""
        self.working(number)
        self._open.pop(number, None)
        self._leaving.discard(number)

    def evict(self) -> bool:
        """Start to close a waiting connection. Return False if no connection is waiting."""
        if self._leaving:
            return True
        for networks in self._waiting:
            if networks:
                largest: dict[int, None] = max(networks.values(), key=len)
                number = next(iter(largest))
                self._leaving.add(number)
                self.rejected[CROWDED] += 1
                self._open[number][1]()
                return True
        return False


def _network(host: str) -> str:
    """Return the network that one client is assumed to own: an IPv4 address, or the first 64 bits of an IPv6 address."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or address.packed[:8].hex())


class _Connection(socket.socket):
    """A connection that counts towards the limit until it is closed."""

    limit: ConnectionLimit | None = None

    def close(self) -> None:
        """Close the connection and release its slot."""
        if self.limit is not None:
            self.limit.closed(self.fileno())
        super().close()

    def evict(self) -> None:
        """End a connection during its TLS handshake. The shutdown ends the stream, and asyncio then closes the socket."""
        with contextlib.suppress(OSError):  # the client has closed it already
            self.shutdown(socket.SHUT_RDWR)


class Listener(socket.socket):
    """A listening socket with a connection limit.

    The limit includes connections during their TLS handshake, because each of these already has buffers. At the limit, or if
    descriptors run short, the listener evicts a waiting connection. The new connection stays in the backlog until the event loop
    has closed the evicted one. If no connection is waiting, the listener sends `refusal` to the new connection and closes it.
    (asyncio's own listener stops accepting for a second when descriptors run out.)
    """

    def __init__(self, like: socket.socket, limit: ConnectionLimit, refusal: bytes) -> None:
        super().__init__(like.family, like.type, like.proto, os.dup(like.fileno()))
        self._limit, self._refusal = limit, refusal
        self._descriptors = descriptor_bound(_SHARES)
        self._acceptable = select.poll()
        self._acceptable.register(self.fileno(), select.POLLIN)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection as `socket.accept` does, but within the connection limit."""
        if (self._limit.full or lowest_free_descriptor() >= self._descriptors) and self._acceptable.poll(0):
            if not self._limit.evict():
                self._refuse(super().accept()[0])
            raise BlockingIOError  # makes asyncio call `accept` again in the next iteration of its loop
        connection, address = super().accept()
        accepted = _Connection(connection.family, connection.type, connection.proto, connection.detach())
        accepted.limit = self._limit
        self._limit.accepted(accepted.fileno(), address, accepted.evict)
        return accepted, address

    def _refuse(self, connection: socket.socket) -> None:
        self._limit.rejected[CROWDED] += 1
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.send(self._refusal)
