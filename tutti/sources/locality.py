"""Checks whether a gateway runs on this host, so that a client can read its files directly."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache

from tutti import limits


@lru_cache(maxsize=limits.ADDRESSES_MAX)
def is_local_host(host: str) -> bool:
    """True if `host` is this host's name or one of its addresses. No DNS lookup takes place."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = socket.gethostname()
        return host.lower() in {"localhost", name.lower(), name.lower().partition(".")[0]}
    if address.is_unspecified or address.is_multicast:
        return False
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True
