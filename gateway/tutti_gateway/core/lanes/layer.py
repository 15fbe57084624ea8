"""The *unordered* layer: it passes events and messages to the origin of the own lane and to the member of all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tutti.data.frames.frame import Frame
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.disk_repair import Distances
from tutti_gateway.core.lanes.dedup import DedupTable
from tutti_gateway.core.lanes.lost_end import LostEndRecovery
from tutti_gateway.core.lanes.member import Member
from tutti_gateway.core.lanes.origin import Origin
from tutti_gateway.core.lanes.outbox import LaneOutbox
from tutti_gateway.core.protocol.events import LaneCorrupt, LaneLog, LaneRead
from tutti_gateway.core.protocol.messages import (
    LaneAsk,
    LaneEnds,
    LaneFetch,
    LaneFetched,
    LaneMessage,
    LaneTail,
    Post,
    Posted,
    Settled,
)


class Unordered:
    """The layer. The layer is created when the number of this gateway and its lane logs are known.

    Attributes:
        number: number of this gateway in its lane.
    """

    def __init__(self, context: Context, logs: Sequence[LaneLog], seen: Callable[[int], None], far: Distances) -> None:
        self._standing = context.standing
        self._state = context.window.state
        self._disks: dict[int, bytes] = {}  # disk of each gateway in the roster at the last check
        self._incarnation = context.identity.incarnation
        self.number = context.standing.me
        self._box = LaneOutbox(context.outbox, seen)
        self._member = Member(context, self._box, far)
        lane = self._member.restore(logs)
        mine = lane.origin, lane.incarnation
        own = next((log for log in logs if (log.origin, log.incarnation) == mine), LaneLog(origin=lane.origin, incarnation=b""))
        self._lines = DedupTable(context.window.state, own.lines)
        healing = LostEndRecovery(context, self._box, lane, own.lost) if own.lost is not None else None
        self._member.healing = self._recovery = healing
        self._origin = Origin(context, self._box, lane, self._lines, own.halted, healing)
        if healing is not None:
            healing.settle = self._origin.settle
        lane.confirm(lane.end)  # every frame of the own lane on the own disk is this member's YES, which was the last vote
        self._origin.settle()
        self._part: tuple[int, ...] = ()
        self._beats = 0

    def submit(self, session: int, frames: Sequence[Frame]) -> None:
        """Take batches of a client, in the order in which it sent them; `context.outbox` gets the answers."""
        self._origin.submit(session, frames)

    def session_closed(self, session: int) -> None:
        """Stop answering a session that has ended."""
        self._origin.session_closed(session)

    def members(self, part: tuple[int, ...]) -> None:
        """Take a new list of the gateways that hear each other, oldest first, with a view or without; empty if this one is not a
        member.
        """
        self._see_roster()
        self._part = part
        self._report_ends()
        self._member.part = part
        self._origin.members(part if self.number in part else ())

    def space(self, low: str) -> None:
        """Note that the disk is low, or has free space (empty)."""
        self._origin.low = self._member.low = low

    def on_message(self, sender: int, message: LaneMessage) -> None:
        """Handle a message of another gateway."""
        if isinstance(message, Post):
            self._member.on_post(sender, message)
        elif isinstance(message, Posted):
            # A vote for a lane of an earlier disk of this gateway does not count.
            if message.incarnation == self._incarnation:
                self._see_disk(sender)
                self._origin.on_posted(sender, message)
        elif isinstance(message, Settled):
            self._member.on_settled(sender, message)
        elif isinstance(message, LaneEnds):
            self._on_ends(sender, message)
        elif isinstance(message, LaneFetch):
            self._member.on_fetch(sender, message)
        elif isinstance(message, LaneFetched):
            self._member.on_fetched(sender, message)
        elif isinstance(message, LaneAsk):
            self._member.on_ask(sender, message)
        elif isinstance(message, LaneTail):
            self._see_roster()
            self._origin.on_tail(sender, message)

    def _see_roster(self) -> None:
        """Check all gateways of the roster for new disks."""
        for number in self._state.roster:
            self._see_disk(number)

    def _see_disk(self, number: int) -> None:
        """Check if the roster names another disk for a gateway. Statements, votes and frames of the old disk do not count for the
        new one.
        """
        disk, before = self._state.disk_of(number), self._disks.get(number, b"")
        if not disk or disk == before:  # a removed gateway keeps its number, and no other gateway ever gets it
            return
        self._disks[number] = disk
        if self._recovery is not None:
            self._recovery.forget(number)
        if before:
            self._member.replaced(number)
            self._origin.replaced(number)

    def _on_ends(self, sender: int, message: LaneEnds) -> None:
        self._see_disk(sender)
        self._origin.on_end(sender, self._member.on_ends(sender, message))

    def persisted(self, token: int) -> None:
        """Take the completion of all lane writes up to the token."""
        self._member.persisted(token)
        self._origin.persisted(token)

    def read(self, event: LaneRead) -> None:
        """Take the result of a ReadLane."""
        self._member.on_read(event)

    def rotted(self, event: LaneCorrupt) -> None:
        """Take the lost range of a lane that the disk reports."""
        self._member.mending.on_rotted(event)

    def beat(self) -> None:
        """Run one heartbeat."""
        self._see_roster()
        self._member.beat()
        self._origin.beat()
        self._lines.tidy()
        self._beats += 1
        if self._beats % limits.LANE_ENDS_HEARTBEATS == 0:
            self._report_ends()

    def _report_ends(self) -> None:
        """Report to the part how far the lanes are decided here, so one gateway that knows a decision is enough."""
        message = LaneEnds(self._member.ends)
        for peer in self._part:
            if peer != self._standing.me:
                self._box.send(peer, message)
        self._member.told()
        self._member.tell_held()

    @property
    def halted(self) -> str:
        """Why nothing can follow in the own lane; empty if the lane works."""
        return self._origin.halted

    @property
    def sharers(self) -> tuple[int, ...]:
        """Members whose disks hold everything that is acknowledged in the own lane now."""
        return self._origin.sharers

    @property
    def quiet(self) -> bool:
        """True if nothing of this gateway is undecided."""
        return self._origin.quiet
