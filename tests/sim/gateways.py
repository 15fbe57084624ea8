"""One gateway of the simulator: a name, a disk, clocks, and a process that steps the real stack and carries its actions out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from tests.sim.disk import Disk
from tests.sim.schedule import MS
from tests.sim.violation import Violation
from tutti.data.client_protocol import Answer
from tutti.errors import TuttiError
from tutti_gateway.core.protocol.actions import (
    Action,
    Deliver,
    DeliverUnordered,
    Halt,
    LaneHeld,
    LogReplaced,
    Peers,
    Persist,
    PersistLane,
    ReadIndex,
    ReadLane,
    ReadLog,
    ReadSnapshot,
    RepairLane,
    RepairLog,
    Reply,
    Send,
    SetTimer,
    Stopped,
    ViewInstalled,
)
from tutti_gateway.core.protocol.events import (
    Event,
    Identity,
    Now,
    OffsetsAsked,
    ReadIndexAsked,
    Received,
    SessionClosed,
    StackConfig,
    Started,
    Submitted,
    TimeAdvanced,
    group_events,
    groupable,
)
from tutti_gateway.core.protocol.messages import Confirm, Install, Installed, Message, Propose, State, Vote
from tutti_gateway.core.stack import Stack
from tutti_gateway.transport.inbound_peers import number_of

if TYPE_CHECKING:
    from tests.sim.world import World

WALL_US = 1_600_000_000_000_000
GATHER_US_MAX = 1_000
INBOX_MAX = 20_000  # what the system holds for a process that does not run
ERRORS = (TuttiError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError)
DRAMATIC = (Confirm, Install, Installed, Propose, State, Vote)  # messages at which a death in the middle matters


def _of_all_clients(events: list[Event]) -> Iterator[Event]:
    """The events, but batches of several clients that follow one another are one event, as after one look of a driver."""
    for are_batches, run in itertools.groupby(events, lambda event: isinstance(event, Submitted)):
        if are_batches:
            batches = [event for event in run if isinstance(event, Submitted)]
            sessions = [session for event in batches for session in event.sessions]
            yield Submitted(tuple(sessions), tuple([frame for event in batches for frame in event.frames]))
        else:
            yield from run


class Clock:
    """A gateway's clocks: monotonic from the start of the machine, at its own rate; wall, which may jump."""

    __slots__ = ("_base", "_from", "rate", "wall_offset")

    def __init__(self) -> None:
        self._base = 1_000_000.0
        self._from = 0
        self.rate = 1.0
        self.wall_offset = 0

    def now(self, time: int) -> Now:
        """Both clocks at the virtual time."""
        return Now(int(self._base + (time - self._from) * self.rate), WALL_US + time + self.wall_offset)

    def time_of(self, mono_us: int) -> int:
        """When the monotonic clock will show `mono_us`."""
        return self._from + int((mono_us - self._base) / self.rate) + 1

    def run_at(self, rate: float, time: int) -> None:
        """Another rate from now on."""
        self._base += (time - self._from) * self.rate
        self._from = time
        self.rate = rate


class Gateway:
    """What outlives processes.

    Attributes:
        process: the running one, or None. wanted: whether it is to be started again when it is down.
        frontier: the last position that this disk ever showed as decided.
        halt: why the last process halted, empty if it did not.
    """

    def __init__(self, name: str, world: World, disk: Disk, members: dict[str, str]) -> None:
        self.name = name
        self.world = world
        self.disk = disk
        self.members = members
        self.chance = world.chance(f"gateway {name}")
        self.incarnation = self.chance.randbytes(16)
        self.clock = Clock()
        self.process: Process | None = None
        self.starts = 0
        self.frontier = 0
        self.wanted = True
        self.halt = ""
        self.snipe = 0.0

    def start(self) -> None:
        """A new process on the disk, unless the gateway was removed meanwhile."""
        if self.process is not None or not self.wanted:
            return
        self.starts += 1
        named = self.world.log.numbers
        if named and not self.disk.frames:  # a blank disk is set up with the members that there are
            self.members = {name: f"{name}:7400" for name in (*named, self.name)}
        self.halt = ""
        process = self.process = Process(self, self.world.options.stack)
        world = self.world
        world.note(self.name, "starts")
        recovered = self.disk.recover(process.step, world.log.state_at)
        world.checks.started(self, recovered)
        process.frontier, process.offset = recovered.state.position, recovered.state.next_offset
        identity = Identity(self.name, self.incarnation, "sim", self.members)
        process.step(Started(identity, self.chance.randbytes(16), recovered))
        if self.disk.low:
            self.disk.space(True)

    def kill(self, how: str = "is killed") -> None:
        """The process ends at once."""
        process = self.process
        if process is None:
            return
        self.world.note(self.name, how)
        self.process = None
        process.over = True
        self.disk.kill()
        self.world.lost(process)

    def power(self) -> None:
        """The machine stops at once."""
        self.kill("loses its power")
        self.disk.power()

    def wipe(self) -> None:
        """A blank disk, and so a new incarnation."""
        self.power()
        self.world.note(self.name, "gets a blank disk")
        self.disk.blank()
        self.disk.weak = True
        self.world.weak[self.name] = self.world.log.end
        self.incarnation = self.chance.randbytes(16)
        self.frontier = 0


class Process:
    """One run of a gateway.

    Attributes:
        frontier, offset: last position delivered, and the offset that follows it. view: the last `ViewInstalled`.
        frozen: it gets no time; what happens to it waits. over: it is gone.
        sessions: clients by the number of their session.
    """

    def __init__(self, gateway: Gateway, config: StackConfig) -> None:
        self.gateway = gateway
        self.world = gateway.world
        self.stack = Stack(Random, config)
        self.frontier = gateway.disk.watermark
        self.offset = 0
        self.view: ViewInstalled | None = None
        self.frozen = self.over = self.stopped = False
        self.timer_us: int | None = None
        self.sessions: dict[int, Callable[[tuple[Answer, ...] | None], None]] = {}
        self._session = 0
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._timer_number = 0
        gathers = "gather" in self.world.options.faults
        self._gathers = self.world.chance(f"gather {gateway.name}").randint(0, GATHER_US_MAX) if gathers else 0
        self._gathered: list[Event] = []
        self.names = dict(enumerate(sorted(gateway.members), 1))
        self.numbers = {name: number for number, name in self.names.items()}
        self._said: dict[str, int] = {}  # the numbers that others say they have in the log of this one

    @property
    def me(self) -> int:
        """The number under which this gateway is known, 0 before it is."""
        name = self.gateway.name
        if self.world.log.names.get(self.stack.me) == name:
            return self.stack.me  # one that was removed and added again learns its other number later than the log says it
        return self.world.log.ever.get(name) or self.numbers.get(name, 0)

    def _know(self, action: Peers) -> None:
        """The stack says who is who."""
        name = self.gateway.name
        me = self.numbers.get(name, 0)
        self.names = {number: name for number, name, _ in action.peers}
        self.numbers = {name: number for number, name in self.names.items()}
        self.numbers.setdefault(name, me)

    @property
    def primary(self) -> bool:
        """Whether it is in a view that decides, as far as it knows."""
        return self.view is not None and self.view.primary and not self.gateway.halt and not self.over

    @property
    def coordinates(self) -> bool:
        """Whether it coordinates the view that it is in."""
        return self.view is not None and self.view.view > 0 and self.view.coordinator == self.me

    # Events

    def step(self, event: Event) -> None:
        """One event; its actions are carried out."""
        if self.over:
            return
        if self.frozen:
            self.when_running(self.step, event)
            return
        if self._gathers and groupable(event):
            if not self._gathered:
                self.world.schedule.at(self.world.schedule.now + self._gathers, self._together)
            self._gathered.append(event)
            return
        self._together()
        if not self.over:  # what was gathered may have ended it
            self._step(event)

    def _together(self) -> None:
        """What was gathered as one step, as a driver hands on what it finds when it looks."""
        if self._gathered and not self.over and not self.frozen:
            gathered, self._gathered = self._gathered, []
            for event in group_events(_of_all_clients(gathered)):
                self._step(event)

    def _step(self, event: Event) -> None:
        gateway, world = self.gateway, self.world
        world.traced(gateway.name, event)
        if isinstance(event, SessionClosed):
            self.sessions.pop(event.session, None)
        elif isinstance(event, ReadIndexAsked):
            world.indexes.asked(event)
        elif isinstance(event, OffsetsAsked):
            world.checks.commits.asked(self, event)
        try:
            actions = self.stack.step(event, gateway.clock.now(world.schedule.now))
        except ERRORS as error:
            raise Violation(f"{gateway.name} raises {type(error).__name__} at {type(event).__name__}: {error}") from error
        world.steps += 1
        if gateway.snipe and any(isinstance(action, Send) and isinstance(action.message, DRAMATIC) for action in actions):
            self._sniped(actions, gateway.chance)
            return
        for action in actions:
            self._carry_out(action)

    def _sniped(self, actions: list[Action], chance: Random) -> None:
        """The process may die after any of the actions."""
        last = len(actions)
        if chance.random() < self.gateway.snipe:
            last = chance.randint(0, len(actions))
            self.gateway.snipe = 0.0
        for action in actions[:last]:
            self._carry_out(action)
        if last < len(actions):
            self.gateway.kill("dies in the middle of a step")

    def when_running(self, call: Callable[..., None], *args: Any) -> None:
        """Call when the process gets time again, which may be now."""
        if not self.frozen:
            call(*args)
        elif len(self._inbox) < INBOX_MAX or not (args and isinstance(args[0], Received)):
            self._inbox.append((call, args))

    def resume(self) -> None:
        """The process gets time again: all that waited comes at once."""
        self.frozen = False
        self._together()
        waiting, self._inbox = self._inbox, []
        for call, args in waiting:
            if not self.over:
                self.when_running(call, *args)

    def receive(self, sender: str, message: Message, incarnation: bytes) -> None:
        """A message of another gateway."""
        number = self._number(sender)
        if number:
            self.step(Received(number, message, incarnation))

    def _number(self, sender: str) -> int:
        """The number of a gateway, 0 if it has none here. A handshake makes it known; a gateway that is down said it before."""
        other = self.world.gateways[sender].process
        if other is not None:
            self._said[sender] = other.stack.me if self.stack.log and other.stack.log == self.stack.log else 0
        number = number_of(sender, self._said.get(sender, 0), self.numbers, self.me)
        if number and self.names.get(number) != sender:
            self.names.pop(self.numbers.get(sender, 0), None)  # nobody answers by an older number
            self.names[number] = sender
        return number

    # Actions

    def _carry_out(self, action: Action) -> None:
        world, gateway = self.world, self.gateway
        world.traced(gateway.name, action)
        if isinstance(action, Send):
            world.checks.sent(self, action.to, action.message)
            world.lanes.sent(self, action.to, action.message)
            self._send(action.to, action.message)
        elif isinstance(action, Persist):
            world.checks.persists(self, action)
            gateway.disk.persist(action)
        elif isinstance(action, Deliver):
            world.checks.delivered(self, action)
            self.frontier = gateway.disk.frontier = action.frames[-1].position
            self.offset = action.next_offset
            gateway.frontier = max(gateway.frontier, self.frontier)
            gateway.disk.trims.decided(action)
        elif isinstance(action, LogReplaced):
            world.checks.relearned(self, action)
            self.frontier = gateway.disk.frontier = action.position
            self.offset = action.next_offset
            gateway.frontier = max(gateway.frontier, self.frontier)
        elif isinstance(action, SetTimer):
            self._set_timer(action.at_us)
        elif isinstance(action, Reply):
            if not world.lanes.replied(self, action):
                world.checks.replied(self, action)
            answer = self.sessions.get(action.session)
            if answer is None:
                raise Violation(f"{gateway.name} answers session {action.session}, which is closed: {action.answers}")
            answer(action.answers)
        elif isinstance(action, PersistLane | ReadLane | RepairLane | LaneHeld | DeliverUnordered):
            world.lanes.carry_out(self, action)
        elif isinstance(action, ReadLog):
            gateway.disk.read(action)
        elif isinstance(action, ReadSnapshot):
            gateway.disk.read_snapshot(action)
        elif isinstance(action, RepairLog):
            gateway.disk.mend(action)
        elif isinstance(action, ReadIndex):
            world.indexes.answered(self, action)
        elif isinstance(action, ViewInstalled):
            world.checks.installed(self, action)
            self.view = action
        elif isinstance(action, Peers):
            self._know(action)
        elif isinstance(action, Halt):
            gateway.halt = action.reason
            world.halted(gateway, action.reason)
        elif isinstance(action, Stopped):
            self.stopped = True
            world.stopped(self)

    def _send(self, to: int, message: Message) -> None:
        name = self.names.get(to)
        if name is None:
            return  # `Peers` comes behind what is sent: until then the transport has no address
        self.world.network.send(self.gateway.name, name, message, self.gateway.incarnation)

    def _set_timer(self, at_us: int) -> None:
        self._timer_number += 1
        late = self.gateway.chance.random() * MS
        self.world.schedule.at(self.gateway.clock.time_of(at_us) + int(late), self._timer, self._timer_number)

    def _timer(self, number: int) -> None:
        if number == self._timer_number:
            self.step(TimeAdvanced())

    # Clients

    def open(self, answer: Callable[[tuple[Answer, ...] | None], None]) -> int:
        """A client's session begins."""
        self._session += 1
        self.sessions[self._session] = answer
        return self._session
