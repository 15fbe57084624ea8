"""The door of the group port: with keys, connections between gateways are encrypted (CURVE, RFC 26) and only listed keys come in.

ZeroMQ asks about each connection on a socket of its own (ZAP, RFC 27). Whoever drains the mesh answers there, between messages, so
that no further thread is needed. A gateway is then known by its key: what it introduces itself as has to be the name that the key
is listed under.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import zmq
from zmq.utils import z85

from tutti import limits as common_limits
from tutti_gateway.core import limits
from tutti_gateway.transport.keys import Keyring

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
DOMAIN = b"tutti.group"
USER = "User-Id"  # the property of a message that holds what this door answered
_VERSION = b"1.0"
_KEY_BYTES = 32


class Knock(NamedTuple):
    """A connection that was not let in: from where, and why."""

    address: str
    reason: str


class Door:
    """Lets in gateways whose key is listed. Owned by the thread that owns the mesh; there is one in a ZeroMQ context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keyring: Keyring, clock_us: Callable[[], int]) -> None:
        """Begin to answer; `clock_us` is a monotonic clock, us."""
        self._keyring = keyring
        self._clock_us = clock_us
        self._looked_us = clock_us()
        self._let_in = self._turned_away = 0  # connections
        self.socket = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(ZAP_ENDPOINT)

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Have a socket that is about to be bound ask here who may come in."""
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self._keyring.own.secret.encode())
        socket.set(zmq.ZAP_DOMAIN, DOMAIN)

    def lead(self, socket: zmq.Socket[bytes], gateway: str) -> bool:
        """Have a socket that is about to connect take nobody but `gateway`; whether its key is listed."""
        key = self._keyring.public_of(gateway)
        if not key:
            return False
        socket.set(zmq.CURVE_SERVERKEY, key.encode())
        socket.set(zmq.CURVE_PUBLICKEY, self._keyring.own.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, self._keyring.own.secret.encode())
        return True

    def key_of(self, gateway: str) -> str:
        """The listed key of a gateway, empty if there is none: a link has to be made anew when it changes."""
        return self._keyring.public_of(gateway)

    @property
    def trouble(self) -> str:
        """What is wrong with the file of public keys, empty if nothing is."""
        return self._keyring.trouble

    def refresh(self) -> bool:
        """Look at the file of public keys, once in a while; whether other keys are listed now."""
        now_us = self._clock_us()
        if now_us - self._looked_us < common_limits.KEYS_LOOK_US:
            return False
        self._looked_us = now_us
        return self._keyring.refresh()

    def answer(self) -> list[Knock]:
        """Answer who waits at the door; those that were turned away."""
        away: list[Knock] = []
        for _ in range(limits.DOOR_ANSWERS_A_TURN_MAX):
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            # Version, request, domain, address, routing id, mechanism, credentials: ZeroMQ itself fills them in.
            number, address, mechanism, key = request[1], request[3].decode(errors="replace"), request[5], request[6:]
            gateway = self._gateway(mechanism, key[0] if key else b"")
            if gateway:
                self._let_in += 1
                self._reply(number, b"200", gateway.encode())
            else:
                self._turned_away += 1
                self._reply(number, b"400", b"")
                away.append(Knock(address, _reason(mechanism, key[0] if key else b"")))
        return away

    def facts(self) -> dict[str, int]:
        """For the status: connections."""
        return {"let_in": self._let_in, "turned_away": self._turned_away}

    def _gateway(self, mechanism: bytes, key: bytes) -> str:
        if mechanism != b"CURVE" or len(key) != _KEY_BYTES:
            return ""
        public = z85.encode(key).decode()
        found = self._keyring.name_of(public)
        if not found and self.refresh():
            found = self._keyring.name_of(public)
        return found

    def _reply(self, request: bytes, status: bytes, user: bytes) -> None:
        self.socket.send_multipart([_VERSION, request, status, b"" if user else b"no such key", user, b""])

    def close(self) -> None:
        """Answer nobody any more."""
        self.socket.close(0)


def _reason(mechanism: bytes, key: bytes) -> str:
    if mechanism != b"CURVE" or len(key) != _KEY_BYTES:
        return "it came without a key: give it keys too (`security.secret_key`, `security.public_keys`)"
    return (
        f"nobody of this group is listed with the public key that it came with, {z85.encode(key).decode()}: if it is a gateway of "
        "this group, write its key into the file that `security.public_keys` names, on every host"
    )
