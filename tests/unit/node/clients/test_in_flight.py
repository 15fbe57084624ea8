"""Tests of the in-flight bytes: they are exact after any decision or truncation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.node.driver_harness import Bench, placed
from tests.unit.node.fakes import batch_frame
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core.protocol.actions import Persist, ReadLog
from tutti_gateway.core.protocol.events import Persisted, TimeAdvanced
from tutti_gateway.node.clients.in_flight import OrderedInFlight


def frames(first: int, sizes: list[int], view: int = 1) -> list[Frame]:
    found = []
    for position, size in enumerate(sizes, first):
        frame = Frame(Kind.TICK if size % 2 else Kind.BATCH, bytes(size))
        frame.stamp(view, position, 0)
        found.append(frame)
    return found


@given(
    st.lists(
        st.one_of(st.lists(st.integers(0, 99), min_size=1, max_size=5), st.integers(0, 12).map(lambda many: ("decide", many)))
        | st.tuples(st.sampled_from(["cut", "sync"]), st.integers(0, 12)),
        max_size=30,
    )
)
def test_in_flight_bytes_are_those_written_and_neither_decided_nor_truncated(moves: list[list[int] | tuple[str, int]]) -> None:
    under_way, log, decided, waits = OrderedInFlight(), list[Frame](), 0, list[tuple[int, int, int]]()
    synced: dict[int, int] = {}  # when what came at a time was
    for now, move in enumerate(moves, 1):
        if isinstance(move, list):
            some = frames(len(log) + 1, move)
            log += some
            under_way.add(some)
            under_way.track(some, now, now)
            if any(frame.kind == Kind.BATCH for frame in some):
                waits.append((len(log), now, len(some)))
        elif move[0] == "decide":
            run = log[decided : decided + move[1]]
            decided += len(run)
            gone = [(at, many) for last, at, many in waits if last <= decided]
            assert not run or under_way.pop_decided(run) == (gone, [(synced[at], many) for at, many in gone if at in synced])
            waits = [wait for wait in waits if wait[0] > decided]
        elif move[0] == "sync":
            durable = [at for last, at, _ in waits if at <= now - move[1] and at not in synced]
            assert set(durable) <= {at for at, _ in under_way.pop_voted(now - move[1], now)}
            synced |= dict.fromkeys(durable, now)
        else:
            del log[max(decided, len(log) - move[1]) :]
            under_way.truncate(len(log))
            waits = [wait for wait in waits if wait[0] <= len(log)]
        assert (under_way.frames, under_way.bytes) == (len(log) - decided, sum(frame.size for frame in log[decided:]))


def test_truncated_frames_are_not_in_flight_and_reads_of_the_log_go_to_the_disk() -> None:
    bench = Bench()
    frames = tuple(placed(batch_frame(), position) for position in (1, 2, 3))
    cut, read = Persist(2, cut=1), ReadLog(3, 1, 9)
    bench.answers = {Persisted: [Persist(1, frames)], TimeAdvanced: [cut, read]}
    bench.happen(Persisted(1))
    assert (bench.driver.undecided_frames, bench.driver.undecided_bytes) == (3, sum(frame.size for frame in frames))
    bench.happen(TimeAdvanced())
    assert (bench.driver.undecided_frames, bench.driver.undecided_bytes) == (1, frames[0].size)
    assert bench.disk.queued[1:] == [cut, read]
