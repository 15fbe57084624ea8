"""Who speaks on a port? A look by plain TCP, after a gateway did not answer there, so that the error can say what is wrong.

A gateway has several ports (client P, group P+1, reads P+2, admin P+3). Each gives itself away: ZeroMQ sends its greeting at once,
gRPC its HTTP/2 settings, HTTP answers a request.
"""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

from gateway.client.url import Address
from gateway.core import limits

_HTTP_2_SETTINGS = re.compile(rb"\x00..\x04", re.DOTALL)
_REQUEST = b"GET /v1/status HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n"


class Sight(NamedTuple):
    """What was seen, as the end of a sentence about an address, and whether waiting cannot help: it is the wrong port."""

    text: str
    wrong: bool = False


def peek(address: Address) -> Sight:
    """Look who speaks at `address`; takes up to three times `PEEK_TIMEOUT_US`."""
    timeout = limits.PEEK_TIMEOUT_US / 1e6
    try:
        with socket.create_connection((address.host, address.port), timeout) as link:
            try:
                first = link.recv(limits.PEEK_BYTES_MAX)
            except TimeoutError:
                link.sendall(_REQUEST)
                first = link.recv(limits.PEEK_BYTES_MAX)
    except TimeoutError:
        return Sight(f"nothing was said within {timeout:g} s")
    except socket.gaierror as error:
        return Sight(f"the host name is not known ({error.strerror})")
    except OSError as error:
        return Sight((error.strerror or str(error)).lower())
    return _recognise(first, address)


def _recognise(first: bytes, address: Address) -> Sight:
    if first[:1] == b"\xff":
        return Sight("something that speaks ZeroMQ is there and did not answer as a gateway does")
    if _HTTP_2_SETTINGS.match(first):
        return Sight(_wrong("gRPC", "reads port (Arrow Flight)", 2, address), wrong=True)
    if first.startswith(b"HTTP/"):
        return Sight(_wrong("HTTP", "admin port", 3, address), wrong=True)
    if not first:
        return Sight("the connection was closed at once")
    return Sight(f"something else speaks there: it says {first[:16]!r}", wrong=True)


def _wrong(language: str, port: str, above: int, address: Address) -> str:
    client = Address(address.host, max(1, address.port - above))
    return (
        f"this port speaks {language}, as the {port} of a gateway does; a client wants the gateway's client port, "
        f"which is {above} lower unless it was set otherwise: tutti://{client}"
    )
