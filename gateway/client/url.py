"""Addresses of gateways as people write them: `tutti://HOST:P[,HOST:P...]`."""

from __future__ import annotations

import re
from typing import NamedTuple

from gateway.core import limits
from gateway.errors import ConfigError

SCHEME = "tutti://"
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\Z")
_HOST_6 = re.compile(r"\[([0-9A-Fa-f:.]+)(%[\w.]+)?\]\Z")
_TAKEN = f"a url is {SCHEME}HOST:PORT, several gateways separated by commas"
_OTHER_PORTS = {"grpc": "reads", "grpc+tcp": "reads", "http": "admin", "https": "admin"}


class Address(NamedTuple):
    """The client port of one gateway. An IPv6 host has no brackets here."""

    host: str
    port: int

    def __str__(self) -> str:
        """HOST:PORT as in a url."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str) -> list[Address]:
    """The gateways that a url names, in order, each once.

    Raises:
        ConfigError: the text is no such url; the message says which part of it.
    """
    if not isinstance(url, str):
        raise ConfigError(f"a url is text, not {type(url).__name__}: {_TAKEN}")
    text = url.strip()
    if not text.startswith(SCHEME):
        scheme = text.partition("://")[0] if "://" in text else ""
        port = _OTHER_PORTS.get(scheme)
        hint = f"; {scheme}:// is the {port} port of a gateway, which is found out from its client port" if port else ""
        raise ConfigError(f"the url {url!r} does not begin with {SCHEME}{hint}: {_TAKEN}")
    places = text[len(SCHEME) :].removesuffix("/").split(",")
    if len(places) > limits.ADDRESSES_MAX:
        raise ConfigError(f"the url names {len(places)} gateways; at most {limits.ADDRESSES_MAX} are taken")
    return list(dict.fromkeys(_address(place.strip().removeprefix(SCHEME), url) for place in places))


def _address(place: str, url: str) -> Address:
    host, colon, port = place.rpartition(":")
    if not colon or not host:
        raise ConfigError(f"{place!r} in the url {url!r} has no port: {_TAKEN}")
    six = _HOST_6.match(host)
    if not six and not _HOST.match(host):
        hint = " (an IPv6 address goes into brackets)" if ":" in host else ""
        raise ConfigError(f"{host!r} in the url {url!r} is no host{hint}: {_TAKEN}")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{port!r} in the url {url!r} is no port (1 to 65535): {_TAKEN}")
    return Address(six[1] + (six[2] or "") if six else host, int(port))
