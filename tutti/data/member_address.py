"""Gateway addresses in the roster and in `group.members`: `HOST:P`, or `HOST:P/G` if the group port is not P+1."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import NamedTuple

from tutti.errors import UsageError

PORT_MAX = 65_535
GROUP_PORT_DISTANCE = 1  # default group port minus client port
_WILDCARDS = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 - a gateway can listen on these addresses, but no peer can connect to them
#: Remedy for an address that other hosts cannot reach.
HOST_REMEDY = "use the host name or address that the other hosts reach"
_FORM = "write HOST:PORT, such as 127.0.0.1:7400, or [::1]:7400 for IPv6"
#: The pattern accepts almost any text, because logs of earlier releases permanently contain such text as addresses of members.
_HOST = re.compile(r"\[[^\s/\[\]]+\]|[^\s/:\[\]]+")
_PORT_DIGITS_MAX = 20


class Address(NamedTuple):
    """A host (name or IP address) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class MemberAddress(NamedTuple):
    """The two addresses of a gateway: one for its clients, and one for the other gateways."""

    clients: Address
    group: Address

    def __str__(self) -> str:
        apart = "" if self.group.port == self.clients.port + GROUP_PORT_DISTANCE else f"/{self.group.port}"
        return f"{self.clients}{apart}"


def unreachable_reason(host: str) -> str:
    """Return the reason why no other host can connect to a wildcard address, or "" for any other host."""
    return f"no other host can connect to {host}" if host in _WILDCARDS else ""


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_host_port(text: str, port_min: int = 1) -> Address:
    """Parse `HOST:PORT`, with an IPv6 host in brackets. The host is not looked up.

    Args:
        text: text to parse.
        port_min: lowest valid port. For a listening address, it is 0, because port 0 means any free port.

    Raises:
        UsageError: the text is not `HOST:PORT`; the error text contains the wrong part.
    """
    host, _, port = text.rpartition(":")
    if not host:
        raise UsageError(f"{text!r} has no host or no port: {_FORM}")
    if not _is_port(port, port_min):
        raise UsageError(f"{port!r} in {text!r} is not a port ({port_min} to {PORT_MAX}): {_FORM}")
    if not _HOST.fullmatch(host):
        raise UsageError(f"{host!r} in {text!r} is not a host: {_FORM}")
    return Address(host.strip("[]"), int(port))


def parse_member(text: str) -> MemberAddress:
    """Parse both addresses of a gateway from `HOST:P` or `HOST:P/G`.

    Raises:
        UsageError: the text has neither form, or the form is `HOST:P` and P+1 is not a valid port.
    """
    clients, apart, group = text.partition("/")
    address = parse_host_port(clients)
    if apart and not _is_port(group):
        raise UsageError(f"{group!r} in {text!r} is not a port (1 to {PORT_MAX}): write HOST:PORT/GROUP-PORT")
    port = int(group) if apart else address.port + GROUP_PORT_DISTANCE
    if port > PORT_MAX:
        raise UsageError(f"the default group port {port} of {text!r} is too high: write {text}/GROUP-PORT")
    return MemberAddress(address, Address(address.host, port))


def client_address(text: str) -> str:
    """Return the client address `HOST:P` in a member address `HOST:P/G`."""
    return text.partition("/")[0]


def _is_port(text: str, least: int = 1) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= _PORT_DIGITS_MAX and least <= int(text) <= PORT_MAX
