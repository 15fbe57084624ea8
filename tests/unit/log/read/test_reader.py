"""The read side gives exactly what was committed, whatever state the gateway left the directory in."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.cases import first_fast
from tests.unit.log.corruption import rotten_indexes
from tests.unit.log.history import (
    LOG,
    History,
    decide,
    expected,
    no_change,
    no_indexes,
    no_snapshots,
    opened,
    other_boot,
    sample,
    seen,
    write_log,
)
from tutti.data.frames.columns import COLUMNS, schema_of
from tutti.data.frames.frame import Kind
from tutti.errors import Damaged, DirectoryRefused, OffsetOutOfRange, UsageError
from tutti.log.files.layout import list_positions
from tutti.log.files.storage import read_file
from tutti.log.format.index import ROW_SIZE, ROWS_AT
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan

STATES: list[Callable[[Path], None]] = [no_change, other_boot, no_indexes, no_snapshots, rotten_indexes]
HISTORY = sample(120, size=1500)
HISTORY.trim(1, 0)  # of nothing


@pytest.fixture(scope="module", params=STATES, ids=lambda state: state.__name__)
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LogReader:
    path = tmp_path_factory.mktemp("log")
    write_log(path, HISTORY)
    assert len(list_positions(str(path), "seg")) > 4
    request.param(path)
    return LogReader(path)


def test_every_record_is_there_in_order(reader: LogReader) -> None:
    frontier = reader.frontier()
    assert (frontier.offset, frontier.position) == (len(HISTORY.records), len(HISTORY.frames))
    assert (frontier.tick, frontier.time_us) == HISTORY.ticks[-1][:2]
    assert not frontier.live
    assert reader.log == LOG.hex()
    batches = list(scan(reader, 0, frontier.offset))
    assert seen(batches) == expected(HISTORY)
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema_of(COLUMNS), check_metadata=True)


@pytest.mark.parametrize("bounds", [(0, 1), (17, 18), (100, 300), (33, 257), (5, 5)])
@pytest.mark.parametrize("rows_max", [1, 7, 65_536])
def test_a_range_is_cut_to_the_record(reader: LogReader, bounds: tuple[int, int], rows_max: int) -> None:
    batches = list(scan(reader, *bounds, rows_max=rows_max))
    assert seen(batches) == expected(HISTORY, *bounds)
    assert all(0 < batch.num_rows <= rows_max for batch in batches)


def test_columns_and_topics_are_chosen(reader: LogReader) -> None:
    end = reader.frontier().offset
    wanted = [record for record in expected(HISTORY) if record["topic"] in {"topic0", "topic2"}]
    columns = ("value", "offset", "producer")
    found = seen(scan(reader, 0, end, topics=["topic2", "topic0", "not there"], columns=columns))
    assert found == [{name: record[name] for name in columns} for record in wanted]
    assert list(scan(reader, 0, end, topics=["not there"])) == []
    with pytest.raises(UsageError, match="column 'offest' is not known: did you mean 'offset'"):
        next(scan(reader, 0, 1, columns=["offest"]))


def test_small_frames_are_joined_and_large_ones_are_views(reader: LogReader) -> None:
    end = reader.frontier().offset
    assert len(list(scan(reader, 0, end))) < len(HISTORY.frames) / 5
    batch = next(scan(reader, 0, 1, columns=["value"]))
    before = pa.total_allocated_bytes()
    assert batch.num_rows == 1
    assert pa.total_allocated_bytes() - before < 1000


def test_the_state_names_and_places_are_found(reader: LogReader) -> None:
    state = reader.state()
    assert state.next_offset == len(HISTORY.records)
    assert {topic.name: topic.records for topic in state.topics.values()} == {
        name: sum(record.topic == name for record in HISTORY.records) for name in HISTORY.topics
    }
    for number, name in HISTORY.names.items():  # forgotten ones included
        assert reader.name_of(Kind.EPOCH, number) == name
    assert reader.name_of(Kind.ROSTER, 1) == "g1"
    assert reader.name_of(Kind.TOPIC, 2) == next(name for name, number in HISTORY.topics.items() if number == 2)
    with pytest.raises(Damaged, match="does not hold the name of producer number 99"):
        reader.name_of(Kind.EPOCH, 99)


def test_a_producers_sequence_is_found(reader: LogReader) -> None:
    found = {}
    for frame in HISTORY.frames:
        if frame.kind == Kind.BATCH and frame.position not in HISTORY.void:
            offset = HISTORY.offset_after(frame.position - 1)
            for ahead in range(frame.count):
                found[frame.producer, frame.first_sequence + ahead] = offset + ahead
    for (producer, sequence), offset in list(found.items())[::7]:
        assert reader.find(producer, sequence) == offset
    assert reader.find(1, 10_000) is None
    assert reader.find(99, 1) is None


def test_records_are_found_as_a_range_only_where_they_are_one(tmp_path: Path) -> None:
    history = History()
    for producer in ("a", "a", "b", "a"):
        history.batch(producer, "t", [b"1", b"2"])
    write_log(tmp_path, history)
    reader = LogReader(tmp_path)
    asked = [(1, 2), (1, 4), (2, 2), (3, 2), (5, 2), (4, 2), (1, 5), (1, 6), (5, 3), (6, 1)]
    assert [reader.find(1, *one) for one in asked] == [0, 0, 1, 2, 6, None, None, None, None, 7]
    reader.close()


def test_times_and_ticks_are_found(reader: LogReader) -> None:
    records = expected(HISTORY)
    for offset in (0, 1, 100, len(records) - 1):
        assert reader.offset_for_time(int(str(records[offset]["timestamp"]))) == offset
    assert reader.offset_for_time(0) == 0
    assert reader.offset_for_time(1 << 60) == len(records)
    ticks = [(number, time_us, HISTORY.offset_after(position)) for number, time_us, position in HISTORY.ticks]
    assert reader.ticks(0, len(records)) == ticks
    assert reader.ticks(ticks[1][2], ticks[3][2]) == ticks[1:4]


@pytest.mark.parametrize(("splits", "split_bytes"), [(1, None), (4, None), (None, 30_000), (None, None), (1000, None), (3, 1)])
def test_a_plan_covers_the_range_once_and_cuts_between_batches(
    reader: LogReader, splits: int | None, split_bytes: int | None
) -> None:
    borders = {HISTORY.offset_after(frame.position - 1) for frame in HISTORY.frames}
    plan = reader.plan(11, 333, splits=splits, split_bytes=split_bytes)
    assert (plan[0].start, plan[-1].end) == (11, 333)
    for one, other in itertools.pairwise(plan):
        assert one.end == other.start
        assert other.start in borders
    assert sum(part.rows for part in plan) == 333 - 11
    if splits is not None:
        assert len(plan) <= splits
        assert len(plan) > 1 or splits == 1
    assert reader.plan(20, 20) == []
    some = reader.plan(0, len(HISTORY.records), topics=["topic1"], splits=3)
    assert sum(part.rows for part in some) == sum(record.topic == "topic1" for record in HISTORY.records)
    assert (some[0].start, some[-1].end) == (0, len(HISTORY.records))


def test_ranges_that_are_not_there_are_refused(reader: LogReader) -> None:
    end = len(HISTORY.records)
    for start, until, error, message in (
        (-1, 5, OffsetOutOfRange, "starts at offset -1, but this log begins at 0"),
        (end + 1, end + 2, OffsetOutOfRange, f"starts at offset {end + 1}, but the log is committed up to {end}"),
        (0, end + 1, OffsetOutOfRange, f"ends at offset {end + 1}"),
        (5, 4, UsageError, "ends before it begins"),
        ("7", 9, UsageError, "an integer offset, not '7'"),
        (1.5, 9, UsageError, "not 1.5"),
        (True, 9, UsageError, "not True"),
    ):
        with pytest.raises(error, match=message):
            next(scan(reader, start, until))  # type: ignore[arg-type]  # what a careless caller gives


def test_void_batches_show_nowhere(reader: LogReader) -> None:
    assert HISTORY.void
    values = {record["value"] for record in seen(scan(reader, 0, len(HISTORY.records)))}
    assert b"also void" not in values


def test_only_what_is_decided_is_read(tmp_path: Path) -> None:
    history = sample(60, size=1500)
    decided = len(history.frames) - 9
    write_log(tmp_path, history, decided=decided)
    end = history.offset_after(decided)
    for prepare in STATES[:4]:
        prepare(tmp_path)
        reader = LogReader(tmp_path)
        assert reader.frontier().offset == end
        assert seen(scan(reader, 0, end)) == expected(history, 0, end)


def test_rows_that_were_not_written_are_made_from_the_frames(tmp_path: Path) -> None:
    """The gateway stored the frontier, a receipt left, and it was killed before the index was written."""
    history = sample(40, size=1500)
    writer, _, close = opened(tmp_path)
    upto = len(history.frames) - 12
    writer.append(history.frames)
    writer.sync()
    decide(writer, history, 1, upto)
    writer.frontier(len(history.frames), len(history.records))
    reader = LogReader(tmp_path)
    assert seen(scan(reader, 0, len(history.records))) == expected(history)
    assert reader.state().position == len(history.frames)
    close()


@pytest.mark.parametrize("at_its_begin", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_rows_on_sectors_that_cannot_be_read_are_made_from_the_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: bool, at_its_begin: bool
) -> None:
    """A page of a mapped file that is touched and cannot be read ends the process: they are read in before."""
    touched: list[str] = []

    def unreadable(mapped: mmap.mmap, start: int, length: int) -> None:
        touched.append("index")
        raise OSError(errno.EFAULT, "Bad address")

    def first_page(path: str, size: int = -1) -> bytes:
        if path.endswith(".idx"):
            raise OSError(errno.EIO, "Input/output error")
        return read_file(path, size)

    history = sample(40, size=1500)
    writer, _, close = opened(tmp_path)
    writer.append(history.frames)
    writer.sync()
    decide(writer, history, 1, len(history.frames))
    if sealed:
        close()
    monkeypatch.setattr("tutti.log.format.index.populate", unreadable)
    if at_its_begin:
        monkeypatch.setattr("tutti.log.read.segment_view.read_file", first_page)
    reader = LogReader(tmp_path)
    assert seen(scan(reader, 0, len(history.records))) == expected(history)
    assert touched
    if not sealed:
        close()


@pytest.mark.parametrize("byte", first_fast(range(ROW_SIZE), 32))
def test_a_flipped_bit_in_a_row_that_no_seal_covers_changes_nothing(tmp_path: Path, byte: int) -> None:
    history = sample(30, size=400)
    writer, _, close = opened(tmp_path)
    writer.append(history.frames)
    writer.sync()
    decide(writer, history, 1, len(history.frames))
    index = max((tmp_path / "log").glob("*.idx"))
    first = int(index.stem)
    frame = next(frame for frame in history.frames[first + 2 :] if frame.kind == Kind.BATCH and frame.position not in history.void)
    with open(index, "r+b") as file:
        at = ROWS_AT + (frame.position - first) * ROW_SIZE + byte
        file.seek(at)
        was = file.read(1)[0]
        file.seek(at)
        file.write(bytes([was ^ 1]))
    reader = LogReader(tmp_path)
    assert seen(scan(reader, 0, len(history.records))) == expected(history)
    topic = next(record.topic for record in history.records if record.position == frame.position)
    of_topic = [record for record in expected(history) if record["topic"] == topic]
    assert seen(scan(reader, 0, len(history.records), topics=[topic])) == of_topic
    assert reader.find(frame.producer, frame.first_sequence) == history.offset_after(frame.position - 1)
    close()


def test_a_damaged_body_is_never_served_and_everything_before_it_is(tmp_path: Path) -> None:
    history = sample(60, size=1500)
    write_log(tmp_path, history)
    reader = LogReader(tmp_path)
    frame = [frame for frame in history.frames if frame.kind == Kind.BATCH and frame.position not in history.void][33]
    ((view, rows),) = reader.positions(frame.position, frame.position)
    with open(view.path, "r+b") as file:
        at = int(rows["file_position"][0]) + frame.size - 20
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))
    before = history.offset_after(frame.position - 1)
    found = []
    with pytest.raises(Damaged, match=rf"byte {int(rows['file_position'][0])}: position {frame.position} fails its CRC"):  # noqa: PT012
        for batch in scan(reader, 0, len(history.records), rows_max=50):
            found += seen([batch])
    assert found == expected(history, 0, before)
    after = before + frame.count
    assert seen(scan(reader, after, len(history.records))) == expected(history, after)


@pytest.mark.parametrize("view", [False, True])
def test_before_a_damage_that_no_index_covers_is_read_what_is_void_for_nobody(tmp_path: Path, view: bool) -> None:
    """Proves that no batch is given whose ABORT may stand in what is damaged: one of those behind the last VIEW."""
    history = History()
    for number in range(60):
        history.batch("p", "t", [b"%d" % number * 300] * 3)
    if view:
        history.view()
    void = history.batch("q", "t", [b"void" * 100] * 3)
    for number in range(12):
        history.batch("p", "t", [b"%d" % number * 300] * 3)
    abort = history.abort(void.position)
    for number in range(60):
        history.batch("p", "t", [b"%d" % number * 300] * 3)
    write_log(tmp_path, history)
    firsts = list_positions(str(tmp_path), "seg")
    before, lost = (max(first for first in firsts if first <= one.position) for one in (void, abort))
    assert before < lost
    no_snapshots(tmp_path)
    no_indexes(tmp_path)
    (tmp_path / "log" / f"{lost:020d}.seg").unlink()
    reader, found = LogReader(tmp_path), []
    end = history.offset_after(void.position - 1) if view else 0
    with pytest.raises(Damaged, match=f"instead of position {lost}"):  # noqa: PT012
        for batch in scan(reader, 0, reader.frontier().offset):
            found += seen([batch])
    assert found == expected(history, 0, end)
    time_us = history.records[history.offset_after(void.position)].timestamp
    with pytest.raises(Damaged, match=f"instead of position {lost}"):
        reader.offset_for_time(time_us)


def test_damage_that_no_index_covers_leaves_what_an_index_covers_readable(tmp_path: Path) -> None:
    history = sample(60, size=1500)
    write_log(tmp_path, history)
    index = (tmp_path / "log" / f"{1:020d}.idx").read_bytes()
    no_snapshots(tmp_path)
    (tmp_path / "log" / f"{1:020d}.idx").write_bytes(index)
    first = list_positions(str(tmp_path), "seg")[1]
    path = tmp_path / "log" / f"{first:020d}.seg"
    data = bytearray(path.read_bytes())
    place = 12288 + sum(frame.size for frame in history.frames[first - 1 : first + 4])
    data[place + 20] ^= 1
    path.write_bytes(data)
    reader = LogReader(tmp_path)
    end = history.offset_after(first - 1)
    found = []
    with pytest.raises(Damaged, match=rf"a bad header at byte {place}, instead of position {first + 5}"):  # noqa: PT012
        for batch in scan(reader, 0, reader.frontier().offset):
            found += seen([batch])
    assert found == expected(history, 0, end)


def test_a_blank_directory_reads_as_empty_and_then_fills(tmp_path: Path) -> None:
    writer, _, close = opened(tmp_path)
    reader = LogReader(tmp_path)
    assert (reader.frontier().offset, reader.log, list(scan(reader, 0, 0)), reader.ticks(0, 0)) == (0, "", [], [])
    assert (reader.find(1, 1), reader.offset_for_time(5), reader.state().position) == (None, 0, 0)
    history = sample(10)
    writer.append(history.frames)
    writer.sync()
    decide(writer, history, 1, len(history.frames))
    assert seen(scan(reader, 0, reader.frontier().offset)) == expected(history)
    assert reader.log == LOG.hex()
    close()
    other_boot(tmp_path)
    os.truncate(tmp_path / "live", 100)
    assert seen(scan(LogReader(tmp_path), 0, len(history.records))) == expected(history)


def test_batches_outlive_the_reader_and_travel(tmp_path: Path) -> None:
    history = sample(10)
    write_log(tmp_path, history)
    reader = LogReader(tmp_path)
    batches = list(scan(reader, 0, len(history.records)))
    reader.close()
    del reader
    assert seen(pickle.loads(pickle.dumps(batches))) == expected(history)  # noqa: S301 - own bytes


def test_history_has_what_the_tests_need() -> None:
    kinds = {frame.kind for frame in HISTORY.frames}
    assert kinds == {kind.value for kind in Kind if kind != Kind.TXN}  # test_transactions.py has them
    assert isinstance(HISTORY, History)


def no_directory(path: Path) -> None:
    """The system refuses every look at the segments, also when it is asked by root."""
    other_boot(path)
    (path / "log").rename(path / "log.away")
    (path / "log").write_bytes(b"")


def test_what_the_system_refuses_is_told_as_the_directorys_and_passes(tmp_path: Path) -> None:
    history = sample(20)
    write_log(tmp_path, history)
    other_boot(tmp_path)
    reader = LogReader(tmp_path)
    end = reader.frontier().offset
    no_directory(tmp_path)
    for question in (reader.frontier, reader.state, lambda: reader.check_range(0, 1), lambda: LogReader(tmp_path)):
        with pytest.raises(DirectoryRefused, match=rf"{tmp_path} cannot be read: Not a directory .*; check the path, its owner"):
            question()
    (tmp_path / "log").unlink()
    (tmp_path / "log.away").rename(tmp_path / "log")
    assert seen(scan(reader, 0, end)) == expected(history)


def test_too_many_open_files_are_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "live")

    write_log(tmp_path, sample(5))
    reader = LogReader(tmp_path)
    monkeypatch.setattr("tutti.log.read.reader.open_live", full)
    with pytest.raises(DirectoryRefused, match=r"Too many open files \(live\); raise the limit of open files"):
        reader.frontier()
