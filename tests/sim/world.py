"""The world of one run: time, gateways, network, clients, and whoever looks on. It carries actions out and hands events in."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.checkers import Checks
from tests.sim.disk import Disk
from tests.sim.gateways import Gateway, Process
from tests.sim.grouplog import GroupLog
from tests.sim.index_readers import IndexChecks
from tests.sim.lanes import LaneChecks
from tests.sim.network import Network
from tests.sim.options import Options
from tests.sim.schedule import MS, Schedule
from tests.sim.violation import Violation
from tutti_gateway.core.protocol.events import LinkChanged
from tutti_gateway.core.protocol.messages import Message

TRACED_MAX = 4000  # of what happened, for the transcript


class World:
    """Everything of one run.

    Attributes:
        gateways: by name. genesis: names and addresses that the group begins with.
        checks, lanes, indexes, log: what looks on, and the one log.
        steps: of all stacks. traced_last: (time, who, what) of what happened last.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.schedule = Schedule()
        self.log = GroupLog()
        self.gateways: dict[str, Gateway] = {}
        self.checks = Checks(self)
        self.lanes = LaneChecks(self)
        self.indexes = IndexChecks(self)
        self.steps = 0
        self.traced_last: deque[tuple[int, str, Any]] = deque(maxlen=TRACED_MAX)
        latency = self.chance("latency")
        self.network = Network(self.schedule, self.chance("network"), self._hand_over, lambda: _latency(options.latency, latency))
        names = [f"g{number}" for number in range(1, options.members + 1)]
        self.genesis = {name: f"{name}:7400" for name in names}
        for name in names:
            self.add(name, self.genesis)
        self.healing = False
        self.counts: Counter[str] = Counter()  # of what a run is worth: how often which part of the protocol was needed
        self.removals: Callable[[], int] = lambda: 0  # by how many gateways the roster may become smaller soon
        self.resumes: dict[tuple[int, int], int] = {}  # (producer, epoch) -> the highest sequence that was acknowledged
        self.weak: dict[str, int] = {}  # gateways that lost something synced, and what they must have again
        self.wiped: list[str] = []  # names whose new disk the roster does not name yet
        self.faults: Counter[str] = Counter()  # how often each happened
        self._client_cuts: dict[tuple[str, str], int] = {}

    def chance(self, purpose: str) -> Random:
        """Randomness for one purpose: what others draw does not change it."""
        return Random(f"{self.options.seed}/{purpose}")

    def add(self, name: str, members: dict[str, str]) -> Gateway:
        """Another gateway, with a blank disk."""
        chance = self.chance(f"disk {name}")
        disk = Disk(name, self.schedule, chance, self.checks, self.options.sync_us * (0.3 + 2 * chance.random()))
        gateway = self.gateways[name] = Gateway(name, self, disk, members)
        return gateway

    def start(self) -> None:
        """All gateways, one after the other."""
        for gateway in self.gateways.values():
            self.schedule.after(gateway.chance.random() * 300 * MS, gateway.start)

    @property
    def running(self) -> list[Gateway]:
        """Gateways with a process."""
        return [gateway for gateway in self.gateways.values() if gateway.process is not None]

    # What processes do

    def _hand_over(self, sender: str, to: str, message: Message, incarnation: bytes) -> None:
        process = self.gateways[to].process
        if process is not None:
            process.receive(sender, message, incarnation)

    def lost(self, process: Process) -> None:
        """A process is gone; connections to it end."""
        sessions, process.sessions = list(process.sessions.values()), {}
        for answer in sessions:
            self.schedule.after(500, answer, None)

    def halted(self, gateway: Gateway, reason: str) -> None:
        """A member stops taking part: only where its disk failed, or was replaced."""
        self.note(gateway.name, f"halts: {reason}")
        if "input/output error" not in reason and not gateway.disk.weak:
            raise Violation(f"{gateway.name} halts: {reason}")

    def stopped(self, process: Process) -> None:
        """An orderly stop is done."""
        process.gateway.kill("has stopped in order")

    def link(self, one: str, other: str, *, up: bool) -> None:
        """The connection between two breaks, or is there again, and both are told."""
        for name, peer in ((one, other), (other, one)):
            process = self.gateways[name].process
            if process is not None and one != other:
                for number in [number for number, known in process.names.items() if known == peer]:
                    process.step(LinkChanged(number, up))

    def replaced(self, name: str) -> None:
        """An operator hears that the gateway has a new disk."""
        self.wiped.append(name)

    # Clients

    def cut_client(self, client: str, gateway: str, by: int) -> None:
        """A client does not reach a gateway (`by` 1), or does again (-1)."""
        self._client_cuts[client, gateway] = self._client_cuts.get((client, gateway), 0) + by

    def reaches(self, client: str, gateway: str) -> bool:
        """Whether messages pass between them."""
        return not self._client_cuts.get((client, gateway))

    # Disks that lost something

    def strong_again(self) -> None:
        """Who has again what it had counts again; a wiped one only when the roster names its new disk."""
        roster = {voter.name: voter for voter in self.log.state.roster.values()}
        for name, end in list(self.weak.items()):
            gateway = self.gateways[name]
            process, voter = gateway.process, roster.get(name)
            if roster and voter is None:
                del self.weak[name]  # it is no member any more
                continue
            counts = voter is not None and voter.voting and voter.incarnation == gateway.incarnation
            if counts and process is not None and process.frontier >= end and not gateway.disk.rotten:
                gateway.disk.weak = False
                del self.weak[name]

    def may_weaken(self, gateway: Gateway) -> bool:
        """Whether the group bears that this disk loses something that was synced."""
        self.strong_again()
        voters = [voter.name for voter in self.log.state.roster.values() if voter.voting] or list(self.genesis)
        weak = {*self.weak, gateway.name}  # one that does not vote too: a ROSTER that nobody decided yet may let it
        return 2 * len(weak) < len(voters) - self.removals()

    # Looking on

    def traced(self, who: str, what: Any) -> None:
        """Keep it for the transcript."""
        self.traced_last.append((self.schedule.now, who, what))

    def note(self, who: str, text: str) -> None:
        """Something that the world did to somebody."""
        self.traced_last.append((self.schedule.now, who, text))


def _latency(kind: str, chance: Random) -> float:
    """Of one pair, microseconds."""
    if kind == "wan":
        return chance.uniform(1, 80) * MS
    if kind == "edge":
        return chance.uniform(700, 1200) * MS / 2 if chance.random() < 0.3 else chance.uniform(1, 200) * MS
    return chance.uniform(50, 500)
