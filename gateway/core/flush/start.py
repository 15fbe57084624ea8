"""How a group of one begins its views, the durable way (design, sections 5 and 6; see NOTES.md).

Each step that promises something waits for the disk. A group of one has the only promise, the longest log and the only answer, so
that nothing is asked of anybody between the steps.
"""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from gateway.core.context import Context
from gateway.core.events import Identity, Recovered, Scalars, Started
from gateway.core.machine import Machine
from gateway.data.bodies import RosterBody, ViewBody, Voter, decode_body
from gateway.data.frame import Frame, Kind
from gateway.data.names import view_text
from gateway.errors import InvariantViolated, invariant


class Phase(enum.Enum):
    """Where this member is between start and stop."""

    BORN = "born"
    PROMISING = "promising"  # a view above all that were seen is being promised
    ACCEPTING = "accepting"  # the view is being accepted with the log as it is
    INSTALLING = "installing"  # its VIEW frame is ordered and not decided
    PRIMARY = "primary"  # everything before the VIEW frame is decided, new messages are taken
    DRAINING = "draining"  # nothing new is taken, what is under way is decided
    STOPPED = "stopped"
    HALTED = "halted"  # takes no part any more, stays up for reads


class Step(enum.Enum):
    """What moves a member."""

    STARTED = "started"
    UNFIT = "started, and may not take part"
    PERSISTED = "persisted"
    DECIDED = "VIEW decided"
    LEAVE = "leave asked"
    DRAINED = "nothing under way"
    FAILED = "write failed"


LIFE: dict[tuple[Phase, Step], Phase] = {
    (Phase.BORN, Step.STARTED): Phase.PROMISING,
    (Phase.BORN, Step.UNFIT): Phase.HALTED,
    (Phase.PROMISING, Step.PERSISTED): Phase.ACCEPTING,
    (Phase.PROMISING, Step.LEAVE): Phase.STOPPED,
    (Phase.PROMISING, Step.FAILED): Phase.HALTED,
    (Phase.ACCEPTING, Step.PERSISTED): Phase.INSTALLING,
    (Phase.ACCEPTING, Step.LEAVE): Phase.STOPPED,
    (Phase.ACCEPTING, Step.FAILED): Phase.HALTED,
    (Phase.INSTALLING, Step.DECIDED): Phase.PRIMARY,
    (Phase.INSTALLING, Step.LEAVE): Phase.STOPPED,
    (Phase.INSTALLING, Step.FAILED): Phase.HALTED,
    (Phase.PRIMARY, Step.LEAVE): Phase.DRAINING,
    (Phase.PRIMARY, Step.FAILED): Phase.HALTED,
    (Phase.DRAINING, Step.LEAVE): Phase.DRAINING,
    (Phase.DRAINING, Step.DRAINED): Phase.STOPPED,
    (Phase.DRAINING, Step.FAILED): Phase.HALTED,
    (Phase.HALTED, Step.LEAVE): Phase.STOPPED,
    (Phase.HALTED, Step.FAILED): Phase.HALTED,
}


class Layers(Protocol):
    """What a view change does to the layers above it."""

    def restore(self, tail: tuple[Frame, ...]) -> None:
        """Take the undecided end of the log that a start found."""

    def installed(self) -> None:
        """A view was installed."""

    def place(self, kind: Kind, body: msgspec.Struct) -> Frame:
        """Order a frame of the coordinator."""

    def opened(self, view_position: int) -> None:
        """The VIEW frame was ordered at the position."""

    def primary(self) -> None:
        """The VIEW frame is decided."""


class Start:
    """The layer, for a group of one."""

    def __init__(self, context: Context, layers: Layers) -> None:
        self._outbox = context.outbox
        self._standing = context.standing
        self._window = context.window
        self._layers = layers
        self._life = Machine("flush", LIFE, Phase.BORN)
        self._identity = Identity("", b"", "", {})
        self._entropy = b""
        self._scalars = Scalars()
        self._token = 0

    @property
    def phase(self) -> Phase:
        """Where this member is between start and stop."""
        return self._life.state

    def on_started(self, event: Started) -> None:
        """Begin: promise a view above all that this disk has seen."""
        self._identity, self._entropy = event.identity, event.entropy
        recovered = event.recovered
        self._standing.durable(recovered.scalars)
        self._layers.restore(recovered.tail)
        unfit = self._unfit(event.identity, recovered)
        if unfit:
            self._life.on(Step.UNFIT)
            self._standing.taking_part = False
            self._standing.closed = ("halted", unfit)
            self._outbox.halt(unfit)
            return
        self._life.on(Step.STARTED)
        view = self._next_view(recovered)
        self._persist(Scalars(view, recovered.scalars.accepted, view))

    def _unfit(self, identity: Identity, recovered: Recovered) -> str:
        """Why this gateway may not begin a view alone, empty if it may."""
        if list(identity.members) != [identity.gateway]:
            return (
                f"the group {identity.group!r} has the members {', '.join(sorted(identity.members))}, and groups of more than "
                f"one are not built yet: set [group] members to {identity.gateway!r} alone"
            )
        voters = self._voters(recovered)
        if not voters:
            invariant(self._window.end == 0, "the log does not begin with a ROSTER frame")
            self._standing.me = 1
            return ""
        mine = [number for number, voter in voters.items() if voter.name == identity.gateway]
        if len(voters) != 1 or not mine:
            names = ", ".join(sorted(voter.name for voter in voters.values()))
            return f"the log belongs to the group of {names}; {identity.gateway!r} alone may not go on with it"
        self._standing.me = mine[0]
        if voters[mine[0]].incarnation != identity.incarnation:
            return (
                f"the log's voter {identity.gateway!r} had another disk (incarnation {voters[mine[0]].incarnation.hex()}, "
                f"this one is {identity.incarnation.hex()}); bring that directory back"
            )
        return ""

    def _voters(self, recovered: Recovered) -> dict[int, Voter]:
        """The last roster of the log, undecided frames included."""
        for frame in reversed(recovered.tail):
            if frame.kind == Kind.ROSTER:
                return {voter.number: voter for voter in decode_body(RosterBody, frame.body).voters}
        return recovered.state.roster

    def _next_view(self, recovered: Recovered) -> int:
        """A view id above all that this disk has seen."""
        scalars = recovered.scalars
        seen = max(scalars.promised, scalars.accepted, scalars.coordinated, recovered.state.view, *(f.view for f in recovered.tail))
        return ((seen >> 16) + 1) << 16 | self._standing.me

    def _persist(self, scalars: Scalars) -> None:
        self._scalars = scalars
        self._token = self._outbox.persist((), scalars)

    def on_persisted(self, token: int) -> None:
        """The scalars under way are durable: the next step."""
        if self.phase not in (Phase.PROMISING, Phase.ACCEPTING) or token < self._token:
            return
        self._standing.durable(self._scalars)
        if self._life.on(Step.PERSISTED) is Phase.ACCEPTING:
            self._persist(Scalars(self._scalars.promised, self._scalars.promised, self._scalars.coordinated))
        else:
            self._install()

    def _install(self) -> None:
        """The view is accepted: order its VIEW frame, behind the ROSTER in a log that begins."""
        standing, identity = self._standing, self._identity
        standing.install(standing.accepted, (standing.me,), standing.me)
        self._layers.installed()
        self._outbox.installed()
        if self._window.end == 0:
            voter = Voter(standing.me, identity.gateway, identity.incarnation, identity.members[identity.gateway])
            self._layers.place(Kind.ROSTER, RosterBody(identity.group, self._entropy, (voter,)))
        frame = self._layers.place(Kind.VIEW, ViewBody(standing.members))
        self._layers.opened(frame.position)

    def decided(self, run: tuple[Frame, ...]) -> None:
        """The frontier passed the run; with the view's VIEW frame in it, the view is primary."""
        standing = self._standing
        if self.phase is not Phase.INSTALLING:
            return
        if any(frame.kind == Kind.VIEW and frame.view == standing.view for frame in run):
            self._life.on(Step.DECIDED)
            standing.primary = True
            self._layers.primary()
            self._outbox.installed()

    def on_leave(self) -> None:
        """Take nothing new; stopped when nothing is under way."""
        if self.phase is Phase.STOPPED:
            return
        if self.phase is Phase.BORN:
            raise InvariantViolated("leave was asked before the start")
        name = self._identity.gateway
        self._standing.closed = ("leaving", f"gateway {name!r} is being stopped; send again at another one, or when it is back")
        if self._life.on(Step.LEAVE) is Phase.STOPPED:
            self._standing.taking_part = False
            self._outbox.stopped()

    def drained(self) -> None:
        """Nothing is under way."""
        if self.phase is Phase.DRAINING:
            self._life.on(Step.DRAINED)
            self._standing.taking_part = False
            self._standing.closed = ("leaving", f"gateway {self._identity.gateway!r} has stopped")
            self._outbox.stopped()

    def on_failed(self, reason: str) -> None:
        """A write failed: no vote leaves any more."""
        if self.phase in (Phase.STOPPED, Phase.HALTED):
            return
        self._life.on(Step.FAILED)
        standing = self._standing
        text = f"the disk of gateway {self._identity.gateway!r} failed: {reason}; view {view_text(standing.view)} ends here"
        standing.taking_part = False
        standing.closed = ("halted", text)
        self._outbox.halt(text)
