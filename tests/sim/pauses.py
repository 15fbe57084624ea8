"""How long ordering pauses when the group changes: the longest time between two outcomes that a steady producer gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from statistics import median
from typing import NamedTuple

from tests.sim.gateways import Gateway
from tests.sim.load import LAN_US, WAN_US, Group, Producer
from tests.sim.schedule import MS, SECOND
from tutti_gateway.core.limits import HEARTBEAT_US
from tutti_gateway.core.protocol.events import LeaveAsked

INTERVAL_US = 5 * MS  # a frame of the producer every so often
TAIL_US = 15 * HEARTBEAT_US  # a pause may follow when the change is made
DOWN_US = 100 * MS  # of all members, when all are started again
FILL_RUN = 500


class Pause(NamedTuple):
    """One run: the longest pause, how long the change took, and what the producer was refused."""

    pause_us: int
    took_us: int
    refused: int


class Scenario(NamedTuple):
    """What happens to a group: `change` lets it happen, and returns when it is done; `before` prepares it, unmeasured."""

    name: str
    members: int
    change: Callable[[Group, Gateway], None]
    before: Callable[[Group, Gateway], None] = lambda group, gateway: None
    coordinator: bool = False  # whether it happens to the coordinator, or to another member


class Figure(NamedTuple):
    """All runs of one scenario."""

    scenario: str
    members: int
    latency_us: int
    runs: list[Pause]

    def pause(self, of: Callable[[list[int]], float]) -> float:
        """Of the longest pauses, microseconds."""
        return of([run.pause_us for run in self.runs])

    @property
    def took_us(self) -> float:
        """How long the change took, at the median."""
        return median([run.took_us for run in self.runs])

    @property
    def refused(self) -> int:
        """Refusals of all runs."""
        return sum(run.refused for run in self.runs)


# What happens


def _nothing(group: Group, gateway: Gateway) -> None:
    group.run(TAIL_US)


def _rest(group: Group, gateway: Gateway) -> None:
    """The others form a view without the gateway."""
    group.until(lambda: group.whole(*[other.name for other in group.others(gateway)]), "the others go on")


def _all(group: Group, gateway: Gateway) -> None:
    """All are in one view."""
    group.until(lambda: group.whole(*group.world.gateways), "all are together")


def _killed(group: Group, gateway: Gateway) -> None:
    group.kill(gateway, told=True)
    _rest(group, gateway)


def _lost(group: Group, gateway: Gateway) -> None:
    group.kill(gateway, told=False)
    _rest(group, gateway)


def _leaves(group: Group, gateway: Gateway) -> None:
    gateway.wanted = False
    group.process(gateway).step(LeaveAsked())
    _rest(group, gateway)


def _killed_before(group: Group, gateway: Gateway) -> None:
    _killed(group, gateway)
    group.run(TAIL_US)


def _joins(group: Group, gateway: Gateway) -> None:
    group.start(gateway)
    _all(group, gateway)


def _learns(group: Group, gateway: Gateway) -> None:
    gateway.wipe()
    group.start(gateway)
    group.replace(gateway, group.coordinator)
    _all(group, gateway)
    group.world.strong_again()


def _block(group: Group, gateway: Gateway, *, blocked: bool) -> None:
    pairs = [(gateway.name, other.name) for other in group.others(gateway)]
    pairs += [(other, one) for one, other in pairs]
    (group.world.network.block if blocked else group.world.network.unblock)(pairs)


def _cut_off(group: Group, gateway: Gateway) -> None:
    _block(group, gateway, blocked=True)
    _rest(group, gateway)


def _cut_off_before(group: Group, gateway: Gateway) -> None:
    _cut_off(group, gateway)
    group.run(TAIL_US)


def _healed(group: Group, gateway: Gateway) -> None:
    _block(group, gateway, blocked=False)
    _all(group, gateway)


def _restart(group: Group, gateway: Gateway) -> None:
    for one in group.others():
        one.power()
    group.run(DOWN_US)
    for one in group.others():
        group.start(one)
    _all(group, gateway)


SCENARIOS = (
    Scenario("nothing happens", 3, _nothing),
    Scenario("coordinator killed, its connections break", 3, _killed, coordinator=True),
    Scenario("coordinator's host lost, nobody is told", 3, _lost, coordinator=True),
    Scenario("member killed, its connections break", 3, _killed),
    Scenario("member's host lost, nobody is told", 3, _lost),
    Scenario("member leaves in order", 3, _leaves),
    Scenario("coordinator leaves in order", 3, _leaves, coordinator=True),
    Scenario("restarted member joins", 3, _joins, _killed_before),
    Scenario("coordinator cut off", 3, _cut_off, coordinator=True),
    Scenario("coordinator cut off", 5, _cut_off, coordinator=True),
    Scenario("it comes back and merges", 3, _healed, _cut_off_before, coordinator=True),
    Scenario("it comes back and merges", 5, _healed, _cut_off_before, coordinator=True),
    Scenario("all restart at once", 3, _restart, coordinator=True),
)


# Measuring


def _measure(group: Group, producer: Producer, change: Callable[[], None]) -> Pause:
    """Let it happen, and look for the longest time without an outcome."""
    outcomes, began, refused = len(producer.committed), group.now, producer.refused
    change()
    took = group.now - began
    group.run(TAIL_US)
    times = [began, *producer.committed[outcomes:], group.now]
    longest = max(after - before for before, after in pairwise(times))
    return Pause(longest, took, producer.refused - refused)


def run(scenario: Scenario, latency_us: int, seed: int) -> Pause:
    """One run: the moment is drawn, so that it falls anywhere between two heartbeats."""
    group = Group(scenario.members, latency_us, seed)
    gateway = group.coordinator
    if not scenario.coordinator:
        gateway = group.others(gateway)[-1]
    producer = Producer(group, "p", next(other for other in group.others(gateway) if scenario.coordinator or other is not gateway))
    producer.pace(INTERVAL_US)
    group.run(SECOND + Random(seed).randrange(2 * HEARTBEAT_US))
    scenario.before(group, gateway)
    return _measure(group, producer, lambda: scenario.change(group, gateway))


def _learners(latency_us: int, frames: int, runs: int) -> Figure:
    """Of one group with a long log, one member after the other loses its disk; its new one learns all of it."""
    group = Group(3, LAN_US, seed=1)
    filler = Producer(group, "f", group.coordinator)
    filler.keep(4, FILL_RUN)
    group.until(lambda: len(filler.committed) >= frames, "the log is long")
    filler.rest()
    group.apart(latency_us)
    producer = Producer(group, "p", group.coordinator)
    producer.pace(INTERVAL_US)
    group.run(SECOND)
    done: list[Pause] = []
    for turn in range(runs):
        gateway = group.others(group.coordinator)[turn % 2]
        _killed_before(group, gateway)
        done.append(_measure(group, producer, lambda gateway=gateway: _learns(group, gateway)))  # type: ignore[misc] # bound now
        group.run(10 * SECOND)
    return Figure(f"blank disk learns {frames:,} frames and joins", 3, latency_us, done)


def table(runs: int, frames: int) -> Iterator[Figure]:
    """All scenarios at both latencies."""
    for latency_us in (LAN_US, WAN_US):
        for scenario in SCENARIOS:
            found = [run(scenario, latency_us, seed) for seed in range(1, runs + 1)]
            yield Figure(scenario.name, scenario.members, latency_us, found)
            if scenario.before is _killed_before:
                yield _learners(latency_us, frames, runs)
