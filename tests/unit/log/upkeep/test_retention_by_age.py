"""Proves that retention by age works where ticks do not date the records: before the first tick, and after wrong ones."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from tests.unit.log.history import SMALL, History, opened, write_log
from tutti.log.files.layout import list_positions, snapshot_path

AGE_US = 1_000_000
YEARS_US = 10 * 365 * 86_400 * 1_000_000
NEXT_US = 60 * AGE_US


def filled(history: History, segments: int) -> None:
    """Records of so many segments, about, and no tick."""
    for _ in range(segments * SMALL.segment_bytes // 3000):
        history.batch("p", "t", [os.urandom(2500)])


def proposed(path: Path, now_us: int) -> list[int]:
    """Places that retention lets the log begin with at the time."""
    writer, _, close = opened(path, replace(SMALL, retention_us=AGE_US))
    found = writer.retention.propose(now_us)
    close()
    return [position for position, _ in found.places] if found is not None else []


def places(path: Path) -> list[int]:
    """The starts of segments with which the log may begin."""
    return list_positions(str(path), "seg")[1:]


def written(path: Path, position: int, time_us: int) -> None:
    os.utime(snapshot_path(str(path), position), ns=(time_us * 1000, time_us * 1000))


def test_records_before_the_first_tick_are_as_old_as_that(tmp_path: Path) -> None:
    history = History()
    filled(history, 4)
    history.tick()
    write_log(tmp_path, history)
    assert len(places(tmp_path)) >= 3
    assert proposed(tmp_path, history.clock + AGE_US) == []
    assert proposed(tmp_path, history.clock + AGE_US + 1) == places(tmp_path)


def test_without_any_tick_nothing_is_old(tmp_path: Path) -> None:
    history = History()
    filled(history, 3)
    write_log(tmp_path, history)
    assert proposed(tmp_path, history.clock + YEARS_US) == []


def frozen(path: Path) -> tuple[list[int], int]:
    """A log whose ticks were dated ten years ahead after the first segments: its places, and the right time at its end."""
    history = History()
    history.tick()
    filled(history, 2)
    right_us = history.clock
    history.clock += YEARS_US
    history.tick()
    filled(history, 3)
    history.tick()
    write_log(path, history)
    found = places(path)
    assert len(found) >= 4
    for number, position in enumerate(found):
        written(path, position, right_us + number * NEXT_US)
    return found, right_us


def test_behind_ticks_from_the_future_the_time_of_writing_counts(tmp_path: Path) -> None:
    found, right_us = frozen(tmp_path)
    last_us = right_us + (len(found) - 1) * NEXT_US
    assert proposed(tmp_path, last_us + AGE_US) == found[:-1]
    assert proposed(tmp_path, last_us + AGE_US + 1) == found


def test_a_place_that_was_written_in_the_future_is_as_old_as_the_next_one(tmp_path: Path) -> None:
    found, right_us = frozen(tmp_path)
    wrong = found[-2]
    written(tmp_path, wrong, right_us + YEARS_US)
    last_us = right_us + (len(found) - 1) * NEXT_US
    assert proposed(tmp_path, last_us + AGE_US) == found[:-2], "one minute younger than it is, never older"
    assert proposed(tmp_path, last_us + AGE_US + 1) == found
