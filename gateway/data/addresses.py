"""Addresses of gateways as the roster and `group.members` write them: `HOST:P`, or `HOST:P/G` where the group port is not P+1."""

from __future__ import annotations

import re
from typing import NamedTuple

from gateway.errors import UsageError

PORT_MAX = 65_535
GROUP_DISTANCE = 1  # of the group port from P
_ANYWHERE = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 - where one listens, and nobody can connect to
#: What to do about one of them.
NAME_HOST = "name the host as the others reach it"
_FORM = f"write HOST:PORT with a port from 1 to {PORT_MAX}, 127.0.0.1:7400, or HOST:PORT/GROUP-PORT"


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


def parse_host_port(text: str) -> Address:
    """The host and port of `HOST:PORT`; a numeric IPv6 host stands in brackets.

    Raises:
        UsageError: it is not of that form.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"the address {text!r} has several colons: write an IPv6 host in brackets, [::1]:7400")
    if not host or not _is_port(port) or re.search(r"[\s/]", host):
        raise UsageError(f"{text!r} is no address: {_FORM}")
    return Address(host, int(port))


def parse_member(text: str) -> MemberAddress:
    """Both addresses of a gateway from `HOST:P` or `HOST:P/G`.

    Raises:
        UsageError: it is of neither form, or P+1 is no port and G is missing.
    """
    clients, apart, group = text.partition("/")
    address = parse_host_port(clients)
    if apart and not _is_port(group):
        raise UsageError(f"{text!r} is no address of a gateway: {_FORM}")
    port = int(group) if apart else address.port + GROUP_DISTANCE
    if port > PORT_MAX:
        raise UsageError(f"{text!r} leaves no port for the group ({port}): write {text}/GROUP-PORT")
    return MemberAddress(address, Address(address.host, port))


def client_part(text: str) -> str:
    """What clients connect to: `HOST:P` of `HOST:P/G`."""
    return text.partition("/")[0]


def _is_port(text: str) -> bool:
    return text.isdecimal() and text.isascii() and 1 <= int(text) <= PORT_MAX
