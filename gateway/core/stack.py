"""The stack: events in, actions out, no I/O (design, section 4). This file alone states the order of the layers.

Bottom to top: *repair* gets what was lost, *membership* says who is there and *flush* which view holds, *order* gives every message
its place, *atomic* makes a place durable and decides it. What a client submits goes to *order* (forward-table, coordinator); what
is ordered goes up through *atomic* to the disk; what is decided goes to the readers, and back
through the layers to who waits for it. *unordered* stands beside them: it needs the members
that hear each other and no view, and shares with the others the disk, the network, and what the log knows of producers.

One step takes one event and returns everything that follows from it. A step that raises has changed nothing outside: none of its
actions was carried out, and the driver stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.core import limits
from gateway.core.actions import Action
from gateway.core.atomic.layer import Atomic
from gateway.core.chance import Random
from gateway.core.context import Context
from gateway.core.events import (
    EpochAsked,
    Event,
    ForgetAsked,
    LanePersisted,
    LaneRead,
    LaneRotted,
    LeaveAsked,
    LinkChanged,
    LogRead,
    Now,
    OffsetsAsked,
    Persisted,
    Received,
    RosterAsked,
    RosterForced,
    Rotted,
    SessionClosed,
    SnapshotRead,
    SpaceChanged,
    StackConfig,
    Started,
    Submitted,
    SubmittedUnordered,
    TimeAdvanced,
    TopicAsked,
    TrimProposed,
    WriteFailed,
)
from gateway.core.flush.layer import Flush
from gateway.core.inbound import Inbound
from gateway.core.life import Phase
from gateway.core.membership.changes import Changes
from gateway.core.membership.force import Force
from gateway.core.membership.layer import Membership
from gateway.core.membership.succession import by_age
from gateway.core.order.layer import Ordering
from gateway.core.outbox import Outbox
from gateway.core.peers import Peers
from gateway.core.repair.layer import Repair
from gateway.core.standing import Standing
from gateway.core.unordered.lanes import Lanes
from gateway.core.window import Window
from gateway.data.bodies import AbortBody, RosterBody
from gateway.data.frame import Frame, Kind
from gateway.data.state import LogState
from gateway.errors import InvariantViolated


class Layers:
    """The layers of one member, wired: each knows what it needs of its neighbours, and what crosses several passes through here."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.peers = Peers(context)
        self.atomic = Atomic(context, self)
        self.order = Ordering(context, self.atomic)
        self.flush = Flush(context, self, self.peers)
        self.repair = Repair(context, self.order.receiver, self.peers.distance_us, context.random)
        self.changes = Changes(context, self.peers, self.flush, self._place_roster)
        self.force = Force(context, self.peers, self.flush)
        self.membership = Membership(context, self.peers, self.flush, self, self.changes, self.force)
        self.inbound = Inbound(self)
        self.lanes = Lanes(context, lambda: by_age(context.window.state.members, self.peers.part()), self.order.upkeep.sends)

    def start(self, event: Started) -> None:
        """The first event."""
        self.flush.on_started(event)
        self.membership.started()
        self.lanes.start(event.recovered.lanes)

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

    def leads(self, sender: int) -> bool:
        """Whether nobody but `sender` is heard to coordinate."""
        return self.membership.leads(sender)

    def attempt_failed(self, stalled: Sequence[int], unmended: bool) -> None:
        """The view that this member proposed does not come about."""
        self.membership.failed(stalled, unmended)

    def heard_end(self, member: int, end: int) -> None:
        """A member of the view has a log that reaches to the position."""
        self.repair.heard(member, end)

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

    def on_trim_proposed(self, event: TrimProposed) -> None:
        """Retention lets a part of the log go."""
        self.order.upkeep.trim(event.places, max(self.peers.held(), event.forced))

    def end_of_step(self) -> None:
        """Hand what was ordered to the network and to the disk, all of a step at once."""
        self.order.end_of_step()
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

    @property
    def beating(self) -> bool:
        """Whether heartbeats are wanted. A group of one whose view came to nothing needs them too: they propose the next."""
        viewless = not self.context.standing.view and not self.flush.attempt
        return not self.peers.alone or viewless or self.atomic.beating or not self.quiet


class Stack:
    """One member of the group. `step` is the whole interface; everything else is for looking only.

    `layers` is how a test puts another *flush* under the real layers.
    """

    def __init__(self, config: StackConfig | None = None, layers: Callable[[Context], Layers] = Layers) -> None:
        self._config = config or StackConfig()
        self._standing = Standing()
        self._outbox = Outbox(self._standing)
        self._make = layers
        self._layers: Layers | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._beat_us: int | None = None
        self._under_way: Event | None = None

    def step(self, event: Event, now: Now) -> list[Action]:
        """Take one event in; the actions that follow from it, in the order in which they must be carried out.

        Raises:
            InvariantViolated: something that may never happen was about to happen. The stack takes no further event.
        """
        if self._under_way is not None:
            raise InvariantViolated(f"the stack takes nothing more: {type(self._under_way).__name__} could not be finished")
        self._under_way = event
        outbox = self._outbox
        # The driver's clock for timers does not go back; one that did would only make a timer late.
        outbox.now = now if now.mono_us >= outbox.now.mono_us else Now(outbox.now.mono_us, now.wall_us)
        layers = self._layers
        if layers is None:
            layers = self._start(event)
        else:
            self._handlers[type(event)](event)
        local, me = outbox.local, self._standing.me
        while local:
            layers.inbound.on_message(me, local.popleft())
        layers.end_of_step()
        actions = outbox.take(self._wake_us(layers))
        self._under_way = None
        return actions

    def _start(self, event: Event) -> Layers:
        if not isinstance(event, Started):
            raise InvariantViolated(f"{type(event).__name__} came before Started")
        window = Window(event.recovered.state, self._config.undecided_bytes_max)
        random = Random(event.entropy)
        layers = self._layers = self._make(Context(self._config, self._standing, self._outbox, window, event.identity, random))
        order, flush = layers.order, layers.flush
        self._handlers = {
            Started: _again,
            Submitted: order.on_submitted,
            SubmittedUnordered: layers.lanes.on_submitted,
            EpochAsked: order.on_asked,
            TopicAsked: order.on_asked,
            OffsetsAsked: order.on_asked,
            ForgetAsked: order.on_asked,
            SessionClosed: layers.on_session_closed,
            RosterAsked: layers.changes.asked,
            RosterForced: layers.force.asked,
            Received: self._taking_part(layers.inbound.on_received),
            LinkChanged: self._taking_part(layers.membership.on_link),
            LogRead: self._taking_part(layers.on_log_read),
            SnapshotRead: self._taking_part(flush.serving.on_snapshot_read),
            Rotted: self._taking_part(flush.mending.on_rotted),
            Persisted: self._taking_part(layers.on_persisted),
            LanePersisted: self._taking_part(lambda event: layers.lanes.persisted(event.token)),
            LaneRead: self._taking_part(layers.lanes.read),
            LaneRotted: self._taking_part(layers.lanes.rotted),
            TimeAdvanced: self._on_time,
            SpaceChanged: self._taking_part(layers.on_space),
            TrimProposed: self._taking_part(layers.on_trim_proposed),
            WriteFailed: lambda event: flush.on_failed(event.reason),
            LeaveAsked: lambda event: layers.membership.leave(),
        }
        layers.start(event)
        return layers

    def _taking_part(self, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        """The handler, for a member that neither halted nor stopped."""

        def guarded(event: Event) -> None:
            if self._standing.taking_part:
                handler(event)

        return guarded

    def _on_time(self, event: TimeAdvanced) -> None:
        self._outbox.timer_came()
        layers = self._layers
        if layers is None or not self._standing.taking_part:
            return
        layers.repair.time()
        layers.order.upkeep.time()
        if self._beat_us is not None and self._outbox.now.mono_us >= self._beat_us:
            self._beat_us = None
            layers.beat()

    def _wake_us(self, layers: Layers) -> int | None:
        """When the stack wants `TimeAdvanced` next."""
        if not self._standing.taking_part:
            return None
        beat_us = self._beat_us
        if beat_us is None and layers.beating:
            beat_us = self._beat_us = self._outbox.now.mono_us + self._config.heartbeat_us
        for due_us in (layers.order.upkeep.due_us, layers.repair.due_us):
            if due_us is not None and (beat_us is None or due_us < beat_us):
                beat_us = due_us
        return beat_us

    # For looking only

    @property
    def phase(self) -> Phase:
        """Where this member is between start and stop."""
        return Phase.BORN if self._layers is None else self._layers.flush.phase

    @property
    def decided(self) -> LogState:
        """What the log says up to the frontier; not to be changed."""
        return LogState() if self._layers is None else self._layers.context.window.state

    @property
    def lane_halted(self) -> str:
        """Why nothing can follow in this gateway's lane; empty while all is well."""
        return "" if self._layers is None else self._layers.lanes.halted

    @property
    def lane_members(self) -> tuple[int, ...]:
        """Whose disks have what is acknowledged in this gateway's lane now, oldest first; nobody while nothing is."""
        return () if self._layers is None else self._layers.lanes.sharers

    @property
    def me(self) -> int:
        """This gateway's number, 0 before it is known."""
        return self._standing.me

    @property
    def log(self) -> bytes:
        """Uuid of the log, empty before it has one."""
        return b"" if self._layers is None else self._layers.context.window.log()

    @property
    def layers(self) -> Layers:
        """The layers of a stack that was started."""
        if self._layers is None:
            raise InvariantViolated("the stack was not started")
        return self._layers


def _again(event: Started) -> None:
    raise InvariantViolated("the stack was started before")
