"""The way to one other gateway: who that is, what waits to be sent, and what became of what was."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from tutti.data.addresses import Address
from tutti_gateway.core.protocol.messages import Message

if TYPE_CHECKING:
    from tutti_gateway.transport.mesh.socket_connection import SocketLine

_BROKEN_OFF_TOLD = 3  # in a row: one alone is a gateway that ends or starts


class Away(enum.Enum):
    """Why a connection was not set up: this side's key is not listed there, the other side has another key than is listed here, it
    speaks otherwise, or it broke off.
    """

    KEPT_OUT = 1
    OTHER_KEY = 2
    MISMATCH = 3
    BROKEN_OFF = 4


class Kind(enum.Enum):
    """What is new of a link: its connection stands, it broke, it could not be set up (`why`), or the other end said something."""

    UP = 1
    DOWN = 2
    AWAY = 3
    SAID = 4


class News(NamedTuple):
    """Something new of a link."""

    link: Link
    kind: Kind
    why: Away = Away.BROKEN_OFF
    data: bytes = b""


class Link:
    """The way to one other gateway. `line` is what it is connected by, another one each time that it is made anew."""

    line: SocketLine

    def __init__(self, number: int, name: str, address: str, key: str) -> None:
        self.number = number
        self.name = name
        self.address = address
        self.key = key
        self.up = False
        self.awaits: Address | None = None  # its host's address is being looked up
        self.made_us = self.broke_us = 0  # when it was made, and broke last
        self.broken_off = 0
        self.queue: list[Message] = []
        self.sent = self.sent_bytes = self.lost = self.connects = 0
        self.received = self.received_bytes = 0
        self.refused = ""  # why nothing of this gateway gets there: what the other one says, or is in the way

    def turned_away(self, why: Away) -> str:
        """The connection was not set up; what an operator must know of it, empty if nothing yet."""
        self.broken_off += 1
        if why is Away.KEPT_OUT:
            return f"{self.address} does not let this gateway in: the public key of this one is not listed there"
        if why is Away.OTHER_KEY:
            return (
                f"{self.address} has another key than is listed for it here: write its own into the file that "
                "`security.public_keys` names, on every host"
            )
        if why is Away.MISMATCH:
            return f"{self.address} is no gateway, or one side has keys and the other has none: give them to both"
        if self.broken_off < _BROKEN_OFF_TOLD:
            return ""
        return (
            f"{self.address} breaks off each connection while it is set up: it has another key than is listed for it here, one "
            "side has keys and the other has none, or it is no gateway"
        )

    def facts(self) -> dict[str, object]:
        """For the status."""
        return {
            "name": self.name,
            "up": self.up,
            "connects": self.connects,
            "sent": self.sent,
            "sent_bytes": self.sent_bytes,
            "lost": self.lost,
            "received": self.received,
            "received_bytes": self.received_bytes,
            "refused": self.refused,
        }
