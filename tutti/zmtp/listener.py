"""Listening sockets: opens a port and accepts its connections within limits."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable, Iterator

from tutti import limits
from tutti.runtime.reserved_fds import TOO_MANY, descriptor_bound, lowest_free_descriptor, move_to_lowest_descriptor

OUT_OF_RESOURCES = (*TOO_MANY, errno.ENOBUFS, errno.ENOMEM)
RAISE_LIMIT = "raise the limit of open files"


def open_port(host: str, port: int, backlog: int, prepare: Callable[[socket.socket], None] = lambda _: None) -> socket.socket:
    """Open a listening socket; `prepare` sets further options before it listens.

    Raises:
        OSError: the address is not available, or no descriptor is free.
    """
    is_ipv6 = ":" in host
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        sockaddr = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4]
        if is_ipv6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # `::` also accepts IPv4
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted connections inherit it
        prepare(listener)
        listener.setblocking(False)
        listener.bind(sockaddr)  # unlike `host`, the sockaddr includes the scope of an address such as fe80::1%eth0
        listener.listen(backlog)
    except UnicodeError as error:
        listener.close()
        raise OSError(errno.EINVAL, "the text is not a valid host name") from error
    except BaseException:
        listener.close()
        raise
    return listener


class Acceptor:
    """Accepts connections on a port within limits of connections and descriptors. Owned by one thread.

    Attributes:
        refused: number of connections closed because of a limit.
    """

    def __init__(self, name: str, connections_max: int, shares: int, epoll: select.epoll, warn: Callable[[str], None]) -> None:
        """Create the acceptor; `listen` starts it.

        Args:
            name: name of the port in messages for the operator.
            connections_max: largest number of concurrent connections.
            shares: number of shares of `spare_descriptors` that the connections of this port leave free.
            epoll: watches the port.
            warn: logs a message for the operator.
        """
        self._name, self._connections_max, self._shares = name, connections_max, shares
        self._epoll = epoll
        self._warn = warn
        self._listener: socket.socket | None = None
        self._accepting = False
        self._descriptor_bound = descriptor_bound(shares)  # descriptors of connections are below it
        # True after a warning about lacking descriptors, until a descriptor below the bound is free
        self._out_of_descriptors = False
        self.refused = 0
        self._refused_unreported = 0  # number of connections refused at the limit since the last warning
        self._refused_reported_us: int | None = None
        self._now_us = 0
        self._exhausted_reported_us: int | None = None

    def listen(self, listener: socket.socket) -> None:
        """Start to accept connections. This object closes the socket."""
        self._listener = listener
        self._resume()

    def _resume(self) -> None:
        if self._listener is not None and not self._accepting:
            self._accepting = True
            self._epoll.register(self._listener, select.EPOLLIN)

    def close(self) -> None:
        """Stop, and close the port."""
        if self._listener is not None:
            self._listener.close()
        self._listener = None
        self._accepting = False

    def owns(self, fd: int) -> bool:
        """True if the descriptor is the port's."""
        return self._listener is not None and fd == self._listener.fileno()

    def accept(self, count: Callable[[], int], evict: Callable[[], bool]) -> Iterator[socket.socket]:
        """Yield new connections, at most `MESH_ACCEPTS_A_TURN_MAX`.

        Args:
            count: returns the number of connections.
            evict: closes an existing connection in favour of a new one, or returns False if it finds none.
        """
        listener = self._listener
        if listener is None:
            return
        for _ in range(limits.MESH_ACCEPTS_A_TURN_MAX):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    if (
                        self._exhausted_reported_us is None
                        or self._now_us - self._exhausted_reported_us >= limits.WARNING_REPEAT_US
                    ):
                        self._warn(f"no connection can be accepted on the {self._name}: {error.strerror}; {RAISE_LIMIT}")
                        self._exhausted_reported_us = self._now_us
                    # The port stays readable, so epoll would report it in each poll: stop accepting until the next `maintain`.
                    self._accepting = False
                    self._epoll.unregister(listener)
                    return
                continue  # the peer has already closed the connection
            out_of_descriptors = connection.fileno() >= self._descriptor_bound
            if out_of_descriptors and not self._out_of_descriptors:
                self._out_of_descriptors = True
                self._warn(
                    f"no file descriptor is left for the {self._name}: a new connection replaces a silent one, or is "
                    f"refused; {RAISE_LIMIT}"
                )
            if (out_of_descriptors or count() >= self._connections_max) and not evict():
                connection.close()
                self.refused += 1
                self._refused_unreported += not out_of_descriptors
                continue
            # The eviction has freed a descriptor below the bound: move the new connection to that descriptor.
            yield move_to_lowest_descriptor(connection) if out_of_descriptors else connection

    def maintain(self, now_us: int) -> None:
        """Resume accepting, and log refused connections; called about once a second."""
        self._now_us = now_us
        self._resume()
        self._descriptor_bound = descriptor_bound(self._shares)
        if self._out_of_descriptors and lowest_free_descriptor() < self._descriptor_bound:
            self._out_of_descriptors = False
            self._warn(f"descriptors are free again: connections on the {self._name} are accepted")
        if self._refused_unreported and (
            self._refused_reported_us is None or now_us - self._refused_reported_us >= limits.WARNING_REPEAT_US
        ):
            self._warn(
                f"{self._refused_unreported} connections were refused on the {self._name}: the limit of {self._connections_max} is "
                "reached; close some connections, or connect to another gateway"
            )
            self._refused_unreported, self._refused_reported_us = 0, now_us
