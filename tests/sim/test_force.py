"""Proves that a roster that is forced keeps every promise that it can under whole stacks: what anybody who remains had is there."""

from __future__ import annotations

import pytest

from tests.sim.options import Options
from tests.sim.run import Run
from tests.sim.schedule import SECOND
from tests.support.cases import first_fast
from tutti.data.client_protocol import Answer, Done
from tutti_gateway.core.limits import FORCE_HEARTBEATS, HEARTBEAT_US
from tutti_gateway.core.protocol.events import RosterForced


@pytest.mark.parametrize("seed", first_fast(range(1, 5), 1))
def test_two_of_five_continue_by_a_forced_roster(seed: int) -> None:
    run = Run(Options(seed, members=5, producers=3, readers=1, unordered=2, rate=10.0))
    world = run.world
    world.schedule.run((8 + seed) * SECOND)
    chance = world.chance("force")
    kept = sorted(chance.sample(sorted(world.gateways), 2))
    for gateway in world.gateways.values():
        if gateway.name not in kept:
            gateway.wanted = False
            gateway.power()
    world.schedule.run(world.schedule.now + (FORCE_HEARTBEATS + 20) * HEARTBEAT_US)
    before = world.log.end
    process = world.gateways[kept[0]].process
    assert process is not None
    told: list[Answer] = []
    session = process.open(lambda answers: told.extend(answers or ()))
    process.step(RosterForced(session, 1, tuple(kept)))
    world.schedule.run(world.schedule.now + 2 * SECOND)
    assert told == [Done(1)]
    assert sorted(world.log.numbers) == kept
    assert world.log.end > before
    run.heal()
    assert world.gateways[kept[0]].disk.frames == world.gateways[kept[1]].disk.frames
