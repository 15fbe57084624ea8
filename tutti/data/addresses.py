"""Addresses of gateways as the roster and `group.members` write them: `HOST:P`, or `HOST:P/G` where the group port is not P+1."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import NamedTuple

from tutti.errors import UsageError

PORT_MAX = 65_535
GROUP_DISTANCE = 1  # of the group port from P
_ANYWHERE = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 - where one listens, and nobody can connect to
#: What to do about one of them.
NAME_HOST = "name the host as the others reach it"
_FORM = "write HOST:PORT, as 127.0.0.1:7400, an IPv6 host in brackets, as [::1]:7400"
#: Any name: what logs of earlier releases have as an address of a member is one for ever.
_HOST = re.compile(r"\[[^\s/\[\]]+\]|[^\s/:\[\]]+")
_PORT_DIGITS_MAX = 20


class Address(NamedTuple):
    """A host, by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class MemberAddress(NamedTuple):
    """Where a gateway is: for its clients, and for the other gateways."""

    clients: Address
    group: Address

    def __str__(self) -> str:
        apart = "" if self.group.port == self.clients.port + GROUP_DISTANCE else f"/{self.group.port}"
        return f"{self.clients}{apart}"


def unreachable(host: str) -> str:
    """Why nobody can connect to a host that only serves to listen everywhere; empty if it is another one."""
    return f"nobody can connect to {host}" if host in _ANYWHERE else ""


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_host_port(text: str, port_min: int = 1) -> Address:
    """The host and port of `HOST:PORT`; an IPv6 host stands in brackets. Whether there is such a host is not looked at.

    Args:
        text: what was written.
        port_min: 0 where one listens and 0 stands for a free port.

    Raises:
        UsageError: it is not of that form: which part of it.
    """
    host, _, port = text.rpartition(":")
    if not host:
        raise UsageError(f"{text!r} has no host or no port: {_FORM}")
    if not _is_port(port, port_min):
        raise UsageError(f"{port!r} in {text!r} is no port ({port_min} to {PORT_MAX}): {_FORM}")
    if not _HOST.fullmatch(host):
        raise UsageError(f"{host!r} in {text!r} is no host: {_FORM}")
    return Address(host.strip("[]"), int(port))


def parse_member(text: str) -> MemberAddress:
    """Both addresses of a gateway from `HOST:P` or `HOST:P/G`.

    Raises:
        UsageError: it is of neither form, or P+1 is no port and G is missing.
    """
    clients, apart, group = text.partition("/")
    address = parse_host_port(clients)
    if apart and not _is_port(group):
        raise UsageError(f"{group!r} in {text!r} is no port (1 to {PORT_MAX}): write HOST:PORT/GROUP-PORT, as 127.0.0.1:7400/9000")
    port = int(group) if apart else address.port + GROUP_DISTANCE
    if port > PORT_MAX:
        raise UsageError(f"{text!r} leaves no port for the group ({port}): write {text}/GROUP-PORT")
    return MemberAddress(address, Address(address.host, port))


def client_part(text: str) -> str:
    """What clients connect to: `HOST:P` of `HOST:P/G`."""
    return text.partition("/")[0]


def _is_port(text: str, least: int = 1) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= _PORT_DIGITS_MAX and least <= int(text) <= PORT_MAX
