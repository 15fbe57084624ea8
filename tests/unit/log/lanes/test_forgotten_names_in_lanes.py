"""Proves that records of a lane are read for as long as they are there, also when the ordered log has let their names go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.history import forget_names, long_after, one_producer, trimmed, write_log
from tests.unit.log.lane_history import OTHER, LaneHistory, written
from tutti.data.frames.frame import Kind
from tutti.data.names import is_name
from tutti.errors import Behind
from tutti.log.files.layout import list_positions, snapshot_path
from tutti.log.read.lane_reader import LaneReader
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan

COLUMNS = ["producer", "gateway", "topic", "value"]


def lane() -> LaneHistory:
    """Records of a producer that is forgotten, of one that stays, and of one that the ordered log does not name yet."""
    history = LaneHistory(OTHER)
    history.view()
    for producer in (2, 1, 99):
        history.batch(b"%d" % producer, producer=producer)
    return history


def rows(reader: LaneReader, start: int, end: int) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in scan(reader, start, end, columns=COLUMNS) for row in batch.to_pylist()]


@pytest.mark.parametrize("opened_before", [False, True])
def test_who_was_forgotten_before_the_log_begins_is_shown_by_number(tmp_path: Path, opened_before: bool) -> None:
    history = one_producer()
    write_log(tmp_path, history)
    written(tmp_path, lane(), 4)
    reader = LaneReader(LogReader(tmp_path), OTHER)
    if opened_before:
        assert reader.name_of(Kind.EPOCH, 1) == "stays"
        with pytest.raises(Behind, match="does not hold the name of number 2"):
            rows(reader, 0, 1)
    trimmed(tmp_path, long_after(forget_names(history)))
    if not opened_before:
        reader = LaneReader(LogReader(tmp_path), OTHER)
    assert rows(reader, 0, 2) == [("#2", "#2", "t", b"2"), ("stays", "#2", "t", b"1")]
    with pytest.raises(Behind, match="does not hold the name of number 99"):
        rows(reader, 2, 3)
    assert not is_name("#1")


def test_what_the_log_still_holds_is_named(tmp_path: Path) -> None:
    write_log(tmp_path, long_after(forget_names(one_producer())))
    written(tmp_path, lane(), 4)
    assert rows(LaneReader(LogReader(tmp_path), OTHER), 0, 1) == [("~gone", "g2", "t", b"2")]


def test_who_may_be_named_by_what_cannot_be_read_is_not_taken_for_forgotten(tmp_path: Path) -> None:
    trimmed(tmp_path, long_after(forget_names(one_producer())))
    written(tmp_path, lane(), 4)
    first = list_positions(str(tmp_path), "snap", include_trimmed=True)[0]
    Path(snapshot_path(str(tmp_path), first)).write_bytes(b"rotten")
    with pytest.raises(Behind, match="number 2 "):
        rows(LaneReader(LogReader(tmp_path), OTHER), 0, 1)
