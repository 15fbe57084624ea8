"""Tests of the recorder and the replay: a recorded run is complete and replays to the same actions, a difference is found, and a
recording that must end leaves the gateway running.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from tests.unit.core.stacks import batches, opened
from tests.unit.node.fakes import LOG, Script
from tutti.errors import ConfigError, Damaged, FormatError, InvariantViolated, UsageError
from tutti_gateway.core import limits
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.actions import Action, Dropped, SetTimer
from tutti_gateway.core.protocol.events import Event, Now, StackConfig, Submitted, TimeAdvanced, submitted
from tutti_gateway.core.stack import Stack
from tutti_gateway.node.common.interfaces import Stack as AnyStack
from tutti_gateway.node.replay.recorder import Recorder, header_of
from tutti_gateway.node.replay.recording_format import (
    Closed,
    Header,
    Item,
    Recording,
    Stepped,
    block_bytes,
    item_bytes,
    start_bytes,
)
from tutti_gateway.node.replay.rerun import replay_run

CONFIG = StackConfig(tick_interval_us=300_000)
BEGAN = Now(1, 1_700_000_000_000_000)
BODY = b"what nobody else may read"


def history() -> list[tuple[Event, Now]]:
    """A run of one gateway: a producer, a topic, some batches, a wrong one, ticks."""
    group, member = opened(tick_interval_us=300_000)
    for first in range(1, 40, 4):
        group.step(member, submitted(1, batches(first, 4, BODY)))
        group.settle()
        group.mono_us += 200_000
        group.step(member, TimeAdvanced())
        group.settle()
    return [(codec.decode_event(data), now) for data, now, _ in member.history]


def recorded(path: Path, events: Sequence[tuple[Event, Now]], stack: AnyStack | None = None) -> Path:
    """Record a run of the events and end it in order."""
    recorder = Recorder(stack or Stack(Random, CONFIG), str(path), header_of("g1", "1.2.3", CONFIG, BEGAN), LOG)
    for event, now in events:
        recorder.step(event, now)
    recorder.stop()
    return recorder.path


def items(path: Path) -> list[Item]:
    recording = Recording(path)
    found: list[Item] = [recording.header, *recording]
    recording.close()
    return found


def write(path: Path, items: Sequence[Item], a_block: int = 10) -> Path:
    blocks = [block_bytes(b"".join(map(item_bytes, items[at : at + a_block]))) for at in range(0, len(items), a_block)]
    path.write_bytes(start_bytes() + b"".join(blocks))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("runs"), history())


def test_a_recorded_run_runs_again_the_same(run: Path) -> None:
    told: list[tuple[int, int]] = []
    found = replay_run(run, lambda done, size: told.append((done, size)))
    assert (found.difference, found.torn, found.closed) == (None, False, "the gateway stopped")
    assert found.events == len(history()) > 40
    assert found.first_us == found.last_us == 1_600_000_000_000_000
    assert found.header == Header("1.2.3", "g1", BEGAN.wall_us, CONFIG)
    assert told
    assert max(done for done, _ in told) <= told[0][1] == run.stat().st_size


def test_no_value_of_a_client_is_in_it(run: Path) -> None:
    steps = [item for item in items(run) if isinstance(item, Stepped)]
    assert any(isinstance(codec.decode_lean_event(step.event), Submitted) for step in steps)
    assert not any(BODY in bytes(part) for step in steps for part in (step.event, step.actions))


def test_the_first_answer_that_differs_is_shown_with_both_answers(run: Path, tmp_path: Path) -> None:
    changed = items(run)
    number = next(place for place, item in enumerate(changed) if isinstance(item, Stepped) and len(item.actions) > 200)
    step = changed[number]
    assert isinstance(step, Stepped)
    actions = [*codec.decode_lean_actions(step.actions), Dropped("Vote", 7, "a reason", 3)]
    changed[number] = msgspec.structs.replace(step, actions=msgspec.Raw(codec.encode_lean_actions(actions)))
    difference = replay_run(write(tmp_path / "changed.run", changed)).difference
    assert difference is not None
    assert difference.number == number
    assert difference.event.startswith(type(codec.decode_lean_event(step.event)).__name__)
    assert difference.recorded[:-1] == difference.again
    assert difference.recorded[-1] == repr(actions[-1])


def test_an_event_that_is_left_out_is_found(run: Path, tmp_path: Path) -> None:
    left_out = [item for place, item in enumerate(items(run)) if place != 3]
    assert replay_run(write(tmp_path / "left-out.run", left_out)).difference is not None


@pytest.mark.parametrize("missing", [1, 5, 100])
def test_a_recording_truncated_by_a_kill_replays_as_far_as_it_goes(run: Path, tmp_path: Path, missing: int) -> None:
    whole = write(tmp_path / "whole.run", items(run))
    events = replay_run(whole).events
    torn = tmp_path / "torn.run"
    torn.write_bytes(whole.read_bytes()[:-missing])
    found = replay_run(torn)
    assert (found.difference, found.torn, found.closed) == (None, True, "")
    assert events - 10 <= found.events < events


def test_a_recording_that_ends_between_blocks_without_an_end_mark_is_truncated_too(run: Path, tmp_path: Path) -> None:
    found = replay_run(write(tmp_path / "cut.run", items(run)[:21]))
    assert (found.events, found.torn, found.difference) == (20, True, None)


def test_corruption_before_the_end_is_reported(run: Path, tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / "bad.run", items(run)).read_bytes())
    data[60] ^= 1
    (tmp_path / "bad.run").write_bytes(data)
    with pytest.raises(Damaged, match=r"bad\.run is corrupt before byte \d+: the CRC of a block does not match"):
        replay_run(tmp_path / "bad.run")


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", FormatError, "is not a recorded run"),
        (b"PK\x03\x04 and more of another kind of file", FormatError, "is not a recorded run"),
        (b"TUTTIRUN\x63\0\0\0", FormatError, "of format 99, but this release reads format 1"),
        (start_bytes(), FormatError, "has no header"),
        (start_bytes() + block_bytes(item_bytes(Closed("why"))), FormatError, "has no header"),
        (start_bytes() + block_bytes(b"\xff\0\0\0what"), Damaged, "an item extends past the end of its block"),
        (start_bytes() + block_bytes(b"\x04\0\0\0what"), Damaged, "is corrupt before byte"),
    ],
)
def test_a_file_that_is_not_a_recording_is_refused(tmp_path: Path, data: bytes, error: type[Exception], words: str) -> None:
    path = tmp_path / "x.run"
    path.write_bytes(data)
    with pytest.raises(error, match=words):
        replay_run(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.run cannot be read: No such file"):
        replay_run(tmp_path / "none.run")


def test_how_a_stack_ended_is_recorded_and_ends_the_same_again(tmp_path: Path) -> None:
    path = recorded(tmp_path, history()[:5])
    recorder = Recorder(Stack(Random, CONFIG), str(tmp_path / "other"), header_of("g1", "1.2.3", CONFIG, BEGAN), LOG)
    with pytest.raises(InvariantViolated, match="TimeAdvanced came before Started"):
        recorder.step(TimeAdvanced(), BEGAN)
    recorder.stop()
    found = replay_run(recorder.path)
    assert (found.events, found.difference) == (1, None)
    assert found.raised == "InvariantViolated: TimeAdvanced came before Started"
    assert replay_run(path).raised == ""


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be recorded in"):
        recorded(tmp_path / "file" / "below", [])


def test_a_disk_full_at_the_first_bytes_is_reported_and_no_file_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "_write", _no_room)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match="cannot be recorded in"):
        recorded(tmp_path, [])
    assert len(os.listdir("/proc/self/fd")) == before


def _no_room(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def many(count: int) -> list[tuple[Event, Now]]:
    return [(TimeAdvanced(), Now(number, number)) for number in range(count)]


def timers(_event: Event) -> Sequence[Action]:
    return [SetTimer(1)]


def test_the_recording_ends_at_its_bound_and_the_stack_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORD_RUN_BYTES_MAX", 400)
    monkeypatch.setattr(limits, "RECORD_BLOCK_BYTES", 100)
    stack = Script(timers)
    path = recorded(tmp_path, many(500), stack)
    assert len(stack.events) == 500
    recording = Recording(path)
    assert len(list(recording)) < 500
    assert recording.closed == "the recording has reached its limit of 0 MiB"
    recording.close()


def test_the_record_leaves_the_disk_to_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORD_FREE_BYTES_MIN", 1 << 62)
    stack = Script(timers)
    path = recorded(tmp_path, many(10), stack)
    assert len(stack.events) == 10
    assert b"TUTTIRUN" in path.read_bytes()
    with pytest.raises(FormatError, match="has no header"):
        replay_run(path)


def test_a_recording_whose_disk_is_too_slow_ends_and_buffers_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORD_WAITING_BYTES_MAX", 300)
    monkeypatch.setattr(limits, "RECORD_FLUSH_US", 60_000_000)
    recorder = Recorder(Script(timers), str(tmp_path), header_of("g1", "1.2.3", CONFIG, BEGAN), LOG)
    for event, now in many(100):
        recorder.step(event, now)
    assert recorder.ended == "the disk of the recording is too slow"
    recorder.stop()
    recording = Recording(recorder.path)
    assert 0 < len(list(recording)) < 100
    assert recording.closed == "the disk of the recording is too slow"
    recording.close()


def test_only_older_runs_of_this_gateway_are_deleted_for_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORD_RUN_BYTES_MAX", 100)
    monkeypatch.setattr(limits, "RECORD_KEPT_BYTES_MAX", 250)
    names = [f"{name}-2026010{day}T000000.000000Z.run" for name in ("g1", "g1-2") for day in (1, 2, 3)]
    for name in names:
        (tmp_path / name).write_bytes(bytes(70))
    path = recorded(tmp_path, [])
    assert {found.name for found in tmp_path.iterdir()} == {*names[1:], path.name}
