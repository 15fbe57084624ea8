"""What was decided and cannot be read any more is found, and written again as it stood, by frames of another gateway."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cases import first_fast
from tests.unit.log.history import SMALL, History, decide, expected, opened, other_boot, sample, scrub_round, seen
from tutti.data.frames.frame import HEADER_SIZE, Frame, padded
from tutti.log.files.layout import FRAMES_AT, PAGE, SegmentHeader, index_path, list_positions, read_header
from tutti.log.files.log_start import LogStart, write_start
from tutti.log.files.storage import Storage
from tutti.log.format.index import index_sealed
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.core import limits
from tutti_gateway.log.tools.verify import verify
from tutti_gateway.log.upkeep.quarantine import copy_segment, quarantined_files
from tutti_gateway.log.writer import LogWriter

OPTIONS = replace(SMALL, snapshot_frames=12)
HISTORY = sample(120, size=4000, voters=3)
DECIDED = HISTORY.settled(len(HISTORY.frames) - 5)


def written(path: Path, history: History = HISTORY, storage: Storage | None = None) -> tuple[LogWriter, Callable[[], None]]:
    """A writer with a log of some segments, decided up to near its end."""
    writer, _, close = opened(path, OPTIONS, storage)
    writer.append(history.frames)
    writer.sync()
    decide(writer, history, 1, DECIDED)
    while writer.idle():
        continue
    return writer, close


def lost_of(writer: LogWriter) -> tuple[int, int]:
    """The positions that are wanted, zeros if none are."""
    lost = writer.scrubber.lost
    return (lost.first, lost.last) if lost is not None else (0, 0)


def serve(writer: LogWriter, frames: list[Frame] = HISTORY.frames, piece: int = 3) -> list[tuple[int, int]]:
    """Another gateway gives what is lost, some frames at a time, until a round finds nothing more; the ranges that were."""
    ranges: list[tuple[int, int]] = []
    while True:
        scrub_round(writer.scrubber)
        first, last = lost_of(writer)
        if not first:
            return ranges
        while first:
            ranges.append((first, last))
            assert writer.scrubber.repair(frames[first - 1 : min(last, first + piece - 1)])
            first, last = lost_of(writer)


def file_of(path: Path, position: int) -> tuple[Path, int]:
    """The segment of a position and the byte where it stands."""
    first = max(first for first in list_positions(str(path), "seg") if first <= position)
    return path / "log" / f"{first:020d}.seg", FRAMES_AT + sum(frame.size for frame in HISTORY.frames[first - 1 : position - 1])


def spoil(path: Path, position: int, at: int = 20, count: int = 1) -> None:
    """Flip bits of a frame, from byte `at` of it on; -1 is in its body."""
    file, place = file_of(path, position)
    if at < 0:
        at = HEADER_SIZE + padded(len(HISTORY.frames[position - 1].progress)) + 1
    with file.open("r+b") as opened_file:
        opened_file.seek(place + at)
        data = opened_file.read(min(count, HISTORY.frames[position - 1].size - at))
        opened_file.seek(place + at)
        opened_file.write(bytes(byte ^ 0x5A for byte in data))


def images(path: Path) -> dict[str, bytes]:
    """What segments and indexes hold."""
    return {file.name: file.read_bytes().rstrip(b"\0") for file in (path / "log").iterdir() if file.suffix in {".seg", ".idx"}}


def whole(path: Path, writer: LogWriter, close: Callable[[], None]) -> None:
    """Everything is decided, read and verified as if nothing had happened."""
    decide(writer, HISTORY, DECIDED + 1, len(HISTORY.frames))
    reader = LogReader(path)
    assert seen(scan(reader, 0, reader.frontier().offset)) == expected(HISTORY)
    reader.close()
    close()
    assert verify(path).damage == []
    other_boot(path)
    assert verify(path).damage == []


def test_a_good_log_has_nothing_to_mend(tmp_path: Path) -> None:
    writer, close = written(tmp_path)
    before = images(tmp_path)
    scrub_round(writer.scrubber)
    scrub_round(writer.scrubber)
    assert (lost_of(writer), writer.scrubber.found, writer.scrubber.rounds) == ((0, 0), 0, 2)
    assert images(tmp_path) == before
    close()


PLACES: dict[str, Callable[[list[int]], tuple[int, int]]] = {
    "first": lambda firsts: (1, 1),
    "last of a segment": lambda firsts: (firsts[1] - 1, firsts[1] - 1),
    "first of a segment": lambda firsts: (firsts[1], firsts[1]),
    "across segments": lambda firsts: (firsts[2] - 2, firsts[2] + 1),
    "a whole segment": lambda firsts: (firsts[1], firsts[2] - 1),
    "last decided": lambda firsts: (DECIDED, DECIDED),
    "the open segment": lambda firsts: (firsts[-2], DECIDED),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("at", "count"), [(20, 1), (-1, 1), (0, HEADER_SIZE + 20)])
@pytest.mark.parametrize("piece", first_fast([1, 50], 1))
def test_what_is_lost_is_found_and_written_as_it_was(tmp_path: Path, place: str, at: int, count: int, piece: int) -> None:
    writer, close = written(tmp_path)
    before = images(tmp_path)
    first, last = PLACES[place](list_positions(str(tmp_path), "seg"))
    for position in range(first, last + 1):
        spoil(tmp_path, position, at, count)
    ranges = serve(writer, piece=piece)
    assert {position for low, high in ranges for position in range(low, high + 1)} == set(range(first, last + 1))
    assert images(tmp_path) == before
    assert lost_of(writer) == (0, 0)
    whole(tmp_path, writer, close)


def test_it_is_mended_without_any_index(tmp_path: Path) -> None:
    writer, close = written(tmp_path)
    before = images(tmp_path)
    firsts = list_positions(str(tmp_path), "seg")
    os.truncate(index_path(str(tmp_path), firsts[1]), 100)
    spoil(tmp_path, firsts[1] + 1, 20)
    spoil(tmp_path, firsts[1] + 2, -1)
    scrub_round(writer.scrubber)
    assert lost_of(writer)[1] == firsts[2] - 1  # nothing says where what follows stands
    assert len(serve(writer, piece=2)) == 1  # what stands behind it is good: it is not fetched
    assert index_sealed(index_path(str(tmp_path), firsts[1]), firsts[1]) is not None
    assert images(tmp_path) == before
    whole(tmp_path, writer, close)


def test_a_bad_header_of_a_segment_is_made_again_alone(tmp_path: Path) -> None:
    writer, close = written(tmp_path)
    before = images(tmp_path)
    for first in list_positions(str(tmp_path), "seg")[:-1]:  # the last one holds nothing that is decided
        with (tmp_path / "log" / f"{first:020d}.seg").open("r+b") as file:
            file.write(b"nothing")
    scrub_round(writer.scrubber)
    assert lost_of(writer) == (0, 0)
    assert images(tmp_path) == before
    whole(tmp_path, writer, close)


def test_a_segment_that_is_gone_is_fetched(tmp_path: Path) -> None:
    writer, close = written(tmp_path)
    before = images(tmp_path)
    firsts = list_positions(str(tmp_path), "seg")
    (tmp_path / "log" / f"{firsts[1]:020d}.seg").unlink()
    (tmp_path / "log" / f"{firsts[1]:020d}.idx").unlink()
    assert serve(writer, piece=4)
    scrub_round(writer.scrubber)
    found = images(tmp_path)
    name = f"{firsts[1]:020d}.seg"
    assert found[name][FRAMES_AT:] == before[name][FRAMES_AT:]
    assert found[f"{firsts[1]:020d}.idx"] == before[f"{firsts[1]:020d}.idx"]
    whole(tmp_path, writer, close)


def test_a_segment_that_was_cut_short_is_fetched(tmp_path: Path) -> None:
    writer, close = written(tmp_path)
    before = images(tmp_path)
    file = tmp_path / "log" / f"{list_positions(str(tmp_path), 'seg')[1]:020d}.seg"
    size = file.stat().st_size
    os.truncate(file, FRAMES_AT + 7000)
    reader = LogReader(tmp_path)
    serve(writer)
    assert file.stat().st_size == size
    assert images(tmp_path) == before
    assert seen(scan(reader, 0, reader.frontier().offset)) == expected(HISTORY, 0, reader.frontier().offset)
    whole(tmp_path, writer, close)


def test_frames_that_did_not_stand_there_are_not_taken(tmp_path: Path) -> None:
    writer, close = written(tmp_path)
    position = list_positions(str(tmp_path), "seg")[1] + 2
    spoil(tmp_path, position, 20)
    spoil(tmp_path, position + 1, 20)
    before = images(tmp_path)
    scrub_round(writer.scrubber)
    assert lost_of(writer) == (position, position + 1)
    other = HISTORY.branch(position - 1, 2)
    for number in range(3):
        other.batch("new", "new", [b"%d" % number * 900])
    for frames in (HISTORY.frames[position:], other.frames[position - 1 : position + 1], []):
        assert writer.scrubber.repair(frames) == 0
    assert images(tmp_path) == before
    serve(writer)
    whole(tmp_path, writer, close)


def test_segments_that_begin_while_it_looks_are_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRUB_FRAMES", 2)
    writer, _, close = opened(tmp_path, OPTIONS)
    done = 0
    for settled in (HISTORY.settled(count) for count in range(4, len(HISTORY.frames) - 4, 4)):
        writer.append(HISTORY.frames[done:settled])
        writer.sync()
        decide(writer, HISTORY, done + 1, settled)
        done = settled
        writer.scrubber.scrub()
        assert lost_of(writer) == (0, 0), settled
    assert len(list_positions(str(tmp_path), "seg")) > 2
    before = images(tmp_path)
    assert serve(writer) == []
    assert images(tmp_path) == before
    close()


def test_a_position_that_somebody_could_not_read_is_looked_at_next(tmp_path: Path) -> None:
    writer, close = written(tmp_path)
    firsts = list_positions(str(tmp_path), "seg")
    spoil(tmp_path, firsts[-2] - 1, 20)
    assert not writer.scrubber.scrub()
    assert writer.read(firsts[-2] - 1, firsts[-2]) == ((), firsts[-2] - 2)
    writer.scrubber.suspect(firsts[-2] - 1)
    writer.scrubber.suspect(DECIDED + 1)  # not decided: that is another matter
    assert writer.scrubber.urgent
    while not writer.scrubber.scrub():
        assert not writer.scrubber.rounds
    assert lost_of(writer)[0] == firsts[-2] - 1
    assert writer.scrubber.rounds == 0
    serve(writer)
    whole(tmp_path, writer, close)


class BadSectors(Storage):
    """Pages of a file that cannot be read until all of a page was written."""

    def __init__(self) -> None:
        self.bad: set[tuple[int, int]] = set()  # inode and page

    def _hit(self, fd: int, start: int, end: int) -> set[tuple[int, int]]:
        inode = os.fstat(fd).st_ino
        return {(inode, page) for page in range(start - start % PAGE, end, PAGE)} & self.bad

    def read(self, fd: int, size: int, at: int) -> bytes:
        if self._hit(fd, at, min(at + size, os.fstat(fd).st_size)):
            raise OSError(5, "Input/output error")
        return super().read(fd, size, at)

    def write(self, fd: int, parts: object, at: int) -> None:
        end = at + sum(map(len, parts))  # type: ignore[call-overload]  # any buffer
        for inode, page in self._hit(fd, at, end):
            if page < at or end < page + PAGE:
                raise OSError(5, "Input/output error")
            self.bad.discard((inode, page))
        super().write(fd, parts, at)  # type: ignore[arg-type]  # any buffer


@pytest.mark.parametrize("piece", [1, 2, 50])
def test_sectors_that_cannot_be_read_are_written_whole(tmp_path: Path, piece: int) -> None:
    storage = BadSectors()
    writer, close = written(tmp_path, storage=storage)
    before = images(tmp_path)
    file, place = file_of(tmp_path, list_positions(str(tmp_path), "seg")[1] + 3)
    page = place - place % PAGE
    storage.bad = {(file.stat().st_ino, page + number * PAGE) for number in (0, 1, 2)}
    with file.open("r+b") as opened_file:
        opened_file.seek(page)
        opened_file.write(b"\xee" * 3 * PAGE)  # whatever the test reads past the storage
    assert serve(writer, piece=piece)
    assert storage.bad == set()
    assert images(tmp_path) == before
    whole(tmp_path, writer, close)


def test_the_end_of_a_segment_is_mended_though_the_next_one_s_header_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was lost was never told, and nothing behind it looked at."""
    writer, close = written(tmp_path)
    following = list_positions(str(tmp_path), "seg")[1]
    spoil(tmp_path, following - 1)

    def unreadable(directory: str, first: int) -> SegmentHeader:
        if first == following:
            raise OSError(5, "Input/output error")
        return read_header(directory, first)

    with monkeypatch.context() as patch:
        patch.setattr("tutti_gateway.log.upkeep.scrubber.read_header", unreadable)
        scrub_round(writer.scrubber)
        assert lost_of(writer) == (following - 1, following - 1)
    assert serve(writer)
    whole(tmp_path, writer, close)


def test_a_kill_in_the_middle_leaves_what_is_found_again(tmp_path: Path) -> None:
    writer, close = written(tmp_path / "one")
    before = images(tmp_path / "one")
    first = list_positions(str(tmp_path / "one"), "seg")[1]
    for position in range(first, first + 6):
        spoil(tmp_path / "one", position, 0, 300)
    scrub_round(writer.scrubber)
    writer.scrubber.repair(HISTORY.frames[first - 1 : first + 2])
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    close()
    other_boot(tmp_path / "two")
    writer, _, close = opened(tmp_path / "two", OPTIONS)
    scrub_round(writer.scrubber)
    assert lost_of(writer) == (first + 3, first + 5)
    serve(writer)
    assert {name: data for name, data in images(tmp_path / "two").items() if name.endswith(".seg")}.keys() == {
        name for name in before if name.endswith(".seg")
    }
    assert lost_of(writer) == (0, 0)
    close()


def test_what_was_trimmed_meanwhile_is_not_wanted_any_more(tmp_path: Path) -> None:
    writer, close = written(tmp_path)
    spoil(tmp_path, 2, 20)
    scrub_round(writer.scrubber)
    assert lost_of(writer) == (2, 2)
    first = list_positions(str(tmp_path), "seg")[1]
    write_start(str(tmp_path), LogStart(first, HISTORY.offset_after(first - 1)), Storage())
    assert writer.scrubber.repair(HISTORY.frames[1:2]) == 0
    assert lost_of(writer) == (0, 0)
    close()


def test_a_first_segment_that_is_gone_is_fetched(tmp_path: Path) -> None:
    writer, close = written(tmp_path)
    before = images(tmp_path)
    for suffix in ("seg", "idx"):
        (tmp_path / "log" / f"{1:020d}.{suffix}").unlink()
    assert serve(writer, piece=10)
    found = images(tmp_path)
    assert found[f"{1:020d}.seg"][FRAMES_AT:] == before[f"{1:020d}.seg"][FRAMES_AT:]
    whole(tmp_path, writer, close)


def test_a_file_that_goes_while_it_is_mended_is_made_again(tmp_path: Path) -> None:
    writer, close = written(tmp_path)
    first = list_positions(str(tmp_path), "seg")[1]
    spoil(tmp_path, first + 1)
    scrub_round(writer.scrubber)
    (tmp_path / "log" / f"{first:020d}.seg").unlink()
    assert writer.scrubber.repair(HISTORY.frames[first : first + 1]) == 0
    serve(writer, piece=10)
    whole(tmp_path, writer, close)


def test_what_can_be_read_after_all_is_never_written_over(tmp_path: Path) -> None:
    writer, close = written(tmp_path)
    position = list_positions(str(tmp_path), "seg")[1] + 2
    spoil(tmp_path, position)
    scrub_round(writer.scrubber)
    spoil(tmp_path, position)  # the same bit: it is as it was
    before = images(tmp_path)
    assert writer.scrubber.repair(HISTORY.frames[position - 1 : position]) == 0
    assert (lost_of(writer), writer.scrubber.repaired) == ((0, 0), 0)
    assert images(tmp_path) == before
    whole(tmp_path, writer, close)


def test_what_was_kept_of_a_damage_goes_when_the_log_was_seen_whole_since(tmp_path: Path) -> None:
    writer, close = written(tmp_path)
    copy = Path(copy_segment(str(tmp_path), Storage(), 1))
    spoil(tmp_path, 5)
    scrub_round(writer.scrubber)
    serve(writer)
    assert copy.exists()  # the round found what it found
    scrub_round(writer.scrubber)
    assert not copy.exists()
    newest = [Path(copy_segment(str(tmp_path), Storage(), 1)) for _ in range(limits.SEGMENTS_QUARANTINED_MAX + 3)][-1]
    assert newest.exists()
    assert len(quarantined_files(str(tmp_path / "log"))) == limits.SEGMENTS_QUARANTINED_MAX
    close()
