"""Frames read back for other members: all that are good, no more than one answer takes, and where ABORTs reach over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.log.history import History, decide, opened, sample
from tutti.data.frames.frame import HEADER_SIZE, Frame
from tutti.log.files.layout import FRAMES_AT, list_positions
from tutti.log.files.options import LogOptions
from tutti_gateway.core import limits
from tutti_gateway.log.writer import LogWriter

OPTIONS = LogOptions(segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=12)
HISTORY = sample(120, size=4000)
LAST = len(HISTORY.frames)


@pytest.fixture(params=[0, 60, LAST], ids=["nothing decided", "half decided", "all decided"])
def writer(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LogWriter]:
    found, _, close = opened(tmp_path, OPTIONS)
    found.append(HISTORY.frames)
    found.sync()
    decided = HISTORY.settled(request.param)
    if decided:
        decide(found, HISTORY, 1, decided)
    yield found
    close()


def test_the_whole_log_comes_back_answer_by_answer(writer: LogWriter, tmp_path: Path) -> None:
    borders = {first - 1 for first in list_positions(str(tmp_path), "seg")}
    position, answers = 1, 0
    while position <= LAST:
        frames, _ = writer.read(position, LAST + 1000)
        assert list(frames) == HISTORY.frames[position - 1 : position - 1 + len(frames)]
        assert frames[-1].position in {LAST, *borders}
        position, answers = position + len(frames), answers + 1
    assert answers == len(borders)


@pytest.mark.parametrize("first", [1, 2, 3, 30, 59, 60, 61, 62, LAST - 1, LAST])
def test_a_read_begins_and_ends_anywhere(writer: LogWriter, first: int) -> None:
    for last in (first, first + 1, first + 5):
        frames, _ = writer.read(first, last)
        assert frames
        assert list(frames) == HISTORY.frames[first - 1 : first - 1 + len(frames)]
        assert len(frames) <= last - first + 1


def test_what_is_not_there_is_answered_with_nothing(writer: LogWriter) -> None:
    for first, last in ((LAST + 1, LAST + 9), (5, 4), (0, 4), (LAST + 1, LAST)):
        assert writer.read(first, last) == ((), first - 1)


def test_frames_are_their_own_bytes_and_not_the_segments(writer: LogWriter, tmp_path: Path) -> None:
    frames, _ = writer.read(1, 20)
    for file in (tmp_path / "log").glob("*.seg"):
        with file.open("r+b") as open_file:
            open_file.seek(FRAMES_AT)
            open_file.write(bytes(20_000))
    assert list(frames) == HISTORY.frames[: len(frames)]


def test_an_answer_takes_so_many_bytes_and_one_frame_at_least(writer: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    large = max(HISTORY.frames[9:20], key=lambda frame: frame.size)
    for size in (HEADER_SIZE, large.size - 1, large.size, 3 * large.size):
        monkeypatch.setattr(limits, "FETCH_BYTES", size)
        frames, _ = writer.read(large.position, LAST)
        assert frames[0] == large
        assert len(frames) == 1 or sum(frame.size for frame in frames) <= size


def test_what_is_not_synced_is_not_read(tmp_path: Path) -> None:
    writer, _, close = opened(tmp_path, OPTIONS)
    writer.append(HISTORY.frames[:5])
    writer.sync()
    writer.append(HISTORY.frames[5:9])
    assert len(writer.read(1, 9)[0]) == 5
    assert writer.read(6, 9) == ((), 5)
    close()


def place_of(position: int, first: int = 1) -> int:
    return FRAMES_AT + sum(frame.size for frame in HISTORY.frames[first - 1 : position - 1])


@pytest.mark.parametrize("where", [8, HEADER_SIZE - 1, HEADER_SIZE + 1, 300])
def test_frames_that_rotted_end_the_answer_before_them(writer: LogWriter, tmp_path: Path, where: int) -> None:
    rotten = next(frame for frame in HISTORY.frames[9:20] if frame.size > 400)
    file = tmp_path / "log" / f"{1:020d}.seg"
    data = bytearray(file.read_bytes())
    data[place_of(rotten.position) + where] ^= 1
    file.write_bytes(data)
    assert list(writer.read(1, LAST)[0]) == HISTORY.frames[: rotten.position - 1]
    assert writer.read(rotten.position, LAST) == ((), rotten.position - 1)


def spoil(path: Path) -> None:
    for file in (path / "log").glob("*.idx"):
        file.write_bytes(b"\xff" * file.stat().st_size)


def remove(path: Path) -> None:
    for file in (path / "log").glob("*.idx"):
        file.unlink()


@pytest.mark.parametrize("harm", [spoil, remove])
def test_an_index_that_is_gone_or_bad_changes_nothing(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    writer, _, close = opened(tmp_path, OPTIONS)
    writer.append(HISTORY.frames)
    writer.sync()
    decide(writer, HISTORY, 1, 60)
    harm(tmp_path)
    for first in (2, 20, 59):
        frames, stop = writer.read(first, 60)
        assert list(frames) == HISTORY.frames[first - 1 : first - 1 + len(frames)]
        assert stop == expected_stop(HISTORY, frames, first, 60)
    close()


def expected_stop(history: History, frames: tuple[Frame, ...], first: int, last: int) -> int:
    """As the event says it, over all windows at once."""
    stop = first + len(frames) - 1
    while any(start <= stop < end <= last and end >= first for start, end in history.windows):
        stop -= 1
    return max(stop, first - 1)


def aborted() -> History:
    """Windows within an answer, over its end, over several answers, and within each other."""
    history = History()
    for name in "pqr":
        history.epoch(name)
    for number in range(60):
        batch = history.batch("p", "t", [b"x" * 2500])
        if number % 9 == 4:
            long = history.batch("q", "t", [b"y"])
            for _ in range(number):
                history.batch("r", "t", [b"z" * 900])
            history.abort(batch.position)
            history.epoch("p")
            if number % 2:
                history.abort(long.position)
                history.epoch("q")
    return history


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_an_answer_says_up_to_where_no_abort_reaches_over_it(tmp_path: Path, share: float) -> None:
    history = aborted()
    writer, _, close = opened(tmp_path, OPTIONS)
    last = len(history.frames)
    writer.append(history.frames[: last // 2])
    close()
    writer, _, close = opened(tmp_path, OPTIONS)  # ABORTs of the tail are known after a start too
    writer.append(history.frames[last // 2 :])
    writer.sync()
    decided = history.settled(int(last * share))
    if decided:
        decide(writer, history, 1, decided)
    inside = 0
    for first in range(1, last + 1, 3):
        for end in (first + 2, first + 40, last - 3, last):
            frames, stop = writer.read(first, end)
            if first <= end <= last:
                assert stop == expected_stop(history, frames, first, end)
                inside += stop < frames[-1].position
    assert inside > 100
    close()


def test_aborts_that_were_cut_reach_over_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = aborted()
    start, end = history.windows[0]
    writer, _, close = opened(tmp_path, OPTIONS)
    writer.append(history.frames)
    writer.sync()
    assert writer.read(start, end)[1] == end
    assert writer.read(1, end - 1)[1] == min(end - 1, len(writer.read(1, end - 1)[0]))
    writer.truncate(end - 1)
    assert writer.read(start, end)[1] == writer.read(start, end)[0][-1].position
    other = history.branch(start - 1, 2)
    while len(other.frames) < end + 9:
        other.offsets("reader", 0)
    writer.truncate(start - 1)
    writer.append(other.frames[start - 1 :])
    writer.sync()
    monkeypatch.setattr(limits, "FETCH_BYTES", HEADER_SIZE)  # one frame an answer: the ABORT would stand behind it
    assert writer.read(start, end + 9)[1] == start
    close()
