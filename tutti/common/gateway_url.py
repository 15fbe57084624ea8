"""Parser of gateway addresses: `tutti://HOST:P[,HOST:P...]`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from tutti import limits
from tutti.data.member_address import Address, parse_host_port
from tutti.errors import ConfigError, Unavailable, UsageError

__all__ = [
    "DEFAULT_ADDRESS",
    "DEFAULT_URL",
    "DEFAULT_URL_USED",
    "SCHEME",
    "Address",
    "default_noted",
    "parse_url",
    "url_or_default",
]

SCHEME = "tutti://"
#: Address that commands, producers and readers use if no other is given: the first gateway of `tutti dev`.
DEFAULT_ADDRESS = "127.0.0.1:7400"
DEFAULT_URL = SCHEME + DEFAULT_ADDRESS
#: Key in the `meta` of a command's click context if the command uses the default. An error about the address then says so.
DEFAULT_URL_USED = "tutti.default_url_used"
VARIABLE = "TUTTI_URL"  # the environment variable with the url to use if no other is given
_SYNTAX = f"a url is {SCHEME}HOST:PORT, several gateways separated by commas"
_HOST = re.compile(r"[\w.:%-]+|\*", re.ASCII)
_OTHER_PORTS = {"grpc": "reads", "grpc+tcp": "reads", "http": "admin", "https": "admin"}


def url_or_default(url: str | None) -> list[Address]:
    """Return the addresses in a url; without a url, those in $TUTTI_URL, or `DEFAULT_ADDRESS` if that variable is unset or empty.

    Raises:
        ConfigError: the url is malformed.
    """
    if url is not None:
        return parse_url(url)
    variable = os.environ.get(VARIABLE)
    try:
        return parse_url(variable or DEFAULT_URL)
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}: {error}") from None


@contextlib.contextmanager
def default_noted(url: str | None) -> Iterator[None]:
    """Add a remedy to an `Unavailable` about the default address, if a client used this address because no other was given."""
    try:
        yield
    except Unavailable as error:
        if url is None and not os.environ.get(VARIABLE):
            remedy = f"start gateways with `tutti dev`, or name others with url= or {VARIABLE}"
            error.add_note(f"{DEFAULT_ADDRESS} is the default: {remedy}")
        raise


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
