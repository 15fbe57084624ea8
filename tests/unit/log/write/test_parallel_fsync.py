"""Proves that syncs wait for each other's begin and end, and that what one of them met is told when all are done."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from tutti import limits
from tutti.errors import DiskFailed, DiskFull
from tutti.log.files.parallel_fsync import sync_in_parallel


def failing(error: Exception) -> None:
    raise error


def test_all_are_under_way_at_a_time() -> None:
    meeting = threading.Barrier(limits.PARALLEL_SYNCS_MAX)
    sync_in_parallel([partial(meeting.wait, 20)] * (2 * limits.PARALLEL_SYNCS_MAX))  # type: ignore[list-item]  # the place is of no use
    assert not meeting.broken
    sync_in_parallel([])


def test_a_failure_is_told_when_all_are_done_and_before_a_lack_of_room() -> None:
    done: list[int] = []
    acts = [partial(failing, DiskFull("no room")), partial(failing, DiskFailed("input/output error")), partial(done.append, 1)]
    with pytest.raises(DiskFailed):
        sync_in_parallel(acts)
    with pytest.raises(DiskFull):
        sync_in_parallel([acts[2], acts[0]])
    assert done == [1, 1]


def test_without_threads_one_comes_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", refused)
    sync_in_parallel([partial(done.append, number) for number in range(20)])
    assert sorted(done) == list(range(20))
