"""Power loss at any instant of a log that is cut: it is as before the cut, as after it, or with fewer of the frames that go; never
damaged, and nothing that was cut comes back.
"""

from __future__ import annotations

import itertools
import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.powerloss.recorder import Choose, Count, Op, Recorder, Unsynced, files_of, image, sectors, standing
from tests.unit.log.history import History, decide, expected, opened, other_boot, sample, seen
from tutti.data.frames.frame import Frame
from tutti.data.hard_state import HardState
from tutti.log.files.layout import FRAMES_AT, list_positions
from tutti.log.files.options import LogOptions
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.core.protocol.messages import Damage
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
    """What holds at some operation: the log as it was handed over, and what was told to be durable of it."""

    at: int
    history: History
    written: int = 0
    synced: int = 0
    decided: int = 0
    marked: int = 0
    scalars: HardState = field(default_factory=HardState)

    @property
    def frames(self) -> list[Frame]:
        return self.history.frames[: self.written]


class Life:
    """A writer's life with cuts, recorded."""

    def __init__(self, root: Path, options: LogOptions, chance: random.Random) -> None:
        self.root, self.options, self.chance = root, options, chance
        self.recorder = Recorder()
        self.known: list[Known] = []
        self.views = 1
        self.state = Known(0, History(voters=2))
        self.grow()

    def grow(self) -> None:
        """More to be written: batches of some sizes."""
        history = self.state.history
        for number in range(30):
            history.batch(f"p{self.views}-{number % 2}", f"t{number % 3}", [b"%d" % number * self.chance.choice([1, 200, 900])])
            if number % 7 == 3:
                history.tick()

    def live(self, moves: list[str]) -> None:
        """Do the moves, noting what is known before and after each."""
        self.note()
        writer, _, close = opened(self.root, self.options, self.recorder)
        self.note()
        for move in moves:
            self.move(writer, move)
            self.note()
        close()
        self.note()

    def move(self, writer: LogWriter, move: str) -> None:
        state = self.state
        if move == "append":
            until = min(state.written + self.chance.randint(1, 9), len(state.history.frames))
            some = state.history.frames[state.written : until]
            self.state = replace(state, written=until)
            self.note()
            writer.append(some)
        elif move == "sync":
            writer.sync()
            self.state = replace(state, synced=state.written)
        elif move == "decide":
            upto = state.history.settled(self.chance.randint(state.decided, state.synced))
            if upto > state.decided:
                self.state = replace(state, decided=upto)
                self.note()
                decide(writer, state.history, state.decided + 1, upto)
        elif move == "mark":
            while writer.idle():
                continue
            self.state = replace(state, synced=state.written, marked=state.decided)
        elif move == "scalars":
            view = state.scalars.promised + 1
            self.state = replace(state, scalars=HardState(view, view, view))
            writer.write_hard_state(self.state.scalars)
        else:
            self.cut(writer, same=move == "cut same")

    def cut(self, writer: LogWriter, *, same: bool) -> None:
        state = self.state
        position = max(state.history.settled(self.chance.randint(state.decided, state.written)), state.decided)
        if not position:
            return
        writer.truncate(position)
        self.state = replace(state, written=position, synced=position)
        if not same:
            self.note()
            self.views += 1
            self.state = replace(self.state, history=state.history.branch(position, self.views))
            self.grow()

    def note(self) -> None:
        self.known.append(replace(self.state, at=len(self.recorder.ops)))

    def known_at(self, at: int) -> tuple[Known, Known]:
        """What held when `at` operations were done, and what held at the end of the step that they belong to."""
        before = [known for known in self.known if known.at <= at]
        after = [known for known in self.known if known.at >= at]
        return before[-1], after[0]

    def disk(self, at: int, target: Path, seed: int) -> random.Random:
        """One disk after `at` operations: nothing, all, or random parts of what was not synced."""
        chance = random.Random(f"{at} {seed}")

        def choose(op: Op) -> list[tuple[int, int]]:
            return [[], [(0, len(op.data))]][seed] if seed < 2 else sectors(op, chance, chance.choice([0.5, 0.9]))

        def count(most: int) -> int:
            return (0, most)[seed] if seed < 2 else chance.randint(0, most)

        image(self.recorder.ops[:at], self.root, target, choose, count)
        return chance


def fits(known: Known, recovered: Recovered) -> bool:
    """Whether the log that was found is a beginning of the one that was handed over."""
    end = recovered.state.position + len(recovered.tail)
    return end <= known.written and list(recovered.tail) == known.frames[recovered.state.position : end]


def check(life: Life, at: int, target: Path, seed: int) -> None:
    """Recover one disk as of `at` operations, and let it go on."""
    chance = life.disk(at, target, seed)
    if not (target / "identity.json").exists():
        return
    sure, asked = life.known_at(at)
    writer, recovered, close = opened(target, life.options, Unsynced())
    end = recovered.state.position + len(recovered.tail)
    assert recovered.damage is None
    assert min(sure.synced, asked.synced) <= end
    found = [known for known in (sure, asked) if fits(known, recovered)]
    assert found
    assert sure.marked <= recovered.state.position <= asked.decided
    assert recovered.state.next_offset == found[0].history.offset_after(recovered.state.position)
    assert recovered.scalars in (sure.scalars, asked.scalars)
    if seed > 1 and end:
        goes_on(writer, found[0].history, recovered.state.position, end, chance, target)
    close()


def goes_on(writer: LogWriter, history: History, decided: int, end: int, chance: random.Random, target: Path) -> None:
    """The log that was found takes the rest, or is cut once more and takes another; it then reads as if nothing had happened."""
    if chance.random() < 0.5:
        end = max(history.settled(chance.randint(decided, end)), decided)
    if chance.random() < 0.5 and end:
        writer.truncate(end)
        history = history.branch(end, 99)
        for number in range(20):
            history.batch("last", "t", [b"%d" % number * chance.choice([1, 900])])
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, decided + 1, len(history.frames))
    reader = LogReader(target)
    assert seen(scan(reader, 0, reader.frontier().offset)) == expected(history)
    assert verify(target).damage == []


MOVES = ["append", "sync", "append", "append", "decide", "cut", "append", "sync", "scalars", "append", "cut same", "append", "mark"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (OPTIONS, 0),
        (GROWING, 0),
        *(pytest.param(*rest, marks=pytest.mark.soak) for rest in ((OPTIONS, 1), (OPTIONS, 2), (STRICT, 0))),
    ],
)
def test_every_instant_of_a_history_with_truncations(tmp_path: Path, options: LogOptions, part: int) -> None:
    life = Life(tmp_path / "real", options, random.Random(5))
    life.live(["append", "append", *itertools.chain.from_iterable([MOVES] * 9), "append", "sync", "cut", "cut", "cut same"])
    assert len(list_positions(str(life.root), "seg")) >= 2
    assert sum(op.what == "remove" and op.path.endswith(".seg") for op in life.recorder.ops) >= 2
    for at in range(part, len(life.recorder.ops) + 1, 3):
        for seed in (0, 1, 2 + at):
            check(life, at, tmp_path / "image", seed)
            shutil.rmtree(tmp_path / "image", ignore_errors=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lives")


@given(
    options=st.sampled_from([OPTIONS, GROWING]),
    moves=st.lists(
        st.sampled_from(["append", "append", "append", "sync", "decide", "mark", "scalars", "cut", "cut same"]), max_size=40
    ),
    seed=st.integers(0, 1000),
    data=st.data(),
)
@settings(max_examples=40)
def test_a_random_history_with_truncations_survives_power_loss_at_any_instant(
    folder: Path, options: LogOptions, moves: list[str], seed: int, data: st.DataObject
) -> None:
    root = folder / str(sum(1 for _ in folder.iterdir()))
    life = Life(root / "real", options, random.Random(seed))
    life.live(["append", "append", *moves])
    for number in range(4):
        at = data.draw(st.integers(0, len(life.recorder.ops)))
        check(life, at, root / f"image{number}", data.draw(st.integers(0, 1000)))


WHOLE = sample(60, size=900, voters=3)
LAST = len(WHOLE.frames)
DECIDED = WHOLE.settled(30)


def damaged(path: Path) -> int:
    """A log that was durable to its end, decided in part, with a bad frame two segments before its end; its position."""
    writer, _, close = opened(path, OPTIONS)
    writer.append(WHOLE.frames)
    writer.sync()
    decide(writer, WHOLE, 1, DECIDED)
    while writer.idle():
        continue
    close()
    other_boot(path)
    first = list_positions(str(path), "seg")[-3]
    assert first > DECIDED
    with (path / "log" / f"{first:020d}.seg").open("r+b") as file:
        file.seek(FRAMES_AT + sum(frame.size for frame in WHOLE.frames[first - 1 : first + 1]) + 5)
        file.write(b"?")
    return first + 2


def some(chance: random.Random, share: float) -> Choose:
    """About that share of the sectors of each unsynced write."""
    return lambda op: sectors(op, chance, share)


def part_of(share: float) -> Count:
    """So many of the changes of names that are not durable."""
    return lambda many: round(many * share)


@pytest.mark.parametrize("way", ["refill", "cut", "cut at the damage"])
def test_every_instant_of_a_repair(tmp_path: Path, way: str) -> None:
    """What was durable is named as lost until it is written anew or given up, whatever instant the power goes."""
    root = tmp_path / "real"
    bad = damaged(root)
    ops = standing(root)
    recorder = Recorder(inodes={file.stat().st_ino: number for number, file in enumerate(files_of(root), 1)})
    writer, _, close = opened(root, OPTIONS, recorder)
    cut = bad - 1 if way == "cut at the damage" else WHOLE.settled(bad - 3)
    steps = [(len(recorder.ops), bad - 1)]  # operations, and what is durable by then
    if way == "refill":
        for until in (bad + 2, bad + 9, LAST):
            writer.append(WHOLE.frames[steps[-1][1] : until])
            writer.sync()
            steps.append((len(recorder.ops), until))
        while writer.idle():
            continue
    else:
        writer.truncate(cut)
    done = len(recorder.ops)
    close()
    for at in range(len(recorder.ops) + 1):
        for seed in (0, 1, 2, 3):
            chance = random.Random(f"{at} {seed}")
            share = (0.0, 1.0, 0.5, 0.9)[seed]
            image([*ops, *recorder.ops[:at]], root, tmp_path / "image", some(chance, share), part_of(share))
            _, found, close_again = opened(tmp_path / "image", OPTIONS, Unsynced())
            end = found.state.position + len(found.tail)
            assert list(found.tail) == WHOLE.frames[found.state.position : end]
            last = WHOLE.frames[-1]
            if found.damage is not None:
                assert found.damage == Damage(end + 1, LAST, last.view, last.header_crc)
                assert way == "refill" or at < done
            if way == "refill":
                assert end >= max(durable for when, durable in steps if when <= at or when == steps[0][0])
                assert found.damage is not None or end == LAST
            else:
                assert cut <= end <= bad - 1
                assert end == cut or at < done
            close_again()
            shutil.rmtree(tmp_path / "image")
