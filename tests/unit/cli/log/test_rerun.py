"""Tests of `tutti log rerun`: its report on an equal recording, on a changed one, and on a file that is not a recording."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import msgspec
import pytest

from tests.unit.core.stacks import opened
from tests.unit.node.fakes import LOG
from tutti_gateway.cli.main import main
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.actions import Suspect
from tutti_gateway.core.protocol.events import StackConfig
from tutti_gateway.core.stack import Stack
from tutti_gateway.node.replay.recorder import Recorder
from tutti_gateway.node.replay.recording_format import Header, Item, Recording, Stepped, block_bytes, item_bytes, start_bytes


@pytest.fixture
def run(tmp_path: Path) -> Path:
    _, member = opened()
    recorder = Recorder(Stack(Random), str(tmp_path), Header("0.0.9", "jfk", 1_700_000_000_000_000, StackConfig()), LOG)
    for data, now, _ in member.history:
        recorder.step(codec.decode_event(data), now)
    recorder.stop()
    return recorder.path


def changed(run: Path) -> Path:
    """The same with one more action recorded for the second event."""
    recording = Recording(run)
    steps = [step for step in recording if isinstance(step, Stepped)]
    actions = [*codec.decode_lean_actions(steps[1].actions), Suspect(2, "it holds the group up")]
    steps[1] = msgspec.structs.replace(steps[1], actions=msgspec.Raw(codec.encode_lean_actions(actions)))
    recording.close()
    items: list[Item] = [recording.header, *steps]
    path = run.with_name("changed.run")
    path.write_bytes(start_bytes() + block_bytes(b"".join(map(item_bytes, items))))
    return path


def test_an_equal_replay_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "rerun", str(run)]) == 0
    said = capsys.readouterr()
    assert "events, identical\nthe recording ends because the gateway stopped\n" in said.out
    assert "gateway jfk, release 0.0.9, from 2023-11-14T22:13:20.000000Z\n" in said.err
    assert "different answers may be intended" in said.err


def test_a_difference_is_shown_with_both_answers_and_fails(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(run)
    assert main(["log", "rerun", str(path)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("DIFFERENCE at event 2, ")
    assert "\n  - Suspect(member=2, reason='it holds the group up')\n" in said
    assert "\n  + " not in said
    assert main(["log", "rerun", str(path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["identical"], told["events"], told["torn"]) == (False, 1, False)
    assert told["difference"]["event"] == 2
    assert told["difference"]["recorded"][-1] == "Suspect(member=2, reason='it holds the group up')"
    assert told["difference"]["again"] == told["difference"]["recorded"][:-1]


def test_a_truncated_recording_is_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.write_bytes(run.read_bytes()[:-3])
    assert main(["log", "rerun", str(run)]) == 0
    assert "the recording is truncated, as after a kill" in capsys.readouterr().out


def test_a_file_that_is_not_a_recording_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "rerun", str(tmp_path / "none")]) == 2
    (tmp_path / "text").write_text("hello")
    assert main(["log", "rerun", str(tmp_path / "text")]) == 1
    assert "is not a recorded run" in capsys.readouterr().err
