"""Power loss at any instant: nothing that was synced is lost, nothing that was not is taken for damage, and what comes up goes on.

SIGKILL cannot show this, as the page cache outlives it. A recorder keeps every write, sync and change of names; disks are rebuilt
as of every one of them, with any part of what was not synced, and the log is recovered on each.
"""

from __future__ import annotations

import itertools
import random
import shutil
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.powerloss.recorder import Choose, Recorder, Unsynced, chosen, files_of, image, sectors, standing
from tests.property.log.histories import histories
from tests.unit.log.history import GATEWAY, GROUP, LOG, History, decide, expected, opened, sample, seen
from tutti.data.hard_state import HardState
from tutti.log.files.data_directory import open_directory
from tutti.log.files.layout import list_positions
from tutti.log.files.options import LogOptions
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.core import limits
from tutti_gateway.log.tools.verify import verify
from tutti_gateway.log.writer import LogWriter

pytestmark = pytest.mark.faults

OPTIONS = LogOptions(segment_bytes=32 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=12)
STRICT = LogOptions(
    segment_bytes=32 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=12, vote_mark="strict"
)
GROWING = replace(OPTIONS, first_segment_bytes=16 << 10)


@dataclass
class Known:
    """What the gateway had been told by the disk at some operation, and what it had asked for by then."""

    at: int  # how many operations
    synced: int  # frames reported durable
    written: int  # frames handed over
    decided: int
    marked: int  # the watermark that was made durable
    scalars: HardState
    asked: HardState


@dataclass
class Run:
    """A writer's life, recorded."""

    root: Path
    history: History
    options: LogOptions
    recorder: Recorder = field(default_factory=Recorder)
    known: list[Known] = field(default_factory=list)

    def live(self, moves: list[str]) -> None:
        """Do the moves, and go on until everything is written, noting what is known before and after each step."""
        state = Known(0, 0, 0, 0, 0, HardState(), HardState())
        self.note(state)
        writer, _, close = opened(self.root, self.options, self.recorder)
        self.note(state)
        for move in [*moves, "append", "sync", "decide"]:
            if move == "append":
                until = len(self.history.frames) if state.written > 75 else min(state.written + 4, len(self.history.frames))
                some = self.history.frames[state.written : until]
                state.written = until
                self.note(state)
                writer.append(some)
            elif move == "sync":
                writer.sync()
                state.synced = state.written
            elif move == "decide":
                upto = self.history.settled(state.synced)
                if upto > state.decided:
                    decide(writer, self.history, state.decided + 1, upto)
                    state.decided = upto
            elif move == "mark":
                while writer.idle():
                    continue
                state.synced, state.marked = state.written, state.decided
            elif move == "scalars":
                view = state.scalars.promised + 1
                state.asked = HardState(view, view, view)
                self.note(state)
                writer.write_hard_state(state.asked)
                state.scalars = state.asked
            self.note(state)
        close()
        self.note(state)

    def note(self, state: Known) -> None:
        self.known.append(replace(state, at=len(self.recorder.ops)))

    def known_at(self, at: int) -> tuple[Known, Known]:
        """What was surely known when `at` operations were done, and what was asked for by the end of the step they belong to."""
        before = [known for known in self.known if known.at <= at]
        after = [known for known in self.known if known.at >= at]
        return before[-1], after[0]


def check(run: Run, at: int, target: Path, seed: int) -> None:
    """Recover one image of the disk after `at` operations."""
    image(run.recorder.ops[:at], run.root, target, *chosen(random.Random(f"{at} {seed}"), seed))
    sure, asked = run.known_at(at)
    if not (target / "identity.json").exists():
        assert sure.at == 0 or sure.written == 0
        return
    history = run.history
    writer, recovered, close = opened(target, run.options, Unsynced())
    end = recovered.state.position + len(recovered.tail)
    assert sure.synced <= end <= asked.written
    assert [*range(1, end + 1)][recovered.state.position :] == [frame.position for frame in recovered.tail]
    assert list(recovered.tail) == history.frames[recovered.state.position : end]
    assert sure.marked <= recovered.state.position <= asked.decided
    assert recovered.state.next_offset == history.offset_after(recovered.state.position)
    assert recovered.scalars in (sure.scalars, asked.asked)
    assert recovered.log in ({LOG} if end else {b""})
    if run.options.vote_mark == "strict":
        stored = [known.synced for known in run.known if known.at <= at]
        assert end >= max(stored)
    if seed > 1:
        goes_on(run, target, writer, recovered.state.position, end)
    close()


def goes_on(run: Run, target: Path, writer: LogWriter, decided: int, end: int) -> None:
    """The recovered log takes everything else, and then reads as if nothing had happened."""
    history = run.history
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, decided + 1, len(history.frames))
    reader = LogReader(target)
    assert seen(scan(reader, 0, reader.frontier().offset)) == expected(history)
    assert verify(target).damage == []


MOVES = ["append", "sync", "decide", "append", "append", "sync", "scalars", "decide", "mark"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (OPTIONS, 0),
        *(pytest.param(OPTIONS, part, marks=pytest.mark.soak) for part in (1, 2)),
        (OPTIONS, 3),
        (STRICT, 0),
        (GROWING, 0),
    ],
)
def test_every_instant_of_a_writer(tmp_path: Path, options: LogOptions, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation of one life, over three segments and genesis, with nothing, all, and random parts of what was not synced; the
    mark in every write, or as late as it may be.
    """
    if part % 2:
        monkeypatch.setattr(limits, "MARK_LATE_US", 60_000_000)
    run = Run(tmp_path / "real", sample(60, size=900), options)
    run.live(["scalars", *itertools.chain.from_iterable([MOVES] * 7)])
    assert len(list_positions(str(run.root), "seg")) >= 3
    instants = range(part, len(run.recorder.ops) + 1, 4)
    for at in instants:
        for seed in (0, 1, 2 + at):
            target = tmp_path / "image"
            check(run, at, target, seed)
            shutil.rmtree(target, ignore_errors=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lives")


@given(
    history=histories(30),
    options=st.sampled_from([OPTIONS, GROWING]),
    moves=st.lists(st.sampled_from(["append", "append", "sync", "decide", "mark", "scalars"]), max_size=30),
    data=st.data(),
)
@settings(max_examples=40)
def test_a_random_history_survives_power_loss_at_any_instant(
    folder: Path, history: History, options: LogOptions, moves: list[str], data: st.DataObject
) -> None:
    root = folder / str(sum(1 for _ in folder.iterdir()))
    run = Run(root / "real", history, options)
    run.live(moves)
    for number in range(4):
        at = data.draw(st.integers(0, len(run.recorder.ops)))
        check(run, at, root / f"image{number}", data.draw(st.integers(0, 1000)))


def some_of(chance: random.Random) -> Choose:
    """Most sectors of each unsynced write, at random."""
    return lambda op: sectors(op, chance, 0.6)


def test_a_crash_during_recovery_is_one_more_crash(tmp_path: Path) -> None:
    """The start itself is recorded: at every instant of it the power may go again."""
    run = Run(tmp_path / "real", sample(30, size=900), OPTIONS)
    run.live(["scalars", *itertools.chain.from_iterable([MOVES] * 4)])
    for at in random.Random(7).sample(range(40, len(run.recorder.ops)), 12):
        chance = random.Random(at)
        first, second = tmp_path / f"first{at}", tmp_path / "second"
        image(run.recorder.ops[:at], run.root, first, some_of(chance), lambda most: most)
        sure, asked = run.known_at(at)
        ops = standing(first)
        recorder = Recorder(inodes={file.stat().st_ino: number for number, file in enumerate(files_of(first), 1)})
        _, recovered, close = opened(first, OPTIONS, recorder)
        close()
        assert sure.synced <= recovered.state.position + len(recovered.tail) <= asked.written
        for instant in range(len(recorder.ops) + 1):
            most_of = partial(chance.randint, 0)
            image([*ops, *recorder.ops[:instant]], first, second, some_of(chance), most_of)
            _, again, close = opened(second, OPTIONS, Unsynced())
            close()
            assert again.state.position + len(again.tail) >= sure.synced
            assert again.state.position >= recovered.state.position
            shutil.rmtree(second)


def test_data_found_in_the_page_cache_is_synced_before_any_promise(tmp_path: Path) -> None:
    """The gateway was killed before a sync, started again, and then the power went."""
    history, recorder, root = sample(30, size=900), Recorder(), tmp_path / "real"
    directory = open_directory(str(root), gateway=GATEWAY, group=GROUP, storage=recorder)
    killed, _ = LogWriter.open(directory, OPTIONS, recorder)
    killed.append(history.frames[:7])
    killed.sync()
    killed.append(history.frames[7:])
    directory.close()  # the lock goes with the process; nothing else is done
    _, recovered, close = opened(root, OPTIONS, recorder)
    assert list(recovered.tail) == history.frames
    image(recorder.ops, root, tmp_path / "image", lambda op: [], lambda most: 0)
    close()
    _, again, close = opened(tmp_path / "image", OPTIONS)
    assert list(again.tail) == history.frames
    close()
