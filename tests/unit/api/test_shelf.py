"""Proves which lane a name stands for, what is listed, and that a lane whose names are not known here yet is read later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.api.faults import Fault
from gateway.api.shelf import Shelf
from gateway.api.watch import FrontierWatch
from gateway.core import limits
from gateway.data.lanes import LaneName
from gateway.errors import Behind
from gateway.log.lanes_there import lane_path
from gateway.log.reader import LogReader
from gateway.log.scan import scan
from tests.unit.log.history import sample as log_sample
from tests.unit.log.history import write_log
from tests.unit.log.lanes import LaneHistory, sample, written

NAMED = LaneName(1, bytes(16))  # the disk that the log's roster names
FIRST, SECOND = LaneName(1, b"1" * 16), LaneName(1, b"2" * 16)


def begun(path: Path, lane: LaneName, at: int) -> None:
    """Say when a lane began."""
    os.utime(os.path.join(lane_path(str(path), lane), "identity.json"), (at, at))


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    write_log(tmp_path, log_sample(8))
    reader = LogReader(tmp_path)
    watch = FrontierWatch(reader.frontier, None, lambda: None)
    with closing(reader):
        yield Shelf(reader, watch, lambda: "primary", lambda: {NAMED.text: "it is damaged"})
        watch.stop()


def refused(shelf: Shelf, name: str) -> str:
    with pytest.raises(Fault) as caught:
        shelf.of(name)
    assert (caught.value.code, caught.value.fields) == ("unknown_lane", {"name": name})
    return str(caught.value)


def test_a_name_stands_for_the_lane_of_the_disk_that_the_roster_names(tmp_path: Path, shelf: Shelf) -> None:
    assert "it has no lanes yet" in refused(shelf, "g1")
    for at, lane in ((20, SECOND), (10, FIRST)):
        written(tmp_path, sample(lane, 3), 4)
        begun(tmp_path, lane, at)
    assert shelf.of("g1").lane == SECOND.text  # the roster's disk has none: the one that began last
    assert [line.lane for line in shelf.lanes()] == [FIRST.text, SECOND.text]
    written(tmp_path, sample(NAMED, 5), 6)
    begun(tmp_path, NAMED, 5)
    served = shelf.of("g1")
    assert (served.lane, served.reader.frontier().offset, served.reader.log) == (NAMED.text, 10, shelf.of("").reader.log)
    assert shelf.of(FIRST.text).lane == FIRST.text
    lines = shelf.lanes()
    assert [(line.lane, line.newest, line.halted) for line in lines][-1] == (NAMED.text, True, "it is damaged")
    assert [line.newest for line in lines] == [False, False, True]
    assert "there are lanes of g1" in refused(shelf, "g2")
    refused(shelf, LaneName(2, bytes(16)).text)


def test_no_more_readers_are_kept_than_there_may_be(tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LANES_READ_MAX", 2)
    lanes = [LaneName(1, bytes([number]) * 16) for number in range(1, 5)]
    for lane in lanes:
        written(tmp_path, sample(lane, 2), 3)
    first = shelf.of(lanes[0].text)
    assert len(shelf.lanes()) == 4
    assert len(shelf._lanes) == 2
    assert first.reader.frontier().offset == 4  # who reads it goes on


def test_a_name_that_the_log_does_not_say_yet_is_waited_for(tmp_path: Path, shelf: Shelf) -> None:
    history = LaneHistory(NAMED)
    history.view()
    history.batch(b"known")
    history.batch(b"not yet", topic=99)
    written(tmp_path, history, 3)
    reader = shelf.of("g1").reader
    assert [row["value"] for batch in scan(reader, 0, 1) for row in batch.to_pylist()] == [b"known"]
    with pytest.raises(Behind, match="does not say yet"):
        list(scan(reader, 1, 2))
