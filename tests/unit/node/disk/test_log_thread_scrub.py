"""Tests of scrubbing in the log thread: it finds corruption beside its other work, reports one range at a time, and never stops for
it.
"""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.unit.node.disk.log_thread_harness import Bench, persist
from tests.unit.node.fakes import batch_frame
from tutti_gateway.core.protocol.actions import ReadLog, RepairLog
from tutti_gateway.core.protocol.events import Event, LogCorrupt, LogRead, Persisted, WriteFailed
from tutti_gateway.node.disk import scrub_schedule


class Clock:
    """Time as a test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(scrub_schedule, "time", clock)
    return clock


def rotted(bench: Bench) -> list[Event]:
    return [event for event in bench.reports if isinstance(event, LogCorrupt)]


def frames(count: int) -> RepairLog:
    return RepairLog(tuple(batch_frame(sequence=sequence) for sequence in range(1, count + 1)))


def test_lost_ranges_are_reported_and_reported_again_as_they_are_repaired(clock: Clock) -> None:
    bench = Bench()
    bench.writer.scrubber.ranges = [(5, 9), (20, 20)]
    bench.disk.scrub_schedule.scrub()
    assert rotted(bench) == [LogCorrupt(5, 9)]
    bench.disk.put(frames(3))
    assert bench.disk.run_once()
    bench.disk.put(frames(2))
    assert bench.disk.run_once()
    assert rotted(bench) == [LogCorrupt(5, 9), LogCorrupt(8, 9), LogCorrupt(0, 0)]
    clock.now += 1
    bench.disk.scrub_schedule.scrub()
    assert rotted(bench)[3:] == [LogCorrupt(20, 20)]
    assert bench.disk.scrub_status() == {"lost": [20, 20], "told": "", "found": 2, "mended_frames": 5, "rounds": 0}


@pytest.mark.parametrize("full", [False, True])
def test_frames_that_are_refused_are_requested_again(clock: Clock, full: bool) -> None:
    bench = Bench()
    bench.writer.scrubber.ranges = [(5, 9)]
    bench.disk.scrub_schedule.scrub()
    bench.writer.scrubber.takes, bench.writer.scrubber.full = False, full
    bench.disk.put(frames(3))
    assert bench.disk.run_once()
    assert rotted(bench) == [LogCorrupt(5, 9), LogCorrupt(5, 9)]
    assert bench.disk.failed == ""


def test_the_scrub_reads_in_chunks_with_pauses(clock: Clock) -> None:
    bench = Bench()
    scrubber = bench.writer.scrubber
    for after, looks in ((0.0, 1), (0.1, 1), (0.2, 2), (0.3, 3)):
        clock.now += after
        bench.disk.scrub_schedule.scrub()
        assert scrubber.looks == looks
    clock.now += 0.3
    scrubber.rounds = 1
    bench.disk.scrub_schedule.scrub()
    clock.now += 3000
    bench.disk.scrub_schedule.scrub()
    assert scrubber.looks == 4  # a round is over, and the next one has time
    clock.now += 1000
    bench.disk.scrub_schedule.scrub()
    assert scrubber.looks == 5


def test_frames_that_a_reader_could_not_read_are_checked_at_once(clock: Clock) -> None:
    bench = Bench()
    bench.disk.scrub_schedule.scrub()
    bench.disk.suspect(7)
    bench.disk.run_once()
    assert bench.writer.scrubber.suspects == [7]
    bench.disk.scrub_schedule.scrub()
    assert bench.writer.scrubber.looks == 2


def test_a_failed_read_for_another_gateway_starts_a_scrub(clock: Clock) -> None:
    bench = Bench()
    bench.disk.run_once()
    bench.writer.unreadable = True
    bench.disk.put(ReadLog(1, 5, 9))
    bench.disk.run_once()
    assert bench.reports == [LogRead(1, (), 4)]
    assert bench.writer.scrubber.suspects == [5]


def test_a_disk_without_idle_time_is_scrubbed_now_and_then(clock: Clock) -> None:
    bench = Bench()
    scrubber = bench.writer.scrubber
    for token in range(1, 51):
        bench.disk.put(persist(token, token))
        assert bench.disk.run_once()
        clock.now += 0.25
    assert 5 <= scrubber.looks <= 7
    assert sum(isinstance(event, Persisted) for event in bench.reports) == 50


def test_nothing_is_repaired_after_writing_failed(clock: Clock) -> None:
    bench = Bench()
    bench.writer.scrubber.ranges = [(5, 9)]
    bench.disk.scrub_schedule.scrub()
    bench.writer.broken = "gone"
    bench.disk.put(persist(1, 1))
    bench.disk.run_once()
    assert isinstance(bench.reports[-1], WriteFailed)
    bench.disk.put(frames(3))
    assert not bench.disk.run_once()
    assert bench.writer.scrubber.repaired == 0


def test_a_long_unreadable_range_is_reported_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told four times a second, in a log that nobody may ever look at."""
    bench = Bench()
    scrubber = bench.writer.scrubber
    look = scrubber.scrub

    def refused() -> bool:
        look()
        raise OSError(13, "Permission denied")

    def looks(count: int) -> list[str]:
        with capture_logs() as told:
            for _ in range(count):
                clock.now += 1
                bench.disk.scrub_schedule.scrub()
        return [line["error"] for line in told]

    with monkeypatch.context() as patch:
        patch.setattr(scrubber, "scrub", refused)
        assert looks(50) == ["[Errno 13] Permission denied"]
        assert scrubber.looks == 50
    assert looks(1) == []
    monkeypatch.setattr(scrubber, "scrub", refused)
    assert looks(2) == ["[Errno 13] Permission denied"]


def test_a_defect_in_looking_ends_the_looking_alone(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    def defect() -> bool:
        raise KeyError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(bench.writer.scrubber, "scrub", defect)
        assert not bench.disk.scrub_schedule.scrub()
    clock.now += 100
    bench.disk.scrub_schedule.scrub()
    assert bench.writer.scrubber.looks == 0
    bench.disk.put(persist(1, 1))
    assert bench.disk.run_once()
    assert (bench.reports, bench.disk.failed) == ([Persisted(1)], "")
