"""The five layers of one member (protocol/lifecycle).

From bottom to top, the layers are *repair*, *membership*, *flush*, *order* and *atomic*. Only this file defines the order of the
layers, and which layer handles each message. *repair* fetches messages that the network lost. *membership* detects live members,
and *flush* installs views. *order* gives each frame a position. *atomic* makes frames durable and decides them.

A client's batch first enters the forward-table of *order*. When the coordinator has ordered the batch, *atomic* gives the batch to
the disk. After the decision, readers get the frames, and the layers answer the clients.

*unordered* (lanes) stands beside these layers. A lane needs members that exchange heartbeats, but no view. Lanes share the disk,
the network and the log's producer table with the five layers.
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
from tutti_gateway.core.inbound_messages import Inbound
from tutti_gateway.core.lanes.lane_activation import Lanes
from tutti_gateway.core.membership.forced_roster import ForcedRoster
from tutti_gateway.core.membership.group_clock import Clocks
from tutti_gateway.core.membership.layer import Membership
from tutti_gateway.core.membership.roster_change import RosterChanges
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
    """Connects the layers of one member, and passes on each call that concerns several layers."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.peers = Peers(context)
        self.atomic = Atomic(context, self)
        self.clocks = Clocks(context, self.peers)
        self.read_index = ReadIndex(context, self.peers, self._inquire)
        self.order = Ordering(context, self.atomic, self.read_index.confirm, self.clocks.wall_us)
        self.flush = Flush(context, self, self.peers)
        self.repair = Repair(context, self.order.receiver, self.peers.distance_us, context.random)
        self.changes = RosterChanges(context, self.peers, self.flush, self._order_roster)
        self.force = ForcedRoster(context, self.peers, self.flush)
        self.membership = Membership(context, self.peers, self.flush, self, self.changes, self.force)
        self.lanes = Lanes(context, self._connected, self.order.housekeeping.lane_producer_seen, self.peers)
        self.inbound = Inbound(context, self.peers, self.handlers())

    def start(self, event: Started) -> None:
        """Start all layers with the content of the disk."""
        self.flush.on_started(event)
        self.membership.started()
        self.lanes.start(event.recovered.lanes)

    # Messages of other gateways

    def handlers(self) -> dict[type, Callable[[int, Any], None]]:
        """Return the handler of each message type."""
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
            FetchSnapshot: flush.server.on_fetch_snapshot,
            FetchedSnapshot: flush.on_snapshot,
            Missing: self.repair.on_missing,
            Repairing: self.repair.on_repairing,
            RepairMessage: self.repair.on_repair,
            **dict.fromkeys(get_args(LaneMessage), self.lanes.on_message),
        }

    def _connected(self) -> Sequence[int]:
        return by_age(self.context.window.state.members, self.peers.connected())

    def _inquire(self) -> None:
        self.membership.inquire()

    def _on_asking(self, sender: int, message: Asking) -> None:
        if not isinstance(message.ask, AskRoster):
            self.order.on_message(sender, message)
        elif self.context.view_state.current(message.view):
            self.changes.order(sender, message.ask)

    def _on_deny(self, sender: int, message: Deny) -> None:
        if not isinstance(message.ask, AskRoster):
            self.order.on_message(sender, message)
        elif self.context.view_state.current(message.view) and sender == self.context.view_state.coordinator:
            self.changes.on_deny(message)

    # Methods that *flush* and *membership* call in the layers above them

    def restore(self, tail: tuple[Frame, ...]) -> None:
        """Restore the undecided frames that the disk held at the start."""
        self.context.window.restore(tail)
        self.order.rebuild()

    def view_ended(self) -> None:
        """End the view, and drop the frames that the disk has not received yet."""
        end = self.context.window.end
        self.atomic.ended()
        self.order.ended()
        # The received-table contains the effect of the dropped frames, so it is computed without them.
        if self.context.window.end != end:
            self.order.rebuild()

    def truncate(self, to: int) -> None:
        """Truncate the log after position `to`, in every layer and on the disk."""
        if self.context.window.end > to:
            self.atomic.truncate(to)
            self.order.rebuild()

    def append_adopted(self, frames: Sequence[Frame]) -> tuple[int, str]:
        """Append frames of another member's log. Return the number of appended frames, and why the next frame was rejected."""
        # *order* checks each frame before *atomic* appends it, so that no invalid frame reaches the disk.
        appended, wrong = self.order.append_adopted(frames)
        if appended:
            self.atomic.append_adopted(frames[:appended])
        return appended, wrong

    def halt_inconsistent(self, reason: str) -> None:
        """Halt this member, because its log contradicts frames of other members."""
        self.flush.halt_inconsistent(reason)

    def advance_frontier(self, up_to: int) -> None:
        """Advance the frontier to `up_to`, over durable frames that a view without this member has decided."""
        self.atomic.advance_frontier(up_to)

    def log_replaced(self) -> None:
        """Report to all layers that a snapshot replaced the log, and answer waiting clients from the snapshot's state."""
        state = self.context.window.state
        self.context.outbox.log_replaced(state.position, state.next_offset)
        self.order.log_replaced()
        self.peers.refresh()

    def installed(self) -> None:
        """Reset the state of all layers for the installed view."""
        self.inbound.view_began()
        self.order.installed()
        self.repair.installed()
        self.atomic.installed()
        self.membership.installed()

    def order_frame(self, kind: Kind, body: msgspec.Struct) -> Frame:
        """Order a frame that the coordinator itself creates, and return the frame."""
        return self.order.sequencer.order_frame(kind, body)

    def _order_roster(self, body: RosterBody, origin: int) -> None:
        self.order.sequencer.order_frame(Kind.ROSTER, body, origin=origin)

    def view_opened(self, view_position: int) -> None:
        """Store the position at which the VIEW frame was ordered."""
        self.atomic.view_opened(view_position)

    def primary(self) -> None:
        """Begin to order new messages, because the VIEW frame is decided."""
        self.order.primary()
        self.changes.primary()

    def leads(self, sender: int) -> bool:
        """True if this member currently follows no coordinator other than `sender`."""
        return self.membership.leads(sender)

    def attempt_failed(self, stalled: Sequence[int], unresolved: bool) -> None:
        """Report to *membership* that the proposed view was not formed, so that other gateways may propose a view."""
        self.membership.campaign_failed(stalled, unresolved)

    def log_end_reported(self, member: int, end: int) -> None:
        """Report to *repair* that a member's log reaches `end`. Frames up to `end` that have not arrived here may be lost."""
        self.repair.log_end_reported(member, end)

    def send_decisions(self) -> None:
        """Send the last decision to the members that have not received it yet."""
        self.atomic.decisions.send_pending()

    @property
    def quiet(self) -> bool:
        """True if no client of this gateway waits for an answer."""
        return self.order.quiet and self.lanes.quiet

    @property
    def lane_quiet(self) -> bool:
        """True if this gateway's lane has no undecided batches."""
        return self.lanes.quiet

    @property
    def idle(self) -> bool:
        """True if no client waits, no frame is undecided, and no write is in progress."""
        return self.quiet and self.atomic.quiet

    # Methods that *atomic* calls in the other layers

    def decided(self, run: tuple[Frame, ...], offsets: tuple[int, ...], void: frozenset[int]) -> None:
        """Answer clients and update all layers after the frontier has passed a run of frames."""
        self.order.decided(run, offsets, void)
        self.flush.decided(run)
        self.changes.decided(run)
        self.order.receiver.decided()

    def abort(self, frame: Frame, body: AbortBody) -> None:
        """Order an ABORT that voids the batch `frame`."""
        self.order.sequencer.abort(frame, body)

    def space_freed(self) -> None:
        """Order batches that waited for space in the window or on a disk."""
        self.order.sequencer.space_freed()

    def full(self, low: Mapping[int, str]) -> None:
        """Suspect members whose disks were full for the atomic period, if the other members form a majority.

        Without such a majority, the group accepts no batches until a disk has free space again. `low` maps each member with a full
        disk to the reason.
        """
        others = [member for member in self.context.view_state.members if member not in low]
        if self.peers.rosters.majority(self.peers.incarnations(others)):
            for member, reason in low.items():
                self.membership.suspect(member, f"its disk takes nothing new: {reason}")

    @property
    def own_low(self) -> bool:
        """True if this gateway's disk accepts no batches."""
        return self.atomic.own_low

    def suspect(self, member: int, reason: str) -> None:
        """Suspect a member that blocks the group, so that the next view excludes it."""
        self.membership.suspect(member, reason)

    # Calls of the stack

    def on_session_closed(self, event: SessionClosed) -> None:
        """Delete the state of a client session that has ended."""
        self.order.on_session_closed(event)
        self.lanes.session_closed(event.session)
        self.changes.session_closed(event.session)
        self.force.session_closed(event.session)

    def on_log_read(self, event: LogRead) -> None:
        """Send the frames that the disk read to the member that requested them."""
        if not self.repair.on_log_read(event):
            self.flush.server.on_log_read(event)

    def on_persisted(self, event: Persisted) -> None:
        """Handle the report that all writes up to the token are durable: vote for the frames, and continue a view change."""
        self.atomic.persisted(event.token)
        self.flush.on_persisted(event)

    def on_space(self, event: SpaceChanged) -> None:
        """Pass the reason why the disk is low to all layers. The reason is empty if the disk has free space again."""
        # An empty reason means free space, so a low disk without a reason gets a default text.
        low = (event.reason[: limits.SPACE_CHARACTERS_MAX] or "the disk runs low") if event.low else ""
        self.order.low = low
        self.atomic.set_low(low)
        self.lanes.space(low)

    def _on_heartbeat(self, sender: int, beat: Heartbeat) -> None:
        self.membership.on_heartbeat(sender, beat)
        self.clocks.wall_us()  # the heartbeat contains the sender's clock, so the group's time is computed again

    def on_trim_proposed(self, event: TrimProposed) -> None:
        """Order a TRIM that retention proposes, up to a position that all voters hold or that retention forces."""
        self.order.housekeeping.trim(event.places, max(self.peers.replicated_position(), event.forced))

    def end_of_step(self) -> None:
        """End a step: send all frames that the step ordered in one message to each member, and write them in one write."""
        if self.read_index.waiting:
            self.read_index.check()
        # If every member gets an ORDER now, a pending CONFIRM that follows at once costs little (atomic, A5).
        if self.order.end_of_step():
            self.atomic.decisions.send_pending()
        self.repair.end_of_step()
        self.atomic.write()
        self.membership.end_of_step()
        self.flush.end_of_step()

    def beat(self) -> None:
        """Run one heartbeat in all layers, and read the clocks."""
        self.membership.beat()
        self.flush.beat()
        self.order.beat()
        self.atomic.beat()
        self.lanes.beat()
        self.read_index.beat()
        self.clocks.wall_us()

    @property
    def beating(self) -> bool:
        """True if heartbeats are needed. Only an idle group of one with a view needs no heartbeats.

        A group of one without a view needs heartbeats, because the next heartbeat proposes a view.
        """
        viewless = not self.context.view_state.view and not self.flush.attempt
        wanted = self.atomic.beating or self.changes.beating or self.read_index.waiting
        return not self.peers.alone or viewless or wanted or not self.quiet
