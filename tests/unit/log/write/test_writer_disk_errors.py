"""The writer when the disk says no: what failed ends it, what found no room comes again."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.log.history import VIEW, History, decide, opened, other_boot, sample
from tests.unit.log.watched import Watched, failing
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.errors import DiskFailed, DiskFull
from tutti.log.files.layout import list_positions
from tutti.log.files.live_page import LivePage
from tutti.log.files.options import LogOptions
from tutti.log.format.hard_state import encode_slot, read_hard_state
from tutti_gateway.core import limits
from tutti_gateway.log.writer import LogWriter


def test_a_failed_sync_ends_the_writer_and_what_it_left_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MARK_LATE_US", 0)  # the second write has the mark of the first
    history = sample(8)
    storage = Watched()
    writer, _, close = opened(tmp_path, storage=storage)
    writer.append(history.frames[:4])
    writer.sync()
    writer.append(history.frames[4:6])
    storage.fail = failing("sync", errno.EIO)
    with pytest.raises(DiskFailed, match=r"syncing .* failed \(Input/output error\)"):
        writer.sync()
    storage.fail = lambda what: None
    for refused in (
        writer.sync,
        lambda: writer.append(history.frames[4:6]),
        lambda: writer.write_hard_state(HardState(1, 1, 1)),
        lambda: writer.decided([], [], frozenset()),
        writer.idle,
    ):
        with pytest.raises(DiskFailed):
            refused()
    close()
    again = Watched()
    writer, recovered, close = opened(tmp_path, storage=again)
    assert [frame.position for frame in recovered.tail] == [1, 2, 3, 4, 5, 6]
    place = 12288 + sum(frame.size for frame in history.frames[:4])
    assert ("write", place) in again.calls  # the page cache is not believed
    close()


def wait_for_mark(writer: LogWriter) -> None:
    deadline = time.monotonic() + 10
    while writer.idle() and time.monotonic() < deadline:
        time.sleep(0.001)


ACTS: dict[str, Callable[[LogWriter, History], object]] = {
    "sync": lambda writer, history: writer.sync(),
    "next segment": lambda writer, history: writer.append(history.frames[6:]),
    "scalars": lambda writer, history: writer.write_hard_state(HardState(1, 1, 1)),
    "mark": lambda writer, history: wait_for_mark(writer),
    "seal": lambda writer, history: decide(writer, history, 1, 40),
}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("what", ["sync", "sync directory"])
@pytest.mark.parametrize("act", ACTS)
def test_no_failed_sync_is_taken_for_a_lack_of_room(tmp_path: Path, act: str, what: str, number: int) -> None:
    if what == "sync directory" and act in {"sync", "scalars", "mark"}:
        what = "sync"  # no name changes there
    options = LogOptions(segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=32 << 10, disk_low_bytes=0)
    history = sample(120, size=4000)
    storage = Watched()
    writer, _, close = opened(tmp_path, options, storage)
    writer.append(history.frames[:4])
    writer.sync()
    writer.append(history.frames[4:] if act == "seal" else history.frames[4:6])
    if act == "seal":
        writer.sync()
    storage.fail = failing(what, number)
    with pytest.raises(DiskFailed, match=os.strerror(number)):
        ACTS[act](writer, history)
    storage.fail = lambda what: None
    assert (tmp_path / "reserve").exists()  # it was not given up: room is not what was missing
    for again in (ACTS[act], ACTS["sync"]):
        with pytest.raises(DiskFailed):
            again(writer, history)
    close()
    assert LivePage(str(tmp_path)).last_run_failed


@pytest.mark.parametrize("what", ["write", "allocate", "rename"])
def test_what_asks_for_room_and_finds_none_can_be_tried_again(tmp_path: Path, what: str) -> None:
    history = sample(120, size=4000)
    storage = Watched()
    writer, _, close = opened(tmp_path, storage=storage)
    for number in (errno.ENOSPC, errno.EDQUOT):
        storage.fail = failing(what, number)
        with pytest.raises(DiskFull, match=r"the disk is full: writing to .*: free some space"):
            writer.append(history.frames)
    storage.fail = lambda what: None
    writer.append(history.frames)
    writer.sync()
    close()
    assert not LivePage(str(tmp_path)).last_run_failed
    other_boot(tmp_path)
    _, recovered, close = opened(tmp_path)
    assert list(recovered.tail) == history.frames
    close()


def test_a_start_whose_sync_fails_leaves_nothing_to_be_believed(tmp_path: Path) -> None:
    history = sample(8)
    writer, _, close = opened(tmp_path)
    writer.append(history.frames[:4])
    writer.sync()
    writer.append(history.frames[4:6])
    close()  # as a kill leaves it: the page cache holds two frames more than the disk may
    storage = Watched()
    storage.fail = failing("sync", errno.ENOSPC)
    with pytest.raises(DiskFailed, match="starting the log in"):
        opened(tmp_path, storage=storage)
    storage.fail = lambda what: None
    storage.calls.clear()
    _, recovered, close = opened(tmp_path, storage=storage)
    assert [frame.position for frame in recovered.tail] == [1, 2, 3, 4, 5, 6]
    assert ("write", 12288 + sum(frame.size for frame in history.frames[:4])) in storage.calls
    close()


def test_a_start_makes_durable_what_a_killed_run_left_in_the_page_cache(tmp_path: Path) -> None:
    history = sample(8)
    writer, _, close = opened(tmp_path)
    writer.append(history.frames[:4])
    writer.sync()
    writer.write_hard_state(HardState(3, 2, 1))
    newest = [(tmp_path / "scalars").read_bytes()[at : at + 512] for at in (0, 4096)]
    close()
    storage = Watched()
    writer, recovered, close = opened(tmp_path, storage=storage)
    assert recovered.scalars == HardState(3, 2, 1)
    calls = [what for what, _ in storage.calls]
    stored = read_hard_state(str(tmp_path))
    assert stored is not None
    slot = newest.index(encode_slot(stored)) * 4096
    at = storage.calls.index(("write", slot), calls.index("sync directory"))  # the names of segments, then the scalars
    assert storage.calls[at + 1][0] == "sync"
    assert ("write", 4096) in storage.calls[: calls.index("sync")]  # the marks, with the tail
    assert [(tmp_path / "scalars").read_bytes()[at : at + 512] for at in (0, 4096)] == newest
    close()


def test_the_reserve_takes_what_must_be_written_when_nothing_else_is_left(tmp_path: Path) -> None:
    options = LogOptions(segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=32 << 10, disk_low_bytes=0)
    history = sample(40, size=8000)
    storage = Watched()
    writer, _, close = opened(tmp_path, options, storage)
    assert (tmp_path / "reserve").stat().st_size == 32 << 10
    writer.append(history.frames[:3])
    writer.sync()
    storage.fail = failing("allocate", errno.ENOSPC)
    storage.free = 0
    done = 3
    with pytest.raises(DiskFull, match="the reserve is only for frames that must be written"):  # noqa: PT012 - where it ends is the test
        while True:
            writer.append(history.frames[done : done + 1])
            writer.sync()
            done += 1
    assert writer.space().low
    assert not (tmp_path / "reserve").exists()
    assert history.frames[done].kind == Kind.BATCH
    close()
    writer, _, close = opened(tmp_path, options, storage)
    storage.free = 1  # above the limit, and the reserve is not there yet
    space = writer.space()
    assert space.low
    assert "new records need at least 1 MiB" in space.reason  # 32 KiB
    storage.free = 0
    with pytest.raises(DiskFull, match="the reserve is only for frames that must be written"):  # a start makes no room
        writer.append(history.frames[done : done + 1])
    reserve = max(list_positions(str(tmp_path), "seg"))
    assert reserve == done + 1  # no batch went into it
    view = Frame(Kind.VIEW, b"\x91\x91\x01")
    view.stamp(VIEW + (1 << 16), done + 1, history.frames[done - 1].header_crc)
    writer.append([view])
    writer.sync()
    writer.write_hard_state(HardState(VIEW, VIEW, VIEW))
    storage.fail = lambda what: None
    storage.free = None
    assert not writer.space().low
    assert (tmp_path / "reserve").exists()
    close()
    other_boot(tmp_path)
    _, recovered, close = opened(tmp_path, options)
    assert recovered.tail[-1] == view
    assert len(recovered.tail) == done + 1
    close()


def test_low_space_is_told_early_and_taken_back_with_some_room_to_spare(tmp_path: Path) -> None:
    storage = Watched()
    options = LogOptions(segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=100 << 20)
    writer, _, close = opened(tmp_path, options, storage)
    for mib, low in ((200, False), (99, True), (110, True), (126, False), (50, True)):
        storage.free = mib << 20
        assert writer.space().low is low, mib
    assert "has 50 MiB free" in writer.space().reason
    close()


def test_what_is_told_of_low_space_is_what_ends_it(tmp_path: Path) -> None:
    storage = Watched()
    options = LogOptions(segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=(100 << 20) + 1)
    writer, _, close = opened(tmp_path, options, storage)
    storage.free = 100 << 20
    told = writer.space().reason
    assert "has 100 MiB free" in told
    assert "new records need at least 126 MiB" in told
    storage.free = 125 << 20
    assert writer.space().low
    storage.free = 126 << 20
    assert not writer.space().low
    close()
