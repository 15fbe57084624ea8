"""What carries the mesh: connections to the others, and those that come in at the group port. Two things are one: `ZeroMQ`, where
there are keys, and `Sockets`, where there are none. Both say the same on the wire, and what waits for a link has the same bound of
messages; what a stranger can take `Sockets` alone bounds.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple, Protocol

from tutti import limits as common_limits
from tutti.data.addresses import Address
from tutti.data.frames.frame import Buffer
from tutti.errors import TuttiError
from tutti.zmtp.framing import Formed
from tutti.zmtp.listener import NONE_LEFT, RAISE
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Message
from tutti_gateway.transport.mesh.peer_link import Away, Line, Link

Clock = Callable[[], int]  # monotonic, us
Knows = Callable[[bytes], bool]  # whether messages of who is at the other end of that connection are taken
PARTS_MAX = 1 + common_limits.MESSAGE_BYTES_MAX // limits.JOINED_BODY_BYTES_MAX


class NoSocket(TuttiError):
    """No socket can be had for a connection; nothing of it is left."""


def no_port(listen: Address, number: int | None, reason: object) -> TuttiError:
    """The error of a group port that cannot be opened: `number` and `reason` are the system's."""
    if number in NONE_LEFT:
        return TuttiError(f"no socket can be had for the group port: {reason}; {RAISE}")
    return TuttiError(
        f"the group port {listen} cannot be opened: {reason}; end who holds it, or set `listen` or `ports.group` to an address of "
        "this host that is free"
    )


class Kind(enum.Enum):
    """What is new of a link: its connection stands, it broke, it could not be set up (`why`), or the other end said something."""

    UP = 1
    DOWN = 2
    AWAY = 3
    SAID = 4


class News(NamedTuple):
    """Something new of a link. `data` is empty where what was said is nothing that may be said there."""

    link: Link
    kind: Kind
    why: Away = Away.BROKEN_OFF
    data: bytes = b""


class Arrival(NamedTuple):
    """One message that came in: by which connection, its parts, its bytes, and whose key the sender has, where there are keys.

    Of one that is too large, or in too many parts, there are no parts; of a large one of who is not let in, its first byte alone.
    """

    routing: bytes
    parts: list[Buffer]
    size: int
    holder: str


class Wire(Protocol):
    """Carries the mesh. Owned by one thread; nothing waits.

    Attributes:
        changes: counts how often `sockets` became others.
    """

    changes: int

    def line(self, link: Link, identity: bytes) -> Line:
        """A connection for a link, not led anywhere yet. One that comes in with the identity of another one takes its place.

        Raises:
            NoSocket: there is none.
        """

    def key_of(self, gateway: str) -> str:
        """The listed key of a gateway; empty where there is none. A link has to be made anew when it changes."""

    def barred(self, gateway: str) -> str:
        """Why no connection to that gateway may be made now; empty if one may."""

    def form(self, message: Message) -> Formed:
        """The message as lines take it."""

    def sockets(self) -> Sequence[object]:
        """What becomes readable when there is something new."""

    @property
    def unread(self) -> bool:
        """Whether there is something new that none of `sockets` tells of."""

    def news(self, ready: Container[object] | None) -> list[News]:
        """What is new of links, looked for at those of `sockets` that are `ready`, at all without it."""

    def arrivals(self, messages_max: int, bytes_max: int, ready: Container[object] | None) -> Iterator[Arrival]:
        """What came in, about so much at most, after `news`. Who takes it may answer each one, or let its sender in, before the
        next one is looked at.
        """

    def stands(self, routing: bytes) -> bool:
        """Whether a connection that came in still stands, True if that is not known. Of one that ended more may be unread."""

    def answer(self, routing: bytes, data: bytes) -> None:
        """Say something on a connection that came in; it is lost where that is gone, or does not read."""

    def next_us(self) -> int | None:
        """Microseconds until `tick` wants to be called, None if it does not."""

    def tick(self) -> None:
        """Do what is due."""

    def keep(self) -> list[News]:
        """Called about once a second: look after what no wake-up told of; `AWAY` and `SAID` alone."""

    def told(self) -> list[tuple[str, str]]:
        """What an operator must know since this was asked last: which gateway or address it is about, and what."""

    def relieve(self) -> None:
        """Drop every connection that came in, and what came by them.

        Raises:
            TuttiError: the own port cannot be had again.
        """

    def facts(self) -> dict[str, object]:
        """For the status."""

    def close(self) -> None:
        """Stop; what was sent has a moment to leave."""
