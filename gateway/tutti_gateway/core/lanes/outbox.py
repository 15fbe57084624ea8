"""Actions of the lanes in one step: writes, reads and deliveries.

Answers to clients go through the outbox that all layers share.
"""

from __future__ import annotations

from collections.abc import Callable

from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core.lanes.lane import Lane
from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.protocol.actions import DeliverUnordered, LaneHeld, PersistLane, ReadLane, RepairLane
from tutti_gateway.core.protocol.messages import LaneBegin


class LaneOutbox:
    """Collects the actions of lanes, whose writes and reads have their own sequence of tokens.

    Attributes:
        on_producer: called with each producer of a decided batch.
        send: sends a message to another member.
        drop: reports a dropped message of a sender, with the reason.
    """

    def __init__(self, outbox: Outbox, on_producer: Callable[[int], None]) -> None:
        self._outbox = outbox
        self.on_producer = on_producer
        self.send = outbox.send
        self.drop = outbox.drop
        self._token = 0

    def persist(self, lane: Lane, *, up_to: int, attempt: int | None = None, truncate_after: int | None = None) -> int:
        """Write frames of a lane, and the promise of an attempt in this gateway's lane. Return the token of the write."""
        self._token += 1
        frames = lane.next_write(self._token, up_to)
        self._outbox.write_lane(PersistLane(self._token, lane.origin, lane.incarnation, frames, attempt, truncate_after))
        return self._token

    def read(self, lane: Lane, first: int, last: int) -> int:
        """Read decided frames. Return the token that `LaneRead` will name."""
        self._token += 1
        self._outbox.write_lane(ReadLane(self._token, lane.origin, lane.incarnation, first, last))
        return self._token

    def begin(self, lane: Lane, begin: LaneBegin) -> int:
        """Replace the lane by an empty one that begins after `begin.position`. Return the token of the write."""
        self._token += 1
        self._outbox.write_lane(PersistLane(self._token, lane.origin, lane.incarnation, begin=begin))
        return self._token

    def report_replicated(self, lane: Lane) -> None:
        """Report to the disk the position up to which every gateway of the roster has the lane."""
        self._outbox.write_lane(LaneHeld(lane.origin, lane.incarnation, lane.replicated))

    def repair(self, key: tuple[int, bytes], frames: tuple[Frame, ...]) -> None:
        """Write decided frames at positions where the disk lost them."""
        self._outbox.write_lane(RepairLane(*key, frames))

    def deliver(self, lane: Lane, first_offset: int, frames: tuple[Frame, ...]) -> None:
        """Deliver a decided run to the readers, and report its producers as active."""
        self._outbox.deliver_lane(DeliverUnordered(lane.origin, lane.incarnation, first_offset, frames))
        # A run may contain many frames of one producer, and one call for each producer is enough.
        for producer in {frame.producer for frame in frames if frame.kind == Kind.BATCH}:
            self.on_producer(producer)
