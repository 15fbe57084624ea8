"""Proves that the oldest part of a log goes when a TRIM is decided and durable, and what is left reads as it always did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.log.history import (
    NOW_US,
    SMALL,
    THREE_SEGMENTS,
    History,
    decide,
    expected,
    firsts,
    fit,
    no_change,
    no_indexes,
    opened,
    other_boot,
    sample,
    seen,
    settle,
    trimmed,
    write_log,
)
from tutti.data.frames.frame import Kind
from tutti.errors import Damaged, OffsetOutOfRange, WrongDirectory
from tutti.log.files.layout import FRAMES_AT, list_positions, snapshot_path
from tutti.log.files.log_start import LogStart, read_start, start_path, write_start
from tutti.log.files.storage import Storage
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import TrimProposed
from tutti_gateway.log.tools.digest import digest
from tutti_gateway.log.tools.inspect import inspect
from tutti_gateway.log.tools.repair import repair
from tutti_gateway.log.tools.verify import verify


@pytest.mark.parametrize("state", [no_change, other_boot, no_indexes])
def test_what_is_left_reads_as_before(tmp_path: Path, state: Callable[[Path], None]) -> None:
    history = sample(160, size=1500)
    position, offset = trimmed(tmp_path, history)
    assert firsts(tmp_path)[0] == position
    assert list_positions(str(tmp_path), "snap", include_trimmed=True)[0] == position
    state(tmp_path)
    reader = LogReader(tmp_path)
    end = len(history.records)
    assert (reader.start, reader.first, reader.frontier().offset) == (offset, position, end)
    assert seen(scan(reader, offset, end)) == expected(history, offset)
    with pytest.raises(OffsetOutOfRange, match=f"starts at offset {offset - 1}, but this log begins at {offset}"):
        list(scan(reader, offset - 1, end))
    assert reader.offset_for_time(0) == offset
    ticks = [tick for tick in history.ticks if tick[2] >= position]
    assert [tick[0] for tick in reader.ticks(offset, end)] == [tick[0] for tick in ticks]
    first, last = history.records[offset - 1], history.records[-1]
    numbers = {name: number for number, name in history.names.items()}
    assert reader.find(numbers[first.producer], first.sequence) is None
    assert reader.find(numbers[last.producer], last.sequence) == end - 1
    assert {info.position for info in inspect(tmp_path)} == set(range(position, len(history.frames) + 1))
    found = digest(tmp_path)
    assert (found.start, found.end) == (offset, end)
    assert not verify(tmp_path).damage


@pytest.mark.parametrize("state", [no_change, other_boot, no_indexes])
def test_topics_begin_with_what_is_left_of_them(tmp_path: Path, state: Callable[[Path], None]) -> None:
    history = History()
    history.batch("early", "gone", [b"x"])
    for record in sample(160, size=1500).records:
        history.batch(record.producer, record.topic, [record.value])
    _, offset = trimmed(tmp_path, history)
    state(tmp_path)
    reader = LogReader(tmp_path)
    found = {topic.name: topic for topic in reader.topics()}
    for name, topic in found.items():
        offsets = [at for at, record in enumerate(history.records) if record.topic == name]
        left = [at for at in offsets if at >= offset]
        time_us = history.records[left[0]].timestamp if left else 0
        assert (topic.first_offset, topic.first_time) == (left[0] if left else -1, time_us)
        assert (topic.records, topic.last_offset) == (len(offsets), offsets[-1])
    assert found["gone"].first_offset == -1
    assert len({topic.first_offset for topic in found.values() if topic.name.startswith("topic")}) == 3  # each at its own place
    assert reader.topics() == list(found.values())


def test_a_topic_whose_first_record_damage_hides_begins_no_earlier_than_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, offset = trimmed(tmp_path, sample(160, size=1500))
    reader = LogReader(tmp_path)

    def damaged(start: int, end: int) -> None:
        raise Damaged(f"rows of [{start}, {end}) cannot be read")

    monkeypatch.setattr(reader, "batches", damaged)
    assert {topic.first_offset for topic in reader.topics() if topic.name != "late"} == {offset}


def test_a_start_goes_on_with_what_is_left(tmp_path: Path) -> None:
    history = sample(160, size=1500)
    _, offset = trimmed(tmp_path, history)
    other_boot(tmp_path)
    history.batch("later", "late", [b"x" * 900 for _ in range(9)])
    write_log(tmp_path, history)
    reader = LogReader(tmp_path)
    assert seen(scan(reader, offset, len(history.records))) == expected(history, offset)
    state = reader.state()
    assert (state.start, state.start_offset) == (firsts(tmp_path)[0], offset)


def test_a_reader_that_was_there_before_is_told_and_keeps_what_it_holds(tmp_path: Path) -> None:
    history = sample(160, size=1500)
    write_log(tmp_path, history)
    reader = LogReader(tmp_path)
    batches = scan(reader, 0, len(history.records), rows_max=1)
    held = next(batches)
    walking = reader.batches(0, len(history.records))
    view, _ = next(walking)
    writer, _, close = opened(tmp_path)
    position = fit(tmp_path, history)[-2]
    end = len(history.frames)
    history.trim(position, history.offset_after(position - 1))
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, end + 1)
    settle(writer)
    assert firsts(tmp_path)[0] == position
    assert seen([held]) == expected(history, 0, 1)
    assert view.segment.frame(FRAMES_AT).position == 1
    with pytest.raises(OffsetOutOfRange, match=f"begins at offset {history.offset_after(position - 1)}"):
        list(batches)
    with pytest.raises(OffsetOutOfRange):
        list(walking)
    assert reader.start == history.offset_after(position - 1)
    close()


def test_files_go_only_when_a_durable_mark_says_that_the_trim_is_decided(tmp_path: Path) -> None:
    history = sample(160, size=1500)
    write_log(tmp_path, history)
    before = firsts(tmp_path)
    begin = fit(tmp_path, history)[-2]
    writer, _, close = opened(tmp_path)
    end = len(history.frames)
    history.trim(begin, history.offset_after(begin - 1))
    writer.append(history.frames[end:])
    writer.sync()
    assert not writer.idle() or firsts(tmp_path) == before
    decide(writer, history, end + 1, end + 1)
    assert firsts(tmp_path) == before
    assert read_start(str(tmp_path)) == LogStart()
    settle(writer)
    assert firsts(tmp_path) == [first for first in before if first >= begin]
    close()


def test_a_trim_within_a_segment_leaves_the_segment_and_moves_the_start(tmp_path: Path) -> None:
    history = sample(160, size=1500)
    write_log(tmp_path, history)
    before = firsts(tmp_path)
    begin = fit(tmp_path, history)[2]
    position = next(record.position for record in history.records if record.position > begin)
    end = len(history.frames)
    offset = history.offset_after(position - 1)
    history.trim(position, offset)
    writer, _, close = opened(tmp_path)
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, end + 1)
    settle(writer)
    close()
    assert firsts(tmp_path) == [first for first in before if first >= begin]
    other_boot(tmp_path)
    reader = LogReader(tmp_path)
    assert reader.start == offset
    assert seen(scan(reader, offset, len(history.records))) == expected(history, offset)
    with pytest.raises(OffsetOutOfRange):
        list(scan(reader, offset - 1, offset))
    assert reader.offset_for_time(0) == offset


def test_without_its_snapshot_nothing_begins_with_a_segment(tmp_path: Path) -> None:
    history = sample(160, size=1500)
    write_log(tmp_path, history)
    before = firsts(tmp_path)
    begin = fit(tmp_path, history)[1]
    end = len(history.frames)
    history.trim(begin, history.offset_after(begin - 1))
    writer, _, close = opened(tmp_path)
    Path(snapshot_path(str(tmp_path), begin)).write_bytes(b"rotten")
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, end + 1)
    settle(writer)
    close()
    assert firsts(tmp_path) == before
    assert LogReader(tmp_path).start == history.offset_after(begin - 1)


def test_no_log_begins_between_a_batch_and_the_abort_that_voids_it(tmp_path: Path) -> None:
    history = History()
    for number in range(100):
        history.batch("p", "t", [b"x" * 4000])
        if number % 20 == 5:
            void = history.batch("q", "t", [b"void"])
        if number % 20 == 19:
            history.abort(void.position)
            history.epoch("q")
    write_log(tmp_path, history)
    before = firsts(tmp_path)
    inside = [first for first in before if history.settled(first - 1) != first - 1]
    assert inside
    end = len(history.frames)
    history.trim(inside[-1], history.offset_after(inside[-1] - 1))
    writer, _, close = opened(tmp_path)
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, end + 1)
    settle(writer)
    close()
    assert firsts(tmp_path)[0] == max(first for first in before if first < inside[-1] and first not in inside)
    assert LogReader(tmp_path).start == history.offset_after(inside[-1] - 1)


def test_what_cannot_be_read_behind_a_place_keeps_the_log_from_beginning_there_and_ends_no_writing(tmp_path: Path) -> None:
    history = sample(160, size=1500)
    write_log(tmp_path, history)
    begin = fit(tmp_path, history)[1]
    path = tmp_path / "log" / f"{begin:020d}"
    data = bytearray(path.with_suffix(".seg").read_bytes())
    data[FRAMES_AT + 200 : FRAMES_AT + 50_000] = bytes(49_800)
    path.with_suffix(".seg").write_bytes(data)
    path.with_suffix(".idx").unlink()
    before = firsts(tmp_path)
    end = len(history.frames)
    history.trim(begin, history.offset_after(begin - 1))
    writer, _, close = opened(tmp_path)
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, end + 1)
    settle(writer)
    close()
    assert firsts(tmp_path) == before


def test_retention_by_bytes_lets_the_oldest_segments_go_and_forces_what_is_far_over(tmp_path: Path) -> None:
    history = sample(400, size=1500)
    write_log(tmp_path, history)
    before = firsts(tmp_path)
    assert len(before) > 8
    writer, _, close = opened(tmp_path, THREE_SEGMENTS)
    proposed = writer.retention.propose(NOW_US)
    kept, twice = before[-3:], before[-6:]
    assert proposed == TrimProposed(
        tuple((first, history.offset_after(first - 1)) for first in before[1:] if first <= kept[0]), twice[0]
    )
    close()
    writer, _, close = opened(tmp_path, replace(SMALL, retention_bytes=len(before) * SMALL.segment_bytes))
    assert writer.retention.propose(NOW_US) is None
    close()


def test_retention_by_time_goes_by_the_clock_of_the_log(tmp_path: Path) -> None:
    history = sample(400, size=1500)
    write_log(tmp_path, history)
    before = firsts(tmp_path)
    ages = {first: max((time for _, time, at in history.ticks if at < first), default=0) for first in before}
    age = 1_000_000
    now = ages[before[3]] + age + 1
    writer, _, close = opened(tmp_path, replace(SMALL, retention_us=age))
    proposed = writer.retention.propose(now)
    assert proposed is not None
    assert [position for position, _ in proposed.places] == [first for first in before[1:] if 0 < ages[first] < now - age]
    assert proposed.forced == 0
    later = writer.retention.propose(now + age)
    assert later is not None
    assert later.places[-1][0] == before[-1]
    assert later.forced == proposed.places[-1][0]
    assert writer.retention.propose(ages[before[1]]) is None
    close()


def test_the_newest_segment_and_what_is_undecided_stay(tmp_path: Path) -> None:
    history = sample(400, size=1500)
    writer, _, close = opened(tmp_path, replace(SMALL, retention_bytes=1))
    writer.append(history.frames)
    writer.sync()
    assert writer.retention.propose(NOW_US) is None
    before = firsts(tmp_path)
    until = history.settled(before[2] + 1)
    decide(writer, history, 1, until)
    proposed = writer.retention.propose(NOW_US)
    assert proposed is not None
    assert proposed.places[-1][0] == proposed.forced == before[2]
    decide(writer, history, until + 1, len(history.frames))
    proposed = writer.retention.propose(NOW_US)
    assert proposed is not None
    assert proposed.places[-1][0] == before[-1]
    close()


def test_one_trim_takes_no_more_segments_than_a_proposal_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRIM_STARTS_MAX", 2)
    history = sample(160, size=1500)
    write_log(tmp_path, history)
    writer, _, close = opened(tmp_path, replace(SMALL, retention_bytes=1))
    proposed = writer.retention.propose(NOW_US)
    assert proposed is not None
    assert [position for position, _ in proposed.places] == firsts(tmp_path)[1:3]
    close()


def test_a_damaged_word_on_the_begin_is_refused_and_never_taken_for_none(tmp_path: Path) -> None:
    history = sample(160, size=1500)
    trimmed(tmp_path, history)
    path = Path(start_path(str(tmp_path)))
    good = path.read_bytes()
    path.write_bytes(good[:9] + bytes([good[9] ^ 1]) + good[10:])
    with pytest.raises(Damaged, match="fails its CRC, so the start of the log is unknown"):
        opened(tmp_path)
    with pytest.raises(Damaged, match="fails its CRC"):
        LogReader(tmp_path)
    path.write_bytes(good)
    write_start(str(tmp_path), LogStart(7, 5, True), Storage())
    assert read_start(str(tmp_path)) == LogStart(7, 5, True)
    newer = path.read_bytes()
    path.write_bytes(newer[:3] + b"\xff" + newer[4:])
    with pytest.raises((Damaged, WrongDirectory)):
        read_start(str(tmp_path))


@pytest.mark.parametrize("lost", ["snapshot", "segment"])
def test_a_log_whose_first_segment_or_its_snapshot_is_gone_is_damaged(tmp_path: Path, lost: str) -> None:
    history = sample(160, size=1500)
    trimmed(tmp_path, history, keep=3)
    other_boot(tmp_path)
    first = firsts(tmp_path)[0]
    for file in (tmp_path / "log").glob("*.snap" if lost == "snapshot" else f"{first:020d}.seg"):
        file.unlink()
    with pytest.raises(Damaged, match=f"{first:020d}"):
        opened(tmp_path)


def test_the_damaged_header_of_the_first_segment_is_the_only_damage_and_is_made_again(tmp_path: Path) -> None:
    history = sample(160, size=1500)
    position, offset = trimmed(tmp_path, history, keep=3)
    other_boot(tmp_path)
    path = tmp_path / "log" / f"{position:020d}.seg"
    good = path.read_bytes()
    path.write_bytes(good[:10] + bytes([good[10] ^ 1]) + good[11:])
    assert [(found.position, found.byte) for found in verify(tmp_path).damage] == [(position, 0)]
    repair(tmp_path)
    assert path.read_bytes() == good
    assert not verify(tmp_path).damage
    assert seen(scan(LogReader(tmp_path), offset, len(history.records))) == expected(history, offset)


def test_what_a_crash_left_before_the_begin_never_counts(tmp_path: Path) -> None:
    history = sample(160, size=1500)
    write_log(tmp_path, history)
    begin = fit(tmp_path, history)[-2]
    old = {file.name: file.read_bytes() for file in (tmp_path / "log").iterdir() if file.name < f"{begin:020d}"}
    other = tmp_path / "other"
    other.mkdir()
    history = sample(160, size=1500)
    position, offset = trimmed(other, history)
    for name, data in old.items():
        (other / "log" / name).write_bytes(data)
    other_boot(other)
    reader = LogReader(other)
    assert seen(scan(reader, offset, len(history.records))) == expected(history, offset)
    assert not verify(other).damage
    _, _, close = opened(other)
    close()
    assert firsts(other)[0] == position
    assert not [file for file in (other / "log").iterdir() if file.name < f"{position:020d}"]


def test_the_sample_has_what_the_tests_need() -> None:
    history = sample(160, size=1500)
    assert {Kind.ABORT, Kind.FORGET, Kind.TICK} <= {frame.kind for frame in history.frames}
