"""Whole groups: real stacks that find their views themselves, disks, a network, and virtual time, which moves when it is told to.

A message takes a millisecond, and so does a disk, unless `Pace` says otherwise. What else a test wants it
says by rules of the network and slow disks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from tests.transcripts.disks import Disk
from tests.transcripts.network import Letter, Network, Rule
from tests.transcripts.watch import Watch
from tutti.data.client_protocol import Answer
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.actions import (
    Action,
    Deliver,
    Halt,
    Peers,
    Persist,
    ReadLog,
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
    Persisted,
    Received,
    SessionClosed,
    StackConfig,
    Started,
    TimeAdvanced,
)
from tutti_gateway.core.stack import Stack
from tutti_gateway.transport.inbound_peers import number_of

WALL_US = 1_600_000_000_000_000
MS = 1_000
IDLE_MS = 10


class Pace(NamedTuple):
    """What a message, a disk, and a start after the one before it take, milliseconds; and what is drawn differently."""

    message_ms: float = 1
    disk_ms: float = 1
    start_ms: float = 0
    entropy: str = "start"


USUAL = Pace()


class Gateway:
    """What outlives processes, and the process.

    Attributes:
        configured: names and addresses that it was told. disk: its disk.
        stack: of the running process, None while there is none. history: its events and what followed, for a replay.
        names, numbers: whom it talks to, and by which numbers it knows them.
        view: the last `ViewInstalled`, None before any. frontier: last position delivered. replies: (session, answer).
        shown: the last position that this disk ever showed as decided.
    """

    def __init__(self, name: str, configured: dict[str, str]) -> None:
        self.name = name
        self.configured = configured
        self.starts = self.disks = 0
        self.disk = Disk(b"")
        self.blank()
        self.stack: Stack | None = None
        self.history: list[tuple[bytes, Now, list[bytes]]] = []
        self.names: dict[int, str] = {}
        self.numbers: dict[str, int] = {}
        self.view: ViewInstalled | None = None
        self.frontier = self.shown = 0
        self.replies: list[tuple[int, Answer]] = []
        self.closed: set[int] = set()
        self.timer_us: int | None = None
        self.halted = ""
        self.stopped = False

    def blank(self) -> None:
        """A disk on which nothing was ever written."""
        self.disks += 1
        self.disk = Disk(f"{self.name}/{self.disks}".encode().ljust(16, b"-"), slow=self.disk.slow)
        self.shown = 0

    @property
    def running(self) -> Stack:
        """The stack of the process."""
        assert self.stack is not None, f"{self.name} is down"
        return self.stack

    @property
    def me(self) -> int:
        """Its number, 0 before it is known."""
        return self.running.layers.context.view_state.me

    @property
    def up(self) -> bool:
        """Whether it runs and takes part."""
        return self.stack is not None and not self.halted and not self.stopped


class Whole:
    """The gateways, time and network.

    Attributes:
        tell: is told what happens: who, and a line or the action.
        watch: looks for what may never happen.
    """

    def __init__(self, config: StackConfig, tell: Callable[[str, Action | str], None], pace: Pace) -> None:
        self.config = config
        self._pace = pace
        self.tell = tell
        self.members: dict[str, Gateway] = {}
        self.network = Network()
        self.watch = Watch(self.members)
        self.mono_us = 0
        self._due: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._under_way = 0

    @property
    def problems(self) -> list[str]:
        """What was found that may never happen."""
        return self.watch.problems

    # Gateways

    def add(self, name: str, configured: dict[str, str]) -> None:
        """Another gateway, down, with a blank disk."""
        self.members[name] = Gateway(name, configured)

    def start(self, name: str) -> None:
        """A process on the disk."""
        gateway = self.members[name]
        assert gateway.stack is None, f"{name} is running"
        self.run(self.mono_us + int(self._pace.start_ms * MS))
        gateway.starts += 1
        gateway.stack = Stack(Random, self.config)
        gateway.history, gateway.view, gateway.timer_us = [], None, None
        gateway.halted, gateway.stopped = "", False
        gateway.closed = set()
        recovered = gateway.disk.recover(self.watch.void)
        gateway.frontier = recovered.state.position
        identity = Identity(name, gateway.disk.incarnation, "test", gateway.configured)
        entropy = f"{self._pace.entropy} {name}/{gateway.starts}".encode().ljust(16, b"-")
        self.step(gateway, Started(identity, entropy, recovered))

    def kill(self, name: str, keep: int) -> None:
        """The process ends at once; `keep` frames that were written and not synced survive."""
        gateway = self.members[name]
        self.watch.ended(gateway, self.config)
        gateway.stack = None
        gateway.disk.crashed(keep)

    def wipe(self, name: str) -> None:
        """A blank disk, and so another incarnation, for a gateway that is down."""
        gateway = self.members[name]
        assert gateway.stack is None, f"{name} is running"
        gateway.blank()

    def step(self, gateway: Gateway, event: Event) -> None:
        """One event of one gateway; what follows from it is carried out."""
        if isinstance(event, SessionClosed):
            gateway.closed.add(event.session)
        now = Now(self.mono_us, WALL_US + self.mono_us)
        data = codec.encode(event)
        actions = gateway.running.step(event, now)
        gateway.history.append((data, now, [codec.encode([action]) for action in actions]))
        for action in actions:
            self.watch.sees(gateway, action)
            self.tell(gateway.name, action)
            self._carry_out(gateway, action)

    def _carry_out(self, gateway: Gateway, action: Action) -> None:
        match action:
            case Persist():
                gateway.disk.persist(action)
                self._after(self._pace.disk_ms, self._disk_done, gateway, gateway.starts, action.token)
            case ReadLog():
                self._after(self._pace.disk_ms, self._log_read, gateway, gateway.starts, action)
            case Send(to, message):
                if to in gateway.names:
                    self._send(Letter(gateway.name, gateway.names[to], gateway.disk.incarnation, codec.encode(message)))
            case Deliver(frames):
                gateway.frontier = gateway.disk.frontier = frames[-1].position
                gateway.shown = max(gateway.shown, gateway.frontier)
                self._due_later(IDLE_MS, self._idle, gateway, gateway.starts, gateway.frontier)
            case Reply(session, answers):
                gateway.replies += [(session, answer) for answer in answers]
            case ViewInstalled():
                gateway.view = action
            case Peers(peers):
                gateway.names = {number: name for number, name, _ in peers}
                gateway.numbers = {name: number for number, name, _ in peers}
            case SetTimer(at_us):
                gateway.timer_us = at_us
                self._due_later((at_us - self.mono_us) / MS, self._timer, gateway, gateway.starts, at_us)
            case Halt(reason):
                gateway.halted = reason
            case Stopped():
                gateway.stopped = True

    # Disks

    def _disk_done(self, gateway: Gateway, start: int, token: int) -> None:
        disk = gateway.disk
        if gateway.starts != start or gateway.stack is None or disk.slow or not disk.wishes:
            return
        if disk.wishes[0].persist.token <= token:
            self.watch.writes(gateway, disk.wishes[0].persist)
            self.step(gateway, Persisted(disk.done()))

    def slow(self, name: str, slow: bool) -> None:
        """The disk reports nothing, or reports again, what waits first."""
        gateway = self.members[name]
        gateway.disk.slow = slow
        if not slow:
            for wish in gateway.disk.wishes:
                self._after(self._pace.disk_ms, self._disk_done, gateway, gateway.starts, wish.persist.token)

    def _log_read(self, gateway: Gateway, start: int, action: ReadLog) -> None:
        if gateway.starts == start and gateway.stack is not None:
            self.step(gateway, gateway.disk.read(action))

    def _idle(self, gateway: Gateway, start: int, frontier: int) -> None:
        if gateway.starts == start and gateway.stack is not None and gateway.frontier == frontier:
            gateway.disk.idle()

    # Network

    def _send(self, letter: Letter) -> None:
        verdict = self.network.verdict(letter)
        if verdict in ("pass", "copy"):
            self._after(self._pace.message_ms, self._arrives, letter)
        elif verdict in ("hold", "lose"):
            self.tell(letter.sender, f"{letter.sender}>{letter.to} {'held' if verdict == 'hold' else 'lost'}: {letter.text}")

    def _arrives(self, letter: Letter) -> None:
        gateway = self.members[letter.to]
        number = self._number_of(gateway, letter.sender)
        if gateway.stack is not None and number:
            self.tell(letter.to, f"{letter.sender}>{letter.to} {letter.text}")
            self.step(gateway, Received(number, letter.message, letter.incarnation))

    def _number_of(self, gateway: Gateway, sender: str) -> int:
        """The number of a gateway, 0 if it has none here. A handshake makes it known."""
        if gateway.stack is None:
            return 0
        other, log = self.members[sender].stack, gateway.stack.log
        said = other.me if other is not None and log and other.log == log else 0
        number = number_of(sender, said, gateway.numbers, gateway.me)
        if number:
            gateway.names[number] = sender
        return number

    def let(self, wanted: Rule, count: int | None) -> int:
        """Held messages arrive now; how many."""
        letters = self.network.take(wanted, count)
        for letter in letters:
            self._after(self._pace.message_ms, self._arrives, letter)
        return len(letters)

    # Time

    def _after(self, ms: float, call: Callable[..., None], *args: Any) -> None:
        """Something that is under way, until it happens."""
        self._under_way += 1
        self._due_later(ms, self._happens, call, *args)

    def _happens(self, call: Callable[..., None], *args: Any) -> None:
        self._under_way -= 1
        call(*args)

    def _due_later(self, ms: float, call: Callable[..., None], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._due, (self.mono_us + max(int(ms * MS), 0), self._number, call, args))

    def _timer(self, gateway: Gateway, start: int, at_us: int) -> None:
        if gateway.starts == start and gateway.stack is not None and gateway.timer_us == at_us:
            gateway.timer_us = None
            self.step(gateway, TimeAdvanced())

    def run(self, until_us: int, reached: Callable[[], bool] = lambda: False) -> bool:
        """Time passes up to `until_us`, or until something is so, which is the answer."""
        while not reached():
            if not self._due or self._due[0][0] > until_us:
                self.mono_us = max(self.mono_us, until_us)
                return False
            self.mono_us, _, call, args = heapq.heappop(self._due)
            call(*args)
        return True

    def settle(self) -> None:
        """What is under way in network and disks happens, and what follows from it, what is told a little later included."""
        self.run(self.mono_us + 1_000 * self.config.heartbeat_us, lambda: not self._under_way and not self._tells_later())

    def _tells_later(self) -> bool:
        stacks = [gateway.stack for gateway in self.members.values()]
        return any(stack is not None and stack.layers.atomic.decisions.deadline_us for stack in stacks)
