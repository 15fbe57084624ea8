"""Checks early that the gateway's ports are free, so that a port in use causes one clear error."""

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
    """Another process listens on a port of the gateway."""


_ALTERNATIVE = "give the gateway another port"


def in_use_text(host: str, port: int, purpose: str, alternative: str = _ALTERNATIVE) -> str:
    """Return the error text for a port in use."""
    return f"port {port} on {host} ({purpose}) is in use: stop the process that listens on it, or {alternative}"


def wait_free(wanted: Mapping[str, Address], alternative: str = _ALTERNATIVE) -> None:
    """Wait until all ports are free, for a short time.

    The kernel soon releases the ports of a killed gateway and its reads process, so a port in use is tried again.

    Args:
        wanted: purpose and address of each port.
        alternative: what the user can do instead of stopping the other process, for the error text.

    Raises:
        PortInUse: after the wait, another process still listens on a port.
        TuttiError: a port cannot be opened for another reason.
    """
    deadline = time.monotonic() + limits.PORT_WAIT_US / US
    for purpose, address in wanted.items():
        while True:
            try:
                _check_free(purpose, address, alternative)
                break
            except PortInUse:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(limits.PORT_CHECK_US / US)


def _check_free(purpose: str, address: Address, alternative: str) -> None:
    try:
        family, kind, protocol, _, sockaddr = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        # The probe never listens, so no client can connect before the gateway itself opens the port.
        with socket.socket(family, kind, protocol) as probe:
            # The gateway's ports also use SO_REUSEADDR, with which closed connections of an earlier run do not occupy a port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(sockaddr)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(in_use_text(address.host, address.port, purpose, alternative)) from error
        what = f"port {address.port} on {address.host} ({purpose}) cannot be opened: {error.strerror or error}"
        do = "choose a port above 1023" if error.errno == errno.EACCES else "set `listen` to an address of this host"
        raise TuttiError(f"{what}; {do}") from error
    except UnicodeError as error:
        raise TuttiError(
            f"port {address.port} on {address.host} ({purpose}) cannot be opened: the host name is invalid; correct the name"
        ) from error
