"""The protocol stack without I/O: events in, actions out (protocol/lifecycle, L1).

`layers.py` defines the layers and their order. One step takes one event and returns all actions that follow from that event. A step
that raises an error has no external effect, because the driver then stops and executes no action of that step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tutti.data.log_state import LogState
from tutti.errors import InvariantViolated
from tutti_gateway.core.context import Context
from tutti_gateway.core.layers import Layers
from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.pending_window import Window
from tutti_gateway.core.protocol.actions import Action
from tutti_gateway.core.protocol.events import (
    EpochAsked,
    Event,
    ForgetAsked,
    LaneCorrupt,
    LanePersisted,
    LaneRead,
    LeaveAsked,
    LinkChanged,
    LogCorrupt,
    LogRead,
    Now,
    OffsetsAsked,
    Persisted,
    ReadIndexAsked,
    Received,
    RosterAsked,
    RosterForced,
    SessionClosed,
    Several,
    SnapshotRead,
    SpaceChanged,
    StackConfig,
    Started,
    Submitted,
    SubmittedAlone,
    SubmittedUnordered,
    TimeAdvanced,
    TopicAsked,
    TrimProposed,
    WriteFailed,
    groupable,
    submitted,
)
from tutti_gateway.core.random_source import RandomSource
from tutti_gateway.core.view.phases import Phase
from tutti_gateway.core.view.view_state import ViewState

#: Events that a halted or stopped member ignores. It handles all others, so that it refuses client requests and can stop.
_IGNORED_WHEN_HALTED = frozenset(
    {
        Received,
        LinkChanged,
        LogRead,
        SnapshotRead,
        LogCorrupt,
        Persisted,
        LanePersisted,
        LaneRead,
        LaneCorrupt,
        SpaceChanged,
        TrimProposed,
    }
)


class Stack:
    """The protocol stack of one member of the group.

    The driver calls only `step`. All properties are read-only, and serve tests and the status document.

    Args:
        make_random: creates the random generator of a run from the entropy in the event `Started`.
        config: settings of the stack; None for the defaults.
        make_layers: creates the layers. Tests pass a function that replaces *flush* but keeps the other layers.
    """

    def __init__(
        self,
        make_random: Callable[[bytes], RandomSource],
        config: StackConfig | None = None,
        make_layers: Callable[[Context], Layers] = Layers,
    ) -> None:
        self._make_random = make_random
        self._config = config or StackConfig()
        self._view_state = ViewState()
        self._outbox = Outbox(self._view_state)
        self._make_layers = make_layers
        self._layers: Layers | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._beat_us: int | None = None
        self._current: Event | None = None

    def step(self, event: Event, now: Now) -> list[Action]:
        """Process one event and return the actions that follow from it, in the order in which the driver must execute them.

        Raises:
            InvariantViolated: the code or the log violates a rule of the protocol. The stack then accepts no further event.
        """
        if self._current is not None:
            raise InvariantViolated(f"the stack takes no further event, because {type(self._current).__name__} raised an error")
        self._current = event  # the value stays set after an error, so that the stack accepts no further event (lifecycle, L7)
        outbox = self._outbox
        # If the monotonic clock ever went back, the stack's time would stand still, so timers would only be late.
        outbox.now = now if now.mono_us >= outbox.now.mono_us else Now(outbox.now.mono_us, now.wall_us)
        layers = self._layers
        if layers is None:
            layers = self._start(event)
        else:
            kind = type(event)
            if self._view_state.active or kind not in _IGNORED_WHEN_HALTED:
                self._handlers[kind](event)
        if outbox.local:
            self._handle_own(layers)
        # All events of a step share one write and one message to each member, which makes small batches cheap (lifecycle, L4).
        layers.end_of_step()
        actions = outbox.drain(self._wake_us(layers))
        self._current = None
        return actions

    def _handle_own(self, layers: Layers) -> None:
        """Handle the messages that this member sent to itself, such as a coordinator's own votes."""
        local, me = self._outbox.local, self._view_state.me
        while local:
            layers.inbound.on_message(me, local.popleft())

    def _several(self, event: Several) -> None:
        layers, local = self.layers, self._outbox.local
        order = layers.order
        for one in event.events:
            if not groupable(one):
                # Only events that cannot end the view may share a step.
                raise InvariantViolated(f"{type(one).__name__} must not be part of Several: it needs a separate step")
            if isinstance(one, Received):
                order.forward.flush()
                if self._view_state.active:
                    layers.inbound.on_received(one)
                # As in separate steps, this member handles its messages to itself before the next event.
                if local:
                    self._handle_own(layers)
            else:
                # The next call of `flush` forwards the batches of all sessions together.
                order.submit(one if isinstance(one, Submitted) else submitted(one.session, one.frames))
        order.forward.flush()

    def _start(self, event: Event) -> Layers:
        if not isinstance(event, Started):
            raise InvariantViolated(f"{type(event).__name__} came before Started")
        window = Window(event.recovered.state, self._config.undecided_bytes_max)
        random = self._make_random(event.entropy)
        layers = self._layers = self._make_layers(
            Context(self._config, self._view_state, self._outbox, window, event.identity, random)
        )
        order, flush = layers.order, layers.flush
        self._handlers = {
            Started: _again,
            Submitted: order.on_submitted,
            SubmittedAlone: lambda event: order.on_submitted(submitted(event.session, event.frames)),
            SubmittedUnordered: layers.lanes.on_submitted,
            EpochAsked: order.on_asked,
            TopicAsked: order.on_asked,
            OffsetsAsked: order.on_asked,
            ForgetAsked: order.on_asked,
            ReadIndexAsked: lambda event: layers.read_index.on_request(event.number),
            SessionClosed: layers.on_session_closed,
            RosterAsked: layers.changes.on_request,
            RosterForced: layers.force.on_request,
            Received: layers.inbound.on_received,
            LinkChanged: layers.membership.on_link,
            LogRead: layers.on_log_read,
            SnapshotRead: flush.server.on_snapshot_read,
            LogCorrupt: flush.log_repair.on_corrupt,
            Persisted: layers.on_persisted,
            LanePersisted: lambda event: layers.lanes.persisted(event.token),
            LaneRead: layers.lanes.read,
            LaneCorrupt: layers.lanes.on_corrupt,
            TimeAdvanced: self._on_time,
            SpaceChanged: layers.on_space,
            TrimProposed: layers.on_trim_proposed,
            WriteFailed: lambda event: flush.on_failed(event.reason),
            LeaveAsked: lambda event: layers.membership.leave(),
            Several: self._several,
        }
        layers.start(event)
        return layers

    def _on_time(self, event: TimeAdvanced) -> None:
        self._outbox.timer_fired()
        layers = self._layers
        if layers is None or not self._view_state.active:
            return
        layers.repair.on_timer()
        layers.order.housekeeping.on_timer()
        layers.atomic.decisions.on_timer()
        if self._beat_us is None:
            layers.clocks.wall_us()  # normally the heartbeat reads the clocks, but an idle group of one has no heartbeat
        elif self._outbox.now.mono_us >= self._beat_us:
            # The value None lets `_wake_us` schedule the next heartbeat at the end of this step.
            self._beat_us = None
            layers.beat()

    def _wake_us(self, layers: Layers) -> int | None:
        """Return the time at which the stack needs the next `TimeAdvanced`; None if it needs none."""
        if not self._view_state.active:
            return None
        beat_us = self._beat_us
        # An idle group of one needs no heartbeat, so its process can sleep.
        if beat_us is None and layers.beating:
            beat_us = self._beat_us = self._outbox.now.mono_us + self._config.heartbeat_us
        for deadline_us in (layers.order.housekeeping.deadline_us, layers.repair.deadline_us, layers.atomic.decisions.deadline_us):
            if deadline_us is not None and (beat_us is None or deadline_us < beat_us):
                beat_us = deadline_us
        return beat_us

    # Read-only views

    @property
    def phase(self) -> Phase:
        """Current phase of this member, from its start to its stop."""
        return Phase.BORN if self._layers is None else self._layers.flush.phase

    @property
    def decided(self) -> LogState:
        """State of the log up to the frontier; callers must not change it."""
        return LogState() if self._layers is None else self._layers.context.window.state

    @property
    def lane_halted(self) -> str:
        """Reason why this gateway's lane accepts no frames; empty if the lane accepts them."""
        return "" if self._layers is None else self._layers.lanes.halted

    @property
    def lane_members(self) -> tuple[int, ...]:
        """Members whose disks hold all acknowledged frames of this gateway's lane, oldest first; empty without an attempt."""
        return () if self._layers is None else self._layers.lanes.replicas

    @property
    def me(self) -> int:
        """Number of this gateway in the roster; 0 before it is known."""
        return self._view_state.me

    @property
    def log(self) -> bytes:
        """Uuid of the log; empty before the log has begun."""
        return b"" if self._layers is None else self._layers.context.window.log()

    @property
    def layers(self) -> Layers:
        """Layers of a started stack."""
        if self._layers is None:
            raise InvariantViolated("the stack has not started")
        return self._layers


def _again(event: Started) -> None:
    raise InvariantViolated("the stack has already started")
