"""The figures say what they mean: the law of messages holds, a quiet group does not pause, a lost one is measured as lost."""

from __future__ import annotations

import pytest

from tests.sim import figures, steps
from tests.sim.load import LAN_US, US_A_BYTE, Group, Producer
from tests.sim.pauses import SCENARIOS, Pause, run
from tests.sim.schedule import MS
from tests.sim.traffic import LOADS, measure
from tutti_gateway.core.limits import BOOT_HEARTBEATS, HEARTBEAT_US

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("through", ["coordinator", "member"])
def test_one_frame_at_a_time_costs_the_predicted_messages(through: str) -> None:
    found = measure(3, through, LOADS[0], 200)
    assert found.law == (6 if through == "coordinator" else 7)
    assert found.law * 0.98 < found.all < found.law * 1.03, found
    assert (found.sent["Forward"] > 0) == (found.sent["Echo"] > 0) == (through == "member")


def test_the_last_line_reports_the_cost_of_a_frame_at_coordinator_and_member() -> None:
    """One of both for the other looks like a message more."""
    assert figures._traffic((1, 3), 100).endswith("at the coordinator / at another member, with 1: 0.0, 3: 6.0 / 7.0")


def test_a_group_of_one_sends_no_messages() -> None:
    assert not measure(1, "coordinator", LOADS[1], 200).sent


def test_round_trips_are_measured_right_from_the_first_heartbeats_on() -> None:
    """A heartbeat that echoes nothing is no round trip since the clock began."""
    group = Group(3, LAN_US, seed=1)
    group.run(2 * HEARTBEAT_US)
    for gateway in group.others():
        for peer in group.process(gateway).stack.layers.peers:
            assert 0 < peer.rtt_us < 2 * LAN_US + 5 * MS
            assert peer.boot_beats(HEARTBEAT_US) == BOOT_HEARTBEATS


def _pause(name: str) -> Pause:
    return run(next(scenario for scenario in SCENARIOS if scenario.name == name), LAN_US, seed=1)


def test_nothing_pauses_when_nothing_happens() -> None:
    assert _pause("nothing happens").pause_us < HEARTBEAT_US / 2


def test_a_dead_coordinator_costs_the_boot_time_and_a_broken_connection_costs_nothing() -> None:
    lost, killed = _pause("coordinator's host lost, nobody is told"), _pause("coordinator killed, its connections break")
    # The last heartbeat came in the one before the first that is counted.
    assert (BOOT_HEARTBEATS - 1) * HEARTBEAT_US <= lost.pause_us < (BOOT_HEARTBEATS + 1) * HEARTBEAT_US
    assert killed.pause_us < lost.pause_us / 3


def test_a_lost_member_has_a_heartbeat_to_answer_and_one_whose_connection_broke_two() -> None:
    lost, killed = _pause("member's host lost, nobody is told"), _pause("member killed, its connections break")
    assert BOOT_HEARTBEATS * HEARTBEAT_US <= lost.pause_us < (BOOT_HEARTBEATS + 1.5) * HEARTBEAT_US
    assert HEARTBEAT_US <= killed.pause_us < 2.5 * HEARTBEAT_US


def test_a_producer_gets_every_outcome_though_all_members_restart() -> None:
    group = Group(3, LAN_US, seed=2)
    assert group.world.network.us_a_byte == US_A_BYTE
    producer = Producer(group, "p", group.coordinator)
    producer.send(5)
    for gateway in group.others():
        gateway.power()
    producer.send(5)
    for gateway in group.others():
        group.start(gateway)
    producer.rest()
    assert len(producer.committed) == 10


def test_a_step_is_measured_on_every_member() -> None:
    found = steps.measure(3, 1, 128)
    assert set(found) == {"1", "64"}
    for roles in found.values():
        assert set(roles) == {"coordinator", "origin", "member"}
        assert all(us > 0 for us in roles.values())
