"""Who speaks on a port? A look by plain TCP, after a gateway did not answer there, so that the error can say what is wrong.

A gateway has several ports (client P, group P+1, reads P+2, admin P+3). Each gives itself away: ZeroMQ sends its greeting at once,
gRPC its HTTP/2 settings, HTTP answers a request. The group port speaks ZeroMQ, too: with keys its greeting says CURVE (RFC 23, 26),
without them it answers what a client says with the refusal that a strange gateway gets.
"""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

import msgspec

from tutti import limits
from tutti.common.address import Address
from tutti.data.frames.frame import Buffer

_HTTP_2_SETTINGS = re.compile(rb"\x00..\x04", re.DOTALL)
_ZEROMQ = b"\xff"
_GREETING_BYTES = 64  # RFC 23
_GREETED = _ZEROMQ + bytes(8) + b"\x7f\x03"  # as much as it takes to be told the rest: who says more is judged by it
_MECHANISM = slice(12, 32)
_PARTS_MAX = 3  # that a greeting comes in
_REFUSAL = b"R"
#: What is to be thought of one that is there and silent, and to be done.
STANDS_STILL = "the process may be stopped or its machine too busy; look there, or name another gateway"
_REQUEST = b"GET /v1/status HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n"


class Sight(NamedTuple):
    """What was seen, as the end of a sentence about an address, and whether waiting cannot help: it is the wrong port."""

    text: str
    wrong: bool = False


class _Refusal(msgspec.Struct):
    """What the group port says to strangers, as far as it is looked at here."""

    protocol: int
    group: str
    gateway: str
    reason: str


def peek(address: Address) -> Sight:
    """Look who speaks at `address`; takes up to five times `PEEK_TIMEOUT_US`."""
    timeout = limits.PEEK_TIMEOUT_US / 1e6
    silent = f"no connection was made within {timeout:g} s"
    try:
        with socket.create_connection((address.host, address.port), timeout) as link:
            silent = f"connections are taken there and nothing was said within {timeout:g} s: {STANDS_STILL}"
            try:
                first = link.recv(limits.PEEK_BYTES_MAX)
            except TimeoutError:
                link.sendall(_REQUEST)
                first = link.recv(limits.PEEK_BYTES_MAX)
            if first.startswith(_ZEROMQ):
                first = _greeting(link, first)
    except TimeoutError:
        return Sight(silent)
    except socket.gaierror as error:
        return Sight(f"the host name is not known ({(error.strerror or str(error)).lower()})")
    except UnicodeError as error:
        return Sight(f"the host name is not known ({error})")
    except OSError as error:
        return Sight((error.strerror or str(error)).lower())
    return _recognise(first, address)


def _greeting(link: socket.socket, first: bytes) -> bytes:
    """All of a greeting, or what came of it; its mechanism is said to those alone who greet."""
    try:
        link.sendall(_GREETED)
        for _ in range(_PARTS_MAX):
            if len(first) < _GREETING_BYTES:
                first += link.recv(limits.PEEK_BYTES_MAX)
    except OSError:
        pass  # what came tells enough
    return first


def misheard(data: Buffer, error: Exception, address: Address) -> Sight:
    """What to make of a message that no client is told."""
    if bytes(memoryview(data)[:1]) == _REFUSAL:
        try:
            msgspec.msgpack.decode(memoryview(data)[1:], type=_Refusal)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            return _group_port(address)
    return Sight(f"it does not speak as a gateway: {error}")


def _recognise(first: bytes, address: Address) -> Sight:
    if first.startswith(_ZEROMQ):
        if first[_MECHANISM].startswith(b"CURVE"):
            return _group_port(address)
        return Sight(
            "something that speaks ZeroMQ is there and did not answer as a gateway does: one that is starting, stopped or busy, or "
            "another program"
        )
    if _HTTP_2_SETTINGS.match(first):
        return Sight(_wrong("gRPC", "reads port (Arrow Flight)", 2, address), wrong=True)
    if first.startswith(b"HTTP/"):
        return Sight(_wrong("HTTP", "admin port", 3, address), wrong=True)
    if not first:
        return Sight("the connection was closed at once")
    return Sight(f"something else speaks there: it says {first[:16]!r}", wrong=True)


def _group_port(address: Address) -> Sight:
    return Sight(_wrong("what gateways say to each other", "group port", 1, address), wrong=True)


def _wrong(language: str, port: str, above: int, address: Address) -> str:
    client = Address(address.host, max(1, address.port - above))
    return (
        f"this port speaks {language}, as the {port} of a gateway does; a client wants the gateway's client port, "
        f"which is {above} lower unless it was set otherwise: tutti://{client}"
    )
