"""Ports: finding out early that one is taken, and saying so in one sentence."""

from __future__ import annotations

import errno
import socket

from gateway.config import Address
from gateway.errors import TuttiError


class PortInUse(TuttiError):
    """Somebody else listens where the gateway wants to."""


def in_use_text(host: str, port: int, whose: str) -> str:
    """What is said when a port is taken."""
    return f"port {port} on {host} ({whose}) is in use: stop what listens there, or give the gateway another port"


def check_free(whose: str, address: Address) -> None:
    """Find out that a port is taken before the process that needs it does.

    Raises:
        PortInUse: it is.
        TuttiError: it cannot be opened for another reason.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(in_use_text(address.host, address.port, whose)) from error
        raise TuttiError(f"port {address.port} on {address.host} ({whose}) cannot be opened: {error.strerror or error}") from error
