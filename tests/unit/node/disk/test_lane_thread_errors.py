"""Tests of errors in the lane thread: an error in one lane, or at one time, never keeps another lane from its scrub and repair."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from tests.unit.core.lanes.test_disk_repair import lose, sent
from tests.unit.log import lane_history as lanes
from tests.unit.log.lane_history import rot
from tests.unit.node.disk.test_lane_thread import OWN, Bench, run
from tutti.errors import DiskFull
from tutti.log.files.lane_paths import SUSPECT, lane_path
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import RepairLane
from tutti_gateway.core.protocol.events import Event, LaneCorrupt
from tutti_gateway.node.disk.lane_thread import LaneThread


@pytest.mark.parametrize("trouble", [DiskFull("no room"), OSError(24, "too many open files")])
def test_a_failed_repair_stays_reported_as_lost(trouble: Exception) -> None:
    bench = Bench()
    mend = RepairLane(*OWN, run().frames)
    bench.logs.trouble["mend"] = [trouble]
    bench.disk.put(mend)
    bench.until(lambda: bench.disk.depth == 0)
    assert bench.reports == [LaneCorrupt(*OWN, 5, 5)]
    bench.disk.put(mend)
    bench.until(lambda: bench.disk.depth == 0)
    assert bench.reports[1:] == [LaneCorrupt(*OWN, 0, 0)]


def test_a_lane_whose_repair_failed_twice_is_requested_until_it_is_repaired() -> None:
    bench, made = Bench(), sent()
    bench.logs.trouble["mend"] = [DiskFull("no room"), OSError(24, "too many open files")]
    lose(made, 3, 2, 2)
    layer, heartbeats = made[3].layer, 0
    assert layer is not None
    while bench.logs.done != [2]:
        made.settle()
        heartbeats += 1
        assert heartbeats < 4 * limits.REPAIR_WAIT_HEARTBEATS, "it is asked for no more"
        while made[3].mends:
            bench.disk.put(made[3].mends.pop(0))
            bench.until(lambda: bench.disk.depth == 0)
            told = bench.reports.pop()
            assert isinstance(told, LaneCorrupt)
            layer.on_corrupt(LaneCorrupt(*made[1].key, told.first, told.last))
            made.carry_out(3)
    made.settle(2 * limits.REPAIR_WAIT_HEARTBEATS)
    assert made[3].mends == []


def test_a_lane_that_cannot_be_opened_is_reported_once_and_the_others_are_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCRUB_WAIT_US", 0)
    monkeypatch.setattr(limits, "SCRUB_PAUSE_US", 0)
    own, other = lanes.sample(lanes.OWN), lanes.sample(lanes.OTHER)
    for history in (own, other):
        lanes.written(tmp_path, history, 11)
    home = Path(lane_path(str(tmp_path), lanes.OWN))
    (home / "identity.json").unlink()
    rot(Path(lane_path(str(tmp_path), lanes.OTHER)), other, 6)
    (home / SUSPECT).touch()
    logs, found = lanes.opened(tmp_path)
    assert found[lanes.OWN].halted
    reports = list[Event]()
    with capture_logs() as logged:
        disk = LaneThread(logs, reports.append, lambda: None, structlog.get_logger(), {})
        for lane in (lanes.OWN, lanes.OTHER, lanes.OWN):
            disk.suspect(lane.incarnation)
            for _ in range(20):
                disk.run_once()
                disk._idle()
    assert reports == [LaneCorrupt(*lanes.OTHER, 6, 6)]
    assert [line["finding"] for line in logged if "finding" in line] == [f"lane {lanes.OWN.text}: {logs.damaged[lanes.OWN]}"]
    assert "cannot be opened" in logs.damaged[lanes.OWN]
    disk.put(RepairLane(*lanes.OWN, tuple(own.frames[1:2])))  # that of a question of before it was so
    disk.put(RepairLane(*lanes.OTHER, tuple(other.frames[5:6])))
    for _ in range(4):
        disk.run_once()
    assert reports[1:] == [LaneCorrupt(*lanes.OWN, 0, 0), LaneCorrupt(*lanes.OTHER, 0, 0)]
    assert (home / SUSPECT).exists()  # the start that finds it whole looks at it
    logs.close()
