"""The log cut behind a position: what stays, what comes behind it, and that whatever stops the cut leaves a log."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.log.history import VIEW, History, decide, expected, opened, other_boot, sample, seen
from tests.unit.log.watched import Watched, failing
from tutti.data.frames.frame import HEADER_SIZE, Buffer, Frame
from tutti.data.hard_state import HardState
from tutti.errors import DiskFailed, DiskFull, InvariantViolated
from tutti.log.files.layout import FRAMES_AT, MARK_SLOTS, list_positions
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.hard_state import SLOTS, decode_slot
from tutti.log.format.vote_mark import segment_marks
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.log.tools.verify import verify
from tutti_gateway.log.writer import LogWriter

OPTIONS = LogOptions(segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=12)
HISTORY = sample(120, size=4000)


def written(path: Path, decided: int, storage: Storage | None = None) -> tuple[LogWriter, list[int]]:
    """A log that was written whole and decided up to a position; the first positions of its segments."""
    writer, _, _ = opened(path, OPTIONS, storage)
    writer.append(HISTORY.frames)
    writer.sync()
    decide(writer, HISTORY, 1, decided)
    firsts = list_positions(str(path), "seg")
    assert len(firsts) > 4
    return writer, firsts


def goes_on(path: Path, writer: LogWriter, position: int, counter: int = 2) -> History:
    """Frames of another view behind a cut: durable, decided, read, found again by a start and by a check of everything."""
    other = HISTORY.branch(position, counter)
    for number in range(40):
        other.batch(f"new{number % 3}", "new", [b"%d" % number * 700])
    decided = writer.read(1, 1)[1]
    assert decided == 1
    writer.append(other.frames[position:])
    writer.sync()
    writer.write_hard_state(HardState(VIEW, VIEW, VIEW))
    decide(writer, other, frontier(path) + 1, len(other.frames))
    with_reader(path, other)
    assert verify(path).damage == []
    return other


def frontier(path: Path) -> int:
    return LogReader(path).frontier().position


def with_reader(path: Path, history: History) -> None:
    reader = LogReader(path)
    assert reader.frontier().offset == len(history.records)
    assert seen(scan(reader, 0, len(history.records))) == expected(history)


def found_again(path: Path, frames: Sequence[Frame], *, reboot: bool) -> None:
    """A start finds just these frames."""
    if reboot:
        other_boot(path)
    _, recovered, close = opened(path, OPTIONS)
    end = recovered.state.position + len(recovered.tail)
    assert (end, list(recovered.tail)) == (len(frames), list(frames[recovered.state.position :]))
    assert recovered.damage is None
    close()


def release(writer: LogWriter, path: Path) -> None:
    """Let a log go as `opened` would."""
    writer.close()
    writer._directory.close()
    assert path.exists()


def places(firsts: list[int], decided: int) -> dict[str, int]:
    """Where cuts go: behind what is decided, before and at and behind the borders of segments, and at the end."""
    last = len(HISTORY.frames)
    return {
        "everything undecided": decided,
        "one frame less": last - 1,
        "to the end": last,
        "before a border": firsts[3] - 2,
        "at a border": firsts[3] - 1,
        "behind a border": firsts[3],
        "in an earlier segment": (firsts[2] + firsts[3]) // 2,
        "at the last border": firsts[-1] - 1,
    }


@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("place", places([0] * 9, 0))
def test_a_log_ends_at_a_cut_and_goes_on_in_another_view(tmp_path: Path, place: str, reboot: bool) -> None:
    probe, firsts = written(tmp_path / "probe", 3)
    release(probe, tmp_path)
    decided = HISTORY.settled(firsts[1] + 3)
    writer, _ = written(tmp_path / "data", decided)
    position = places(firsts, decided)[place]
    position = max(HISTORY.settled(position), decided)
    writer.truncate(position)
    assert max(list_positions(str(tmp_path / "data"), "seg")) <= position + 1
    release(writer, tmp_path)
    found_again(tmp_path / "data", HISTORY.frames[:position], reboot=reboot)
    writer, _, _ = opened(tmp_path / "data", OPTIONS)
    other = goes_on(tmp_path / "data", writer, position)
    release(writer, tmp_path)
    found_again(tmp_path / "data", other.frames, reboot=reboot)


def test_a_cut_right_behind_a_snapshot_at_the_border_of_a_segment_keeps_the_border(tmp_path: Path) -> None:
    probe, firsts = written(tmp_path / "probe", 3)
    release(probe, tmp_path)
    border = next(first for first in firsts[1:] if HISTORY.settled(first - 1) == first - 1)
    writer, _ = written(tmp_path / "data", border - 1)
    writer.truncate(border - 1)
    assert list_positions(str(tmp_path / "data"), "seg")[-1] == border
    assert border in list_positions(str(tmp_path / "data"), "snap")
    other = goes_on(tmp_path / "data", writer, border - 1)
    release(writer, tmp_path)
    found_again(tmp_path / "data", other.frames, reboot=True)


def test_cuts_follow_each_other_without_anything_between_them(tmp_path: Path) -> None:
    writer, firsts = written(tmp_path, 5)
    for position in (firsts[4] + 1, firsts[3] - 1, firsts[1] + 1, firsts[1] + 1, 6):
        writer.truncate(HISTORY.settled(position))
    history = HISTORY
    for counter in range(2, 6):
        other = history.branch(6, counter)
        for number in range(60):
            other.batch("new", "new", [b"%d" % number * 500])
        writer.append(other.frames[6:])
        writer.truncate(len(other.frames) // 2)
        writer.truncate(6)
    other = goes_on(tmp_path, writer, 6, 9)
    release(writer, tmp_path)
    found_again(tmp_path, other.frames, reboot=True)


def test_no_good_mark_names_what_was_cut(tmp_path: Path) -> None:
    writer, firsts = written(tmp_path, 5)
    for _ in range(3):
        writer.write_hard_state(HardState(VIEW, VIEW, VIEW))
    writer.truncate(firsts[1] + 2)
    found = [mark for mark in segment_marks(str(tmp_path), firsts[1]) if mark is not None]
    data = (tmp_path / "scalars").read_bytes()
    for at in SLOTS:
        stored = decode_slot(data[at : at + 512], "scalars")
        assert stored is not None
        assert stored.segment == firsts[1]
        assert stored.hard_state == HardState(VIEW, VIEW, VIEW)
        found.append(stored.mark)
    last = HISTORY.frames[firsts[1] + 1]
    assert [(mark.position, mark.view, mark.chain) for mark in found] == 4 * [(last.position, last.view, last.header_crc)]
    release(writer, tmp_path)


def test_the_mark_is_lowered_durably_before_any_frame_is_touched_and_segments_go_last(tmp_path: Path) -> None:
    storage = Watched()
    writer, firsts = written(tmp_path, 5, storage)
    storage.calls.clear()
    writer.truncate(firsts[-2] + 2)
    calls = storage.calls
    first = next(number for number, (what, at) in enumerate(calls) if what == "write" and at >= FRAMES_AT)
    assert [what for what, _ in calls[:first]] == ["sync", "write", "sync", "write", "sync"]  # what is written, then the scalars
    assert {at for what, at in calls[:first] if what == "write"} == set(SLOTS)
    behind = [(what, at if at in MARK_SLOTS else 0) for what, at in calls[first:] if what != "write" or at < FRAMES_AT]
    assert [what for what, _ in behind] == ["write", "sync", "write", "sync", "sync directory"]
    assert {at for what, at in behind if what == "write"} == set(MARK_SLOTS)  # one of them is good at every instant
    release(writer, tmp_path)


def test_no_header_of_a_frame_that_was_cut_is_left_to_join_what_comes_before_it(tmp_path: Path) -> None:
    """The very same frame may come again: then the chain alone would not tell that those behind it are gone."""
    writer, firsts = written(tmp_path, 5)
    writer.truncate(7)
    data = (tmp_path / "log" / f"{1:020d}.seg").read_bytes()
    place = FRAMES_AT
    for frame in HISTORY.frames[: firsts[1] - 1]:
        header = data[place : place + HEADER_SIZE]
        assert header == (frame.header if frame.position <= 7 else bytes(HEADER_SIZE))
        place += frame.size
    writer.append(HISTORY.frames[7:8])
    writer.sync()
    release(writer, tmp_path)
    found_again(tmp_path, HISTORY.frames[:8], reboot=True)


def test_a_shorter_frame_and_a_stale_one_behind_it_are_told_apart_by_the_chain(tmp_path: Path) -> None:
    """As after a torn write whose last sector, with the invalid header, was lost: the frame behind is whole, of the old chain."""
    history = History()
    for _ in range(4):
        history.offsets("reader", 0)
    writer, _, _ = opened(tmp_path, OPTIONS)
    writer.append(history.frames)
    writer.sync()
    file = tmp_path / "log" / f"{1:020d}.seg"
    old = file.read_bytes()
    writer.truncate(3)
    other = history.branch(3, 2)
    other.frames.pop()
    other.offsets("reader", 0)
    assert other.frames[3].size == history.frames[3].size
    writer.append(other.frames[3:])
    writer.sync()
    release(writer, tmp_path)
    behind = FRAMES_AT + sum(frame.size for frame in history.frames[:4])
    data = bytearray(file.read_bytes())
    data[behind:] = old[behind:]
    file.write_bytes(data)
    found_again(tmp_path, other.frames, reboot=True)


def test_what_is_decided_is_never_cut_and_no_cut_is_beyond_the_end(tmp_path: Path) -> None:
    writer, _ = written(tmp_path, 9)
    for position in (8, 0, len(HISTORY.frames) + 1):
        with pytest.raises(InvariantViolated, match=f"after position {position}: it is decided up to 9 and ends at"):
            writer.truncate(position)
    writer.frontier(20, HISTORY.offset_after(20))  # shown to readers, and not indexed yet
    with pytest.raises(InvariantViolated, match="decided up to 20"):
        writer.truncate(19)
    writer.truncate(20)
    decide(writer, HISTORY, 10, 20)
    release(writer, tmp_path)
    found_again(tmp_path, HISTORY.frames[:20], reboot=True)


def test_a_log_that_nothing_is_left_of_may_begin_as_another_one(tmp_path: Path) -> None:
    history = History()
    writer, _, _ = opened(tmp_path, OPTIONS)
    writer.append(history.frames)
    writer.sync()
    release(writer, tmp_path)
    writer, _, _ = opened(tmp_path, OPTIONS)  # a start writes down which log it is
    writer.truncate(0)
    release(writer, tmp_path)
    found_again(tmp_path, [], reboot=True)
    writer, recovered, _ = opened(tmp_path, OPTIONS)
    assert recovered.log == b""
    other = History(begin=False)
    other.roster(log=bytes(16))
    other.view()
    writer.append(other.frames)
    writer.sync()
    release(writer, tmp_path)
    found_again(tmp_path, other.frames, reboot=True)
    _, recovered, close = opened(tmp_path, OPTIONS)
    assert recovered.log == bytes(16)
    close()


class Filling(Storage):
    """A disk that has room for so many writes, and then for none until somebody frees some."""

    room: int | None = None

    def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.room is not None:
            self.room -= 1
        super().write(fd, parts, at)


@pytest.mark.parametrize("ends", ["cut again", "closed"])
@pytest.mark.parametrize("room", range(9))
def test_a_cut_that_finds_no_room_comes_again_wherever_it_stopped(tmp_path: Path, room: int, ends: str) -> None:
    storage = Filling()
    writer, firsts = written(tmp_path, 5, storage)
    position = firsts[-2] + 1
    gone = firsts[-1] - 1 - position
    assert gone > 3
    storage.room = room
    with pytest.raises(DiskFull, match="free some space"):
        writer.truncate(position)
    storage.room = None
    if ends == "cut again":
        writer.truncate(position)
        release(writer, tmp_path)
        found_again(tmp_path, HISTORY.frames[:position], reboot=True)
        return
    release(writer, tmp_path)
    other_boot(tmp_path)
    _, recovered, close = opened(tmp_path, OPTIONS)
    end = recovered.state.position + len(recovered.tail)
    assert list(recovered.tail) == HISTORY.frames[recovered.state.position : end]
    assert position <= end <= len(HISTORY.frames)
    close()


def test_the_reserve_makes_room_for_a_cut(tmp_path: Path) -> None:
    options = LogOptions(segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=32 << 10, disk_low_bytes=0)

    class Copying(Watched):
        """As where each write needs new blocks: there is room only once the reserve is gone."""

        def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
            if full and (tmp_path / "reserve").exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(fd, parts, at)

    full = False
    storage = Copying()
    writer, _, close = opened(tmp_path, options, storage)
    writer.append(HISTORY.frames)
    writer.sync()
    full, storage.free = True, 0
    writer.truncate(7)
    assert writer.space().low
    close()
    found_again(tmp_path, HISTORY.frames[:7], reboot=True)


@pytest.mark.parametrize("what", ["sync", "sync directory", "write"])
def test_a_cut_whose_disk_fails_ends_the_writer_and_leaves_a_log(tmp_path: Path, what: str) -> None:
    storage = Watched()
    writer, _ = written(tmp_path, 5, storage)
    storage.fail = failing(what, errno.EIO)
    with pytest.raises(DiskFailed, match="truncating"):
        writer.truncate(7)
    storage.fail = lambda asked: None
    with pytest.raises(DiskFailed):
        writer.append(HISTORY.frames)
    release(writer, tmp_path)
    _, recovered, close = opened(tmp_path, OPTIONS)
    end = recovered.state.position + len(recovered.tail)
    assert list(recovered.tail) == HISTORY.frames[recovered.state.position : end]
    assert end >= 7
    close()


def begins(frames: Sequence[Frame], size: int) -> int:
    """The first position of the second segment of a log."""
    place = FRAMES_AT
    for frame in frames:
        place += frame.size
        if place > size - HEADER_SIZE:
            return frame.position
    return 0


def test_a_reader_of_the_running_gateway_never_sees_a_segment_that_was_cut(tmp_path: Path) -> None:
    """Another segment comes under the name of one that the reader had mapped."""
    history = History()
    for _ in range(40):
        history.batch("p", "t", [b"old" * 1000])
    for size in range(2500, 4000, 8):
        other = history.branch(6, 2)
        for _ in range(40):
            other.batch("q", "t", [b"n" * size])
        if begins(other.frames, OPTIONS.segment_bytes) == begins(history.frames, OPTIONS.segment_bytes):
            break
    writer, _, close = opened(tmp_path, OPTIONS)
    writer.append(history.frames)
    writer.sync()
    decide(writer, history, 1, 6)
    first = list_positions(str(tmp_path), "seg")[1]
    reader = LogReader(tmp_path)
    assert reader.offset_for_time(1 << 62) == reader.frontier().offset  # looks at every segment
    writer.truncate(6)
    writer.append(other.frames[6:])
    assert list_positions(str(tmp_path), "seg")[1] == first
    writer.sync()
    decide(writer, other, 7, len(other.frames))
    assert seen(scan(reader, 0, reader.frontier().offset)) == expected(other)
    close()


def test_a_check_beside_the_running_gateway_looks_at_nothing_that_may_be_cut_meanwhile(tmp_path: Path) -> None:
    writer, firsts = written(tmp_path, 9)
    (tmp_path / "log" / f"{firsts[-1]:020d}.seg").unlink()  # as a cut that comes between two looks
    found = verify(tmp_path)
    assert (found.segments, found.damage) == (1, [])
    release(writer, tmp_path)
