"""Tests of the frontier watch: waiters wake by the gateway's pipe, by the slow poll without it, and at a stop; the published
frontier never moves back.
"""

import os
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.support.waiting import wait_until
from tutti.errors import Damaged
from tutti_gateway.core import limits
from tutti_gateway.reads.logs.frontier_watch import FrontierWatch, LaneWatch


class Mark(NamedTuple):
    offset: int


class Log:
    """A frontier that the test moves, and the pipe that notifies of it."""

    def __init__(self) -> None:
        self.offset = 0
        self.looks = 0
        self.failure: Exception | None = None
        self.read_fd, self.write_fd = os.pipe()
        self.gone = threading.Event()
        self.watch = FrontierWatch(self.look, self.read_fd, self.gone.set)

    def look(self) -> Mark:
        self.looks += 1
        if self.failure is not None:
            raise self.failure
        return Mark(self.offset)

    def move(self, offset: int, tell: bool = True) -> None:
        self.offset = offset
        if tell:
            os.write(self.write_fd, b"!")

    def waiter(self, beyond: int, timeout_us: int, given_up: Callable[[], bool] = bool) -> tuple[threading.Thread, list[Mark]]:
        got: list[Mark] = []
        thread = threading.Thread(target=lambda: got.append(self.watch.wait(beyond, timeout_us, given_up)))
        thread.start()
        return thread, got


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    yield log
    log.watch.stop()
    os.close(log.read_fd)
    if log.write_fd >= 0:
        os.close(log.write_fd)


def test_everybody_who_waits_is_woken(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WATCH_POLL_US", 60_000_000)  # the poll cannot be what wakes them
    waiters = [log.waiter(4, 60_000_000) for _ in range(20)]
    log.move(3)
    log.move(5)
    for thread, got in waiters:
        thread.join(10)
        assert got == [Mark(5)]


def test_a_waiter_for_a_lane_is_woken_by_the_same_pipe(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WATCH_POLL_US", 60_000_000)  # the poll cannot be what wakes them
    lane = [0]
    watch = LaneWatch(lambda: Mark(lane[0]), log.watch)
    found: list[Mark] = []
    threads = [threading.Thread(target=lambda: found.append(watch.wait(4, 60_000_000))) for _ in range(20)]
    for thread in threads:
        thread.start()
    log.move(9)
    lane[0] = 5
    log.move(9)  # the ordered log does not move
    for thread in threads:
        thread.join(10)
    assert found == 20 * [Mark(5)]


def test_a_waiter_for_a_lane_leaves_when_the_process_stops(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WATCH_POLL_US", 60_000_000)
    watch = LaneWatch(lambda: Mark(0), log.watch)
    found: list[Mark] = []
    thread = threading.Thread(target=lambda: found.append(watch.wait(0, 60_000_000)))
    thread.start()
    log.watch.stop()
    thread.join(10)
    assert (found, watch.stopping) == ([Mark(0)], True)


def test_a_move_without_a_notification_is_noticed(log: Log) -> None:
    thread, got = log.waiter(0, 60_000_000)
    log.move(1, tell=False)
    thread.join(10)
    assert got == [Mark(1)]


def test_time_passes_and_callers_go_away(log: Log) -> None:
    assert log.watch.wait(10, 1000) == Mark(0)
    thread, got = log.waiter(10, 60_000_000, lambda: True)
    thread.join(10)
    assert got == [Mark(0)]


def test_a_frontier_once_shown_does_not_move_back(log: Log) -> None:
    log.move(9)
    assert log.watch.now() == Mark(9)
    log.move(4)
    assert log.watch.now() == Mark(9)
    assert log.watch.wait(8, 0) == Mark(9)


def test_without_waiters_there_are_no_polls(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    before = log.looks
    for offset in range(1000):
        log.move(offset)
    thread, got = log.waiter(998, 60_000_000)
    thread.join(10)
    assert got == [Mark(999)]
    assert log.looks - before < 10


def test_stop_ends_every_wait(log: Log) -> None:
    thread, got = log.waiter(5, 60_000_000)
    log.watch.stop()
    thread.join(10)
    assert got == [Mark(0)]
    assert not log.gone.is_set()


@pytest.mark.parametrize("waiting", [False, True])
def test_the_end_of_the_pipe_is_reported_once(log: Log, waiting: bool) -> None:
    thread = log.waiter(5, 2_000_000)[0] if waiting else None
    log.move(1)
    os.close(log.write_fd)
    log.write_fd = -1
    assert log.gone.wait(10)
    log.gone.clear()
    assert log.watch.wait(0, 1000) == Mark(1)  # still good for who is there
    if thread:
        thread.join(10)
    assert not log.gone.is_set()


@pytest.mark.parametrize("failure", [Damaged("the mark is damaged"), OSError(24, "Too many open files"), ValueError("no frame")])
def test_an_unreadable_frontier_is_reported_to_waiters_and_stops_nothing(log: Log, failure: Exception) -> None:
    told: list[Exception] = []

    def wait() -> None:
        try:
            log.watch.wait(0, 60_000_000)
        except type(failure) as error:
            told.append(error)

    looks = log.looks
    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(lambda: log.looks > looks)
    log.failure = failure
    os.write(log.write_fd, b"!")  # the watcher's thread meets it too
    waiter.join(10)
    assert told == [failure]
    with pytest.raises(type(failure)):
        log.watch.now()
    log.failure = None
    log.move(1)
    assert log.watch.wait(0, 60_000_000) == Mark(1)
    os.close(log.write_fd)
    log.write_fd = -1
    assert log.gone.wait(10)


def test_trouble_is_logged_once_and_not_at_each_move(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [OSError(24, "Too many open files")] * 5 + [Damaged("the mark is damaged")] * 3
    left = iter([*failures, *failures[-1:] * 100])
    looked = threading.Semaphore(0)

    def now() -> Mark:
        if threading.current_thread().name == "frontier-watch":
            looked.release()
            raise next(left)
        return Mark(0)  # who waits meets no trouble here, and stays

    monkeypatch.setattr(log.watch, "now", now)
    thread, _ = log.waiter(0, 60_000_000)
    for _ in failures:
        log.move(0)
        assert looked.acquire(timeout=10)
    log.watch.stop()
    thread.join(10)
    assert [record.message for record in caplog.records] == ["the frontier cannot be read"] * 2


def test_without_a_pipe_the_poll_is_left() -> None:
    place = [0]
    watch = FrontierWatch(lambda: Mark(place[0]), None, lambda: None)
    place[0] = 1
    assert watch.wait(0, 60_000_000) == Mark(1)
    watch.stop()


def test_waits_end_while_the_gateway_is_silent_and_begin_again_with_it(log: Log) -> None:
    beside = LaneWatch(log.look, log.watch)
    thread, got = log.waiter(0, 600_000_000)
    log.watch.silent = True
    thread.join(30)
    assert got == [Mark(0)]
    assert log.watch.wait(0, 600_000_000) == Mark(0)
    assert beside.silent
    assert beside.wait(0, 600_000_000) == Mark(0)
    log.watch.silent = False
    thread, got = log.waiter(0, 600_000_000)
    log.move(1)
    thread.join(30)
    assert got == [Mark(1)]
