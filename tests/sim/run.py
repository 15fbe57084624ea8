"""One run: a phase with faults, a phase in which everything heals, and the last look at what is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.clients import Producer, Reader
from tests.sim.faults import STALL_S, Faults
from tests.sim.index_readers import IndexReaders
from tests.sim.lane_clients import LaneProducer
from tests.sim.operators import Operator
from tests.sim.options import Options
from tests.sim.schedule import SECOND
from tests.sim.stage_clients import Committer, Stager
from tests.sim.violation import Violation
from tests.sim.world import World

HEAL_HEARTBEATS = 60  # after the faults stop, until a majority takes messages again
CALM_HEARTBEATS = 600  # until all members are back, with the same log, and every client has its outcome
LATENCIES = 60  # and so many of the longest latency, for either


@dataclass
class Result:
    """What a run came to: `violation` is empty if it kept every promise."""

    options: Options
    world: World
    violation: str = ""
    cpu_s: float = 0.0
    simulated_s: float = 0.0
    frames: int = 0


class Run:
    """The world of the options, with clients, an operator and faults in it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        world = self.world = World(options)
        self.producers = [Producer(world, f"p{number}", number) for number in range(options.producers)]
        self.producers += [Stager(world, f"s{number}", number) for number in range(options.stagers)]
        self.producers += [Committer(world, f"c{number}", number) for number in range(options.committers)]
        self.readers = [Reader(world, f"r{number}") for number in range(options.readers)]
        self.unordered = [LaneProducer(world, number) for number in range(options.unordered)]
        if options.indexes:
            IndexReaders(world)
        self.operator = Operator(world)
        world.removals = self.operator.removals
        self.faults = Faults(world, self.producers, self.readers, self.operator)
        world.start()
        self.faults.start(options.faults)

    def play(self) -> Result:
        """All of it."""
        began = time.process_time()
        result = Result(self.options, self.world)
        try:
            self.world.schedule.run(int(self.options.seconds * SECOND))
            self.heal()
        except Violation as violation:
            result.violation = str(violation)
        result.cpu_s = time.process_time() - began
        result.simulated_s = self.world.schedule.now / SECOND
        result.frames = self.world.log.end
        return result

    # After the faults

    def heal(self) -> None:
        """Everything is well again: a majority goes on, everybody comes back, everybody gets an outcome."""
        world = self.world
        heartbeat_us = self.options.config.heartbeat_us
        more = int(LATENCIES * world.network.latency_max)
        self.faults.heal()
        world.schedule.run(world.schedule.now + (STALL_S + 1) * SECOND)  # what hangs in a disk comes through
        self._until(HEAL_HEARTBEATS * heartbeat_us + more, self._goes_on, "no majority accepts records")
        self._until(CALM_HEARTBEATS * heartbeat_us + more, self._is_calm, "some gateway or client did not come to rest")
        world.checks.whole()
        last = Producer(world, "last", len(self.producers))
        self.producers.append(last)
        self._until(HEAL_HEARTBEATS * heartbeat_us + more, self._is_calm, "a new producer cannot open its session")
        for producer in self.producers:
            producer.produce(1)
        for sender in self.unordered:
            sender.produce(1)
        self._until(HEAL_HEARTBEATS * heartbeat_us + more, self._is_calm, "new records got no outcome")
        if not last.acknowledged:
            raise Violation("a new producer got no receipt for its committed record")
        world.checks.whole()
        for reader in self.readers:
            reader.check()

    def _until(self, within_us: int, reached: Callable[[], str], what: str) -> None:
        world = self.world
        limit = world.schedule.now + within_us
        while why := reached():
            for gateway in world.gateways.values():
                if gateway.wanted and gateway.process is None:
                    gateway.start()  # it was leaving when the faults stopped
            if world.schedule.now >= limit:
                raise Violation(f"{what} {within_us / SECOND:.0f} s after the faults stopped: {why}")
            world.schedule.run(world.schedule.now + SECOND // 4)

    def _goes_on(self) -> str:
        """A majority of the voters is in a view that takes messages."""
        world = self.world
        if any(gateway.process is not None and gateway.process.primary for gateway in world.running):
            return ""
        return "; ".join(f"{gateway.name} {self._where(gateway.name)}" for gateway in world.gateways.values())

    def _where(self, name: str) -> str:
        process = self.world.gateways[name].process
        if process is None:
            return "is down"
        return f"is {process.stack.phase.value} at {process.frontier} in {process.view}"

    def _is_calm(self) -> str:
        """Every member that is wanted has all of the log, and no client waits."""
        world = self.world
        world.strong_again()
        for gateway in world.gateways.values():
            process = gateway.process
            named = gateway.name in (world.log.numbers or world.genesis)
            if gateway.wanted and named and (process is None or not process.primary or process.frontier != world.log.end):
                return f"{gateway.name} {self._where(gateway.name)}, and the log ends at {world.log.end}"
            if gateway.wanted and named and gateway.disk.rotten:
                return f"{gateway.name} cannot read positions {sorted(gateway.disk.rotten)}"
        if lanes := world.lanes.differ():
            return lanes
        for client in (*self.producers, *self.readers, *self.unordered):
            if not client.settled:
                return f"{client.name} is {client.state.value} and waits"
        if self.operator.wishes:
            return f"the operator waits for {self.operator.wishes}"
        return ""


def play(options: Options) -> Result:
    """Run the options from the start to the end."""
    return Run(options).play()
