"""What a log says of itself is believed only where its CRC was seen: else it is damaged, and never absent or something else."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.log import lane_history as lanes
from tests.unit.log.corruption import flip_frame
from tests.unit.log.history import SMALL, History, decide, firsts, opened, sample, seen, write_log
from tutti.data.frames.frame import HEADER_SIZE, Frame, Kind
from tutti.data.hard_state import HardState
from tutti.errors import Behind, Damaged, DiskFull
from tutti.log.files.layout import index_path, segment_path
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.index import ROW, IndexWriter, index_sealed, rows_valid
from tutti.log.read.lane_reader import LaneReader
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.log.tools.inspect import inspect
from tutti_gateway.log.writer import LogWriter

LATE = 10


@pytest.fixture
def log(tmp_path: Path) -> tuple[Path, History]:
    """One whose end, behind the newest snapshot, registers a topic and a producer and commits where a reader is."""
    history = sample(60, size=1500)
    history.batch("late producer", "late", [b"x"] * LATE, progress=b"at 7")
    history.offsets("reader of late", 40)
    history.tick()
    write_log(tmp_path / "g1", history)
    return tmp_path / "g1", history


def last(history: History, kind: Kind) -> Frame:
    """The last frame of a kind."""
    return next(frame for frame in reversed(history.frames) if frame.kind == kind)


def undecided(path: Path, history: History, options: LogOptions = SMALL) -> tuple[LogWriter, Callable[[], None]]:
    """A writer whose disk has a history of which nothing is decided, and how to let it go."""
    writer, _, close = opened(path, options)
    writer.write_hard_state(HardState(history.view_id, history.view_id, history.view_id))
    writer.append(history.frames)
    writer.sync()
    return writer, close


def by_topic(reader: LogReader, topics: list[str]) -> int:
    """Records of topics, up to the frontier."""
    return sum(batch.num_rows for batch in scan(reader, 0, reader.frontier().offset, topics=topics))


@pytest.mark.parametrize("byte", range(HEADER_SIZE, HEADER_SIZE + 6))
def test_a_topic_whose_frame_is_damaged_is_not_taken_for_one_that_is_not_there(log: tuple[Path, History], byte: int) -> None:
    """Proves it for each byte of its body, and that the same reader has the topic once the frame is whole again."""
    path, history = log
    position = last(history, Kind.TOPIC).position
    noticed: list[int] = []
    with closing(LogReader(path)) as reader:
        reader.on_corruption = noticed.append
        flip_frame(path, position, byte)
        with pytest.raises(Damaged) as told:
            by_topic(reader, ["late"])
        assert told.value.position == position
        assert noticed == [position]
        with pytest.raises(Damaged):
            list(reader.rows(0, reader.frontier().offset, ["late"]))
        assert by_topic(reader, ["topic0"]) == sum(record.topic == "topic0" for record in history.records)
        flip_frame(path, position, byte)
        assert by_topic(reader, ["late"]) == LATE
        assert by_topic(reader, ["none such"]) == 0


def test_a_number_whose_frame_is_damaged_is_told_with_its_place(log: tuple[Path, History]) -> None:
    """Proves that who mends it hears of it from those too who read all topics, and want their names."""
    path, history = log
    frame = last(history, Kind.TOPIC)
    noticed: list[int] = []
    with closing(LogReader(path)) as reader:
        reader.on_corruption = noticed.append
        flip_frame(path, frame.position, HEADER_SIZE)
        with pytest.raises(Damaged) as told:
            reader.name_of(Kind.TOPIC, frame.topic)
        assert (told.value.position, noticed) == (frame.position, [frame.position])
        flip_frame(path, frame.position, HEADER_SIZE)
        assert reader.name_of(Kind.TOPIC, frame.topic) == "late"


def test_a_topic_is_not_there_also_while_segments_are_begun_that_nobody_decided(tmp_path: Path) -> None:
    """Proves that what lies between the frontier and a segment that is begun already is not missing, wherever the frontier is."""
    path, history = tmp_path / "g1", History(voters=3)
    for _ in range(60):
        history.batch("p", "t", [b"v" * 3000])
    writer, close = undecided(path, history)
    second, third = firsts(path)[1:3]
    decided = 0
    with closing(LogReader(path)) as reader:
        for upto in (second - 2, second - 1, second, third - 2, third - 1):
            decide(writer, history, decided + 1, upto)
            decided = upto
            assert not reader.topic_numbers(["none such"])
            assert len(reader.topic_numbers(["t"])) == 1
            assert sum(part.rows for part in reader.plan(0, reader.frontier().offset, ["none such"])) == 0
    close()


def test_a_topic_of_a_segment_that_went_is_known_by_a_later_snapshot(tmp_path: Path) -> None:
    path, history = tmp_path / "g1", sample(60, size=1500)
    write_log(path, history)
    with closing(LogReader(path)) as reader:
        assert not reader.topic_numbers(["late"])
        history.topic("late")
        home = len(history.frames)
        for _ in range(100):
            history.batch("p", "topic1", [b"f" * 3000])
        begin = history.offset_after(len(history.frames))
        history.batch("p", "late", [b"x"] * LATE)
        write_log(path, history)
        segment = max(first for first in firsts(path) if first <= home)
        Path(segment_path(str(path), segment)).rename(tmp_path / "aside")
        found = scan(reader, begin, reader.frontier().offset, topics=["late"])
        assert sum(batch.num_rows for batch in found) == LATE


def test_a_topic_of_what_is_missing_at_the_begin_is_not_taken_for_one_that_is_not_there(tmp_path: Path) -> None:
    """Proves it where nothing says what was there: its snapshots are gone, too."""
    path, history = tmp_path / "g1", History()
    for _ in range(60):
        history.batch("p", "early", [b"v" * 3000])
    write_log(path, history)
    for file in [*(path / "log").glob("*.snap"), Path(segment_path(str(path), 1))]:
        file.unlink()
    with closing(LogReader(path)) as reader, pytest.raises(Damaged):
        reader.topic_numbers(["early"])


def resident_kib(directory: Path) -> int:
    """How much of the segments of a directory is in this process's memory."""
    found, within = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:  # where a mapping begins
            within = line.endswith(".seg") and str(directory) in line
        elif within and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_a_state_keeps_no_page_of_what_it_went_over(tmp_path: Path) -> None:
    """Proves it for many small steps, as of who asks again and again while the log grows."""
    path, history = tmp_path / "g1", History(voters=3)
    for _ in range(600):
        history.batch("p", "t", [b"v" * 3000])
    writer, close = undecided(path, history, replace(SMALL, segment_bytes=4 << 20))
    with closing(LogReader(path)) as reader:
        for upto in range(10, len(history.frames) + 1, 10):
            decide(writer, history, upto - 9, upto)
            assert reader.state().position == upto
            assert resident_kib(path) <= 256  # of two thousand: a touch of one page maps some that lie around it
    close()


@pytest.mark.parametrize("kind", [Kind.TOPIC, Kind.EPOCH, Kind.OFFSETS, Kind.TICK])
def test_what_the_log_says_is_not_made_of_a_body_that_is_damaged(log: tuple[Path, History], kind: Kind) -> None:
    path, history = log
    frame = last(history, kind)
    flip_frame(path, frame.position, HEADER_SIZE + frame.body_length - 1)
    noticed: list[int] = []
    with closing(LogReader(path)) as reader:
        reader.on_corruption = noticed.append
        with pytest.raises(Damaged) as told:
            reader.state()
        assert told.value.position == frame.position
        assert noticed == [frame.position]
        with pytest.raises(Damaged):
            list(inspect(path))
        flip_frame(path, frame.position, HEADER_SIZE + frame.body_length - 1)
        assert reader.state().readers["reader of late"] == 40
        assert reader.state().topic_number("late")


def test_a_snapshot_behind_what_is_damaged_says_what_the_log_does(tmp_path: Path) -> None:
    path, history = tmp_path / "g1", sample(60, size=1500)
    write_log(path, history)
    with closing(LogReader(path)) as reader:
        assert not reader.state().topic_number("late")
        damaged = history.topic("late").position
        for _ in range(100):
            history.batch("p", "topic1", [b"f" * 3000])
        write_log(path, history)
        flip_frame(path, damaged, HEADER_SIZE + 3)
        assert reader.state().topic_number("late")
        assert reader.state().position == len(history.frames)


@pytest.mark.parametrize("byte", [60, 40, 72], ids=["count", "time", "length"])
def test_nor_of_a_header_nor_of_progress_that_is(log: tuple[Path, History], byte: int) -> None:
    path, history = log
    frame = last(history, Kind.BATCH)
    for damaged in (byte, HEADER_SIZE):
        flip_frame(path, frame.position, damaged)
        with closing(LogReader(path)) as reader:
            with pytest.raises(Damaged) as told:
                reader.state()
            assert told.value.position == frame.position
            flip_frame(path, frame.position, damaged)
            assert reader.state().producers[frame.producer].progress == b"at 7"


_CUT = """
import os, sys
from tutti.errors import Damaged
from tutti.log.read.reader import LogReader
reader = LogReader(sys.argv[1])
list(reader.positions(1, reader.frontier().position))
os.truncate(sys.argv[2], 20480)
try:
    reader.state()
except Damaged as error:
    print("damaged at", error.position)
"""


def test_what_cannot_be_read_ends_no_process(log: tuple[Path, History]) -> None:
    """Proves it for a file that ends before what is mapped of it, where a touch is the signal that a bad sector is."""
    path, _ = log
    command = [sys.executable, "-c", _CUT, str(path), segment_path(str(path), firsts(path)[-1])]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout[:11]) == (0, "damaged at "), ran.stderr


def test_a_lane_that_is_ahead_of_the_names_is_not_read_as_without_the_topic(tmp_path: Path) -> None:
    path, history = tmp_path / "g1", History(voters=3)
    history.epoch("p")
    known = len(history.frames)
    history.topic("readings")
    writer, close = undecided(path, history)
    decide(writer, history, 1, known)  # the topic is decided elsewhere, and here soon
    lane = lanes.LaneHistory()
    lane.view()
    lane.batch(b"21.4 C", b"21.5 C", producer=1, topic=1)
    logs, _ = lanes.opened(path)
    logs.persist(lane.write(1, 2))
    logs.sync()
    logs.frontier(lane.lane, 2, 2)
    logs.decided(lane.deliver(1, 2))
    with closing(LaneReader(LogReader(path), lane.lane)) as reader:
        for read in (lambda: list(scan(reader, 0, 2, topics=["readings"])), lambda: list(reader.rows(0, 2, ["readings"]))):
            with pytest.raises(Behind):
                read()
        decide(writer, history, known + 1, len(history.frames))
        assert [one["value"] for one in seen(scan(reader, 0, 2, topics=["readings"], columns=["value"]))] == [b"21.4 C", b"21.5 C"]
        assert not list(scan(reader, 0, 2, topics=["others"]))
    logs.close()
    close()


def test_a_lane_is_read_by_topic_though_the_name_of_another_is_damaged(tmp_path: Path) -> None:
    path, history = tmp_path / "g1", History()
    history.epoch("p")
    history.topic("readings")
    damaged = history.topic("others").position
    write_log(path, history)
    flip_frame(path, damaged, HEADER_SIZE)
    lane = lanes.LaneHistory()
    lane.view()
    lane.batch(b"of another", producer=1, topic=2)
    lane.batch(b"21.4 C", b"21.5 C", producer=1, topic=1)
    logs, _ = lanes.opened(path)
    logs.persist(lane.write(1, 3))
    logs.sync()
    logs.frontier(lane.lane, 3, 3)
    logs.decided(lane.deliver(1, 3))
    with closing(LaneReader(LogReader(path), lane.lane)) as reader:
        assert [one["value"] for one in seen(scan(reader, 0, 3, topics=["readings"], columns=["value"]))] == [b"21.4 C", b"21.5 C"]
        with pytest.raises(Behind):
            list(scan(reader, 0, 3, topics=["others"]))
    logs.close()


def test_a_range_needs_nothing_behind_its_end(tmp_path: Path) -> None:
    path, history = tmp_path / "g1", History()
    for _ in range(60):
        history.batch("p", "t", [b"v" * 3000])
    write_log(path, history)
    begin = firsts(path)[2]
    end = history.offset_after(begin - 1)
    Path(segment_path(str(path), begin)).rename(tmp_path / "aside")
    with closing(LogReader(path)) as reader:
        assert sum(batch.num_rows for batch in scan(reader, 0, end)) == end
        with pytest.raises(Damaged):
            list(scan(reader, 0, end + 1))


def test_a_cut_of_undecided_segments_beside_a_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, history = tmp_path / "g1", History(voters=3)
    for _ in range(40):
        history.batch("p", "t", [b"v" * 3000])
    writer, close = undecided(path, history)
    decided = firsts(path)[-1] - 3
    decide(writer, history, 1, decided)
    with closing(LogReader(path)) as reader:
        end = reader.frontier().offset
        look, cut = reader._refresh, [lambda: writer.truncate(decided)]

        def looked() -> Any:
            found = look()
            if cut:
                cut.pop()()
            return found

        monkeypatch.setattr(reader, "check_range", lambda *_: None)
        monkeypatch.setattr(reader, "_refresh", looked)
        assert sum(int(rows["count"].sum()) for _, rows in reader.batches(end - 1, end)) == 1
    close()


def test_frames_whose_rows_wait_for_room_are_read_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(voters=3)
    for number in range(20):
        history.batch("p", "t", [b"v%d" % number])
    writer, close = undecided(tmp_path, history)
    decide(writer, history, 1, 10)

    def full(_act: Callable[[], None], what: str) -> None:
        raise DiskFull(f"no room for {what}")

    with monkeypatch.context() as patch:
        patch.setattr(writer._indexer._disk_space, "with_reserve", full)
        with pytest.raises(DiskFull):
            decide(writer, history, 11, 15)
        for position in (9, 10, 11, 12, 15, 16, 20):
            frames, stop = writer.read(position, len(history.frames))
            assert list(frames) == history.frames[position - 1 :]
            assert stop == len(history.frames)
    decide(writer, history, 11, 15)
    close()


@pytest.fixture
def index(tmp_path: Path) -> tuple[str, int]:
    """A large one that is sealed, and its rows."""
    count = 200_000
    rows = np.zeros(count, dtype=ROW)
    rows["position"] = np.arange(1, count + 1)
    (tmp_path / "log").mkdir()
    path = index_path(str(tmp_path), 1)
    written = IndexWriter(path, 1, rows, Storage())
    written.seal()
    written.close()
    return path, count


def test_a_large_index_is_looked_at_without_a_copy_of_it(index: tuple[str, int]) -> None:
    """Proves it by what is taken meanwhile: a gateway keeps what it once needed."""
    path, count = index
    tracemalloc.start()
    try:
        sealed = index_sealed(path, 1)
        assert sealed is not None
        assert sealed.rows == count
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.reset_peak()
        assert not rows_valid(np.zeros(count, dtype=ROW))
        assert tracemalloc.get_traced_memory()[1] < 2 * count * ROW.itemsize
    finally:
        tracemalloc.stop()
