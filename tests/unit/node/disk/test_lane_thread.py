"""Tests of the lane thread: it reports only durable frames, in order, and handles a full disk or a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import structlog
from structlog.testing import capture_logs

from tests.unit.node.fakes import LOG
from tutti.data.frames.frame import Frame, Kind
from tutti.data.lane_name import LaneName
from tutti.errors import DiskFailed, DiskFull
from tutti.log.read.lane_reader import LaneEnd
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import DeliverUnordered, LaneHeld, PersistLane, ReadLane, RepairLane
from tutti_gateway.core.protocol.events import Event, LaneCorrupt, LaneLog, LanePersisted, LaneRead, WriteFailed
from tutti_gateway.core.protocol.messages import LaneBegin
from tutti_gateway.node.disk import lane_thread
from tutti_gateway.node.disk.lane_thread import LaneFacts, LaneThread

OWN = LaneName(1, bytes(16))


class Logs:
    """Lanes that keep what they are told; `trouble` is raised by what it names, once for each."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.empty = False
        self.trouble: dict[str, list[Exception]] = {}
        self.damaged: dict[LaneName, str] = {}
        self.starts: dict[LaneName, int] = {}
        self.began: LaneBegin | None = None
        self.rounds = 0
        self.urgent = False
        self.found: list[LaneCorrupt] = []
        self.snapshots: list[str] = []
        self.looks = 0  # of retention

    def _do(self, what: str, told: object) -> None:
        if self.trouble.get(what):
            raise self.trouble[what].pop(0)
        self.done.append(told)

    def persist(self, action: PersistLane) -> None:
        self._do("persist", action.token)

    def sync(self) -> None:
        self._do("sync", "sync")

    def read(self, action: ReadLane) -> tuple[Frame, ...]:
        if self.empty:
            return ()
        self._do("read", action)
        return (Frame(Kind.BATCH, b"x"),)

    def frontier(self, lane: LaneName, position: int, offset: int) -> None:
        self._do("frontier", (lane, position, offset))

    def decided(self, run: DeliverUnordered) -> None:
        self._do("decided", run.first_offset)

    def forget(self, producers: Iterable[int]) -> None:
        self._do("forget", producers)

    def suspect(self, incarnation: bytes) -> list[LaneName]:
        self._do("suspect", incarnation)
        self.damaged[OWN] = "what to do"
        return [OWN]

    def begin(self, action: ReadLane) -> LaneBegin | None:
        return self.began

    def set_replicated(self, action: LaneHeld) -> None:
        self._do("held", action)

    def scrub(self) -> LaneCorrupt | None:
        if self.trouble.get("look"):
            raise self.trouble["look"].pop(0)
        return self.found.pop(0) if self.found else None

    def pop_messages(self) -> list[str]:
        return [self.snapshots.pop(0)] if self.snapshots else []

    def repair(self, action: RepairLane) -> LaneCorrupt:
        self._do("mend", action.frames[0].position)
        return LaneCorrupt(*OWN, 0, 0)

    def apply_retention(self) -> bool:
        self.looks += 1
        if self.trouble.get("let_go"):
            raise self.trouble["let_go"].pop(0)
        return False

    def idle(self) -> bool:
        return False


class Bench:
    def __init__(self) -> None:
        self.logs, self.reports = Logs(), list[Event]()
        self.indexed = 0
        self.disk = LaneThread(self.logs, self.reports.append, self.count, LOG, {OWN: LaneEnd(9, 40)})

    def count(self) -> None:
        self.indexed += 1

    def until(self, holds: Callable[[], bool]) -> None:
        """Rounds, as many as it takes."""
        for _ in range(10):
            if holds():
                return
            self.disk.run_once()
        raise AssertionError("it did not happen")


def action(token: int) -> PersistLane:
    return PersistLane(token, *OWN)


def run(offset: int = 0) -> DeliverUnordered:
    frame = Frame(Kind.BATCH, b"x", count=3)
    frame.stamp(1, 5, 0)
    return DeliverUnordered(*OWN, offset, (frame,))


def test_one_sync_serves_all_waiting_writes_and_the_highest_token_is_reported() -> None:
    bench = Bench()
    for token in (1, 2, 3):
        bench.disk.put(action(token))
    assert bench.disk.run_once()
    assert bench.logs.done == [1, 2, 3, "sync"]
    assert bench.reports == [LanePersisted(3)]
    assert bench.disk.counters.syncs == 0  # nothing was written that would have been synced
    assert not bench.disk.run_once()


def test_written_and_synced_bytes_of_lanes_are_counted() -> None:
    bench = Bench()
    frames = run().frames
    for token in (1, 2):
        bench.disk.put(PersistLane(token, *OWN, frames))
    bench.disk.run_once()
    meters = bench.disk.counters
    assert (meters.syncs, meters.bytes, meters.frames_per_sync.sum, meters.sync_us.count) == (1, 2 * frames[0].size, 2, 1)


def test_writes_on_a_full_disk_are_repeated_and_earlier_ones_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISK_FULL_WAIT_US", 0)
    bench = Bench()
    bench.disk.put(action(1))
    bench.disk.put(action(2))
    bench.disk.run_once()
    bench.logs.trouble["persist"] = [DiskFull("no room"), DiskFull("no room")]
    bench.disk.put(action(3))
    bench.disk.run_once()
    assert (bench.reports, bench.disk.full) == ([LanePersisted(2)], "no room")
    bench.until(lambda: bench.reports[-1] == LanePersisted(3))
    assert bench.logs.done == [1, 2, "sync", 3, "sync"]
    assert (bench.disk.full, bench.disk.failed) == ("", "")


def test_index_rows_on_a_full_disk_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISK_FULL_WAIT_US", 0)
    bench = Bench()
    bench.logs.trouble["decided"] = [DiskFull("no room")]
    bench.disk.deliver(run(7))
    bench.disk.run_once()
    assert (bench.indexed, bench.disk.full) == (0, "no room")
    bench.until(lambda: bench.indexed == 1)
    assert bench.logs.done == [7]


def test_after_a_failure_nothing_is_written_and_reads_are_answered() -> None:
    bench = Bench()
    bench.logs.trouble["sync"] = [DiskFailed("input/output error")]
    bench.disk.put(action(1))
    bench.disk.run_once()
    assert bench.reports == [WriteFailed("input/output error")]
    bench.disk.put(action(2))
    bench.disk.put(ReadLane(9, *OWN, 1, 1))
    bench.disk.run_once()
    assert bench.logs.done[0] == 1
    assert 2 not in bench.logs.done
    assert isinstance(bench.reports[-1], LaneRead)
    assert bench.disk.depth == 0


def test_an_unreadable_range_is_answered_with_nothing() -> None:
    bench = Bench()
    bench.logs.trouble["read"] = [OSError(5, "input/output error")]
    bench.disk.put(ReadLane(9, *OWN, 1, 1))
    bench.disk.run_once()
    assert bench.reports == [LaneRead(9, ())]
    assert bench.logs.done == [OWN.incarnation]  # the next start looks at all of it
    assert bench.disk.damaged == {OWN: "what to do"}
    bench.disk.suspect(b"12345678")
    bench.disk.run_once()
    assert bench.logs.done[1:] == [b"12345678"]
    assert bench.disk.failed == ""


def test_the_lanes_are_notified_of_deleted_producers() -> None:
    bench = Bench()
    bench.disk.forget((3, 4))
    bench.disk.run_once()
    assert bench.logs.done == [(3, 4)]


def test_a_halted_lane_reports_what_is_known_and_never_that_it_was_empty() -> None:
    bench = Bench()
    lost = LaneName(1, b"l" * 16)
    bench.disk.set_recovered(
        (
            LaneLog(origin=OWN.origin, incarnation=OWN.incarnation, halted="it is damaged"),
            LaneLog(origin=lost.origin, incarnation=lost.incarnation, halted="it is gone"),
            LaneLog(origin=2, incarnation=bytes(16), position=7, offset=3),
        )
    )
    assert bench.disk.facts == {
        OWN: LaneFacts(9, 40, "it is damaged"),
        lost: LaneFacts(None, None, "it is gone"),
        LaneName(2, bytes(16)): LaneFacts(7, 3),
    }


def test_the_own_frontier_is_published_at_once_and_is_in_the_status() -> None:
    bench = Bench()
    bench.disk.publish_frontier(run(10))
    assert bench.logs.done == [(OWN, 5, 13)]
    assert bench.disk.facts == {OWN: LaneFacts(5, 13)}


def test_a_read_of_trimmed_frames_is_answered_with_the_start_of_the_lane() -> None:
    bench = Bench()
    bench.logs.began = LaneBegin(9, 1, 7, 40, (1,))
    bench.logs.trouble["read"] = []
    bench.logs.empty = True
    bench.disk.put(ReadLane(9, *OWN, 1, 1))
    bench.disk.put(LaneHeld(*OWN, 9))
    bench.until(lambda: bool(bench.reports))
    assert bench.reports == [LaneRead(9, (), bench.logs.began)]
    assert bench.logs.done == [LaneHeld(*OWN, 9)]  # nobody suspects it
    bench.disk.put(PersistLane(1, *OWN, begin=bench.logs.began))
    assert bench.disk.facts == {OWN: LaneFacts(9, 40)}


def test_retention_runs_in_each_round_and_a_full_disk_there_blocks_no_writing() -> None:
    bench = Bench()
    bench.logs.trouble["let_go"] = [DiskFull("no room"), DiskFull("no room")]
    for token in (1, 2, 3):
        bench.disk.put(action(token))
        assert bench.disk.run_once()
    assert bench.logs.looks == 3
    assert bench.reports == [LanePersisted(1), LanePersisted(2), LanePersisted(3)]
    assert (bench.disk.full, bench.disk.failed) == ("", "")


def test_lost_frames_of_a_lane_are_reported_and_rewritten() -> None:
    bench = Bench()
    lost = LaneCorrupt(*OWN, 5, 5)
    bench.logs.found = [lost]
    assert bench.disk._idle() is False
    assert bench.reports == [lost]
    bench.disk.put(RepairLane(*OWN, run().frames))
    assert bench.disk.depth == 1
    bench.until(lambda: bench.disk.depth == 0)
    assert (bench.logs.done, bench.reports[1:]) == ([5], [LaneCorrupt(*OWN, 0, 0)])


@pytest.mark.parametrize(("trouble", "ends"), [(KeyError("x"), True), (OSError(5, "x"), False), (DiskFull("x"), False)])
def test_a_scrub_ends_no_writing(trouble: Exception, ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRUB_WAIT_US", 0)
    bench = Bench()
    bench.logs.trouble["look"] = [trouble]
    bench.logs.found = [LaneCorrupt(*OWN, 5, 5)]
    for _ in range(2):
        bench.disk._idle()
    assert bench.reports == ([] if ends else [LaneCorrupt(*OWN, 5, 5)])
    bench.disk.put(action(1))
    bench.disk.run_once()
    assert (bench.reports[-1], bench.disk.failed) == (LanePersisted(1), "")


def test_a_disk_without_idle_time_is_scrubbed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_thread, "LATE_S", 0.0)
    bench = Bench()
    bench.logs.found = [LaneCorrupt(*OWN, 5, 5)]
    bench.disk.put(action(1))
    bench.disk.run_once()
    assert bench.reports == [LanePersisted(1), LaneCorrupt(*OWN, 5, 5)]


def test_the_results_for_snapshots_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRUB_WAIT_US", 0)
    with capture_logs() as logged:
        bench = Bench()
        bench.disk = LaneThread(bench.logs, bench.reports.append, bench.count, structlog.get_logger(), {})
        bench.logs.snapshots = ["one is damaged", "it was made again"]
        for _ in range(3):
            bench.disk._idle()
    assert [line["finding"] for line in logged] == ["one is damaged", "it was made again"]
