"""Tests of syncs in the socket thread: which writes it does itself, and that the disk thread takes the loop over while such a sync
stalls. Every write happens once and in order, and only one thread at a time uses the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest

from tests.unit.node.disk.log_thread_harness import Bench, persist, run, wait_for
from tests.unit.node.fakes import batch_frame
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Persist, ReadLog
from tutti_gateway.core.protocol.events import LogRead, Persisted, SpaceChanged, WriteFailed

WAIT_S = 10.0
SECOND = 1_000_000


def placed(token: int, position: int, count: int = 1, value: bytes = b"x") -> Persist:
    """A write of frames with their positions, as the stack makes it."""
    frames = [batch_frame([value], sequence=at) for at in range(position, position + count)]
    for frame in frames:
        frame.stamp(1, frame.first_sequence, 0)
    return Persist(token, tuple(frames))


class FastBench(Bench):
    """A disk thread whose last syncs were fast, so that the socket thread may sync."""

    def __init__(self) -> None:
        super().__init__()
        for _ in range(limits.INLINE_FAST_SYNCS):
            self.disk.inline.measure(100)

    def put(self, action: Persist) -> bool:
        """Queue a write after all decided frames; True if the loop is to sync it."""
        self.disk.decided = action.frames[0].position - 1 if action.frames else 0
        self.disk.put(action)
        return self.disk.inline.due


def test_a_lone_write_is_synced_in_the_calling_thread() -> None:
    bench = FastBench()
    assert bench.put(placed(1, 7))
    assert bench.disk.sync_inline(alone=True)
    assert bench.writer.done == ["append 7", "sync", "persisted 1"]
    assert not bench.disk.inline.due
    assert bench.disk.run_once() is False
    assert bench.disk.inline.to_dict() == {"syncs": 1, "takeovers": 0}
    assert bench.disk.counters.syncs == 1


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(persist(1, promised=3), id="hard state"),
        pytest.param(Persist(1, placed(1, 1).frames, cut=0), id="a truncation"),
        pytest.param(Persist(1, placed(1, 1).frames, snapshot=b"s"), id="a snapshot"),
        pytest.param(placed(1, 1, limits.INLINE_FRAMES_MAX + 1), id="many frames"),
        pytest.param(placed(1, 1, 1, bytes(limits.INLINE_BYTES_MAX)), id="many bytes"),
    ],
)
def test_other_writes_are_for_the_disk_thread(action: Persist) -> None:
    bench = FastBench()
    assert not bench.put(action)
    assert bench.put(placed(2, 1, limits.INLINE_FRAMES_MAX)), "a write at the limit of frames is inline"


def test_a_write_after_undecided_frames_is_for_the_disk_thread() -> None:
    bench = FastBench()
    bench.disk.decided = 5
    bench.disk.put(placed(1, 7))
    assert not bench.disk.inline.due


@pytest.mark.parametrize("trouble", ["full", "failed"])
def test_a_full_or_failed_disk_is_for_the_disk_thread(trouble: str) -> None:
    bench = FastBench()
    setattr(bench.disk, trouble, "it is")
    assert not bench.put(placed(1, 1))


def test_writes_that_wait_for_the_disk_thread_come_first() -> None:
    bench = FastBench()
    bench.writer.full = True
    bench.disk.put(persist(1, 1))
    bench.disk.run_once()
    bench.disk.full = ""
    assert not bench.put(placed(2, 2))


def test_only_a_disk_with_fast_syncs_is_synced_inline() -> None:
    bench = FastBench()
    bench.disk.inline.measure(limits.INLINE_FAST_US + 1)
    for token in range(1, limits.INLINE_FAST_SYNCS + 1):
        assert not bench.put(placed(token, token)), token
        bench.disk.run_once()
    assert bench.put(placed(99, 99))


def test_a_pause_leaves_the_next_syncs_to_the_disk_thread() -> None:
    bench = FastBench()
    bench.disk.inline.pause()
    for token in range(1, limits.INLINE_FAST_SYNCS + 1):
        assert not bench.put(placed(token, token)), token
        bench.disk.run_once()
    assert bench.put(placed(99, 99))


def test_other_work_that_waits_for_the_loop_leaves_the_sync_to_the_disk_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPACE_CHECK_US", 600_000_000)  # a disk thread that sleeps does not wake by itself
    bench = FastBench()
    bench.disk.start()
    wait_for(lambda: bench.disk._queue._sleeping)
    assert bench.put(placed(1, 1))
    assert bench.disk.sync_inline(alone=False)
    wait_for(lambda: Persisted(1) in bench.reports)
    assert bench.disk.inline.syncs == 0
    assert bench.disk.stop()


def test_a_read_that_waits_is_answered_by_the_disk_thread_after_the_sync() -> None:
    bench = FastBench()
    bench.disk.put(ReadLog(4, 1, 1))
    assert bench.put(placed(1, 7))
    assert bench.disk.sync_inline(alone=True)
    assert bench.writer.done == ["append 7", "sync", "persisted 1"]
    bench.disk.start()
    wait_for(lambda: any(isinstance(event, LogRead) for event in bench.reports))
    assert bench.disk.stop()


def test_decided_runs_are_indexed_by_the_disk_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INDEX_LATE_US", 0)
    bench = FastBench()
    bench.disk.deliver(run(6))
    assert bench.put(placed(1, 7))
    assert bench.disk.sync_inline(alone=True)
    assert bench.writer.done == ["append 7", "sync", "persisted 1"]
    assert bench.disk.run_once()
    assert bench.writer.done[3:] == ["decided 6"]


@pytest.mark.parametrize("defect", [False, True])
def test_a_failed_write_is_reported_as_from_the_disk_thread(defect: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(inline: bool) -> FastBench:
        bench = FastBench()
        bench.writer.broken = "the disk is gone"
        if defect:
            monkeypatch.setattr(bench.writer, "append", lambda *_args, **_named: 1 // 0)
        assert bench.put(placed(1, 1))
        assert bench.disk.sync_inline(alone=True) if inline else not bench.disk.run_once()
        return bench

    inline, other = failed(inline=True), failed(inline=False)
    assert isinstance(inline.reports[0], WriteFailed)
    assert inline.reports == other.reports
    assert inline.disk.failed == other.disk.failed != ""
    assert not inline.put(placed(2, 2))
    inline.disk.run_once()
    assert inline.reports == other.reports, "nothing is written after a failure"


def test_a_full_disk_keeps_the_write_for_the_disk_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISK_FULL_WAIT_US", 0)
    bench = FastBench()
    bench.writer.full = True
    assert bench.put(placed(1, 1))
    assert bench.disk.sync_inline(alone=True)
    assert bench.reports == [SpaceChanged(True, "no room for a segment")]
    bench.writer.full = False
    assert bench.disk.run_once()
    assert bench.reports[1:] == [SpaceChanged(False, ""), Persisted(1)]


class Exclusive(Bench):
    """A log whose syncs last as long as the test says. It notes a second thread in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.durations: Iterator[float] = iter(())
        self.stalls = threading.Event()  # a sync waits while it is set
        self.resume = threading.Event()
        self.stalled: list[str] = []  # names of the threads whose sync stalled
        self.intruders: list[str] = []
        self.ended = threading.Event()
        self.loops: list[str] = []  # names of the threads that have run the loop
        self.iterate: Callable[[], bool] = lambda: False  # an iteration of the loop; True at its end
        self._inside = threading.Lock()
        monitored: dict[str, Callable[..., object]] = {
            "append": self.writer.append,
            "sync": self._sync,
            "idle": self.writer.idle,
            "decided": self.writer.decided,
        }
        for name, method in monitored.items():
            setattr(self.writer, name, self._alone(method))
        self.disk.run_loop = self.run_loop

    def _alone(self, method: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            if not self._inside.acquire(blocking=False):
                self.intruders.append(threading.current_thread().name)
                return method(*args, **named)
            try:
                return method(*args, **named)
            finally:
                self._inside.release()

        return call

    def _sync(self) -> None:
        if self.stalls.is_set():
            self.stalls.clear()
            self.stalled.append(threading.current_thread().name)
            assert self.resume.wait(WAIT_S)
            self.resume.clear()
        time.sleep(next(self.durations, 0))
        self.writer.done.append("sync")

    def run_loop(self) -> bool:
        """As the process does: True at the end of the loop, False if the disk thread has taken it over."""
        self.loops.append(str(threading.get_ident()))
        while True:
            if self.iterate():
                self.ended.set()
                return True
            if self.disk.inline.due and not self.disk.sync_inline(alone=True):
                return False

    def run(self) -> threading.Thread:
        """Start both threads."""

        def socket_thread() -> None:
            if not self.run_loop():
                self.disk.serve()

        thread = threading.Thread(target=socket_thread, daemon=True)
        self.disk.start()
        thread.start()
        return thread


class Steps:
    """An iteration of the loop that puts the next write when the last one is durable, and counts its iterations."""

    def __init__(self, bench: Exclusive, count: int) -> None:
        self.bench, self.count, self.token, self.iterations, self.done = bench, count, 0, 0, False

    def __call__(self) -> bool:
        self.iterations += 1
        durable = sum(isinstance(event, Persisted) for event in list(self.bench.reports))
        if durable == self.token:
            if self.token < self.count:
                self.token += 1
                for _ in range(limits.INLINE_FAST_SYNCS):  # the disk counts as fast again
                    self.bench.disk.inline.measure(1)
                self.bench.disk.decided = self.token - 1
                self.bench.disk.put(placed(self.token, self.token))
            else:
                return self.done
        else:
            time.sleep(0.0005)
        return False


def writes(count: int) -> list[str]:
    return [word for token in range(1, count + 1) for word in (f"append {token}", "sync", f"persisted {token}")]


def test_the_disk_thread_continues_the_loop_while_a_sync_stalls_and_again_after_the_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPACE_CHECK_US", 600_000_000)  # a disk thread that sleeps is woken, or does not watch
    bench = Exclusive()
    steps = Steps(bench, 3)
    bench.iterate = steps
    bench.stalls.set()
    first = bench.run()
    for stalls in (1, 2):
        wait_for(lambda stalls=stalls: bench.disk.inline.takeovers == stalls)  # type: ignore[misc]  # mypy does not infer the default
        before = steps.iterations
        wait_for(lambda before=before: steps.iterations > before + 10)  # type: ignore[misc]  # as above
        assert len(bench.reports) == stalls - 1, "the stalled write is not reported"
        if stalls == 1:
            bench.stalls.set()  # the next write stalls in the other thread
        bench.resume.set()
    wait_for(lambda: len(bench.reports) == 3)
    steps.done = True
    assert bench.ended.wait(WAIT_S)
    assert len(set(bench.loops)) == 2, "each of the two threads had the loop"
    assert bench.disk.stop()
    first.join(WAIT_S)
    assert not first.is_alive()
    assert bench.writer.done == writes(3)
    assert bench.intruders == []


def test_a_sync_that_begins_just_before_the_disk_thread_sleeps_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPACE_CHECK_US", 600_000_000)  # a disk thread that sleeps does not wake by itself
    bench = Exclusive()
    steps = Steps(bench, 1)
    bench.stalls.set()
    queue, about_to_sleep = bench.disk._queue, threading.Event()
    begin_sleep = queue.begin_sleep

    def begin_late() -> bool:
        about_to_sleep.set()
        wait_for(lambda: bool(bench.stalled))  # the sync has taken the queued frames and has woken nobody
        return begin_sleep()

    monkeypatch.setattr(queue, "begin_sleep", begin_late)
    bench.iterate = lambda: about_to_sleep.wait(WAIT_S) is False or steps()
    first = bench.run()
    wait_for(lambda: bench.disk.inline.takeovers == 1)
    monkeypatch.undo()
    bench.resume.set()
    steps.done = True
    assert bench.ended.wait(WAIT_S)
    assert bench.disk.stop()
    first.join(WAIT_S)
    assert bench.writer.done == writes(1)


def test_short_syncs_do_not_change_the_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INLINE_US_MAX", int(WAIT_S * SECOND))  # on a busy machine, any sync may last 20 ms
    bench = Exclusive()
    steps = Steps(bench, 200)
    bench.iterate = steps
    bench.run()
    wait_for(lambda: len(bench.reports) == 200)
    steps.done = True
    assert bench.ended.wait(WAIT_S)
    assert bench.disk.stop()
    assert len(bench.loops) == 1
    assert bench.disk.inline.takeovers == 0
    assert bench.disk.inline.syncs > 100
    assert bench.writer.done == writes(200)


def test_a_loop_that_ends_while_the_other_thread_stalls_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISK_STOP_US_MAX", 100_000)
    bench = Exclusive()
    steps = Steps(bench, 1)
    bench.iterate = lambda: bench.disk.inline.takeovers > 0 or steps()
    bench.stalls.set()
    closed: list[int] = []
    bench.disk._on_end = lambda: closed.append(0)
    second = bench.disk._thread
    first = bench.run()
    assert bench.ended.wait(WAIT_S)
    second.join(WAIT_S)
    assert closed == [], "the thread that has the loop does not close the log"
    assert bench.disk.stop(lambda: closed.append(1)) is False
    assert closed == []
    bench.resume.set()
    first.join(WAIT_S)
    assert not first.is_alive()
    assert closed == [1], "the stalled thread closes the log after its sync"
    assert bench.writer.done == writes(1)


@pytest.mark.parametrize("seed", range(3))
def test_syncs_of_random_durations_write_everything_once_and_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INLINE_US_MAX", 1000)
    chance = Random(seed)
    bench = Exclusive()
    bench.durations = iter([chance.choice((0, 0, 0, 0.0005, 0.001, 0.002, 0.005)) for _ in range(300)])
    steps = Steps(bench, 300)
    bench.iterate = steps
    bench.run()
    wait_for(lambda: len(bench.reports) == 300)
    steps.done = True
    assert bench.ended.wait(WAIT_S)
    assert bench.disk.stop()
    assert bench.writer.done == writes(300)
    assert bench.intruders == []
    assert bench.disk.inline.takeovers > 5


def test_the_mark_is_due_in_time_after_a_sync_of_the_socket_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nap that began before the sync would end late, so the next nap ends when the mark is due."""
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    bench = FastBench()
    due_us = limits.MARK_IDLE_US - limits.MARK_LATE_US
    assert bench.disk._nap_us() == due_us
    assert bench.put(placed(1, 7))
    assert bench.disk.sync_inline(alone=True)
    now_s[0] += 0.004
    assert bench.disk._nap_us() == pytest.approx(due_us - 4000, abs=1)
    now_s[0] += due_us / SECOND
    assert bench.disk._nap_us() == due_us, "the mark is written, and later naps do not depend on that sync"
