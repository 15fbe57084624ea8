"""Tests of the log thread: one write and one sync for all waiting requests, hard state and frames in the order of their Persists, a
report only after the sync. It waits for a full disk, and stops writing permanently after a failed one.
"""

import threading
import time
from collections.abc import Sequence
from random import Random

import pytest

from tests.unit.core.stacks import opened
from tests.unit.node.disk.log_thread_harness import Bench, persist, wait_for
from tests.unit.node.fakes import batch_frame
from tutti import limits as common_limits
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.errors import DiskFull, InvariantViolated
from tutti.log.files.options import FreeSpace
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Persist, ReadLog, ReadSnapshot
from tutti_gateway.core.protocol.events import (
    LogRead,
    Persisted,
    SnapshotRead,
    SpaceChanged,
    StackConfig,
    TimeAdvanced,
    TrimProposed,
    WriteFailed,
)
from tutti_gateway.core.stack import Stack
from tutti_gateway.core.view.group_status import GroupStatus
from tutti_gateway.log.upkeep.retention import BlockedSegments


def test_one_write_and_one_sync_serve_all_waiting_requests() -> None:
    bench = Bench()
    for token in (1, 2, 3):
        bench.disk.put(persist(token, 10 * token, 10 * token + 1))
    assert bench.disk.run_once() is True
    assert bench.writer.done == ["append 10 11 20 21 30 31", "sync", "persisted 3"]
    assert bench.disk.run_once() is False
    assert bench.disk.counters.syncs == 1


def test_scalars_and_frames_keep_the_order_of_their_persists() -> None:
    bench = Bench()
    bench.disk.put(persist(1, promised=7))
    bench.disk.put(persist(2, promised=8))
    bench.disk.put(persist(3, 1, 2))
    bench.disk.put(persist(4, promised=9))
    while bench.disk.run_once():
        pass
    done = ["scalars 8", "append 1 2", "sync", "persisted 3", "scalars 9", "persisted 4"]
    assert bench.writer.done == done


def test_a_round_stays_within_one_syncs_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SYNC_BYTES_MAX", 1000)
    bench = Bench()
    for token in (1, 2, 3):
        bench.disk.put(persist(token, token))
    bench.disk.run_once()
    assert bench.writer.done == ["append 1 2", "sync", "persisted 2"]
    bench.disk.run_once()
    assert bench.writer.done[3:] == ["append 3", "sync", "persisted 3"]


def test_a_full_disk_is_waited_for_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISK_FULL_WAIT_US", 0)
    bench = Bench()
    bench.writer.full = True
    bench.disk.put(persist(1, 1))
    assert bench.disk.run_once() is False
    assert bench.disk.run_once() is False
    assert bench.reports == [SpaceChanged(True, "no room for a segment")]
    bench.writer.full = False
    assert bench.disk.run_once() is True
    assert bench.reports == [SpaceChanged(True, "no room for a segment"), SpaceChanged(False, ""), Persisted(1)]


def test_hard_state_on_a_full_disk_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISK_FULL_WAIT_US", 0)
    bench = Bench()
    bench.writer.full = True
    bench.disk.put(persist(1, promised=7))
    bench.disk.put(persist(2, 1))
    assert bench.disk.run_once() is False
    assert (bench.disk.failed, bench.reports) == ("", [SpaceChanged(True, "no room for the scalars")])
    bench.writer.full = False
    assert bench.disk.run_once() is True
    assert bench.writer.done == ["scalars 7", "append 1", "sync", "persisted 2"]


def test_frames_and_scalars_never_come_together() -> None:
    with pytest.raises(InvariantViolated, match="Persist 1 has frames and hard state"):
        Bench().disk.put(persist(1, 1, promised=7))


def test_a_truncation_separates_earlier_and_later_requests() -> None:
    bench = Bench()
    bench.disk.put(persist(1, 1))
    bench.disk.put(Persist(2, cut=7))
    bench.disk.put(Persist(3, (batch_frame(sequence=2),), cut=6))
    bench.disk.put(persist(4, 3))
    bench.disk.put(Persist(5, (), HardState(promised=9), cut=5))
    while bench.disk.run_once():
        pass
    done = ["append 1", "sync", "persisted 1", "cut 7", "persisted 2", "cut 6", "append 2 3", "sync", "persisted 4"]
    assert bench.writer.done == [*done, "cut 5", "scalars 9", "persisted 5"]


def test_a_truncation_on_a_full_disk_is_repeated_and_a_done_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISK_FULL_WAIT_US", 0)
    bench = Bench()
    bench.disk.put(Persist(1, (batch_frame(sequence=2),), cut=7))
    bench.writer.full = True
    assert bench.disk.run_once() is False
    assert (bench.writer.done, bench.reports) == ([], [SpaceChanged(True, "no room for a cut")])
    monkeypatch.setattr(bench.writer, "append", full)
    bench.writer.full = False
    assert bench.disk.run_once() is False
    assert bench.disk.run_once() is False
    monkeypatch.undo()
    monkeypatch.setattr(limits, "DISK_FULL_WAIT_US", 0)
    assert bench.disk.run_once() is True
    assert bench.writer.done == ["cut 7", "append 2", "sync", "persisted 1"]


def full(frames: Sequence[Frame]) -> None:
    assert frames
    raise DiskFull("no room for a segment")


def test_reads_are_answered_one_a_round_so_that_syncs_do_not_wait_for_many() -> None:
    bench = Bench()
    for token in (2, 3):
        bench.disk.put(ReadLog(token, token, 9))
    bench.disk.put(persist(4, 1))
    bench.disk.run_once()
    assert bench.writer.done == ["append 1", "sync", "persisted 4", "read 2 9"]
    assert bench.disk.depth == 1
    assert bench.disk.run_once() is True
    assert bench.reports[1:] == [LogRead(token, (bench.writer.frame,), token) for token in (2, 3)]
    assert bench.disk.run_once() is False


def test_an_unreadable_range_is_answered_with_nothing_and_ends_no_writing() -> None:
    bench = Bench()
    bench.writer.unreadable = True
    bench.disk.put(ReadLog(1, 5, 9))
    bench.disk.run_once()
    bench.disk.put(persist(2, 1))
    bench.disk.run_once()
    assert bench.reports == [LogRead(1, (), 4), Persisted(2)]


def test_reads_continue_on_a_full_disk_and_after_failed_writes() -> None:
    bench = Bench()
    bench.writer.full = True
    bench.disk.put(persist(1, 1))
    bench.disk.put(ReadLog(2, 5, 9))
    bench.disk.run_once()
    bench.writer.full, bench.writer.broken = False, "input/output error"
    bench.disk.put(persist(3, 1))
    bench.disk.failed = "it failed"
    bench.disk.put(ReadLog(4, 5, 9))
    assert bench.disk.run_once() is True
    assert [report.token for report in bench.reports if isinstance(report, LogRead)] == [2, 4]


def test_a_mark_on_a_full_disk_can_wait_while_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    bench = Bench()

    def idle() -> bool:
        asked.set()
        raise DiskFull("no room for the mark")

    monkeypatch.setattr(bench.writer, "idle", idle)
    bench.disk.start()
    assert asked.wait(10)
    assert bench.disk.stop()
    assert (bench.disk.failed, bench.reports) == ("", [])


def test_a_full_disk_for_other_files_counts_as_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPACE_CHECK_US", 0)
    bench = Bench()
    beside = ["no room for a lane"]
    bench.disk.other_full = lambda: beside[0]
    bench.disk.run_once()
    assert bench.reports == [SpaceChanged(True, "no room for a lane")]
    beside[0] = ""
    bench.disk.run_once()
    assert bench.reports[1:] == [SpaceChanged(False, "")]


def test_a_low_disk_is_reported_once_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPACE_CHECK_US", 0)
    bench = Bench()
    bench.disk.run_once()
    bench.writer.room = FreeSpace(5, True, "5 bytes are free")
    bench.disk.run_once()
    bench.disk.run_once()
    bench.writer.room = FreeSpace(1 << 40, False, "")
    bench.disk.run_once()
    assert bench.reports == [SpaceChanged(True, "5 bytes are free"), SpaceChanged(False, "")]


def test_a_log_is_replaced_alone_and_in_its_turn() -> None:
    bench = Bench()
    bench.disk.put(persist(1, 1))
    bench.disk.put(Persist(2, snapshot=b"state"))
    bench.disk.put(persist(3, 3))
    bench.writer.full = True
    while bench.disk.run_once():
        continue
    assert bench.writer.done == []
    bench.writer.full = False
    while bench.disk.depth:
        bench.disk.run_once()
    assert bench.writer.done == ["append 1", "sync", "persisted 1", "replace state", "append 3", "sync", "persisted 3"]


def test_a_state_is_read_for_another_gateway_also_when_nothing_can_be_written() -> None:
    bench = Bench()
    bench.disk.put(ReadSnapshot(5, 0, 0))
    bench.disk.put(ReadSnapshot(6, 7, 4))
    while bench.disk.depth:
        bench.disk.run_once()
    bench.writer.unreadable = True
    bench.disk.put(ReadSnapshot(8, 7, 0))
    bench.disk.run_once()
    assert bench.reports == [SnapshotRead(5, 7, 9, b"123456789"), SnapshotRead(6, 7, 9, b"56789"), SnapshotRead(8, 7, 0, b"")]


def test_removable_segments_are_reported_again_while_they_exist_and_not_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.writer.retention.proposed = TrimProposed(((7, 3),))
    bench.disk.run_once()
    bench.disk.run_once()
    assert bench.reports == [bench.writer.retention.proposed]
    monkeypatch.setattr(limits, "RETENTION_CHECK_US", 0)
    monkeypatch.setattr(limits, "SPACE_CHECK_US", 0)
    bench.disk.run_once()
    bench.writer.retention.proposed = None
    bench.disk.run_once()
    assert bench.reports == [TrimProposed(((7, 3),))] * 2


def test_the_age_of_records_is_measured_by_the_clock_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    asked: list[int] = []
    monkeypatch.setattr(bench.writer.retention, "propose", asked.append)
    monkeypatch.setattr(limits, "RETENTION_CHECK_US", 0)
    monkeypatch.setattr(limits, "SPACE_CHECK_US", 0)
    group, member = opened()
    group.advance(1_000_000)
    group.step(member, TimeAdvanced())
    survey = GroupStatus(member.stack)
    bench.disk.group_time_us = lambda: survey.group_time_us(group.mono_us)
    before_us = group.wall_us
    bench.disk.run_once()
    monkeypatch.setattr(time, "time_ns", lambda: 9 * 10**18)  # the clock of this host leaps, and no heartbeat comes meanwhile
    group.mono_us += 100_000
    bench.disk.run_once()
    assert asked == [before_us, before_us + 100_000]


def test_before_the_clocks_are_read_no_record_is_old() -> None:
    bench = Bench()
    survey = GroupStatus(Stack(Random, StackConfig()))
    assert survey.group_time_us(5) == bench.disk.group_time_us() == 0


def test_a_low_disk_names_the_reader_that_retention_waits_for() -> None:
    bench = Bench()
    bench.writer.retention.blocked = BlockedSegments("archive", 7, 64 << 20)
    bench.disk.run_once()
    assert bench.disk.space.reason == ""
    bench.disk._space_checked_at = 0.0
    bench.writer.room = FreeSpace(5, True, "only 5 bytes are free")
    bench.disk.run_once()
    told = "only 5 bytes are free; retention would free 64 MiB and waits for reader 'archive', which has committed offset 7"
    assert bench.disk.space.reason.startswith(told)
    assert [report.reason for report in bench.reports if isinstance(report, SpaceChanged)] == [bench.disk.space.reason]


def test_a_failed_sync_ends_writing_for_good() -> None:
    bench = Bench()
    bench.writer.broken = "input/output error"
    bench.disk.put(persist(1, 1))
    bench.disk.run_once()
    assert len(bench.reports) == 1
    assert isinstance(bench.reports[0], WriteFailed)
    bench.writer.broken = ""
    bench.disk.put(persist(2, 2))
    bench.disk.run_once()
    assert len(bench.reports) == 1
    assert bench.writer.done == ["append 1"]


def test_a_defect_in_the_thread_is_a_failure_too() -> None:
    bench = Bench()
    bench.writer.sync = lambda: 1 / 0  # type: ignore[assignment]  # the point is that it raises what nobody foresaw
    bench.disk.put(persist(1, 1))
    bench.disk.run_once()
    assert isinstance(bench.reports[0], WriteFailed)
    assert "ZeroDivisionError" in bench.reports[0].reason


def test_a_defect_while_idle_is_a_failure_too() -> None:
    bench = Bench()
    bench.writer.idle = lambda: bool(1 / 0)  # type: ignore[method-assign]  # the point is that it raises what nobody foresaw
    bench.disk.start()
    wait_for(lambda: bool(bench.reports))
    assert isinstance(bench.reports[0], WriteFailed)
    assert "ZeroDivisionError" in bench.disk.failed
    assert bench.disk.stop()


def test_the_log_is_closed_by_the_thread_that_uses_it() -> None:
    bench = Bench()
    closed: list[str] = []
    bench.disk.start()
    bench.disk.put(persist(1, 1))
    assert bench.disk.stop(lambda: closed.append(threading.current_thread().name))
    assert closed == ["disk"]
    assert bench.reports[-1] == Persisted(1)


@pytest.mark.parametrize("hurried", [False, True])
def test_a_disk_that_hangs_does_not_hold_up_the_stop(monkeypatch: pytest.MonkeyPatch, hurried: bool) -> None:
    monkeypatch.setattr(limits, "DISK_STOP_US_MAX", 60_000_000 if hurried else 1000)
    monkeypatch.setattr(common_limits, "POLL_US_MAX", 1000)
    bench = Bench()
    hangs, goes_on = threading.Event(), threading.Event()

    def sync() -> None:
        hangs.set()
        goes_on.wait(30)

    bench.writer.sync = sync  # type: ignore[method-assign]  # a sync that does not return
    bench.disk.start()
    bench.disk.put(persist(1, 1))
    assert hangs.wait(10)
    closed: list[int] = []
    assert bench.disk.stop(lambda: closed.append(1), lambda: hurried) is False
    assert closed == []  # nobody else touches the log that the thread is in
    goes_on.set()
    wait_for(lambda: closed == [1])


def test_more_than_one_syncs_worth_is_done_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SYNC_BYTES_MAX", 1)
    monkeypatch.setattr(limits, "MARK_IDLE_US", 1_000_000)  # a pause for each would take minutes
    bench = Bench()
    for token in range(1, 200):
        bench.disk.put(persist(token, token))
    bench.disk.start()
    wait_for(lambda: Persisted(199) in bench.reports)
    bench.disk.stop()
    assert bench.disk.counters.syncs == 199


@pytest.mark.parametrize("trouble", ["none", "full", "failed"])
def test_the_thread_finishes_queued_requests_and_ends(trouble: str) -> None:
    bench = Bench()
    bench.writer.full = trouble == "full"
    bench.writer.broken = "gone" if trouble == "failed" else ""
    bench.disk.start()
    for token in range(1, 20):
        bench.disk.put(persist(token, token))
    if trouble != "none":
        wait_for(lambda: bool(bench.reports))
    bench.disk.stop()
    if trouble == "none":
        assert bench.reports[-1] == Persisted(19)
    else:
        assert not any(isinstance(report, Persisted) for report in bench.reports)


BEHIND = [Persist(2, (), HardState(promised=9)), Persist(2, (), None, 0), Persist(2, (Frame(Kind.ABORT, b""),))]


@pytest.mark.parametrize("behind", BEHIND, ids=["a promise", "a cut", "an ABORT"])
def test_batches_use_the_reserve_if_an_urgent_write_follows_them(behind: Persist, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISK_FULL_WAIT_US", 0)
    bench = Bench()
    bench.writer.full = True
    bench.disk.put(persist(1, 1))
    assert bench.disk.run_once() is False
    assert bench.writer.done == []
    bench.disk.put(behind)
    assert bench.disk.run_once() is True
    assert bench.writer.done[0].startswith("append 1")


def test_without_any_reserve_all_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISK_FULL_WAIT_US", 0)
    bench = Bench()
    bench.writer.full, bench.writer.reserve = True, False
    bench.disk.put(persist(1, 1))
    bench.disk.put(persist(2, promised=9))
    assert bench.disk.run_once() is False
    assert bench.writer.done == []
    bench.writer.full = False
    while bench.disk.run_once():
        continue
    assert bench.writer.done == ["append 1", "sync", "persisted 1", "scalars 9", "persisted 2"]
