"""The scrubber finds corrupt frames of a lane, own or not, and repairs them in place, also after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log.lane_history import OTHER, OWN, LaneHistory, opened, rot, sample, written
from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import SUSPECT, lane_path
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import ReadLane, RepairLane
from tutti_gateway.core.protocol.events import LaneCorrupt
from tutti_gateway.log.lanes.lane_logs import LaneLogs
from tutti_gateway.log.tools.verify import verify


def searched(logs: LaneLogs) -> LaneCorrupt | None:
    """Scrub while it is urgent; return the first corrupt range."""
    for _ in range(1000):
        if not logs.urgent:
            return None
        found = logs.scrub()
        if found is not None:
            return found
    raise AssertionError("the scrub never ends")


def repaired(logs: LaneLogs, history: LaneHistory, lost: LaneCorrupt) -> LaneCorrupt:
    return logs.repair(RepairLane(lost.origin, lost.incarnation, tuple(history.frames[lost.first - 1 : lost.last])))


def rotten(tmp_path: Path, lane: LaneName, position: int = 6) -> tuple[LaneHistory, Path]:
    history = sample(lane)
    written(tmp_path, history, 11)
    path = Path(lane_path(str(tmp_path), lane))
    rot(path, history, position)
    return history, path


@pytest.mark.parametrize("lane", [OWN, OTHER])
@pytest.mark.parametrize("restart", [False, True])
def test_a_lane_that_could_not_be_read_is_repaired_in_place(tmp_path: Path, lane: LaneName, restart: bool) -> None:
    history, path = rotten(tmp_path, lane)
    logs, found = opened(tmp_path)
    assert (found[lane].position, logs.messages, logs.urgent) == (11, [], False)
    assert logs.read(ReadLane(1, *lane, 6, 8)) == ()
    assert logs.suspect(lane.incarnation[:8]) == [lane]
    assert logs.suspect(lane.incarnation[:8]) == []
    if restart:
        logs.close()
        logs, found = opened(tmp_path)
        assert (found[lane].position, found[lane].halted, logs.messages) == (11, "", [])
    assert "the whole lane is scrubbed" in logs.damaged[lane]
    lost = searched(logs)
    assert lost == LaneCorrupt(*lane, 6, 6)
    assert "fetches the frames from another gateway" in logs.damaged[lane]
    assert not logs.urgent  # until frames arrive
    assert repaired(logs, sample(LaneName(3, lane.incarnation)), lost) == lost, "frames of another origin do not fit"
    assert lane in logs.damaged
    assert repaired(logs, history, lost) == LaneCorrupt(*lane, 0, 0)
    assert searched(logs) is None
    assert (logs.damaged, (path / SUSPECT).exists()) == ({}, False)
    assert list(logs.read(ReadLane(1, *lane, 1, 11))) == history.frames
    logs.close()
    assert verify(path).damage == []


def test_all_open_lanes_are_scrubbed_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRUB_FRAMES", 2)
    written(tmp_path, sample(OTHER), 11)
    rotten(tmp_path, OWN)
    logs, _ = opened(tmp_path)
    found = [one for _ in range(20) if (one := logs.scrub()) is not None]
    assert found == [LaneCorrupt(*OWN, 6, 6)]  # reported once
    assert logs.rounds > 0  # a corrupt range does not stop the scrub of other lanes
    logs.close()


def test_a_corrupt_lane_that_was_closed_is_scrubbed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LANES_OPEN_MAX", 2)
    history, path = rotten(tmp_path, OTHER)
    logs, _ = opened(tmp_path)
    logs.suspect(OTHER.incarnation)
    lost = searched(logs)
    assert lost is not None
    for number in (3, 4):
        logs.persist(sample(LaneName(number, bytes([number]) * 16), 2).write(1, 3))
        logs.sync()
    repaired(logs, history, lost)
    assert searched(logs) == lost
    assert repaired(logs, history, lost) == LaneCorrupt(*OTHER, 0, 0)
    assert searched(logs) is None
    logs.close()
    assert verify(path).damage == []


@pytest.mark.parametrize("decided", [0, 11])
def test_a_suspicion_of_a_valid_lane_changes_nothing(tmp_path: Path, decided: int) -> None:
    written(tmp_path, sample(OTHER), decided)
    logs, _ = opened(tmp_path)
    logs.suspect(OTHER.incarnation)
    logs.close()
    logs, found = opened(tmp_path)
    assert (searched(logs), found[OTHER].position, logs.messages, logs.damaged) == (None, decided, [], {})
    logs.close()
    assert not (Path(lane_path(str(tmp_path), OTHER)) / SUSPECT).exists()
