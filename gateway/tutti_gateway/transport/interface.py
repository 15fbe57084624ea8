"""What carries messages between gateways, as the node sees it. All of it is called by one thread and never waits.

A transport may lose, double and reorder what it carries, and says when a connection breaks; it never alters a message, never hands
in one of another group or protocol, and never queues without bound. What it loses is counted, and healed above (design, 4.1 and 8).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol

import msgspec

from tutti_gateway.core.protocol.events import LinkChanged, Received
from tutti_gateway.core.protocol.messages import Message

PROTOCOL = 1  # of messages between gateways; both sides must speak the same


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway says of itself at the beginning of each connection.

    Attributes:
        protocol: version of the messages between gateways.
        release: of the software, for people.
        group, gateway: names.
        incarnation: of its disk.
        number: its own in the log, or in the configuration before there is one; 0 before it has any.
        log: uuid of its log, empty on a blank disk.
        process: 8 random bytes, of this run: two that differ under one incarnation are a copied directory.
        address: HOST:P of its clients, as a roster would name it.
        configured: the members that it is configured with, name -> address, so that who differs can say in what.
        timers: the times that it keeps to as `[timers]` calls them, and the preset that filled them, for the same; an older release
            says nothing of them.
        seal: 32 random bytes that its datagrams are sealed with, where the connection hides them and it sends any; or nothing.
    """

    protocol: int = PROTOCOL
    release: str = ""
    group: str
    gateway: str
    incarnation: bytes
    number: int = 0
    log: bytes = b""
    process: bytes = b""
    address: str = ""
    configured: dict[str, str] = {}
    timers: dict[str, str] = {}
    seal: bytes = b""


class Trouble(NamedTuple):
    """What an operator must know: which gateway or address it is about (none: its own port), what is wrong, what to do."""

    peer: str
    reason: str


class Transport(Protocol):
    """Carries messages to and from the other gateways."""

    def introduce(self, number: int, log: bytes) -> None:
        """This gateway has that number and that log from now on; said in every introduction that follows."""

    def peers(self, peers: Sequence[tuple[int, str, str]]) -> None:
        """Whom to talk to: (number, name, HOST:P of its clients) of each. It replaces what was told before."""

    def send(self, to: int, message: Message) -> None:
        """Queue a message for the gateway of that number; it leaves at the next `flush`, or is lost.

        One message that goes to several is the same object each time, so that it is made into bytes once.
        """

    def flush(self) -> None:
        """Send what was queued."""

    def drain(self, messages_max: int, bytes_max: int, ready: Container[int] | None = None) -> list[Received | LinkChanged]:
        """What came, in the order of each sender: up to `messages_max`, and none more once they have `bytes_max` bytes.

        It is looked for only at those of `sockets` that are `ready`; at all of them without it.
        """

    @property
    def unread(self) -> bool:
        """Whether there is something to drain that none of `sockets` tells of."""

    def sockets(self) -> Sequence[int]:
        """Descriptors that become readable when there is something to drain; the same ones always."""

    def next_us(self) -> int | None:
        """Microseconds until `flush` wants to be called although nothing came, None if it does not."""

    def troubles(self) -> list[Trouble]:
        """What went wrong since this was asked last, each once, for the log."""

    def relieve(self) -> None:
        """Memory is short: drop what came and was not taken, and every connection that came in. The others make theirs anew, and
        what was lost is healed as any loss.
        """

    def facts(self) -> dict[str, object]:
        """For the status: what was sent, received, lost, per peer."""

    def close(self) -> None:
        """Stop; what was sent has a moment to leave."""
