"""The *unordered* layer: passes events and messages to the origin of this gateway's lane and to the replica of other lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tutti.data.frames.frame import Frame
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.disk_repair import Distances
from tutti_gateway.core.lanes.dedup import DedupTable
from tutti_gateway.core.lanes.lane_replica import Member
from tutti_gateway.core.lanes.lost_end import LostEndRecovery
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
    """The *unordered* layer. It is created when this gateway's number is decided and its lane logs are read.

    Attributes:
        number: this gateway's number at the creation of this object, which all frames of its lane contain.
    """

    def __init__(self, context: Context, logs: Sequence[LaneLog], on_producer: Callable[[int], None], distances: Distances) -> None:
        self._view_state = context.view_state
        self._state = context.window.state
        self._disks: dict[int, bytes] = {}  # gateway -> its disk in the roster at the last check
        self._incarnation = context.identity.incarnation
        self.number = context.view_state.me
        self._outbox = LaneOutbox(context.outbox, on_producer)
        self._member = Member(context, self._outbox, distances)
        lane = self._member.restore(logs)
        mine = lane.origin, lane.incarnation
        own = next((log for log in logs if (log.origin, log.incarnation) == mine), LaneLog(origin=lane.origin, incarnation=b""))
        self._lines = DedupTable(context.window.state, own.lines)
        recovery = LostEndRecovery(context, self._outbox, lane, own.lost) if own.lost is not None else None
        self._member.recovery = self._recovery = recovery
        self._origin = Origin(context, self._outbox, lane, self._lines, own.halted, recovery)
        if recovery is not None:
            recovery.deliver_decided = self._origin.deliver_decided
        lane.confirm(lane.end)  # the origin writes a frame after all other members have voted, so all written frames are decided
        self._origin.deliver_decided()
        self._connected: tuple[int, ...] = ()
        self._beats = 0

    def submit(self, session: int, frames: Sequence[Frame]) -> None:
        """Pass a client's batches to the origin, in the order in which the client sent them. Answers go to `context.outbox`."""
        self._origin.submit(session, frames)

    def session_closed(self, session: int) -> None:
        """Send no more answers to a session that has ended."""
        self._origin.session_closed(session)

    def set_connected(self, connected: tuple[int, ...]) -> None:
        """Set the gateways that exchange heartbeats with each other, oldest first, with or without a view.

        `connected` is empty if this gateway is not a member.
        """
        self._check_roster()
        self._connected = connected
        # A gateway that has just connected may need a decision that only this gateway knows (lanes, U19).
        self._report_ends()
        self._member.connected = connected
        self._origin.set_connected(connected if self.number in connected else ())

    def space(self, low: str) -> None:
        """Set the reason why the disk is low; empty if it has free space."""
        self._origin.low = self._member.low = low

    def on_message(self, sender: int, message: LaneMessage) -> None:
        """Pass another gateway's message about a lane to the origin or to the replica."""
        if isinstance(message, Post):
            self._member.on_post(sender, message)
        elif isinstance(message, Posted):
            # After this gateway's disk was replaced, votes for the old disk's lane may still arrive.
            if message.incarnation == self._incarnation:
                self._check_disk(sender)
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
            self._check_roster()
            self._origin.on_tail(sender, message)

    def _check_roster(self) -> None:
        """For each gateway in the roster, drop the state of its old disk if the roster contains a new disk."""
        for number in self._state.roster:
            self._check_disk(number)

    def _check_disk(self, number: int) -> None:
        """Drop the reports and votes of a gateway's old disk if the roster contains a new disk for that gateway."""
        disk, before = self._state.disk_of(number), self._disks.get(number, b"")
        # A removed gateway (no disk) keeps its reports, because its number never passes to another gateway.
        if not disk or disk == before:
            return
        self._disks[number] = disk
        if self._recovery is not None:
            self._recovery.drop_reports(number)
        # The first check after a start finds no old disk, so no reports must be dropped.
        if before:
            self._member.disk_replaced(number)
            self._origin.disk_replaced(number)

    def _on_ends(self, sender: int, message: LaneEnds) -> None:
        self._check_disk(sender)
        self._origin.on_end(sender, self._member.on_ends(sender, message))

    def persisted(self, token: int) -> None:
        """Handle the completion of all lane writes up to the token, in the origin and in the replica."""
        # The origin and the replica take their tokens from one sequence, and each ignores tokens of the other.
        self._member.persisted(token)
        self._origin.persisted(token)

    def read(self, event: LaneRead) -> None:
        """Send the frames that the disk read to the gateway that requested them."""
        self._member.on_read(event)

    def on_corrupt(self, event: LaneCorrupt) -> None:
        """Begin to repair a range of a lane that the disk reports as lost."""
        self._member.repair.on_corrupt(event)

    def beat(self) -> None:
        """Run one heartbeat: repeat messages and requests, and report the decided ends at fixed intervals."""
        self._check_roster()
        self._member.beat()
        self._origin.beat()
        self._lines.prune()
        self._beats += 1
        if self._beats % limits.LANE_ENDS_HEARTBEATS == 0:
            self._report_ends()

    def _report_ends(self) -> None:
        """Report the decided end of each lane to the connected gateways, so that all of them learn every decision."""
        message = LaneEnds(self._member.ends)
        for peer in self._connected:
            if peer != self._view_state.me:
                self._outbox.send(peer, message)
        self._member.ends_sent()
        self._member.report_replicated()

    @property
    def halted(self) -> str:
        """Reason why this gateway's lane accepts no frames; empty if the lane accepts them."""
        return self._origin.halted

    @property
    def replicas(self) -> tuple[int, ...]:
        """Members whose disks hold all acknowledged frames of this gateway's lane."""
        return self._origin.replicas

    @property
    def quiet(self) -> bool:
        """True if this gateway's lane has no undecided batches, so that the gateway may stop."""
        return self._origin.quiet
