"""What the driver needs of what is around it, narrow enough that a test stands in for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.core.actions import Action, Deliver, Mend, Persist, ReadLog, ReadSnapshot
from gateway.core.events import Event, Now
from gateway.data.wire import Duplicate
from gateway.node.port import Sent


class Stack(Protocol):
    """What the driver needs of `gateway.core.stack.Stack`."""

    def step(self, event: Event, now: Now) -> Sequence[Action]:
        """Take an event, say what is to be done."""


class DiskQueue(Protocol):
    """What the driver needs of the disk thread."""

    def persist(self, action: Persist) -> None:
        """Queue what is to become durable."""

    def read(self, action: ReadLog | ReadSnapshot) -> None:
        """Queue what is to be read from the log."""

    def mend(self, action: Mend) -> None:
        """Queue what was lost and is to be written again."""

    def deliver(self, action: Deliver) -> None:
        """Queue what is to be indexed."""


class Ticking(Protocol):
    """A clock."""

    def now(self) -> Now:
        """The time of this moment."""


class Clients(Protocol):
    """The sending side of the client port."""

    def send(self, routing: bytes, data: bytes) -> Sent:
        """Send one message, or drop it; never waits."""


class LookUp(Protocol):
    """Takes duplicates whose offsets are wanted."""

    @property
    def waiting(self) -> int:
        """How many wait."""

    def put(self, session: int, duplicates: list[Duplicate]) -> None:
        """Queue some of a session."""
