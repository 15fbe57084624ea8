"""A check of a directory includes its lanes, and each report about a lane names the remedy."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.unit.log.history import other_boot, write_log
from tests.unit.log.history import sample as log_sample
from tests.unit.log.lane_history import OTHER, LaneHistory, opened, rot, sample, written
from tutti.data.frames.frame import Frame
from tutti.data.lane_name import NEW_LANE_REMEDY, LaneName
from tutti.log.files.lane_paths import OWN, SUSPECT, lane_path
from tutti.log.files.layout import list_positions, segment_path
from tutti.log.read.reader import LogReader
from tutti_gateway.cli.main import main
from tutti_gateway.log.tools.verify import verify, verify_lanes


@pytest.fixture
def own(tmp_path: Path) -> LaneName:
    """The own lane of a directory that also has an ordered log and a lane of another gateway."""
    write_log(tmp_path, log_sample(20))
    identity = json.loads((tmp_path / "identity.json").read_text())
    lane = LaneName(1, bytes.fromhex(identity["incarnation"]))
    for one in (lane, OTHER):
        written(tmp_path, sample(one), 8)
    (tmp_path / OWN).write_text(f"{lane.text}\n")
    return lane


def flip(path: str, history: LaneHistory, frame: Frame) -> None:
    """Change a byte in the body of a frame."""
    ((view, rows),) = LogReader(path).positions(frame.position, frame.position)
    file, at = Path(view.path), int(rows["file_position"][0]) + frame.size - 30
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


def test_all_lanes_are_checked(tmp_path: Path, own: LaneName, capsys: pytest.CaptureFixture[str]) -> None:
    os.makedirs(os.path.join(lane_path(str(tmp_path), LaneName(9, bytes(16))), "log"))  # it is being made
    found = verify_lanes(tmp_path)
    assert [(one.lane, one.own, one.damage, one.refused) for one in found] == [
        (own.text, True, [], ""),
        (OTHER.text, False, [], ""),
    ]
    assert [one.report.records for one in found if one.report is not None] == [14, 14]
    assert main(["log", "verify", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("lane ")] == [f"lane {own.text}, owned by this gateway", f"lane {OTHER.text}"]
    assert shown[-1] == "good: no corruption"


def test_all_commands_name_a_lane_and_its_log_alike(tmp_path: Path, own: LaneName, capsys: pytest.CaptureFixture[str]) -> None:
    log = json.loads((tmp_path / "identity.json").read_text())["log"]
    path = lane_path(str(tmp_path), own)
    for command in ("verify", "digest"):
        assert main(["log", command, path, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["log"], told["lane"]) == (log, own.text)
        assert main(["log", command, path]) == 0
        out, err = capsys.readouterr()
        assert f"lane {own.text} of log {log}" in (out + err)
        assert main(["log", command, str(tmp_path), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["log"], told["lane"]) == (log, "")
        for lane in told.get("lanes", []):
            assert lane["log"] == log
    (tmp_path / "identity.json").write_text("no identity")
    assert (verify(path).log, verify(path).lane) == ("", own.text)


@pytest.mark.parametrize("whose", ["own", "other"])
def test_a_corrupt_lane_is_found_in_the_directory(
    tmp_path: Path, own: LaneName, whose: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lane = own if whose == "own" else OTHER
    history = sample(lane)
    path = lane_path(str(tmp_path), lane)
    flip(path, history, history.frames[6])
    assert verify(tmp_path).damage == []
    advice = f"create an empty file {SUSPECT} in {path}: the next start checks the whole lane at once"
    for directory in (str(tmp_path), path):
        assert main(["log", "verify", directory]) == 4
        told = capsys.readouterr()
        assert "good" not in told.out
        assert "CORRUPT: position 7" in told.out
        assert "tutti log repair" not in told.err
        assert advice in told.err
    assert main(["log", "verify", str(tmp_path), "--json"]) == 4
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["damage"]) == (False, [])
    assert {one["lane"]: (one["ok"], len(one["damage"])) for one in said["lanes"] if not one["ok"]} == {lane.text: (False, 1)}


@pytest.mark.parametrize("gone", ["directory", "identity", "scalars"])
def test_a_missing_or_unreadable_own_lane_is_corruption(
    tmp_path: Path, own: LaneName, gone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(lane_path(str(tmp_path), own))
    if gone == "directory":
        shutil.rmtree(path)
    else:
        (path / {"identity": "identity.json", "scalars": "scalars"}[gone]).unlink()
    damaged = {one.lane: one for one in verify_lanes(tmp_path) if one.damage}
    assert (list(damaged), damaged[own.text].own, damaged[own.text].report) == ([own.text], True, None)
    assert main(["log", "verify", str(tmp_path)]) == 4
    told = capsys.readouterr().err
    assert f"lane {own.text} is corrupt" in told
    assert "tutti members remove" in told


def test_a_lane_that_cannot_be_checked_is_named(
    tmp_path: Path, own: LaneName, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tutti.errors import DirectoryRefused
    from tutti_gateway.log.tools import verify as module

    look = module.verify

    def refuse(path: str, progress: object = None) -> object:
        if path.endswith(OTHER.text):
            raise DirectoryRefused("it is not ours")
        return look(path)

    monkeypatch.setattr(module, "verify", refuse)
    assert main(["log", "verify", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "not checked: it is not ours" in told.out
    assert "good" not in told.out
    assert f"lane {OTHER.text} was not checked" in told.err


def test_a_lane_whose_creation_was_interrupted_is_good(tmp_path: Path, own: LaneName, capsys: pytest.CaptureFixture[str]) -> None:
    """It has its identity, and no segment yet."""
    begun = lane_path(str(tmp_path), OTHER)
    made = LaneName(9, bytes(range(16)))
    path = Path(lane_path(str(tmp_path), made))
    (path / "log").mkdir(parents=True)
    identity = json.loads(Path(begun, "identity.json").read_text())
    (path / "identity.json").write_text(json.dumps({**identity, "incarnation": made.incarnation.hex(), "log": ""}))
    assert [(one.lane, one.damage, one.refused) for one in verify_lanes(tmp_path)] == [
        (own.text, [], ""),
        (OTHER.text, [], ""),
        (made.text, [], ""),
    ]
    assert main(["log", "verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "good: no corruption"


@pytest.mark.parametrize("what", ["corrupt from its start on", "segment gone", "all gone"])
def test_a_halted_own_lane_is_reported_with_the_remedy(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path, log_sample(20))
    incarnation = bytes.fromhex(json.loads((tmp_path / "identity.json").read_text())["incarnation"])
    lane = LaneName(1, incarnation)
    history, path = sample(lane), lane_path(str(tmp_path), lane)
    logs, _ = opened(tmp_path, incarnation=incarnation)
    logs.persist(history.write(1, 11, attempt=1))
    logs.sync()
    logs.close()
    (tmp_path / OWN).write_text(f"{lane.text}\n")
    if what == "corrupt from its start on":
        rot(Path(path), history, 1, 20)
        other_boot(path)
    elif what == "segment gone":
        Path(segment_path(path, list_positions(path, "seg")[-1])).unlink()
    else:
        shutil.rmtree(path)
    logs, found = opened(tmp_path, incarnation=incarnation)
    halted = found[lane].halted
    assert logs.messages == [halted]  # the messages for the gateway's log
    logs.close()
    assert main(["log", "verify", str(tmp_path)]) == 4
    verified = capsys.readouterr().err
    assert main(["log", "repair", path]) != 0
    refused = capsys.readouterr().err
    for text in (" ".join(one.split()) for one in (halted, verified, refused)):
        assert NEW_LANE_REMEDY in text, text
        assert "log repair" not in text, text
