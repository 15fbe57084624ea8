"""Proves that all that is told about a halted own lane says the same: nothing is cut from it, and the gateway wants a new disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.log.history import other_boot, write_log
from tests.unit.log.history import sample as log_sample
from tests.unit.log.lanes import opened, sample
from tests.unit.log.test_lanes import rot
from tutti.data.lane_name import NEW_LANE_REMEDY, LaneName
from tutti.log.files.lane_paths import OWN, lane_path
from tutti.log.files.layout import list_positions, segment_path
from tutti_gateway.cli.main import main


@pytest.mark.parametrize("what", ["rotten from its start on", "segment gone", "all gone"])
def test_a_halted_own_lane_is_told_with_what_ends_it(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path, log_sample(20))
    incarnation = bytes.fromhex(json.loads((tmp_path / "identity.json").read_text())["incarnation"])
    lane = LaneName(1, incarnation)
    history, path = sample(lane), lane_path(str(tmp_path), lane)
    logs, _ = opened(tmp_path, incarnation=incarnation)
    logs.persist(history.write(1, 11, attempt=1))
    logs.sync()
    logs.close()
    (tmp_path / OWN).write_text(f"{lane.text}\n")
    if what == "rotten from its start on":
        rot(Path(path), history, 1, 20)
        other_boot(path)
    elif what == "segment gone":
        Path(segment_path(path, list_positions(path, "seg")[-1])).unlink()
    else:
        shutil.rmtree(path)
    logs, found = opened(tmp_path, incarnation=incarnation)
    halted = found[lane].halted
    assert logs.messages == [halted]  # as the log of its gateway tells it
    logs.close()
    assert main(["log", "verify", str(tmp_path)]) == 4
    verified = capsys.readouterr().err
    assert main(["log", "repair", path]) != 0
    refused = capsys.readouterr().err
    for told in (halted, verified, refused):
        told = " ".join(told.split())
        assert NEW_LANE_REMEDY in told, told
        assert "log repair" not in told, told
