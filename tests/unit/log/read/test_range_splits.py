"""Plans of ranges over many segments: cut where segments begin, from their files' sizes, whatever is in them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.history import History, write_log
from tutti import limits
from tutti.log.read import segment_catalog, segment_view
from tutti.log.read.reader import LogReader

BATCHES, ROWS = 240, 10
RECORDS = BATCHES * ROWS


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> LogReader:
    history = History()
    for number in range(BATCHES):
        history.batch("p", f"t{number % 2}", [b"x" * 1000] * ROWS)
    path = tmp_path_factory.mktemp("wide")
    write_log(path, history, step=50)
    assert len(list(path.glob("log/*.seg"))) > 2 * limits.PLAN_SEGMENTS_MAX
    return LogReader(path)


@settings(deadline=None, max_examples=200)
@given(
    start=st.integers(0, RECORDS - 1),
    end=st.integers(1, RECORDS),
    splits=st.none() | st.integers(1, 60),
    split_bytes=st.integers(1, 3_000_000),
    topics=st.sampled_from([None, ["t0"], ["none"]]),
)
def test_parts_cover_a_range_once_and_end_between_batches(
    reader: LogReader, start: int, end: int, splits: int | None, split_bytes: int, topics: list[str] | None
) -> None:
    """Proves that a plan holds each offset once and cuts no batch, whichever way it was made."""
    if start >= end:
        return
    plan = reader.plan(start, end, topics, None if splits else split_bytes, splits)
    assert (plan[0].start, plan[-1].end) == (start, end)
    for one, other in itertools.pairwise(plan):
        assert one.end == other.start
        assert one.start < one.end
        assert other.start % ROWS == 0
    assert splits is None or len(plan) <= splits
    if topics is None:
        assert sum(part.rows for part in plan) == end - start


def test_a_wide_range_is_cut_without_a_look_at_its_batches(reader: LogReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a plan over many segments maps no index, that its parts are of like sizes, and that their sum is about right."""
    exact = sum(int(rows["size"].sum()) for rows in reader.rows(0, RECORDS))
    reader.plan(0, RECORDS, splits=4)

    def mapped(path: str) -> None:
        raise AssertionError(f"{path} is looked at")

    monkeypatch.setattr(segment_view, "map_rows", mapped)
    monkeypatch.setattr(segment_catalog, "SegmentView", mapped)
    for splits in (1, 4, 7):
        plan = reader.plan(0, RECORDS, splits=splits)
        sizes = [part.bytes for part in plan]
        assert len(plan) == splits
        assert max(sizes) <= 2 * min(sizes)
        assert exact <= sum(sizes) <= 2 * exact  # files have room that no frame fits into
        rows = [part.rows for part in plan]
        assert max(rows) <= 2 * min(rows)


def test_many_parts_of_a_wide_range_are_cut_between_batches(reader: LogReader) -> None:
    """Proves that a range has as many parts as are asked for, though its segments are fewer."""
    assert len(reader.plan(0, RECORDS, splits=120)) > len(list(Path(reader.path).glob("log/*.seg")))
    assert reader.plan(0, RECORDS, ["none"], splits=4)[0][2:] == (0, 0)
