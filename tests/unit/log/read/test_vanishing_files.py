"""Files of a log come and go under a reader that is at work: what it gives is right, or it says what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import first_fast
from tests.unit.log.history import History, firsts
from tests.unit.log.written import Written
from tutti.errors import Damaged, DirectoryRefused
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti.log.read.segment_catalog import Catalog
from tutti.log.read.sequence_lookup import SequenceRun


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Written]:
    """Some segments, and a tick in most of them."""
    written = Written(tmp_path)
    grow(written, 300)
    yield written
    written.close()


def grow(log: Written, batches: int) -> None:
    """More of it."""
    history = log.history
    for number in range(batches):
        history.clock += 1000
        history.batch("p", "t", [b"%d" % number * 100] * 3)
        if number % 20 == 0:
            history.tick()
    log.write()


def segment(path: Path, first: int) -> Path:
    """The file of the segment that begins with a position."""
    return path / "log" / f"{first:020d}.seg"


@pytest.mark.parametrize("topics", [None, ["t"]])
@pytest.mark.parametrize("lost_first", [True, False])
def test_a_scan_gives_each_record_once_though_a_file_before_it_goes_or_comes(
    log: Written, topics: list[str] | None, lost_first: bool
) -> None:
    """Proves it for a segment that the scan has passed, or that was missing before where it began, and was mended meanwhile."""
    history, aside = log.history, log.path / "aside"
    begins, end = firsts(log.path), len(log.history.records)
    file = segment(log.path, begins[1])
    if lost_first:
        file.rename(aside)
    with closing(LogReader(log.path)) as reader:
        start = history.offset_after(begins[2] - 1)
        got: list[Any] = []
        for batch in scan(reader, start, end, topics=topics, columns=["offset"], bytes_max=20_000):
            got += batch.column(0).to_pylist()
            if aside.exists() == lost_first and got[-1] >= history.offset_after(begins[3] - 1):
                aside.rename(file) if lost_first else file.rename(aside)
                grow(log, 60)  # the log goes on in a new segment, so that whoever looks looks at the files again
                reader.frontier()
        assert aside.exists() != lost_first
        assert got == list(range(start, end))


def test_a_segment_that_goes_before_a_scan_has_come_to_it_is_told(log: Written) -> None:
    begins, end = firsts(log.path), len(log.history.records)
    with closing(LogReader(log.path)) as reader:
        batches = scan(reader, 0, end, topics=["t"], columns=["offset"], bytes_max=20_000)
        got = next(batches).column(0).to_pylist()
        segment(log.path, begins[3]).unlink()
        told = ""
        try:
            for batch in batches:
                got += batch.column(0).to_pylist()
        except Damaged as error:
            told = str(error)
        assert f"{begins[3]:020d}.seg is missing" in told or f"instead of position {begins[3]}" in told
        assert got == list(range(log.history.offset_after(begins[3] - 1)))


def walk_positions(reader: LogReader, history: History) -> list[Any]:
    return [position for _, rows in reader.positions(1, len(history.frames)) for position in rows["position"].tolist()]


def walk_records(reader: LogReader, history: History) -> list[Any]:
    batches = scan(reader, 0, len(history.records), topics=["t"], columns=["offset"], bytes_max=20_000)
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def walk_ticks(reader: LogReader, history: History) -> list[Any]:
    return [number for number, _, _ in reader.ticks(0, len(history.records))]


def walk_backwards(reader: LogReader, history: History) -> list[Any]:
    record = history.records[1]
    return [reader.find_all([SequenceRun(1, record.sequence, 1)])]


def walk_times(reader: LogReader, history: History) -> list[Any]:
    return [reader.offset_for_time(history.records[-2].timestamp)]


def walk_borders(reader: LogReader, history: History) -> list[Any]:
    end = len(history.records)
    ranges = reader.plan(0, end, splits=40)
    assert [one.start for one in ranges] == [0, *(one.end for one in ranges[:-1])]
    assert ranges[-1].end == end
    return []


WALKS = [walk_positions, walk_records, walk_ticks, walk_backwards, walk_times, walk_borders]


class Steps:
    """Has something happen before one of the looks that a reader takes at a segment.

    Attributes:
        taken: how many there were.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        self._when = 0
        self._act: Callable[[], object] = list
        for name in ("view", "sealed"):
            monkeypatch.setattr(Catalog, name, self._stepping(getattr(Catalog, name)))

    def begin(self, when: int, act: Callable[[], object]) -> None:
        """Count anew; at step `when` do that, and look for files, as any other thread's call does."""
        self.taken, self._when, self._act = 0, when, act

    def _stepping(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(catalog: Catalog, *given: Any) -> Any:
            self.taken += 1
            if self.taken == self._when:
                self._act()
                catalog.refresh()
            return real(catalog, *given)

        return step


@pytest.mark.parametrize("walk", first_fast(WALKS, 2))
@pytest.mark.parametrize("comes", [False, True])
def test_whenever_a_file_goes_or_comes_nothing_is_passed_over_or_given_twice(
    log: Written, monkeypatch: pytest.MonkeyPatch, walk: Callable[[LogReader, History], list[Any]], comes: bool
) -> None:
    """Proves it for each kind of walk, for each segment, and for each step in which somebody else looks at the files again."""
    monkeypatch.setattr("tutti.limits.PLAN_SEGMENTS_MAX", 2)
    path, aside, history = log.path, log.path / "aside", log.history
    steps = Steps(monkeypatch)
    with closing(LogReader(path)) as reader:
        right = walk(reader, history)
    least = steps.taken
    right_ones = told = 0
    for first in firsts(path)[:-1]:
        file = segment(path, first)
        here, there = (aside, file) if comes else (file, aside)
        for when in range(1, least + 1):
            if comes:
                file.rename(aside)
            steps.begin(when, lambda here=here, there=there: here.rename(there))  # type: ignore[misc]  # bound at once
            with closing(LogReader(path)) as reader:
                try:
                    found = walk(reader, history)
                except (Damaged, DirectoryRefused):
                    told += 1
                else:
                    assert found == right, (first, when)
                    right_ones += 1
            if aside.exists():
                aside.rename(file)
    assert right_ones
    assert told or walk is walk_times, "what is not there is told, but for a time: the index says which segments do not have it"
