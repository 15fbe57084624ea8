"""Tests of indexing in the log thread: a few decided rows wait for later ones, none is late, lost or out of order, and readers are
notified at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from tests.unit.node.disk.log_thread_harness import Bench, persist, run, wait_for
from tutti.data.frames.frame import Frame
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Persisted, SpaceChanged


def test_the_index_comes_after_the_sync_and_readers_are_notified_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INDEX_LATE_US", 0)
    bench = Bench()
    bench.disk.deliver(run(1))
    assert bench.notified == 1
    bench.disk.deliver(run(2))
    bench.disk.put(persist(1, 3))
    bench.disk.run_once()
    assert bench.writer.done == ["append 3", "sync", "persisted 1", "decided 1 2"]
    assert bench.notified == 2


def test_rows_wait_for_more_while_frames_are_written_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INDEX_LATE_US", 60_000_000)
    bench = Bench()
    bench.disk.deliver(run(1))
    bench.disk.put(persist(1, 3))
    assert bench.disk.run_once() is True
    bench.disk.deliver(run(2))
    bench.disk.put(persist(2, 4))
    assert bench.disk.run_once() is True
    assert (bench.writer.done[3:], bench.disk.depth) == (["append 4", "sync", "persisted 2"], 2)
    assert bench.disk.run_once() is True
    assert (bench.writer.done[6:], bench.disk.depth) == (["decided 1 2"], 0)
    assert bench.disk.run_once() is False


def test_rows_wait_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.disk.deliver(run(1))
    for token, late_us in ((1, 60_000_000), (2, 60_000_000), (3, 0)):
        monkeypatch.setattr(limits, "INDEX_LATE_US", late_us)
        bench.disk.put(persist(token, token + 2))
        bench.disk.run_once()
        assert ("decided 1" in bench.writer.done) is (token == 3)


def test_many_rows_do_not_wait() -> None:
    bench = Bench()
    bench.disk.deliver(run(1, frames=limits.INDEX_FRAMES + 1))
    bench.disk.put(persist(1, 3))
    bench.disk.run_once()
    assert bench.writer.done[3].startswith("decided 1 2 ")


def test_runs_are_indexed_together_with_the_void_frames_in_each_and_not_over_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    took: list[tuple[list[int], list[int], frozenset[int]]] = []

    def decided(frames: Sequence[Frame], offsets: Sequence[int], aborted: frozenset[int]) -> None:
        took.append(([frame.position for frame in frames], list(offsets), aborted))

    monkeypatch.setattr(bench.writer, "decided", decided)
    for deliver in (run(1, 1), run(2, frames=2), run(4, 4), run(9), run(10, 10)):
        bench.disk.deliver(deliver)
    bench.disk.run_once()
    assert took == [([1, 2, 3, 4], [1, 2, 3, 4], frozenset({1, 4})), ([9, 10], [9, 10], frozenset({10}))]


def test_a_decided_run_wakes_no_disk_that_naps_and_is_indexed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.disk.start()
    bench.disk.put(persist(1, 3))
    wait_for(lambda: bench.reports == [Persisted(1)])
    bench.disk.deliver(run(1))
    wait_for(lambda: bench.writer.done[3:] == ["decided 1"])
    time.sleep(limits.MARK_IDLE_US / 1e6 * 3)  # it sleeps for long now
    bench.disk.deliver(run(2))
    wait_for(lambda: bench.writer.done[4:] == ["decided 2"])
    assert bench.disk.stop()


def test_the_last_decided_frames_are_indexed_before_the_end() -> None:
    bench = Bench()
    bench.disk.put(persist(1, 3))
    bench.disk.deliver(run(1))
    bench.disk.start()
    assert bench.disk.stop()
    assert bench.writer.done == ["append 3", "sync", "persisted 1", "decided 1"]


def test_rows_on_a_full_disk_wait_and_nothing_is_written_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISK_FULL_WAIT_US", 0)
    monkeypatch.setattr(limits, "INDEX_LATE_US", 0)
    bench = Bench()
    bench.writer.no_rows = True
    bench.disk.deliver(run(1))
    bench.disk.deliver(run(2))
    bench.disk.put(persist(1, 3))
    bench.disk.run_once()
    bench.disk.put(persist(2, 4))
    assert bench.disk.run_once() is False
    assert (bench.disk.failed, bench.disk.depth) == ("", 3)
    assert bench.reports == [Persisted(1), SpaceChanged(True, "no room for the index")]
    bench.writer.no_rows = False
    assert bench.disk.run_once() is True
    assert bench.writer.done == ["append 3", "sync", "persisted 1", "decided 1 2", "append 4", "sync", "persisted 2"]
    assert bench.reports[2:] == [SpaceChanged(False, ""), Persisted(2)]
