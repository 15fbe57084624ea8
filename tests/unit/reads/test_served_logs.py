"""Tests of the served logs: which lane a name selects, which lanes are listed, and that a name unknown to this gateway is waited
for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.unit.log.history import forget_names, long_after, one_producer, trimmed, write_log
from tests.unit.log.history import sample as log_sample
from tests.unit.log.lane_history import OTHER, LaneHistory, sample, written
from tutti.data.frames.frame import Kind
from tutti.data.lane_name import LaneName
from tutti.errors import Behind
from tutti.log.files.lane_paths import OWN, lane_path
from tutti.log.read.lane_reader import LaneReader
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.core import limits
from tutti_gateway.reads.logs import served_logs as module
from tutti_gateway.reads.logs.frontier_watch import FrontierWatch
from tutti_gateway.reads.logs.served_logs import LaneLine, ServedLogs
from tutti_gateway.reads.protocol.flight_errors import ReadError

NAMED = LaneName(1, bytes(16))  # the disk that the log's roster names
FIRST, SECOND = LaneName(1, b"1" * 16), LaneName(1, b"2" * 16)


def begun(path: Path, lane: LaneName, at: int) -> None:
    """Say when a lane began."""
    os.utime(os.path.join(lane_path(str(path), lane), "identity.json"), (at, at))


@pytest.fixture
def told() -> dict[str, str]:
    """The lanes that the gateway knows of, and why nothing can follow in each."""
    return {}


@pytest.fixture
def shelf(tmp_path: Path, told: dict[str, str]) -> Iterator[ServedLogs]:
    write_log(tmp_path, log_sample(8))
    reader = LogReader(tmp_path)
    watch = FrontierWatch(reader.frontier, None, lambda: None)
    with closing(reader):
        yield ServedLogs(reader, watch, lambda: "primary", lambda: told)
        watch.stop()


def refused(shelf: ServedLogs, name: str) -> str:
    with pytest.raises(ReadError) as caught:
        shelf.find(name)
    assert (caught.value.code, caught.value.fields) == ("unknown_lane", {"name": name})
    return str(caught.value)


def test_a_name_selects_the_lane_of_the_disk_in_the_roster(tmp_path: Path, shelf: ServedLogs, told: dict[str, str]) -> None:
    assert "it has no lanes yet" in refused(shelf, "g1")
    for at, lane in ((20, SECOND), (10, FIRST)):
        written(tmp_path, sample(lane, 3), 4)
        begun(tmp_path, lane, at)
    assert shelf.find("g1").lane == SECOND.text  # the roster's disk has none: the one that began last
    assert [line.lane for line in shelf.lanes()] == [FIRST.text, SECOND.text]
    written(tmp_path, sample(NAMED, 5), 6)
    begun(tmp_path, NAMED, 5)
    told[NAMED.text] = "it is damaged"
    served = shelf.find("g1")
    assert (served.lane, served.reader.frontier().offset, served.reader.log) == (NAMED.text, 10, shelf.find("").reader.log)
    assert shelf.find(FIRST.text).lane == FIRST.text
    lines = shelf.lanes()
    assert [(line.lane, line.newest, line.halted) for line in lines][-1] == (NAMED.text, True, "it is damaged")
    assert [line.newest for line in lines] == [False, False, True]
    assert "it has lanes of g1" in refused(shelf, "g2")
    refused(shelf, LaneName(2, bytes(16)).text)


def test_no_more_readers_are_kept_than_there_may_be(tmp_path: Path, shelf: ServedLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LANES_READ_MAX", 2)
    lanes = [LaneName(1, bytes([number]) * 16) for number in range(1, 5)]
    for lane in lanes:
        written(tmp_path, sample(lane, 2), 3)
    first = shelf.find(lanes[0].text)
    assert len(shelf.lanes()) == 4
    assert len(shelf._lanes) == 2
    assert first.reader.frontier().offset == 4  # who reads it goes on


def test_a_name_that_the_log_does_not_say_yet_is_waited_for(tmp_path: Path, shelf: ServedLogs) -> None:
    history = LaneHistory(NAMED)
    history.view()
    history.batch(b"known")
    history.batch(b"not yet", topic=99)
    written(tmp_path, history, 3)
    reader = shelf.find("g1").reader
    assert [row["value"] for batch in scan(reader, 0, 1) for row in batch.to_pylist()] == [b"known"]
    with pytest.raises(Behind, match="does not hold the name of number 99"):
        list(scan(reader, 1, 2))


def test_a_gateway_whose_name_the_log_deleted_is_listed_by_its_number(tmp_path: Path) -> None:
    history = one_producer()
    write_log(tmp_path, history)
    reader = LogReader(tmp_path)
    assert reader.name_of(Kind.ROSTER, 1) == "g1"
    trimmed(tmp_path, long_after(forget_names(history)))
    for lane in (OTHER, LaneName(7, b"7" * 16)):
        written(tmp_path, sample(lane, 2), 3)
    watch = FrontierWatch(reader.frontier, None, lambda: None)
    with closing(reader):
        found = ServedLogs(reader, watch, lambda: "primary", dict).lanes()
        watch.stop()
    assert {line.lane: line.gateway for line in found} == {OTHER.text: "#2", LaneName(7, b"7" * 16).text: ""}


def lost(shelf: ServedLogs) -> dict[str, LaneLine]:
    """The lanes that are listed and cannot be read."""
    return {line.lane: line for line in shelf.lanes() if line.lost}


def test_a_started_lane_that_disappeared_is_listed_with_the_reason(tmp_path: Path, shelf: ServedLogs, told: dict[str, str]) -> None:
    """As the gateway says, as its directory says, or as was seen: else who reads all lanes takes those left for all."""
    path = Path(lane_path(str(tmp_path), NAMED))
    written(tmp_path, sample(NAMED, 5), 6)
    assert lost(shelf) == {}
    shutil.move(path, tmp_path / "elsewhere")
    shelf._lanes.clear()
    line = lost(shelf)[NAMED.text]  # it was seen
    assert (line.gateway, line.newest, line.frontier, line.lost) == ("g1", True, 0, f"{path} is missing")
    assert f"cannot read lane 'g1': {path} is missing" in refused(shelf, "g1")
    shutil.move(tmp_path / "elsewhere", path)
    assert lost(shelf) == {}
    assert shelf.find("g1").reader.frontier().offset == 10
    told[SECOND.text] = "it takes nothing more"
    (tmp_path / OWN).write_text(f"{FIRST.text}\n")
    assert {name: line.halted for name, line in lost(shelf).items()} == {SECOND.text: "it takes nothing more", FIRST.text: ""}


def test_a_lane_that_cannot_be_opened_is_lost_and_one_that_is_being_made_is_none_yet(tmp_path: Path, shelf: ServedLogs) -> None:
    written(tmp_path, sample(NAMED, 5), 6)
    os.remove(os.path.join(lane_path(str(tmp_path), NAMED), "identity.json"))
    os.makedirs(os.path.join(lane_path(str(tmp_path), SECOND), "log"))
    assert [line.lane for line in shelf.lanes()] == [NAMED.text]
    assert "it has no identity.json" in lost(shelf)[NAMED.text].lost
    assert f"cannot read lane {NAMED.text!r}" in refused(shelf, NAMED.text)
    assert refused(shelf, SECOND.text) == f"this gateway has no lane {SECOND.text!r} yet"


def test_a_reader_of_a_halted_lane_is_told_that_other_gateways_may_have_more(
    tmp_path: Path, shelf: ServedLogs, told: dict[str, str]
) -> None:
    for lane in (NAMED, SECOND):
        written(tmp_path, sample(lane, 2), 3)
    told[NAMED.text], told[SECOND.text] = "its end is lost", ""
    assert [shelf.find(name).state() for name in (NAMED.text, SECOND.text, "")] == ["halted", "primary", "primary"]


def test_a_lane_on_a_slow_disk_stops_no_other(tmp_path: Path, shelf: ServedLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = Event(), Event()

    def slowly(ordered: LogReader, lane: LaneName) -> LaneReader:
        if lane == FIRST:
            asked.set()
            assert answers.wait(60)
        return LaneReader(ordered, lane)

    for lane in (FIRST, SECOND):
        written(tmp_path, sample(lane, 2), 3)
    monkeypatch.setattr(module, "LaneReader", slowly)
    found: list[str] = []
    slow = [Thread(target=lambda: found.append(shelf.find(FIRST.text).lane)) for _ in range(2)]
    other = Thread(target=lambda: found.append(shelf.find(SECOND.text).lane))
    for thread in slow:
        thread.start()
    assert asked.wait(60)
    other.start()
    other.join(60)
    try:
        assert found == [SECOND.text]
    finally:
        answers.set()
        for thread in (*slow, other):
            thread.join(60)
    assert found[1:] == 2 * [FIRST.text]
    assert len(shelf._lanes) == 2
