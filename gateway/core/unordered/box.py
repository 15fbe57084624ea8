"""What one step of the lanes wants done. Answers and messages leave through the outbox that all layers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from gateway.core.outbox import Outbox
from gateway.core.unordered.actions import DeliverUnordered, PersistLane, ReadLane
from gateway.core.unordered.lane import Lane
from gateway.core.unordered.messages import LaneMessage
from gateway.data.frame import Frame


class Box:
    """The lanes' actions of the step under way.

    Attributes:
        send: a message to another member.
        drop: a message of a sender that is not taken, and why.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.send = cast(Callable[[int, LaneMessage], None], outbox.send)
        self.drop = cast(Callable[[LaneMessage, int, str], None], outbox.drop)
        self._token = 0
        self._writes: list[PersistLane | ReadLane] = []
        self._delivers: list[DeliverUnordered] = []

    def persist(self, lane: Lane, *, up_to: int, attempt: int | None = None, cut: int | None = None) -> int:
        """Have the lane written up to a position, and an attempt of the own one; returns the token."""
        self._token += 1
        frames = lane.hand(self._token, up_to)
        self._writes.append(PersistLane(self._token, lane.origin, lane.incarnation, frames, attempt, cut))
        return self._token

    def read(self, lane: Lane, first: int, last: int) -> int:
        """Have decided frames read; returns the token that `LaneRead` will name."""
        self._token += 1
        self._writes.append(ReadLane(self._token, lane.origin, lane.incarnation, first, last))
        return self._token

    def deliver(self, lane: Lane, first_offset: int, frames: tuple[Frame, ...]) -> None:
        """Hand a decided run out."""
        self._delivers.append(DeliverUnordered(lane.origin, lane.incarnation, first_offset, frames))

    def take(self) -> tuple[list[PersistLane | ReadLane], list[DeliverUnordered]]:
        """The step's actions: those for the disk, which go before all sends, and those that go before the replies."""
        taken = self._writes, self._delivers
        self._writes, self._delivers = [], []
        return taken
