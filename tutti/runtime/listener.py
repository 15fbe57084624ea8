"""A listening socket with a limit of connections, which idle strangers cannot use up."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Any

from tutti.zmtp.listener import descriptors_for, lowest_free

_SHARES = 2  # of spare descriptors, that connections leave to the rest of the process
CROWDED = "crowded"  # why a connection was closed: there were as many as there may be


class ConnectionLimit:
    """The open connections of a port, by descriptor, and the choice of the one that is evicted for a new one.

    A connection waits while it has no whole request that is not answered. Those that never sent a whole request are evicted first,
    then those that did. Of these it is the one that waits for longest, from the network that has the most of them. So a stranger
    who holds many connections evicts his own, and a client that sends its request at once gets its answer.
    """

    def __init__(self, most: int, turned_away: Counter[str]) -> None:
        """None is open; `turned_away` counts those that are evicted."""
        self._most = most
        self.turned_away = turned_away
        self._open: dict[int, tuple[str, Callable[[], None]]] = {}
        # Without and with an answer before, by network; the one that waits for longest stands first.
        self._waiting: tuple[dict[str, dict[int, None]], ...] = ({}, {})
        self._leaving: set[int] = set()

    @property
    def full(self) -> bool:
        """True if one more would be too many."""
        return len(self._open) >= self._most

    def accepted(self, number: int, address: Any, close: Callable[[], None]) -> None:
        """A connection from `address` was accepted; `close` ends it."""
        self._open[number] = _network(address[0]), close
        self.waiting(number, answered=False)

    def opened(self, number: int, close: Callable[[], None]) -> None:
        """It is ready for requests; by now `close` ends it."""
        if number in self._open:
            self._open[number] = self._open[number][0], close

    def waiting(self, number: int, *, answered: bool) -> None:
        """It waits for a request; `answered`: after one that was."""
        if number in self._open:
            self.working(number)
            self._waiting[answered].setdefault(self._open[number][0], {})[number] = None

    def working(self, number: int) -> None:
        """A whole request is there: the connection keeps its place until the answer."""
        if number in self._open:
            network = self._open[number][0]
            for networks in self._waiting:
                if number in networks.get(network, ()):
                    del networks[network][number]
                    if not networks[network]:
                        del networks[network]

    def closed(self, number: int) -> None:
        """It is over."""
        self.working(number)
        self._open.pop(number, None)
        self._leaving.discard(number)

    def evict(self) -> bool:
        """Close one that waits, which the event loop does in its next turn; False if none waits."""
        if self._leaving:
            return True
        for networks in self._waiting:
            if networks:
                largest: dict[int, None] = max(networks.values(), key=len)
                number = next(iter(largest))
                self._leaving.add(number)
                self.turned_away[CROWDED] += 1
                self._open[number][1]()
                return True
        return False


def _network(host: str) -> str:
    """Return what one stranger has: an address of IPv4, or the first 64 bits of one of IPv6."""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or address.packed[:8].hex())


class _Connection(socket.socket):
    """A connection that counts until it is closed."""

    limit: ConnectionLimit | None = None

    def close(self) -> None:
        """It is over."""
        if self.limit is not None:
            self.limit.closed(self.fileno())
        super().close()

    def evict(self) -> None:
        """End it while its TLS handshake is not over: asyncio, which waits for that, sees the end and closes it."""
        with contextlib.suppress(OSError):  # the other side has ended it
            self.shutdown(socket.SHUT_RDWR)


class Listener(socket.socket):
    """A socket that listens and hands out so many connections at once, those too whose TLS handshake is not over: asyncio tells
    nobody of these, and each has its buffers.

    At the limit, and where descriptors run short, one that waits is evicted, and the new connection stays in the backlog until the
    event loop has closed that one. Where none waits the new connection is closed, after `refusal`. asyncio itself would take no
    connection for a second each time that no descriptor is left.
    """

    def __init__(self, like: socket.socket, limit: ConnectionLimit, refusal: bytes) -> None:
        super().__init__(like.family, like.type, like.proto, os.dup(like.fileno()))
        self._limit, self._refusal = limit, refusal
        self._descriptors = descriptors_for(_SHARES)
        self._coming = select.poll()
        self._coming.register(self.fileno(), select.POLLIN)

    def accept(self) -> tuple[socket.socket, Any]:
        """As that of any socket."""
        if (self._limit.full or lowest_free() >= self._descriptors) and self._coming.poll(0):
            if not self._limit.evict():
                self._refuse(super().accept()[0])
            raise BlockingIOError  # asyncio comes again in the next turn of its loop
        found, address = super().accept()
        taken = _Connection(found.family, found.type, found.proto, found.detach())
        taken.limit = self._limit
        self._limit.accepted(taken.fileno(), address, taken.evict)
        return taken, address

    def _refuse(self, found: socket.socket) -> None:
        self._limit.turned_away[CROWDED] += 1
        with found, contextlib.suppress(OSError):
            found.setblocking(False)
            found.send(self._refusal)
