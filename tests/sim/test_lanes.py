"""Proves that lanes keep their promises under whole stacks: in any part, when an origin dies, and that the checks can fail."""

from __future__ import annotations

import pytest

from tests.sim.connection import State
from tests.sim.lane_store import LaneStore
from tests.sim.lanes import LaneChecks
from tests.sim.options import Options
from tests.sim.run import Run, play
from tests.sim.schedule import SECOND
from tests.sim.violation import Violation
from tests.support.cases import first_fast
from tutti.data.frames.frame import Frame, Kind
from tutti.data.names import NAMELESS
from tutti_gateway.core.protocol.actions import DeliverUnordered
from tutti_gateway.core.protocol.events import LanePersisted, LeaveAsked, StackConfig


def group(seed: int = 1, members: int = 3) -> Run:
    """Members that have sent for a while, ordered and into lanes."""
    run = Run(Options(seed, members=members, producers=1, readers=0, unordered=4, rate=5.0))
    run.world.schedule.run(10 * SECOND)
    assert run.world.counts["lane receipts"] > 50
    return run


def test_a_lane_continues_in_a_partition_without_a_view() -> None:
    run = group(members=5)
    world = run.world
    origin = run.unordered[0].origin
    others = [name for name in world.gateways if name != origin]
    world.network.block([(origin, name) for name in others] + [(name, origin) for name in others])
    world.schedule.run(world.schedule.now + 10 * SECOND)
    process = world.gateways[origin].process
    assert process is not None
    assert not process.primary
    before = world.counts["lane frames without a view"]
    world.schedule.run(world.schedule.now + 5 * SECOND)
    assert world.counts["lane frames without a view"] > before + 10
    world.network.unblock([(origin, name) for name in others] + [(name, origin) for name in others])
    run.heal()
    assert world.lanes.differ() == ""


def test_certain_records_of_a_dead_origin_are_decided_without_it() -> None:
    run = group()
    world = run.world
    dead = world.gateways[run.unordered[0].origin]
    key = next(key for key in dead.disk.lanes.lanes if key[1] == dead.incarnation)
    alive = [gateway for gateway in world.gateways.values() if gateway is not dead]
    near, far = alive
    # One of the two hears nothing more of the origin, nor of the other, before it dies.
    for gateway in (dead, near):
        world.network.block([(gateway.name, far.name), (far.name, gateway.name)])
    world.schedule.run(world.schedule.now + 5 * SECOND)
    dead.wanted = False
    dead.kill()
    assert far.disk.lanes.lanes[key].shown < near.disk.lanes.lanes[key].shown
    world.network.unblock([(near.name, far.name), (far.name, near.name)])
    world.schedule.run(world.schedule.now + 5 * SECOND)
    assert far.disk.lanes.lanes[key].shown == near.disk.lanes.lanes[key].shown


def test_a_member_that_leaves_without_a_view_waits_for_its_lane() -> None:
    run = group(members=5)
    world = run.world
    origin = world.gateways[run.unordered[0].origin]
    others = [name for name in world.gateways if name != origin.name]
    world.network.block([(origin.name, name) for name in others] + [(name, origin.name) for name in others])
    world.schedule.run(world.schedule.now + 10 * SECOND)
    process = origin.process
    assert process is not None
    assert not process.primary
    origin.disk.stalled_until = world.schedule.now + 4 * SECOND
    world.schedule.run(world.schedule.now + SECOND)
    lanes = process.stack.layers.lanes
    before = lanes.quiet
    origin.wanted = False
    process.step(LeaveAsked())
    world.schedule.run(world.schedule.now + 5 * SECOND // 2)
    stopped = [process.stopped]
    world.schedule.run(world.schedule.now + 5 * SECOND)
    assert [*stopped, process.stopped] == [False, True]
    assert (before, lanes.quiet) == (False, True)


@pytest.mark.slow
def test_a_producer_that_sends_into_lanes_alone_is_not_idle() -> None:
    """It has no name, and is forgotten when it rests."""
    run = Run(
        Options(3, members=3, producers=0, readers=0, unordered=2, rate=5.0, config=StackConfig(idle_producer_us=30 * SECOND))
    )
    world = run.world
    for client in run.unordered:
        client.name = NAMELESS + client.name
    world.schedule.run(150 * SECOND)
    assert world.log.state.next_producer == 1 + len(run.unordered), "one was forgotten and began anew"
    for client in run.unordered:
        client.leave()
        client.state = State.ENDED
    world.schedule.run(world.schedule.now + 200 * SECOND)
    assert not world.log.state.producers


@pytest.mark.parametrize("seed", first_fast(range(1, 5), 1))
def test_lanes_keep_every_promise(seed: int) -> None:
    faults = frozenset({"kill", "power", "split", "cut", "loss", "twice", "stall", "low", "wipe", "pause"})
    result = play(Options(seed, members=3, seconds=40, faults=faults, pace=6.0, producers=1, unordered=3))
    assert result.violation == ""
    assert result.world.counts["lane frames"] > 50


@pytest.mark.parametrize("seed", first_fast(range(1, 4), 1))
def test_lost_lane_ends_are_restored(seed: int) -> None:
    faults = frozenset({"kill", "power", "loss", "stall", "ends"})
    result = play(Options(seed, members=3, seconds=40, faults=faults, pace=4.0, producers=1, unordered=4, rate=10.0))
    assert result.violation == ""
    assert result.world.counts["lane ends lost"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 3))
def test_a_lost_lane_end_is_restored_although_a_member_of_its_last_attempt_has_a_new_disk(seed: int) -> None:
    faults = frozenset({"exchange"})
    result = play(Options(seed, members=5, seconds=60, faults=faults, pace=5.0, producers=1, readers=0, unordered=6, rate=10.0))
    assert result.violation == ""
    assert result.world.counts["lane disks exchanged"] > 0


def test_a_yes_before_its_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write = LaneStore._write

    def early(self: LaneStore) -> None:
        write(self)
        self._schedule.after(0, self._report, LanePersisted(self._writing[-1].token))

    monkeypatch.setattr(LaneStore, "_write", early)
    assert "durable" in play(Options(1, producers=1, unordered=2, seconds=20)).violation


def test_a_frame_that_a_member_lacks_is_found() -> None:
    run = group()
    world = run.world
    key, decided = next(iter(world.lanes._lanes.items()))
    gateway = next(gateway for gateway in world.gateways.values() if gateway.incarnation == key[1])
    assert gateway.process is not None
    lane = gateway.disk.lanes.lanes[key]
    frame = Frame(Kind.BATCH, b"u9-1", producer=9, epoch=1, first_sequence=1, count=1, topic=1, origin=key[0])
    frame.stamp(lane.frames[-1].view, len(lane.frames) + 1, lane.frames[-1].header_crc)
    lane.frames.append(frame)
    lane.durable = len(lane.frames)
    lane.shown = frame.position - 1
    offset = decided.offsets[-1] + decided.frames[-1].count
    checks: LaneChecks = world.lanes
    with pytest.raises(Violation, match=r"does not have it|others had"):
        checks.carry_out(gateway.process, DeliverUnordered(key[0], key[1], offset, (frame,)))


def test_an_unreadable_lane_frame_that_another_gateway_has_is_reported() -> None:
    run = group()
    world = run.world
    one, *others = world.gateways.values()
    key = next(key for key, lane in one.disk.lanes.lanes.items() if lane.shown > 2)
    last = one.disk.lanes.lanes[key].shown
    one.disk.lanes.lanes[key].rotten.add(last)
    for other in others:
        other.disk.lanes.lanes[key].shown, other.disk.lanes.lanes[key].start = last, last - 1
    assert world.lanes._unmended(key, [one, *others]) == f"{one.name} cannot read position {last} of lane {key[0]}"
    for other in others:
        other.disk.lanes.lanes[key].start = last  # retention let it go
    assert world.lanes._unmended(key, [one, *others]) == ""


def test_a_client_tells_apart_lanes_of_one_gateway_under_two_numbers() -> None:
    """While a gateway is in nobody's roster it names no lane: what it takes afterwards goes into another one."""
    run = group(members=4)
    world = run.world
    origin = world.gateways[run.unordered[0].origin]
    number = world.log.numbers[origin.name]
    run.operator.wishes += [("remove", origin.name), ("add", origin.name)]
    run.operator._adds_at = world.schedule.now + 3 * SECOND
    while origin.process is None or origin.name in {voter.name for voter in origin.process.stack.decided.roster.values()}:
        world.schedule.run(world.schedule.now + SECOND // 10)
    wires = [pair for name in world.gateways if name != origin.name for pair in ((origin.name, name), (name, origin.name))]
    world.network.block(wires)
    while origin.name not in world.log.numbers:
        world.schedule.run(world.schedule.now + SECOND // 10)
    origin.kill()
    origin.start()
    world.schedule.run(world.schedule.now + 2 * SECOND)
    world.network.unblock(wires)
    run.heal()
    assert world.log.numbers[origin.name] > number
    assert all(sender.number == world.log.numbers[sender.origin] for sender in run.unordered)
