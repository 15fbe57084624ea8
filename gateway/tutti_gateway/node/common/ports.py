"""Ports: finding out early that one is taken, and saying so in one sentence."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Mapping

from tutti.errors import TuttiError
from tutti_gateway.config import Address
from tutti_gateway.core import limits

US = 1_000_000


class PortInUse(TuttiError):
    """Somebody else listens where the gateway wants to."""


def in_use_text(host: str, port: int, whose: str) -> str:
    """What is said when a port is taken."""
    return f"port {port} on {host} ({whose}) is in use: stop what listens there, or give the gateway another port"


def wait_free(wanted: Mapping[str, Address]) -> None:
    """Find out that a port is taken before the process that needs it does.

    What a gateway that was killed a moment ago held, its reads process included, is given back by the kernel within moments; so a
    taken port is looked at again for a while before it is an error.

    Args:
        wanted: what each address is for, and the address.

    Raises:
        PortInUse: it is.
        TuttiError: it cannot be opened for another reason.
    """
    deadline = time.monotonic() + limits.PORT_WAIT_US / US
    for whose, address in wanted.items():
        while True:
            try:
                _check_free(whose, address)
                break
            except PortInUse:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(limits.PORT_LOOK_US / US)


def _check_free(whose: str, address: Address) -> None:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(in_use_text(address.host, address.port, whose)) from error
        what = f"port {address.port} on {address.host} ({whose}) cannot be opened: {error.strerror or error}"
        do = "choose a port above 1023" if error.errno == errno.EACCES else "set `listen` to an address of this host"
        raise TuttiError(f"{what}; {do}") from error
    except UnicodeError as error:
        raise TuttiError(f"port {address.port} on {address.host} ({whose}) cannot be opened: no host can have that name") from error
