"""A port that is listened at, and which of the process's descriptors those who call there may have.

A new descriptor has the lowest number that is free. So connections that have none above a bound leave all above it to the rest of
the process, its files and its connections to other gateways, whoever has what below: nothing has to be held back for that.
"""

from __future__ import annotations

import resource
import socket
import sys
from collections.abc import Callable

from gateway.core import limits


def open_port(host: str, port: int, backlog: int, prepare: Callable[[socket.socket], None] = lambda _: None) -> socket.socket:
    """A socket that listens there; it is prepared before it does.

    Raises:
        OSError: the address cannot be had, or no socket.
    """
    six = ":" in host
    listener = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if six:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # `::` is every address, those of IPv4 too
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # those that are accepted have it from that
        prepare(listener)
        listener.setblocking(False)
        listener.bind((host, port))
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def descriptors_for(shares: int) -> int:
    """The bound of a port's connections: their descriptors lie below. `shares`: of spare ones that it leaves to others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return soft - shares * min(limits.SPARE_FILES, soft // limits.SPARE_FILES_PART)


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
