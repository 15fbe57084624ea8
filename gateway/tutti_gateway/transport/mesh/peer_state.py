"""The link to one other gateway: its address, its queue, its counters, and its connection."""

from __future__ import annotations

import enum
import errno
import os
from typing import TYPE_CHECKING, NamedTuple

from tutti.data.member_address import Address
from tutti_gateway.core.protocol.messages import Message

if TYPE_CHECKING:
    from tutti_gateway.transport.mesh.socket_connection import MeshConnection

_UNREACHABLE = "check the network, the firewall and the address"
#: Causes of a failed TCP connection, with the remedy, by the error of the system. {} is the address of the gateway.
_CONNECT_ERRORS = {
    errno.ECONNREFUSED: "{} refuses connections to its group port: no gateway runs there; start it",
    errno.ETIMEDOUT: f"{{}} does not answer: its host is down or unreachable; {_UNREACHABLE}",
    errno.EHOSTUNREACH: f"the host of {{}} is down or unreachable: {_UNREACHABLE}",
    errno.ENETUNREACH: f"this host has no route to the network of {{}}: {_UNREACHABLE}",
}
_DISCONNECTS_REPORTED = 3  # consecutive disconnects that are reported; a gateway that starts or stops causes only one


class ConnectFailure(enum.Enum):
    """Reason why a connection failed before it was up.

    KEY_REJECTED: the peer's key file does not list this gateway's key. OTHER_KEY: the peer's key differs from the key listed here.
    PROTOCOL_MISMATCH: the peer uses a different protocol, or only one side encrypts. DISCONNECTED: the connection ended.
    """

    KEY_REJECTED = 1
    OTHER_KEY = 2
    PROTOCOL_MISMATCH = 3
    DISCONNECTED = 4


class LinkEventKind(enum.Enum):
    """Kind of a link event: the connection is up, it broke, it failed before it was up, or the peer sent a message on it."""

    UP = 1
    DOWN = 2
    CONNECT_FAILED = 3
    MESSAGE = 4


class LinkEvent(NamedTuple):
    """An event of a link."""

    link: PeerLink
    kind: LinkEventKind
    failure: ConnectFailure = ConnectFailure.DISCONNECTED
    data: bytes = b""


class PeerLink:
    """The link to one other gateway. After a long failure, the mesh replaces `connection` by a new object."""

    connection: MeshConnection

    def __init__(self, number: int, name: str, address: str, key: str) -> None:
        self.number = number
        self.name = name
        self.address = address
        self.key = key
        self.up = False
        self.resolving: Address | None = None  # address whose host name is being resolved
        self.opened_us = self.broke_us = 0  # creation of the current connection, and last time that the link broke
        self.failed_attempts = 0
        self.queue: list[Message] = []
        self.sent = self.sent_bytes = self.lost = self.connects = 0
        self.received = self.received_bytes = 0
        self.refusal = ""  # reason why messages do not reach the peer: the peer's refusal, or an obstacle at this gateway
        # Error number of the last TCP connection. 0: the connection is up, or the peer sends nothing on it. None: not known yet.
        self.connect_error: int | None = None

    @property
    def failure(self) -> str:
        """Reason why the last TCP connection to the peer failed, with the remedy; empty if it succeeded."""
        if not self.connect_error:
            return ""
        other = f"a connection to {{}} failed: {os.strerror(self.connect_error).lower()}; {_UNREACHABLE}"
        return _CONNECT_ERRORS.get(self.connect_error, other).format(self.address)

    def connect_failed(self, failure: ConnectFailure) -> str:
        """Count a failed attempt. Return the message for the operator; empty if there is none yet."""
        self.failed_attempts += 1
        # Key errors are certain at once, but a starting or stopping gateway also ends a connection during the handshake.
        if failure is ConnectFailure.KEY_REJECTED:
            return f"{self.address} rejects this gateway, because its public key is not listed there"
        if failure is ConnectFailure.OTHER_KEY:
            return (
                f"{self.address} has another key than is listed for it here: write its own into the file that "
                "`security.public_keys` names, on every host"
            )
        if failure is ConnectFailure.PROTOCOL_MISMATCH:
            return f"{self.address} is not a gateway, or only one side has keys: configure keys on both"
        if self.failed_attempts < _DISCONNECTS_REPORTED:
            return ""
        return (
            f"{self.address} ends each connection during the handshake: it has another key than is listed for it here, only one "
            "side has keys, or it is not a gateway"
        )

    def facts(self) -> dict[str, object]:
        """Return values for the status."""
        return {
            "name": self.name,
            "up": self.up,
            "connects": self.connects,
            "sent": self.sent,
            "sent_bytes": self.sent_bytes,
            "lost": self.lost,
            "received": self.received,
            "received_bytes": self.received_bytes,
            "refused": self.refusal,
            "failure": self.failure,
            "accepts": self.connect_error == 0,
        }
