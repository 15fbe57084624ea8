"""*unordered* as one layer: it hands events and messages to the origin of the own lane and to the member of all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tutti.data.frames.frame import Frame
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.disk_repair import Far
from tutti_gateway.core.lanes.dedup import LineTable
from tutti_gateway.core.lanes.lost_end import Healing
from tutti_gateway.core.lanes.member import Member
from tutti_gateway.core.lanes.origin import Origin
from tutti_gateway.core.lanes.outbox import Box
from tutti_gateway.core.protocol.events import LaneLog, LaneRead, LaneRotted
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
    """The layer, made when the number of this gateway and what its lanes' log holds are known.

    Attributes:
        number: of this gateway in its lane.
    """

    def __init__(self, context: Context, logs: Sequence[LaneLog], seen: Callable[[int], None], far: Far) -> None:
        self._standing = context.standing
        self._state = context.window.state
        self._disks: dict[int, bytes] = {}  # of each gateway, as the roster named it when it was looked at last
        self._incarnation = context.identity.incarnation
        self.number = context.standing.me
        self._box = Box(context.outbox, seen)
        self._member = Member(context, self._box, far)
        lane = self._member.restore(logs)
        mine = lane.origin, lane.incarnation
        own = next((log for log in logs if (log.origin, log.incarnation) == mine), LaneLog(origin=lane.origin, incarnation=b""))
        self._lines = LineTable(context.window.state, own.lines)
        healing = Healing(context, self._box, lane, own.lost) if own.lost is not None else None
        self._member.healing = self._healing = healing
        self._origin = Origin(context, self._box, lane, self._lines, own.halted, healing)
        if healing is not None:
            healing.settle = self._origin.settle
        lane.confirm(lane.end)  # whatever the own disk has of the own lane is its YES, which came last
        self._origin.settle()
        self._part: tuple[int, ...] = ()
        self._beats = 0

    def submit(self, session: int, frames: Sequence[Frame]) -> None:
        """Batches of a client, in the order in which it sent them; `context.outbox` gets the answers."""
        self._origin.submit(session, frames)

    def session_closed(self, session: int) -> None:
        """A client's session is over."""
        self._origin.session_closed(session)

    def members(self, part: tuple[int, ...]) -> None:
        """The gateways that hear each other have changed: all of them, oldest first, with a view or without. Nobody (empty) while
        this gateway is no member.
        """
        self._see_roster()
        self._part = part
        self._tell()
        self._member.part = part
        self._origin.members(part if self.number in part else ())

    def space(self, low: str) -> None:
        """The disk takes new messages (empty) or not."""
        self._origin.low = self._member.low = low

    def on_message(self, sender: int, message: LaneMessage) -> None:
        """A message of another gateway."""
        if isinstance(message, Post):
            self._member.on_post(sender, message)
        elif isinstance(message, Posted):
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
        """Notice every gateway that has another disk than before."""
        for number in self._state.roster:
            self._see_disk(number)

    def _see_disk(self, number: int) -> None:
        """Notice that the roster names another disk for a gateway. A number names one disk after another, and a promise is the
        disk's: nothing that the disk before it said, voted or held counts for the new one.
        """
        disk, before = self._state.disk_of(number), self._disks.get(number, b"")
        if not disk or disk == before:  # who was removed keeps its number, and nobody else gets it
            return
        self._disks[number] = disk
        if self._healing is not None:
            self._healing.forget(number)
        if before:
            self._member.replaced(number)
            self._origin.replaced(number)

    def _on_ends(self, sender: int, message: LaneEnds) -> None:
        self._see_disk(sender)
        self._origin.on_end(sender, self._member.on_ends(sender, message))

    def persisted(self, token: int) -> None:
        """The disk has everything up to the PersistLane with the token."""
        self._member.persisted(token)
        self._origin.persisted(token)

    def read(self, event: LaneRead) -> None:
        """What a ReadLane found."""
        self._member.on_read(event)

    def rotted(self, event: LaneRotted) -> None:
        """The disk says what it lost of a lane."""
        self._member.mending.on_rotted(event)

    def beat(self) -> None:
        """One heartbeat."""
        self._see_roster()
        self._member.beat()
        self._origin.beat()
        self._lines.tidy()
        self._beats += 1
        if self._beats % limits.LANE_ENDS_HEARTBEATS == 0:
            self._tell()

    def _tell(self) -> None:
        """Everybody of the part hears how far the lanes are decided here: so one who knows of a decision is enough."""
        message = LaneEnds(self._member.ends)
        for peer in self._part:
            if peer != self._standing.me:
                self._box.send(peer, message)
        self._member.told()
        self._member.tell_held()

    @property
    def halted(self) -> str:
        """Why nothing can follow in the own lane; empty while all is well."""
        return self._origin.halted

    @property
    def sharers(self) -> tuple[int, ...]:
        """Whose disks have what is acknowledged in the own lane now."""
        return self._origin.sharers

    @property
    def quiet(self) -> bool:
        """Whether nothing of this gateway is undecided."""
        return self._origin.quiet
