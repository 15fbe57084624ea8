"""Parser of gateway addresses: `tutti://HOST:P[,HOST:P...]`."""

from __future__ import annotations

import re

from tutti import limits
from tutti.data.member_address import Address, parse_host_port
from tutti.errors import ConfigError, UsageError

__all__ = ["DEFAULT_ADDRESS", "DEFAULT_URL", "DEFAULT_URL_USED", "SCHEME", "Address", "parse_url"]

SCHEME = "tutti://"
#: Address that commands use if no other is given: the first gateway of `tutti dev`. Python's producers and readers need a url.
DEFAULT_ADDRESS = "127.0.0.1:7400"
DEFAULT_URL = SCHEME + DEFAULT_ADDRESS
#: Key in the `meta` of a command's click context if the command uses the default. An error about the address then says so.
DEFAULT_URL_USED = "tutti.default_url_used"
_SYNTAX = f"a url is {SCHEME}HOST:PORT, several gateways separated by commas"
_HOST = re.compile(r"[\w.:%-]+|\*", re.ASCII)
_OTHER_PORTS = {"grpc": "reads", "grpc+tcp": "reads", "http": "admin", "https": "admin"}


def parse_url(url: str) -> list[Address]:
    """Return the addresses of the gateways in a url, in order and without duplicates.

    Raises:
        ConfigError: the url is malformed. The message names the wrong part.
    """
    if not isinstance(url, str):
        raise ConfigError(f"a url must be text, not {type(url).__name__}: {_SYNTAX}")
    text = url.strip()
    if not text.startswith(SCHEME):
        scheme = text.partition("://")[0] if "://" in text else ""
        port = _OTHER_PORTS.get(scheme)
        hint = f"; {scheme}:// is the {port} port of a gateway, which clients discover through its client port" if port else ""
        raise ConfigError(f"the url {url!r} does not begin with {SCHEME}{hint}: {_SYNTAX}")
    places = text[len(SCHEME) :].removesuffix("/").split(",")
    if len(places) > limits.ADDRESSES_MAX:
        raise ConfigError(f"the url names {len(places)} gateways; at most {limits.ADDRESSES_MAX} are allowed")
    return list(dict.fromkeys(_address(place.strip().removeprefix(SCHEME), url) for place in places))


def _address(place: str, url: str) -> Address:
    try:
        address = parse_host_port(place)
    except UsageError as error:
        raise ConfigError(f"the url {url!r}: {error}; {_SYNTAX}") from None
    if not _HOST.fullmatch(address.host):
        raise ConfigError(f"the url {url!r}: {address.host!r} is not a host; {_SYNTAX}")
    if address.host == "*":
        raise ConfigError(f"the url {url!r}: {place!r} is a listen address, to which no client can connect; {_SYNTAX}")
    return address
