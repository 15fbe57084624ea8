"""The writer: what it asks of the disk, in which order, and what it does when the disk says no."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gateway.core.events import Scalars
from gateway.data.frame import Buffer, Frame, Kind
from gateway.errors import DiskFailed, DiskFull, InvariantViolated, WrongDirectory
from gateway.log.layout import positions_named
from gateway.log.live import LivePage
from gateway.log.marks import Mark, newest_mark, segment_marks
from gateway.log.options import LogOptions
from gateway.log.scalars import encode_slot, read_scalars
from gateway.log.segment import prepared_paths
from gateway.log.storage import IOV_MAX, Storage
from gateway.log.writer import LogWriter
from tests.unit.log.history import VIEW, History, decide, opened, other_boot, sample, write_log


class Watched(Storage):
    """Counts what is asked, and fails when told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.fail: Callable[[str], None] = lambda what: None
        self.free: int | None = None

    def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
        self.fail("write")
        self.calls.append(("write", at))
        super().write(fd, parts, at)

    def sync(self, fd: int) -> None:
        self.fail("sync")
        self.calls.append(("sync", fd))
        super().sync(fd)

    def sync_directory(self, path: str) -> None:
        self.fail("sync directory")
        self.calls.append(("sync directory", 0))
        super().sync_directory(path)

    def free_bytes(self, path: str) -> int:
        return super().free_bytes(path) if self.free is None else self.free

    def allocate(self, fd: int, size: int) -> None:
        self.fail("allocate")
        super().allocate(fd, size)

    def rename(self, old: str, new: str) -> None:
        self.fail("rename")
        super().rename(old, new)


def failing(what: str, number: int) -> Callable[[str], None]:
    def fail(asked: str) -> None:
        if asked == what:
            raise OSError(number, os.strerror(number))

    return fail


def marks_of(path: Path) -> Mark:
    stored = read_scalars(str(path))
    assert stored is not None
    return newest_mark(str(path), stored.mark, positions_named(str(path), "seg"))


def test_an_append_is_one_write_and_a_sync_serves_many(tmp_path: Path) -> None:
    history = sample(8)
    storage = Watched()
    writer, _, close = opened(tmp_path, storage=storage)
    writer.append(history.frames[:2])
    writer.sync()
    storage.calls.clear()
    writer.append(history.frames[2:7])
    writer.append(history.frames[7:12])
    frames = [at for what, at in storage.calls if what == "write" and at >= 12288]
    marks = [at for what, at in storage.calls if what == "write" and at < 12288]
    assert len(frames) == 2
    assert len(marks) == 1  # the mark is written once between two syncs, into the same file
    assert not [what for what, _ in storage.calls if what == "sync"]
    writer.sync()
    assert [what for what, _ in storage.calls].count("sync") == 1
    close()


def test_more_buffers_than_one_write_takes_are_split(tmp_path: Path) -> None:
    history = History()
    for _ in range(IOV_MAX):
        history.batch("p", "t", [b"x"], progress=b"p")
    write_log(tmp_path, history, LogOptions(segment_bytes=4 << 20, prepared_segments=0, reserved_bytes=0), step=10_000)
    other_boot(tmp_path)
    _, recovered, close = opened(tmp_path)
    assert recovered.state.position == len(history.frames)
    close()


@pytest.mark.parametrize("sizes", [[3, 1 << 20, 5], [1 << 20, (1 << 20) + 1, 1], [700_000] * 5, [1] * 3000, [0, 0, 9], []])
def test_a_large_write_is_split_and_all_of_it_arrives(tmp_path: Path, sizes: list[int]) -> None:
    storage = Storage()
    fd = storage.open(str(tmp_path / "file"), create=True)
    parts = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    storage.write(fd, parts, 7)
    storage.close(fd)
    assert (tmp_path / "file").read_bytes() == (bytes(7) + b"".join(parts) if sum(sizes) else b"")


def test_a_mark_names_only_what_an_earlier_sync_made_durable(tmp_path: Path) -> None:
    history = sample(8)
    writer, _, close = opened(tmp_path)
    writer.append(history.frames[:2])
    writer.sync()
    writer.append(history.frames[2:5])
    writer.sync()
    assert marks_of(tmp_path).position == 2
    slots = segment_marks(str(tmp_path), 1)
    writer.append(history.frames[5:9])
    after = segment_marks(str(tmp_path), 1)
    assert marks_of(tmp_path).position == 5
    durable = max(range(2), key=lambda slot: mark.sequence if (mark := slots[slot]) is not None else -1)
    assert after[durable] == slots[durable]  # a torn write of the other leaves it
    assert after[1 - durable] != slots[1 - durable]
    writer.sync()
    close()


def test_a_write_of_scalars_leaves_the_newest_slot_alone(tmp_path: Path) -> None:
    writer, _, close = opened(tmp_path)
    for number in range(1, 5):
        before = read_scalars(str(tmp_path))
        slots = [(tmp_path / "scalars").read_bytes()[at : at + 512] for at in (0, 4096)]
        writer.write_scalars(Scalars(number, number, number))
        after = [(tmp_path / "scalars").read_bytes()[at : at + 512] for at in (0, 4096)]
        assert before is not None
        newest = slots.index(encode_slot(before))
        assert after[newest] == slots[newest]
        assert after[1 - newest] != slots[1 - newest]
    close()


def test_an_idle_log_brings_its_mark_up_to_date(tmp_path: Path) -> None:
    history = sample(8)
    writer, _, close = opened(tmp_path)
    assert writer.idle() is False  # nothing written yet
    writer.append(history.frames[:5])
    writer.sync()
    decide(writer, history, 1, 4)
    while writer.idle():
        continue
    mark = marks_of(tmp_path)
    assert (mark.position, mark.view, mark.chain) == (5, VIEW, history.frames[4].header_crc)
    assert (mark.frontier_position, mark.frontier_offset) == (4, history.offset_after(4))
    close()


def test_a_strict_mark_is_durable_when_the_sync_is_done(tmp_path: Path) -> None:
    history = sample(8)
    storage = Watched()
    writer, _, close = opened(tmp_path, LogOptions(segment_bytes=64 << 10, prepared_segments=0, vote_mark="strict"), storage)
    for start in range(0, 8, 2):
        writer.append(history.frames[start : start + 2])
        writer.sync()
        assert marks_of(tmp_path).position == start + 2
        assert storage.calls[-1][0] == "sync"
    close()


def test_a_failed_sync_ends_the_writer_and_what_it_left_is_written_again(tmp_path: Path) -> None:
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
        lambda: writer.write_scalars(Scalars(1, 1, 1)),
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
    "scalars": lambda writer, history: writer.write_scalars(Scalars(1, 1, 1)),
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
    assert LivePage(str(tmp_path)).failed_before


@pytest.mark.parametrize("what", ["write", "allocate", "rename"])
def test_what_asks_for_room_and_finds_none_can_be_tried_again(tmp_path: Path, what: str) -> None:
    history = sample(120, size=4000)
    storage = Watched()
    writer, _, close = opened(tmp_path, storage=storage)
    for number in (errno.ENOSPC, errno.EDQUOT):
        storage.fail = failing(what, number)
        with pytest.raises(DiskFull, match="free some space"):
            writer.append(history.frames)
    storage.fail = lambda what: None
    writer.append(history.frames)
    writer.sync()
    close()
    assert not LivePage(str(tmp_path)).failed_before
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
    writer.write_scalars(Scalars(3, 2, 1))
    newest = [(tmp_path / "scalars").read_bytes()[at : at + 512] for at in (0, 4096)]
    close()
    storage = Watched()
    writer, recovered, close = opened(tmp_path, storage=storage)
    assert recovered.scalars == Scalars(3, 2, 1)
    calls = [what for what, _ in storage.calls]
    stored = read_scalars(str(tmp_path))
    assert stored is not None
    slot = newest.index(encode_slot(stored)) * 4096
    at = storage.calls.index(("write", slot), calls.index("sync directory"))  # the names of segments, then the scalars
    assert storage.calls[at + 1][0] == "sync"
    assert ("write", 4096) in storage.calls[: calls.index("sync")]  # the marks, with the tail
    assert [(tmp_path / "scalars").read_bytes()[at : at + 512] for at in (0, 4096)] == newest
    close()


def test_a_full_disk_is_said_and_the_same_append_goes_through_later(tmp_path: Path) -> None:
    history = sample(120, size=4000)
    storage = Watched()
    writer, _, close = opened(tmp_path, storage=storage)
    storage.fail = failing("allocate", errno.ENOSPC)
    with pytest.raises(DiskFull, match=r"no room on the disk for writing to .*: free some space"):
        writer.append(history.frames)
    storage.fail = lambda what: None
    writer.append(history.frames)
    writer.sync()
    close()
    other_boot(tmp_path)
    _, recovered, close = opened(tmp_path)
    assert list(recovered.tail) == history.frames
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
    with pytest.raises(DiskFull, match="the reserve is for what must be written"):  # noqa: PT012 - where it ends is the test
        while True:
            writer.append(history.frames[done : done + 1])
            writer.sync()
            done += 1
    assert writer.space().low
    assert not (tmp_path / "reserve").exists()
    assert history.frames[done].kind == Kind.BATCH
    close()
    writer, _, close = opened(tmp_path, options, storage)
    assert writer.space().low
    with pytest.raises(DiskFull, match="the reserve is for what must be written"):  # a start makes no room
        writer.append(history.frames[done : done + 1])
    reserve = max(positions_named(str(tmp_path), "seg"))
    assert reserve == done + 1  # no batch went into it
    view = Frame(Kind.VIEW, b"\x91\x91\x01")
    view.stamp(VIEW + (1 << 16), done + 1, history.frames[done - 1].header_crc)
    writer.append([view])
    writer.sync()
    writer.write_scalars(Scalars(VIEW, VIEW, VIEW))
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
    assert "50 MiB are free" in writer.space().reason
    close()


def test_a_frame_that_does_not_continue_the_log_is_never_written(tmp_path: Path) -> None:
    history = sample(8)
    storage = Watched()
    writer, _, close = opened(tmp_path, storage=storage)
    writer.append(history.frames[:4])
    storage.calls.clear()
    other = Frame(Kind.VIEW, b"\x91\x91\x01")
    other.stamp(VIEW, 5, 12345)
    other_history = History()
    other_history.batch("another", "one", [b"x"])
    other_history.batch("another", "one", [b"x"])
    for frames, message in (
        (history.frames[5:7], "does not follow position 4"),
        ([other], "does not follow position 4"),
        ([history.frames[3], other], "does not follow position 4"),
        (other_history.frames[2:6], "differ from the log"),
    ):
        with pytest.raises(InvariantViolated, match=message):
            writer.append(frames)
    assert storage.calls == []
    close()


def test_segments_begin_when_everything_before_is_durable(tmp_path: Path) -> None:
    history = sample(120, size=4000)
    storage = Watched()
    writer, _, close = opened(tmp_path, storage=storage)
    writer.append(history.frames)
    firsts = positions_named(str(tmp_path), "seg")
    assert len(firsts) > 3
    for first in firsts[1:]:
        found = segment_marks(str(tmp_path), first)[0]
        assert found is not None
        assert found.position == first - 1
    writer.sync()
    close()


def test_indexes_are_sealed_and_snapshots_written_when_the_frontier_passes(tmp_path: Path) -> None:
    history = sample(120, size=4000)
    options = LogOptions(segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=20)
    write_log(tmp_path, history, options)
    firsts = positions_named(str(tmp_path), "seg")
    snapshots = positions_named(str(tmp_path), "snap")
    assert set(firsts[1:]) <= set(snapshots)
    within = [position for position in snapshots if position not in firsts]
    assert len(within) <= 1  # it moves along
    assert len(history.frames) + 1 - max(snapshots) <= 20


@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("snapshot_frames", [10, 1000])
def test_a_restart_at_any_place_goes_on_as_if_nothing_had_been(tmp_path: Path, reboot: bool, snapshot_frames: int) -> None:
    history = sample(80, size=4000)
    options = LogOptions(
        segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=snapshot_frames
    )
    done = 0
    upto = 0
    for step in (5, 11, 1, 40, 3, 29, 100):
        writer, recovered, close = opened(tmp_path, options)
        assert recovered.state.position == upto
        assert recovered.state.next_offset == history.offset_after(upto)
        assert list(recovered.tail) == history.frames[upto:done]
        writer.append(history.frames[done : done + step])
        writer.sync()
        done = min(done + step, len(history.frames))
        until = done - (2 if done < len(history.frames) else 0)
        decide(writer, history, upto + 1, until)
        upto = until
        close()
        if reboot:
            other_boot(tmp_path)
    assert upto == len(history.frames)


def test_frames_of_a_newer_release_are_not_taken_for_torn(tmp_path: Path) -> None:
    history = sample(4)
    write_log(tmp_path, history)
    other_boot(tmp_path)
    strange = Frame(Kind.TICK, b"new")
    strange.kind = 77
    strange.stamp(VIEW, len(history.frames) + 1, history.frames[-1].header_crc)
    segment = tmp_path / "log" / f"{1:020d}.seg"
    data = bytearray(segment.read_bytes())
    place = 12288 + sum(frame.size for frame in history.frames)
    data[place : place + strange.size] = strange.to_bytes()
    segment.write_bytes(data)
    with pytest.raises(WrongDirectory, match="version 1 and kind 77, which this release does not know"):
        opened(tmp_path)
    assert segment.read_bytes() == data


def test_prepared_segments_are_made_while_idle_and_used(tmp_path: Path) -> None:
    options = LogOptions(segment_bytes=64 << 10, prepared_segments=2, reserved_bytes=0, disk_low_bytes=0)
    history = sample(60, size=4000)
    writer, _, close = opened(tmp_path, options)
    deadline = time.monotonic() + 20
    while len(prepared_paths(str(tmp_path))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(prepared_paths(str(tmp_path))) == 2
    inodes = {file.stat().st_ino for file in (tmp_path / "log").glob("prepared-*.seg")}
    writer.append(history.frames)
    writer.sync()
    used = {(tmp_path / "log" / f"{first:020d}.seg").stat().st_ino for first in positions_named(str(tmp_path), "seg")}
    assert inodes <= used
    close()
