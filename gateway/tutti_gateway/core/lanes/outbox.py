"""Actions of the lanes in one step: writes, reads and deliveries.

The lanes put answers to clients directly into the outbox that all layers share.
"""

from __future__ import annotations

from collections.abc import Callable

from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core.lanes.lane import Lane
from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.protocol.actions import DeliverUnordered, LaneHeld, PersistLane, ReadLane, RepairLane
from tutti_gateway.core.protocol.messages import LaneBegin


class LaneOutbox:
    """Collects the actions of lanes. The tokens of lane writes and reads form a sequence that is separate from other tokens.

    Attributes:
        on_producer: function that is called with the number of each producer of a decided batch.
        send: function that sends a message to another gateway.
        drop: function that reports a dropped message, its sender and the reason.
    """

    def __init__(self, outbox: Outbox, on_producer: Callable[[int], None]) -> None:
        self._outbox = outbox
        self.on_producer = on_producer
        self.send = outbox.send
        self.drop = outbox.drop
        self._token = 0

    def persist(self, lane: Lane, *, up_to: int, attempt: int | None = None, truncate_after: int | None = None) -> int:
        """Write frames of a lane, and in this gateway's lane also a promised attempt. Return the token of the write."""
        self._token += 1
        frames = lane.next_write(self._token, up_to)
        self._outbox.write_lane(PersistLane(self._token, lane.origin, lane.incarnation, frames, attempt, truncate_after))
        return self._token

    def read(self, lane: Lane, first: int, last: int) -> int:
        """Read decided frames of a lane. Return the token that the event `LaneRead` with these frames contains."""
        self._token += 1
        self._outbox.write_lane(ReadLane(self._token, lane.origin, lane.incarnation, first, last))
        return self._token

    def begin(self, lane: Lane, begin: LaneBegin) -> int:
        """Replace the lane by an empty lane that begins after `begin.position`. Return the token of the write."""
        self._token += 1
        self._outbox.write_lane(PersistLane(self._token, lane.origin, lane.incarnation, begin=begin))
        return self._token

    def report_replicated(self, lane: Lane) -> None:
        """Report to the disk the position up to which every gateway of the roster holds the lane."""
        self._outbox.write_lane(LaneHeld(lane.origin, lane.incarnation, lane.replicated))

    def repair(self, key: tuple[int, bytes], frames: tuple[Frame, ...]) -> None:
        """Write decided frames of a lane at the positions that the disk lost."""
        self._outbox.write_lane(RepairLane(*key, frames))

    def deliver(self, lane: Lane, first_offset: int, frames: tuple[Frame, ...]) -> None:
        """Deliver a decided run to the readers, and report the producers in the run as active."""
        self._outbox.deliver_lane(DeliverUnordered(lane.origin, lane.incarnation, first_offset, frames))
        # A run may contain many frames of one producer, so the set limits the calls to one for each producer.
        for producer in {frame.producer for frame in frames if frame.kind == Kind.BATCH}:
            self.on_producer(producer)
