"""What is missing of a log is told as damage, by a start and by every read that comes to it: less never passes for all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.log.history import expected, no_change, no_indexes, opened, other_boot, sample, seen, write_log
from tutti.errors import Damaged
from tutti.log.files.layout import FRAMES_AT, list_positions
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.log.tools.digest import digest
from tutti_gateway.log.tools.inspect import inspect
from tutti_gateway.log.tools.verify import verify

HISTORY = sample(120, size=1500)
FIRST_IS_MISSING = f"{1:020d}.seg is missing: the log continues only at position"


def segment(path: Path, number: int) -> Path:
    return path / "log" / f"{list_positions(str(path), 'seg')[number]:020d}.seg"


READS: list[Callable[[LogReader], object]] = [
    lambda reader: list(scan(reader, 0, reader.frontier().offset)),
    lambda reader: list(scan(reader, 0, reader.frontier().offset, topics=["topic1"])),
    lambda reader: list(scan(reader, 3, 5)),
    lambda reader: reader.plan(0, 7),
    lambda reader: list(reader.positions(1, 2)),
    lambda reader: reader.find(1, 1),
    lambda reader: reader.offset_for_time(HISTORY.records[0].timestamp),
    lambda reader: reader.ticks(0, reader.frontier().offset),
    lambda reader: digest(reader.path),
    lambda reader: list(inspect(reader.path)),
]


@pytest.mark.parametrize("state", [no_change, other_boot, no_indexes])
def test_without_its_first_segment_a_log_is_damaged_wherever_it_is_looked_at(tmp_path: Path, state: Callable[[Path], None]) -> None:
    write_log(tmp_path, HISTORY)
    state(tmp_path)
    second = list_positions(str(tmp_path), "seg")[1]
    segment(tmp_path, 0).unlink()
    for read in READS:
        with pytest.raises(Damaged, match=FIRST_IS_MISSING):
            read(LogReader(tmp_path))
    damage = verify(tmp_path).damage
    assert (damage[0].position, damage[0].offset) == (1, 0)
    assert f"continues only at position {second}" in damage[0].what
    with pytest.raises(Damaged, match=FIRST_IS_MISSING):
        opened(tmp_path)


def test_what_stands_behind_the_missing_segment_is_still_read(tmp_path: Path) -> None:
    write_log(tmp_path, HISTORY)
    start = HISTORY.offset_after(list_positions(str(tmp_path), "seg")[1] - 1)
    segment(tmp_path, 0).unlink()
    reader = LogReader(tmp_path)
    assert seen(scan(reader, start, reader.frontier().offset)) == expected(HISTORY, start)
    with pytest.raises(Damaged, match=FIRST_IS_MISSING):
        list(scan(reader, start - 1, start + 1))


def test_a_time_is_not_looked_for_behind_a_segment_that_is_missing(tmp_path: Path) -> None:
    write_log(tmp_path, HISTORY)
    firsts = list_positions(str(tmp_path), "seg")
    lost = HISTORY.records[HISTORY.offset_after(firsts[1] - 1)].timestamp
    segment(tmp_path, 1).unlink()
    reader = LogReader(tmp_path)
    assert reader.offset_for_time(HISTORY.records[0].timestamp) == 0
    with pytest.raises(Damaged, match=rf"{firsts[1]:020d}\.seg is missing: the log continues only at position {firsts[2]}"):
        reader.offset_for_time(lost)


@pytest.mark.parametrize("size", [0, 64, 5000, FRAMES_AT, FRAMES_AT + 50, FRAMES_AT + 200])
@pytest.mark.parametrize("number", [1, -1])
def test_a_segment_that_ends_before_a_frame_that_its_index_knows_is_told_as_damage(tmp_path: Path, number: int, size: int) -> None:
    write_log(tmp_path, HISTORY)
    first = list_positions(str(tmp_path), "seg")[number]
    place = next(frame.position for frame in HISTORY.frames[first - 1 :] if frame.count and frame.position not in HISTORY.void)
    os.truncate(segment(tmp_path, number), size)
    start, end = HISTORY.offset_after(place - 1), len(HISTORY.records)
    assert seen(scan(LogReader(tmp_path), 0, start)) == expected(HISTORY, 0, start)
    reads: list[Callable[[LogReader], object]] = [
        lambda reader: list(scan(reader, start, start + 1)),
        lambda reader: list(scan(reader, 0, end)),
        lambda reader: digest(reader.path),
        lambda reader: list(inspect(reader.path)),
        lambda reader: [view.frame(row) for view, rows in reader.positions(first, place) for row in rows],
        lambda reader: reader.offset_for_time(HISTORY.records[start].timestamp),
    ]
    for read in reads:
        with pytest.raises(Damaged, match=segment(tmp_path, number).name):
            read(LogReader(tmp_path))
    for file in (tmp_path / "log").glob("*.snap"):
        file.unlink()
    with pytest.raises(Damaged, match=segment(tmp_path, number).name):
        LogReader(tmp_path).state()
    assert any(finding.file == str(segment(tmp_path, number)) for finding in verify(tmp_path).damage)
