"""The layers of one member. This file alone states their order, and which of them each message is for (design, section 4).

Bottom to top: *repair* gets what was lost, *membership* says who is there and *flush* which view holds, *order* gives every message
its place, *atomic* makes a place durable and decides it. What a client submits goes to *order* (forward-table, coordinator); what
is ordered goes up through *atomic* to the disk; what is decided goes to the readers, and back
through the layers to who waits for it. *unordered* stands beside them: it needs the members
that hear each other and no view, and shares with the others the disk, the network, and what the log knows of producers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import msgspec

from tutti.data.frames.bodies import AbortBody, RosterBody
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core import limits
from tutti_gateway.core.atomic.layer import Atomic
from tutti_gateway.core.context import Context
from tutti_gateway.core.flush.layer import Flush
from tutti_gateway.core.inbound import Inbound
from tutti_gateway.core.lanes.lanes import Lanes
from tutti_gateway.core.membership.clocks import Clocks
from tutti_gateway.core.membership.forced_roster import Force
from tutti_gateway.core.membership.layer import Membership
from tutti_gateway.core.membership.roster_change import Changes
from tutti_gateway.core.membership.succession import by_age
from tutti_gateway.core.order.layer import Ordering
from tutti_gateway.core.protocol.events import LogRead, Persisted, SessionClosed, SpaceChanged, Started, TrimProposed
from tutti_gateway.core.protocol.messages import (
    Asking,
    AskRoster,
    Confirm,
    Deny,
    Echo,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    Forward,
    Heartbeat,
    Install,
    Installed,
    LaneMessage,
    Missing,
    No,
    Order,
    Probe,
    Propose,
    Refuse,
    Reject,
    Repairing,
    Resend,
    State,
    Vote,
)
from tutti_gateway.core.protocol.messages import Repair as RepairMessage
from tutti_gateway.core.read_index import ReadIndex
from tutti_gateway.core.repair.layer import Repair
from tutti_gateway.core.view.peers import Peers


class Layers:
    """The layers of one member, wired: each knows what it needs of its neighbours, and what crosses several passes through here."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.peers = Peers(context)
        self.atomic = Atomic(context, self)
        self.clocks = Clocks(context, self.peers)
        self.read_index = ReadIndex(context, self.peers, self._inquire)
        self.order = Ordering(context, self.atomic, self.read_index.confirm, self.clocks.wall_us)
        self.flush = Flush(context, self, self.peers)
        self.repair = Repair(context, self.order.receiver, self.peers.distance_us, context.random)
        self.changes = Changes(context, self.peers, self.flush, self._place_roster)
        self.force = Force(context, self.peers, self.flush)
        self.membership = Membership(context, self.peers, self.flush, self, self.changes, self.force)
        self.lanes = Lanes(context, self._part, self.order.upkeep.sends, self.peers)
        self.inbound = Inbound(context, self.peers, self.handlers())

    def start(self, event: Started) -> None:
        """The first event."""
        self.flush.on_started(event)
        self.membership.started()
        self.lanes.start(event.recovered.lanes)

    # What other gateways say

    def handlers(self) -> dict[type, Callable[[int, Any], None]]:
        """The layer that each message is for."""
        flush, candidate = self.flush, self.flush.candidate
        return {
            **dict.fromkeys((Forward, Order, Echo, Resend, Refuse), self.order.on_message),
            Asking: self._on_asking,
            Deny: self._on_deny,
            Vote: self.atomic.on_vote,
            Confirm: self.atomic.on_confirm,
            No: self.atomic.on_no,
            Heartbeat: self._on_heartbeat,
            Probe: lambda sender, _: self.membership.on_probe(sender),
            Propose: flush.on_propose,
            State: candidate.on_state,
            Reject: candidate.on_reject,
            Install: flush.on_install,
            Installed: candidate.on_installed,
            Fetch: flush.on_fetch,
            Fetched: flush.on_fetched,
            FetchSnapshot: flush.serving.on_fetch_snapshot,
            FetchedSnapshot: flush.on_snapshot,
            Missing: self.repair.on_missing,
            Repairing: self.repair.on_repairing,
            RepairMessage: self.repair.on_repair,
            **dict.fromkeys(get_args(LaneMessage), self.lanes.on_message),
        }

    def _part(self) -> Sequence[int]:
        return by_age(self.context.window.state.members, self.peers.part())

    def _inquire(self) -> None:
        self.membership.inquire()

    def _on_asking(self, sender: int, message: Asking) -> None:
        if not isinstance(message.ask, AskRoster):
            self.order.on_message(sender, message)
        elif self.context.standing.current(message.view):
            self.changes.order(sender, message.ask)

    def _on_deny(self, sender: int, message: Deny) -> None:
        if not isinstance(message.ask, AskRoster):
            self.order.on_message(sender, message)
        elif self.context.standing.current(message.view) and sender == self.context.standing.coordinator:
            self.changes.denied(message)

    # What flush and membership do to the layers above them

    def restore(self, tail: tuple[Frame, ...]) -> None:
        """Take the undecided end of the log that a start found."""
        self.context.window.restore(tail)
        self.order.rebuild()

    def view_ended(self) -> None:
        """The view ended: only what the disk has counts now."""
        end = self.context.window.end
        self.atomic.ended()
        self.order.ended()
        if self.context.window.end != end:
            self.order.rebuild()

    def cut(self, to: int) -> None:
        """Give up what stands behind a position."""
        if self.context.window.end > to:
            self.atomic.cut(to)
            self.order.rebuild()

    def carry(self, frames: Sequence[Frame]) -> tuple[int, str]:
        """Take frames of another member's log: how many follow, and why the next one does not."""
        taken, wrong = self.order.carry(frames)
        if taken:
            self.atomic.carry(frames[:taken])
        return taken, wrong

    def contradicted(self, reason: str) -> None:
        """What others hold cannot follow this member's log."""
        self.flush.contradicted(reason)

    def learned(self, up_to: int) -> None:
        """Everything up to the position is decided elsewhere and durable here."""
        self.atomic.learned(up_to)

    def relearned(self) -> None:
        """The log was replaced by a state: nobody is told of what was decided meanwhile one by one."""
        state = self.context.window.state
        self.context.outbox.relearned(state.position, state.next_offset)
        self.order.relearned()
        self.peers.refresh()

    def installed(self) -> None:
        """A view was installed."""
        self.inbound.view_began()
        self.order.installed()
        self.repair.installed()
        self.atomic.installed()
        self.membership.installed()

    def place(self, kind: Kind, body: msgspec.Struct) -> Frame:
        """Order a frame of the coordinator."""
        return self.order.sequencer.place(kind, body)

    def _place_roster(self, body: RosterBody, origin: int) -> None:
        self.order.sequencer.place(Kind.ROSTER, body, origin=origin)

    def opened(self, view_position: int) -> None:
        """The VIEW frame was ordered at the position."""
        self.atomic.opened(view_position)

    def primary(self) -> None:
        """The VIEW frame is decided."""
        self.order.primary()
        self.changes.primary()

    def leads(self, sender: int) -> bool:
        """Whether nobody but `sender` is heard to coordinate."""
        return self.membership.leads(sender)

    def attempt_failed(self, stalled: Sequence[int], unmended: bool) -> None:
        """The view that this member proposed does not come about."""
        self.membership.failed(stalled, unmended)

    def heard_end(self, member: int, end: int) -> None:
        """A member of the view has a log that reaches to the position."""
        self.repair.heard(member, end)

    def tell(self) -> None:
        """Tell everybody what is decided."""
        self.atomic.telling.tell()

    @property
    def quiet(self) -> bool:
        """Whether no client of this gateway waits for anything."""
        return self.order.quiet and self.lanes.quiet

    @property
    def settled(self) -> bool:
        """Whether nothing of this gateway's lane, which needs no view, is undecided."""
        return self.lanes.quiet

    @property
    def idle(self) -> bool:
        """Whether nothing at all is under way."""
        return self.quiet and self.atomic.quiet

    # What atomic tells of

    def decided(self, run: tuple[Frame, ...], offsets: tuple[int, ...], void: frozenset[int]) -> None:
        """The frontier passed the run."""
        self.order.decided(run, offsets, void)
        self.flush.decided(run)
        self.changes.decided(run)
        self.order.receiver.decided()

    def abort(self, frame: Frame, body: AbortBody) -> None:
        """Order an ABORT of the frame."""
        self.order.sequencer.abort(frame, body)

    def room(self) -> None:
        """What may be undecided, or written, may have become more."""
        self.order.sequencer.room()

    def full(self, low: Mapping[int, str]) -> None:
        """Disks of these members have had no room for the atomic period, and why. Where the others are a majority they go on
        without them; where they are not, nothing is taken until there is room.
        """
        others = [member for member in self.context.standing.members if member not in low]
        if self.peers.rosters.majority(self.peers.incarnations(others)):
            for member, reason in low.items():
                self.membership.suspect(member, f"its disk takes nothing new: {reason}")

    @property
    def own_low(self) -> bool:
        """Whether this gateway's disk takes no batches."""
        return self.atomic.own_low

    def suspect(self, member: int, reason: str) -> None:
        """The member holds the group up."""
        self.membership.suspect(member, reason)

    # What the stack asks of all

    def on_session_closed(self, event: SessionClosed) -> None:
        """A client is gone."""
        self.order.on_session_closed(event)
        self.lanes.session_closed(event.session)
        self.changes.session_closed(event.session)
        self.force.session_closed(event.session)

    def on_log_read(self, event: LogRead) -> None:
        """The disk read the log."""
        if not self.repair.on_log_read(event):
            self.flush.serving.on_log_read(event)

    def on_persisted(self, event: Persisted) -> None:
        """The disk has everything up to the token."""
        self.atomic.persisted(event.token)
        self.flush.on_persisted(event)

    def on_space(self, event: SpaceChanged) -> None:
        """The disk runs low, or has room again."""
        low = (event.reason[: limits.SPACE_CHARACTERS_MAX] or "the disk runs low") if event.low else ""
        self.order.low = low
        self.atomic.space(low)
        self.lanes.space(low)

    def _on_heartbeat(self, sender: int, beat: Heartbeat) -> None:
        self.membership.on_heartbeat(sender, beat)
        self.clocks.wall_us()  # the sender's clock counts before anything follows from hearing the sender

    def on_trim_proposed(self, event: TrimProposed) -> None:
        """Retention lets a part of the log go."""
        self.order.upkeep.trim(event.places, max(self.peers.held(), event.forced))

    def end_of_step(self) -> None:
        """Hand what was ordered to the network and to the disk, all of a step at once."""
        if self.read_index.waiting:
            self.read_index.look()
        if self.order.end_of_step():
            self.atomic.telling.tell()
        self.repair.looked()
        self.atomic.write()
        self.membership.end_of_step()
        self.flush.end_of_step()

    def beat(self) -> None:
        """One heartbeat."""
        self.membership.beat()
        self.flush.beat()
        self.order.beat()
        self.atomic.beat()
        self.lanes.beat()
        self.read_index.beat()
        self.clocks.wall_us()

    @property
    def beating(self) -> bool:
        """Whether heartbeats are wanted. A group of one whose view came to nothing needs them too: they propose the next."""
        viewless = not self.context.standing.view and not self.flush.attempt
        wanted = self.atomic.beating or self.changes.beating or self.read_index.waiting
        return not self.peers.alone or viewless or wanted or not self.quiet
