"""Members of a group in one process: real stacks, a disk and a network that do what a test says, and an eye on every action.

One member starts as a gateway does. Several start in a view that is given to them (`Given`): everything but the choice of that view
is the real thing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tutti.data.client_protocol import Answer, Committed, Duplicate
from tutti.data.frames.bodies import RosterBody, ViewBody, Voter
from tutti.data.frames.frame import SEQUENCED, Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti.data.view_id import coordinator_of
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.inbound_messages import Inbound
from tutti_gateway.core.layers import Layers
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.actions import Action, Deliver, Halt, Persist, Reply, Send, SetTimer, Stopped
from tutti_gateway.core.protocol.events import (
    Event,
    Identity,
    Now,
    Persisted,
    Received,
    Recovered,
    SessionClosed,
    StackConfig,
    Started,
    TimeAdvanced,
)
from tutti_gateway.core.protocol.message_checks import malformed
from tutti_gateway.core.protocol.messages import Message, Vote
from tutti_gateway.core.stack import Stack
from tutti_gateway.core.view.phases import Phase

WALL_US = 1_600_000_000_000_000
ENTROPY = b"log-uuid-16bytes"


def voters(names: list[str]) -> tuple[Voter, ...]:
    return tuple(Voter(place, name, incarnation(name), f"{name}:7400") for place, name in enumerate(names, 1))


def incarnation(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


class AsItComes(Inbound):
    """Takes every message: heartbeats, which tell who others are, are not sent here."""

    def on_received(self, event: Received) -> None:
        self.on_message(event.sender, event.message)


class Given(Layers):
    """Layers of a test: views are given, not agreed upon. Only views whose members all have the same log may be given."""

    def __init__(self, context: Context, me: int, names: list[str]) -> None:
        super().__init__(context)
        self.inbound = AsItComes(context, self.peers, self.handlers())
        self._me = me
        self._names = names

    def start(self, event: Started) -> None:
        self.context.view_state.me = self._me
        self.context.view_state.durable(event.recovered.scalars)
        self.restore(event.recovered.tail)
        self.give(event.recovered.scalars.accepted)

    def give(self, view: int) -> None:
        """Begin the view of all members; its number names the coordinator."""
        standing, outbox = self.context.view_state, self.context.outbox
        self.flush.machine.state = Phase.INSTALLING
        standing.durable(HardState(view, view, standing.coordinated))
        standing.install(view, tuple(range(1, len(self._names) + 1)), coordinator_of(view))
        self.order.installed()
        self.atomic.installed()
        outbox.installed()
        if standing.coordinating:
            if self.context.window.end == 0:
                self.order_frame(Kind.ROSTER, RosterBody("test", ENTROPY, voters(self._names)))
            self.view_opened(self.order_frame(Kind.VIEW, ViewBody(standing.members)).position)

    def suspect(self, member: int, reason: str) -> None:
        self.context.outbox.suspect(member, reason)

    def beat(self) -> None:
        self.order.beat()
        self.atomic.beat()

    @property
    def beating(self) -> bool:
        return self.atomic.beating or not self.order.quiet


@dataclass
class Member:
    """One member and what the outside knows of it."""

    name: str
    number: int
    stack: Stack
    log: list[Frame] = field(default_factory=list)  # on its disk, durable or not
    durable: int = 0  # frames of it that were synced
    scalars: HardState = field(default_factory=HardState)
    persists: deque[Persist] = field(default_factory=deque)  # not yet reported
    delivered: list[tuple[Frame, int, bool]] = field(default_factory=list)  # (frame, offset, void)
    runs: list[int] = field(default_factory=lambda: [0])  # where the frontier stood: what a watermark may name
    replies: list[tuple[int, Answer]] = field(default_factory=list)
    timer_us: int | None = None
    halted: str = ""
    stopped: bool = False
    history: list[tuple[bytes, Now, list[bytes]]] = field(default_factory=list)


class Group:
    """Members, time and network. `watch` sees every member's event and actions as they happen."""

    def __init__(
        self, config: StackConfig | None = None, watch: Callable[[Member, Event, list[Action]], None] | None = None
    ) -> None:
        self.config = config
        self.members: dict[str, Member] = {}
        self.mono_us = 0
        self.wall_us = WALL_US
        self.network: list[tuple[Member, Member, bytes]] = []
        self.watch = watch or (lambda member, event, actions: None)
        self.problems: list[str] = []
        self.placed: dict[tuple[int, int], bytes] = {}  # (view, position) -> header, of every frame that anybody ever wrote
        self.closed: set[tuple[str, int]] = set()

    # Starting

    def start_alone(self, name: str) -> Member:
        """A blank gateway that is its whole group."""
        return self._start(Member(name, 1, Stack(Random, self.config)), {name: f"{name}:7400"}, LogState(), ())

    def start_group(self, names: list[str], view: int) -> None:
        """Blank members in the given view."""
        members = [self._member(name, number, names, view) for number, name in enumerate(names, 1)]
        self.members = {member.name: member for member in members}
        for member in members:
            self._start(member, {}, LogState(), ())

    def _member(self, name: str, number: int, names: list[str], view: int) -> Member:
        return Member(
            name,
            number,
            Stack(Random, self.config, lambda context: Given(context, number, names)),
            scalars=HardState(view, view, 0),
        )

    def restart(self, name: str, watermark: int | None = None, keep: int | None = None, again: Identity | None = None) -> Member:
        """A new process on the disk of the old one: what was synced is there (and `keep` frames at least), the rest may not be.

        `watermark` is the frontier that the disk knows of (default: the one that the member had).
        """
        old = self.members[name]
        kept = old.log[: max(old.durable, keep or 0)]
        watermark = len(old.delivered) if watermark is None else watermark
        void = {frame.position for frame, _, aborted in old.delivered if aborted}
        state = LogState()
        for frame in kept[:watermark]:
            state.apply(frame, frame.position in void)
        member = Member(name, 1, Stack(Random, self.config), log=list(kept), durable=len(kept), scalars=old.scalars)
        member.delivered = old.delivered[:watermark]
        member.runs = [position for position in old.runs if position <= watermark]
        return self._start(member, {name: f"{name}:7400"}, state, tuple(kept[watermark:]), again)

    def _start(
        self, member: Member, members: dict[str, str], state: LogState, tail: tuple[Frame, ...], again: Identity | None = None
    ) -> Member:
        self.members[member.name] = member
        identity = again or Identity(member.name, incarnation(member.name), "test", members)
        self.step(member, Started(identity, ENTROPY, Recovered(state.log, member.scalars, state, tail)))
        return member

    def give_view(self, view: int) -> None:
        """A view change that everybody's disks and logs agree to."""
        ends = {member.stack.layers.context.window.end for member in self.members.values()}
        assert len(ends) == 1, f"logs end at {ends}: a cut would be needed"
        for member in self.members.values():
            layers = member.stack.layers
            assert isinstance(layers, Given)
            layers.give(view)
            self.step(member, TimeAdvanced())

    # Events

    def step(self, member: Member, event: Event) -> list[Action]:
        """One event of one member; its actions are noted, nothing of them is carried out but by the test's word."""
        now = Now(self.mono_us, self.wall_us)
        if isinstance(event, SessionClosed):
            self.closed.add((member.name, event.session))
        data = codec.encode(event)
        actions = member.stack.step(event, now)
        member.history.append((data, now, [codec.encode([action]) for action in actions]))
        for action in actions:
            self._note(member, action)
        self.watch(member, event, actions)
        return actions

    def _note(self, member: Member, action: Action) -> None:
        if isinstance(action, Persist):
            member.persists.append(action)
            member.log += action.frames
            for frame in action.frames:
                if self.placed.setdefault((frame.view, frame.position), frame.header) != frame.header:
                    self.problems.append(f"{member.name} writes {frame!r}, and that place was another frame's")
        elif isinstance(action, Send):
            to = next(other for other in self.members.values() if other.number == action.to)
            if wrong := malformed(action.message):
                self.problems.append(f"{member.name} sends what no other takes: {wrong}")
            if isinstance(action.message, Vote) and action.message.up_to > member.durable:
                self.problems.append(f"{member.name} votes up to {action.message.up_to} and {member.durable} is durable")
            self.network.append((member, to, codec.encode(action.message)))
        elif isinstance(action, Deliver):
            self._delivered(member, action)
        elif isinstance(action, Reply):
            self._replied(member, action)
        elif isinstance(action, SetTimer):
            member.timer_us = action.at_us
        elif isinstance(action, Halt):
            member.halted = action.reason
        elif isinstance(action, Stopped):
            member.stopped = True

    def _delivered(self, member: Member, run: Deliver) -> None:
        member.runs.append(run.frames[-1].position)
        for frame, offset in zip(run.frames, run.offsets, strict=True):
            if frame.position > member.durable:
                self.problems.append(f"{member.name} delivers {frame!r}, and its disk has {member.durable}")
            member.delivered.append((frame, offset, frame.position in run.aborted))

    def _replied(self, member: Member, reply: Reply) -> None:
        if (member.name, reply.session) in self.closed:
            self.problems.append(f"{member.name} answers session {reply.session}, which is over: {reply.answers}")
        for answer in reply.answers:
            member.replies.append((reply.session, answer))
            if isinstance(answer, Committed | Duplicate):
                for other in self.members.values():
                    if not _holds(other.log[: other.durable], answer):
                        self.problems.append(f"{member.name} says {answer}, and {other.name} does not have it durable")

    def persisted(self, member: Member, token: int | None = None) -> None:
        """The disk reports everything up to the token (default: all)."""
        if not member.persists:
            return
        last = member.persists[-1].token if token is None else token
        while member.persists and member.persists[0].token <= last:
            action = member.persists.popleft()
            member.durable += len(action.frames)
            member.scalars = action.scalars or member.scalars
        self.step(member, Persisted(last))

    def deliver(self, place: int = 0) -> None:
        """The network hands over one message."""
        sender, to, data = self.network.pop(place)
        self.hand_over(sender, to, data)

    def hand_over(self, sender: Member, to: Member, data: bytes) -> None:
        """A message arrives (again, perhaps)."""
        message: Message = codec.decode_message(data)
        self.step(to, Received(sender.number, message))

    def advance(self, by_us: int) -> None:
        """Time passes; whoever asked for it is woken."""
        until = self.mono_us + by_us
        while True:
            due = [member for member in self.members.values() if member.timer_us is not None and member.timer_us <= until]
            if not due:
                break
            member = min(due, key=lambda one: (one.timer_us or 0, one.number))
            at = max(self.mono_us, member.timer_us or 0)
            self.wall_us += at - self.mono_us
            self.mono_us = at
            member.timer_us = None
            self.step(member, TimeAdvanced())
        self.wall_us += until - self.mono_us
        self.mono_us = until

    def settle(self) -> None:
        """Disks and network work until nothing is left to do, what is told a little later included."""
        while True:
            while self.network or any(member.persists for member in self.members.values()):
                while self.network:
                    self.deliver()
                for member in self.members.values():
                    self.persisted(member)
            if not any(member.stack.layers.atomic.decisions.deadline_us for member in self.members.values()):
                return
            self.advance(limits.CONFIRM_LATE_US)


def _holds(log: list[Frame], answer: Committed | Duplicate) -> bool:
    """Whether the frames have every sequence of the answer's batch."""
    wanted = set(range(answer.first_sequence, answer.first_sequence + answer.count))
    for frame in log:
        if frame.kind in SEQUENCED and frame.producer == answer.producer:
            wanted -= set(range(frame.first_sequence, frame.last_sequence + 1))
    return not wanted


def replay(member: Member, config: StackConfig | None, layers: Callable[[Context], Layers] = Layers) -> None:
    """A new stack takes the recorded events and must do the same again, byte for byte."""
    stack = Stack(Random, config, layers)
    for number, (data, now, actions) in enumerate(member.history):
        again = [codec.encode([action]) for action in stack.step(codec.decode_event(data), now)]
        assert again == actions, f"event {number} of {member.name} was answered differently"
