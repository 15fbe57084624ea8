"""A port that is listened at, and which of the process's descriptors those who call there may have.

A new descriptor has the lowest number that is free. So connections that have none above a bound leave all above it to the rest of
the process, its files and its connections to other gateways, whoever has what below: nothing has to be held back for that.
"""

from __future__ import annotations

import errno
import resource
import select
import socket
import sys
from collections.abc import Callable, Iterator

from tutti import limits

NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RAISE = "raise the limit of open files"


def open_port(host: str, port: int, backlog: int, prepare: Callable[[socket.socket], None] = lambda _: None) -> socket.socket:
    """A socket that listens there; it is prepared before it does.

    Raises:
        OSError: the address cannot be had, or no socket.
    """
    six = ":" in host
    family = socket.AF_INET6 if six else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        place = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4]
        if six:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # `::` is every address, those of IPv4 too
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # those that are accepted have it from that
        prepare(listener)
        listener.setblocking(False)
        listener.bind(place)  # with the scope that an address of one link has (fe80::1%eth0)
        listener.listen(backlog)
    except UnicodeError as error:
        listener.close()
        raise OSError(errno.EINVAL, "no host can have that name") from error
    except BaseException:
        listener.close()
        raise
    return listener


def descriptors_for(shares: int) -> int:
    """The bound of a port's connections: their descriptors lie below. `shares`: of spare ones that it leaves to others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - shares * spare_descriptors()


def spare_descriptors() -> int:
    """One share of spare ones."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits.SPARE_FILES if soft == resource.RLIM_INFINITY else min(limits.SPARE_FILES, soft // limits.SPARE_FILES_PART)


def lowered(connection: socket.socket) -> socket.socket:
    """The same connection by the lowest descriptor that is free, if there is one."""
    try:
        lower = connection.dup()
    except OSError:
        return connection
    connection.close()
    return lower


def lowest_free() -> int:
    """The number that the next descriptor will have; that of the limit if there is none."""
    try:
        with socket.socket() as probe:
            return probe.fileno()
    except OSError:
        return sys.maxsize


class Door:
    """Takes who calls at a port, as long as there are places and descriptors. Owned by one thread.

    Attributes:
        refused: counts connections for which there was none.
    """

    def __init__(self, name: str, places: int, shares: int, epoll: select.epoll, tell: Callable[[str], None]) -> None:
        """Nobody can call yet: `listen` comes next.

        Args:
            name: of the port, for people.
            places: connections at once.
            shares: of spare descriptors that they leave to others.
            epoll: watches the port.
            tell: an operator must know it.
        """
        self._name, self._places, self._shares = name, places, shares
        self._epoll = epoll
        self._tell = tell
        self._listener: socket.socket | None = None
        self._accepts = False
        self._descriptors = descriptors_for(shares)  # below it those of connections lie
        self._crowded = False  # and none of them was left
        self.refused = 0
        self._untold = 0  # of them, for want of a place
        self._told_us: int | None = None
        self._kept_us = 0
        self._dry_us: int | None = None  # when it was told last that there is none

    def listen(self, listener: socket.socket) -> None:
        """Take who calls there from now on; the socket is this one's."""
        self._listener = listener
        self._accept_again()

    def _accept_again(self) -> None:
        if self._listener is not None and not self._accepts:
            self._accepts = True
            self._epoll.register(self._listener, select.EPOLLIN)

    def refuse(self) -> None:
        """Take nobody more, and let go of the port."""
        if self._listener is not None:
            self._listener.close()
        self._listener = None
        self._accepts = False

    def is_at(self, fd: int) -> bool:
        """Whether that descriptor is the port's."""
        return self._listener is not None and fd == self._listener.fileno()

    def accepted(self, taken: Callable[[], int], make_room: Callable[[], bool]) -> Iterator[socket.socket]:
        """Who called, as many as a turn may have. `taken`: places that are; `make_room` frees one, or says that it cannot."""
        listener = self._listener
        if listener is None:
            return
        for _ in range(limits.MESH_ACCEPTS_A_TURN_MAX):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NONE_LEFT:
                    if self._dry_us is None or self._kept_us - self._dry_us >= limits.WARNING_REPEAT_US:
                        self._tell(f"no connection is taken on the {self._name}: {error.strerror}; {RAISE}")
                        self._dry_us = self._kept_us
                    self._accepts = False
                    self._epoll.unregister(listener)
                    return
                continue  # it is gone already
            crowded = connection.fileno() >= self._descriptors
            if crowded and not self._crowded:
                self._crowded = True
                self._tell(
                    f"no file descriptor is left for the {self._name}: a new connection replaces a silent one, or is "
                    f"refused; {RAISE}"
                )
            if (crowded or taken() >= self._places) and not make_room():
                connection.close()
                self.refused += 1
                self._untold += not crowded
                continue
            yield lowered(connection) if crowded else connection

    def keep(self, now_us: int) -> None:
        """Called about once a second: take others again when there may be descriptors, and tell of those that were refused."""
        self._kept_us = now_us
        self._accept_again()
        self._descriptors = descriptors_for(self._shares)
        if self._crowded and lowest_free() < self._descriptors:
            self._crowded = False
            self._tell(f"descriptors are free again: connections on the {self._name} are taken")
        if self._untold and (self._told_us is None or now_us - self._told_us >= limits.WARNING_REPEAT_US):
            self._tell(
                f"{self._untold} connections were refused on the {self._name}: all {self._places} places are taken; end some of "
                "those that are connected, or have them connect to another gateway"
            )
            self._untold, self._told_us = 0, now_us
