"""Power loss at any instant of a log that is trimmed or replaced by a snapshot: it begins where it began or where it is to begin,
everything behind that is there, and it is never damaged.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.faults.powerloss.recorder import Op, Recorder, image, sectors
from tests.unit.log.history import VIEW, History, decide, expected, opened, other_boot, sample, seen, settle, state_at
from tutti.data.hard_state import HardState
from tutti.log.files.layout import list_positions
from tutti.log.files.options import LogOptions
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.log.tools.verify import verify

pytestmark = pytest.mark.faults

OPTIONS = LogOptions(segment_bytes=32 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=12)


def disk(ops: list[Op], root: Path, target: Path, seed: int) -> None:
    """What may be there after the operations: nothing of what was not synced, all of it, or parts."""
    chance = random.Random(f"{len(ops)} {seed}")

    def choose(op: Op) -> list[tuple[int, int]]:
        return [[], [(0, len(op.data))]][seed] if seed < 2 else sectors(op, chance, 0.6)

    def count(loose: int) -> int:
        return [0, loose][seed] if seed < 2 else chance.randint(0, loose)

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    image(ops, root, target, choose, count)


def lost_at(recorder: Recorder, first: int, root: Path, target: Path) -> list[tuple[int, int]]:
    """Every instant from operation `first` on, with each kind of disk that it may leave."""
    return [(at, seed) for at in range(first, len(recorder.ops) + 1) for seed in range(3)]


def reads_well(path: Path, history: History) -> LogReader:
    reader = LogReader(path)
    frontier = reader.frontier()
    assert seen(scan(reader, reader.start, frontier.offset)) == expected(history, reader.start, frontier.offset)
    return reader


def test_a_trim_is_atomic_and_keeps_the_rest(tmp_path: Path) -> None:
    root, target = tmp_path / "root", tmp_path / "disk"
    root.mkdir()
    history = sample(90, size=900)
    recorder = Recorder()
    writer, _, close = opened(root, OPTIONS, recorder)
    writer.write_hard_state(HardState(VIEW, VIEW, VIEW))
    writer.append(history.frames)
    writer.sync()
    decide(writer, history, 1, len(history.frames))
    settle(writer)
    firsts = [first for first in list_positions(str(root), "seg") if history.settled(first - 1) == first - 1]
    assert len(firsts) > 3
    begins, before = [0], len(history.frames)
    began = len(recorder.ops)
    for position in (firsts[1], firsts[-1]):
        end = len(history.frames)
        history.trim(position, history.offset_after(position - 1))
        begins.append(history.offset_after(position - 1))
        history.batch("more", "more", [b"more"])
        writer.append(history.frames[end:])
        writer.sync()
        decide(writer, history, end + 1, len(history.frames))
        settle(writer)
    close()
    assert list_positions(str(root), "seg", include_trimmed=True)[0] == firsts[-1]
    starts = set()
    for at, seed in lost_at(recorder, began, root, target):
        disk(recorder.ops[:at], root, target, seed)
        other_boot(target)
        reader = reads_well(target, history)  # before any start: as a reader of files finds it
        assert reader.start in begins
        starts.add(reader.start)
        _, recovered, done = opened(target, OPTIONS, Recorder())
        done()
        assert recovered.state.position + len(recovered.tail) >= before
        assert reads_well(target, history).start >= reader.start
        assert not verify(target).damage
    assert starts == set(begins)


def test_a_log_is_replaced_or_not(tmp_path: Path) -> None:
    root, target = tmp_path / "root", tmp_path / "disk"
    root.mkdir()
    history = sample(90, size=900)
    whole = len(history.frames)
    decided, end, position = history.settled(whole // 5), whole // 2, history.settled(3 * whole // 4)
    recorder = Recorder()
    writer, _, close = opened(root, OPTIONS, recorder)
    writer.write_hard_state(HardState(VIEW, VIEW, VIEW))
    writer.append(history.frames[:end])
    writer.sync()
    decide(writer, history, 1, decided)
    settle(writer)
    began = len(recorder.ops)
    writer.replace(state_at(history, position).to_bytes())
    replaced = len(recorder.ops)
    writer.append(history.frames[position:])
    writer.sync()
    decide(writer, history, position + 1, whole)
    settle(writer)
    close()
    found = set()
    for at, seed in lost_at(recorder, began, root, target):
        disk(recorder.ops[:at], root, target, seed)
        other_boot(target)
        _, recovered, done = opened(target, OPTIONS, Recorder())
        done()
        found.add(begin := recovered.state.position)
        assert recovered.scalars == HardState(VIEW, VIEW, VIEW)
        if begin < position:
            assert at < replaced
            assert_is_old(recovered, history, decided, end)
        else:
            assert reads_well(target, history).start == history.offset_after(position)
            assert recovered.state == state_at(history, begin)
        assert not verify(target).damage
    assert {decided, position} <= found


def assert_is_old(recovered: Recovered, history: History, decided: int, end: int) -> None:
    assert recovered.state.position == decided
    assert [frame.header for frame in recovered.tail] == [frame.header for frame in history.frames[decided:end]]
