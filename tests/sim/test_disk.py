"""Proves that the simulator's disk is as bad as a real one: it loses what was not synced, and tells torn from damaged."""

from __future__ import annotations

from random import Random

import pytest

from tests.sim.disk import Disk
from tests.sim.schedule import SECOND, Schedule
from tests.sim.violation import Violation
from tutti.data.frames.bodies import AbortBody, Entry, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti_gateway.core.protocol.actions import Persist, ReadLog
from tutti_gateway.core.protocol.events import Event, LogRead, Persisted, Recovered, WriteFailed


class Nobody:
    """Looks at nothing."""

    def written(self, disk: Disk, frames: tuple[Frame, ...]) -> None:
        pass

    def cut(self, disk: Disk, behind: int) -> None:
        pass

    def scalars_written(self, disk: Disk, scalars: HardState) -> None:
        pass

    def replaced(self, disk: Disk, state: LogState) -> list[Frame]:
        return list(chain_of(state.position))


class Bench:
    """One disk, its clock, and what it reported."""

    def __init__(self, seed: int = 1) -> None:
        self.schedule = Schedule()
        self.disk = Disk("g1", self.schedule, Random(seed), Nobody(), 1000.0)
        self.reported: list[Event] = []
        self.recover()

    def recover(self) -> Recovered:
        return self.disk.recover(self.reported.append, lambda position: LogState(position=position))

    def settle(self) -> None:
        self.schedule.run(self.schedule.now + SECOND)


def chain_of(count: int, view: int = 1, after: Frame | None = None) -> tuple[Frame, ...]:
    frames = []
    for _ in range(count):
        frame = Frame(Kind.TICK, b"body")
        frame.stamp(view, after.position + 1 if after else 1, after.header_crc if after else 0)
        frames.append(frame)
        after = frame
    return tuple(frames)


def test_one_sync_serves_all_pending_persists() -> None:
    bench = Bench()
    frames = chain_of(5)
    for token, frame in enumerate(frames, 1):
        bench.disk.persist(Persist(token, (frame,)))
    bench.settle()
    assert bench.reported == [Persisted(1), Persisted(5)]
    assert bench.disk.durable == 5


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_keeps_what_was_synced_and_a_beginning_of_the_rest(seed: int) -> None:
    bench = Bench(seed)
    frames = chain_of(10)
    bench.disk.persist(Persist(1, frames[:4]))
    bench.settle()
    bench.disk.persist(Persist(2, frames[4:]))
    bench.disk.power()
    found = bench.recover()
    assert 4 <= len(found.tail) <= 10
    assert found.tail == frames[: len(found.tail)]
    assert found.damage is None


def test_power_losses_differ_in_what_they_keep() -> None:
    ends = set()
    for seed in range(40):
        bench = Bench(seed)
        bench.disk.persist(Persist(1, chain_of(10)))
        bench.disk.power()
        ends.add(len(bench.recover().tail))
    assert {0, 10} <= ends
    assert len(ends) > 4


def test_a_killed_process_gets_no_completion_of_its_requests() -> None:
    bench = Bench()
    bench.disk.persist(Persist(1, chain_of(2)))
    bench.disk.kill()
    bench.settle()
    assert bench.reported == []


def test_hard_state_is_durable_in_order_with_frames() -> None:
    bench = Bench()
    frames = chain_of(4)
    bench.disk.persist(Persist(1, frames[:2]))
    bench.disk.persist(Persist(2, frames[2:], HardState(7, 7, 0)))
    while bench.disk.durable < 4:
        before = bench.disk.durable
        assert (bench.disk.scalars.promised == 7) <= (before >= 2), "no scalars before the frames that came before them"
        assert (len(bench.disk.frames) > 2) <= (bench.disk.scalars.promised == 7), "no later frame before the scalars"
        bench.schedule.run(bench.schedule.now + 10)
    assert bench.reported == [Persisted(1), Persisted(2)]


def test_a_truncation_lowers_the_mark_first_and_is_durable_before_later_writes() -> None:
    bench = Bench()
    frames = chain_of(6)
    bench.disk.persist(Persist(1, frames))
    bench.settle()
    assert bench.disk.mark.position == 6
    other = chain_of(2, view=2, after=frames[2])
    bench.disk.persist(Persist(2, other, None, 3))
    seen = []
    while Persisted(2) not in bench.reported:
        seen.append((bench.disk.mark.position, [frame.view for frame in bench.disk.frames]))
        bench.schedule.run(bench.schedule.now + 10)
    assert (3, [1] * 6) in seen
    assert (3, [1] * 3 + [2] * 2) in seen
    assert not any(mark == 6 and 2 in views for mark, views in seen)
    bench.disk.power()
    assert [frame.view for frame in bench.recover().tail] == [1, 1, 1, 2, 2]


def test_corruption_up_to_the_mark_is_damage_and_above_it_a_torn_end() -> None:
    bench = Bench()
    frames = chain_of(6)
    bench.disk.persist(Persist(1, frames))
    bench.settle()
    bench.disk.rotten.add(4)
    bench.disk.power()
    found = bench.recover()
    assert found.tail == frames[:3]
    assert found.damage is not None
    assert (found.damage.first, found.damage.last, found.damage.chain) == (4, 6, frames[5].header_crc)
    assert bench.recover().damage == found.damage, "it stays damage until it is there again"
    bench.disk.persist(Persist(1, frames[3:]))
    bench.settle()
    assert bench.recover().damage is None


def test_corruption_above_the_mark_is_truncated_silently() -> None:
    bench = Bench()
    frames = chain_of(6)
    bench.disk.persist(Persist(1, frames[:3]))
    bench.settle()
    bench.disk.persist(Persist(2, frames[3:]))
    while bench.disk.durable < 6:
        bench.schedule.run(bench.schedule.now + 10)
    bench.disk.rotten.add(5)
    bench.disk.power()
    found = bench.recover()
    assert found.tail == frames[:4]
    assert found.damage is None


def test_a_failed_sync_is_reported_and_ends_all_writing() -> None:
    bench = Bench()
    frames = chain_of(4)
    bench.disk.fails = True
    bench.disk.persist(Persist(1, frames[:2]))
    bench.settle()
    bench.disk.persist(Persist(2, frames[2:]))
    bench.settle()
    assert bench.reported == [WriteFailed("input/output error")]
    assert bench.disk.durable == 0


def test_frames_that_do_not_continue_the_log_are_found() -> None:
    bench = Bench()
    frames = chain_of(4)
    with pytest.raises(Violation):
        bench.disk.persist(Persist(1, frames[1:]))


def test_a_read_ends_before_a_corrupt_frame_and_reports_a_safe_end() -> None:
    bench = Bench()
    start = chain_of(3)
    abort = Frame(Kind.ABORT, encode_body(AbortBody(2, "no space", Entry(b"", 1, 0, b""))))
    abort.stamp(1, 4, start[-1].header_crc)
    frames = (*start, abort, *chain_of(2, after=abort))
    bench.disk.persist(Persist(1, frames))
    bench.settle()
    for last, rotten, length, stop in ((3, 0, 3, 3), (6, 0, 6, 6), (4, 0, 4, 4), (4, 3, 2, 1), (6, 5, 4, 4)):
        bench.disk.rotten = {rotten}
        bench.disk.read(ReadLog(9, 1, last))
        bench.settle()
        assert bench.reported[-1] == LogRead(9, frames[:length], stop)
