"""The stack: events in, actions out, no I/O (design, section 4). This file alone states the order of the layers.

Bottom to top: *flush* says which view holds, *order* gives every message its place, *atomic* makes a place durable and decides it.
What a client submits goes to *order* (forward-table, coordinator); what is ordered goes up through *atomic* to the disk; what is
decided goes to the readers, and back through the layers to who waits for it.

One step takes one event and returns everything that follows from it. A step that raises has changed nothing outside: none of its
actions was carried out, and the driver stops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gateway.core.actions import Action
from gateway.core.atomic.layer import Atomic
from gateway.core.context import Context
from gateway.core.events import (
    EpochAsked,
    Event,
    ForgetAsked,
    LeaveAsked,
    Now,
    OffsetsAsked,
    Persisted,
    Received,
    SessionClosed,
    SpaceChanged,
    StackConfig,
    Started,
    Submitted,
    TimeAdvanced,
    TopicAsked,
    WriteFailed,
)
from gateway.core.flush.start import Phase, Start
from gateway.core.messages import Confirm, Message, No, Vote
from gateway.core.order.layer import Ordering
from gateway.core.outbox import Outbox
from gateway.core.standing import Standing
from gateway.core.window import Window
from gateway.data.bodies import AbortBody
from gateway.data.frame import Frame, Kind
from gateway.data.state import LogState
from gateway.errors import InvariantViolated


class Layers:
    """The layers of one member, wired: each knows what it needs of its neighbours, and what crosses several passes through here."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.atomic = Atomic(context, self)
        self.order = Ordering(context, self.atomic)
        self.flush = self.make_flush()

    def make_flush(self) -> Start:
        """The layer at the bottom: which view holds."""
        return Start(self.context, self)

    # What flush does to the layers above it

    def restore(self, tail: tuple[Frame, ...]) -> None:
        """Take the undecided end of the log that a start found."""
        self.context.window.restore(tail)
        self.order.restored()

    def installed(self) -> None:
        """A view was installed."""
        self.order.installed()
        self.atomic.installed()

    def place(self, kind: Kind, body: msgspec.Struct) -> Frame:
        """Order a frame of the coordinator."""
        return self.order.sequencer.place(kind, body)

    def opened(self, view_position: int) -> None:
        """The VIEW frame was ordered at the position."""
        self.atomic.opened(view_position)

    def primary(self) -> None:
        """The VIEW frame is decided."""
        self.order.primary()

    # What atomic tells of

    def decided(self, run: tuple[Frame, ...], offsets: tuple[int, ...], void: frozenset[int]) -> None:
        """The frontier passed the run."""
        self.order.decided(run, offsets, void)
        self.flush.decided(run)

    def abort(self, frame: Frame, body: AbortBody) -> None:
        """Order an ABORT of the frame."""
        self.order.sequencer.abort(frame, body)

    def room(self) -> None:
        """What may be undecided, or written, may have become more."""
        self.order.sequencer.room()

    # What the stack asks of all

    def on_message(self, sender: int, message: Message) -> None:
        """A message, to the layer that it is for."""
        if isinstance(message, Vote):
            self.atomic.on_vote(sender, message)
        elif isinstance(message, Confirm):
            self.atomic.on_confirm(sender, message)
        elif isinstance(message, No):
            self.atomic.on_no(sender, message)
        else:
            self.order.on_message(sender, message)

    def on_persisted(self, event: Persisted) -> None:
        """The disk has everything up to the token."""
        self.flush.on_persisted(event.token)
        self.atomic.persisted(event.token)

    def on_space(self, event: SpaceChanged) -> None:
        """The disk runs low, or has room again."""
        low = (event.reason or "the disk runs low") if event.low else ""
        self.order.low = low
        self.atomic.space(low)

    def end_of_step(self) -> None:
        """Hand what was ordered to the network and to the disk, all of a step at once."""
        self.order.end_of_step()
        self.atomic.write()
        if self.context.standing.closed is not None and self.order.quiet and self.atomic.quiet:
            self.flush.drained()

    def beat(self) -> None:
        """One heartbeat."""
        self.order.beat()
        self.atomic.beat()

    @property
    def beating(self) -> bool:
        """Whether heartbeats are wanted."""
        return self.atomic.beating or not self.order.quiet


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
            layers.on_message(me, local.popleft())
        layers.end_of_step()
        actions = outbox.take(self._wake_us(layers))
        self._under_way = None
        return actions

    def _start(self, event: Event) -> Layers:
        if not isinstance(event, Started):
            raise InvariantViolated(f"{type(event).__name__} came before Started")
        window = Window(event.recovered.state, self._config.undecided_bytes_max)
        layers = self._layers = self._make(Context(self._config, self._standing, self._outbox, window))
        order, flush = layers.order, layers.flush
        self._handlers = {
            Started: _again,
            Submitted: order.on_submitted,
            EpochAsked: order.on_asked,
            TopicAsked: order.on_asked,
            OffsetsAsked: order.on_asked,
            ForgetAsked: order.on_asked,
            SessionClosed: order.on_session_closed,
            Received: self._taking_part(lambda event: layers.on_message(event.sender, event.message)),
            Persisted: self._taking_part(layers.on_persisted),
            TimeAdvanced: self._on_time,
            SpaceChanged: self._taking_part(layers.on_space),
            WriteFailed: lambda event: flush.on_failed(event.reason),
            LeaveAsked: lambda event: flush.on_leave(),
        }
        flush.on_started(event)
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
        upkeep_us = layers.order.upkeep.due_us
        if upkeep_us is None or (beat_us is not None and beat_us < upkeep_us):
            return beat_us
        return upkeep_us

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
    def layers(self) -> Layers:
        """The layers of a stack that was started."""
        if self._layers is None:
            raise InvariantViolated("the stack was not started")
        return self._layers


def _again(event: Started) -> None:
    raise InvariantViolated("the stack was started before")
