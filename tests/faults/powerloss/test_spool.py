"""Proves that a spool survives the loss of power at each of its writes: what was told to be safe is there, in order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.powerloss.recorder import Filling, Recorder, Unsynced, chosen, image
from tutti.batching.encoder import seal
from tutti.batching.receipt import Batch, SpoolPosition
from tutti.data.frames.plain_body import encode_plain
from tutti.data.frames.schema import decode_batch
from tutti.errors import DirectoryRefused, DiskFailed, DiskFull, Refused
from tutti.spool.commit_mark import EpochStart
from tutti.spool.store import SpoolStore

SEGMENT_BYTES = 1500
SEEDS = 4


def batch_of(number: int) -> Batch:
    """A batch of one record."""
    batch = Batch("t", 0, 0.0)
    batch.count = 1
    seal(batch, *encode_plain(None, [b"%d" % number], bytes(8)))
    return batch


class Life:
    """A store at work, and for each of its disk's operations what had been told by then."""

    def __init__(self, path: Path, recorder: Recorder | None = None) -> None:
        path.mkdir()
        self.recorder = recorder or Recorder()
        try:
            self.store = SpoolStore(str(path), "p", SEGMENT_BYTES, self.recorder)
        except DiskFull:
            self.store = SpoolStore(str(path), "p", SEGMENT_BYTES, self.recorder)
        self.tried = self.safe = self.done = 0
        self.places: list[SpoolPosition] = []
        self.told: list[tuple[int, int, int]] = []  # (tried, safe, done) after each operation
        self.note()

    def note(self) -> None:
        self.told += [(self.tried, self.safe, self.done)] * (len(self.recorder.ops) - len(self.told))

    def append(self, count: int) -> None:
        batches = [batch_of(number) for number in range(self.tried, self.tried + count)]
        self.tried += count
        self.step(lambda: self.places.extend(place for place, _ in self.store.append(batches, 0)))
        self.note()
        self.safe = self.tried

    def commit(self, upto: int) -> None:
        self.done = upto
        self.prune()
        self.note()

    def step(self, act: Callable[[], object]) -> None:
        act()

    def prune(self, closing: bool = False) -> None:
        place = self.places[self.done - 1]
        self.step(lambda: self.store.prune(place, place, closing=closing))

    def refuse(self, number: int) -> None:
        """The next one is put aside."""
        assert number == self.done
        self.store.seek(self.places[number - 1])
        block = self.store.next_block()
        assert block is not None
        self.step(lambda: self.store.refuse(block, Refused("no")))
        assert self.store.refused_bytes == sum(path.stat().st_size for path in (Path(self.store.path) / "refused").iterdir())
        self.done = number + 1
        self.step(lambda: self.store.note_aside(self.places[number], ()))
        self.note()

    def run(self) -> None:
        """Some segments come and go."""
        for count in (1, 3, 2, 5, 1, 1, 4):
            self.append(count)
        self.step(lambda: self.store.note_sent(1, "a" * 32, EpochStart(1, 0, b"")))
        self.note()
        self.commit(5)
        self.append(6)
        self.commit(9)
        self.refuse(9)
        self.append(2)
        self.commit(20)
        self.prune(closing=True)
        self.step(self.store.seal)
        self.note()
        self.store.close()


class Tight(Life):
    """It goes on where there is no room, as the spool's thread does: each step is taken again."""

    def __init__(self, path: Path, after: int) -> None:
        self.failed = 0
        super().__init__(path, Filling(after=after))

    def step(self, act: Callable[[], object]) -> None:
        try:
            act()
        except DiskFull:
            self.failed += 1
            act()


def held(store: SpoolStore) -> list[int]:
    """The numbers of the records that are not done with."""
    store.seek(store.state.done)
    numbers = []
    while (block := store.next_block()) is not None:
        if block.before not in store.aside:
            numbers.append(int(decode_batch(block.body).column(1)[0].as_py()))
        store.advance()
    return numbers


@pytest.mark.parametrize("seed", range(SEEDS))
def test_power_loss_at_any_write_loses_no_durable_record(seed: int, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    life = Life(origin)
    life.run()
    ops = life.recorder.ops
    assert len(ops) > 60
    for count in range(1, len(ops) + 1):
        target = tmp_path / str(count)
        image(ops[:count], origin, target, *chosen(random.Random(f"{seed} {count}"), seed))
        (target / "log").rmdir()
        tried, safe, done = life.told[count - 1]
        store = SpoolStore(str(target), "p", SEGMENT_BYTES, Recorder())
        numbers = held(store)
        first = numbers[0] if numbers else safe
        assert numbers == list(range(first, first + len(numbers))), f"after operation {count}"
        assert not numbers or numbers[-1] < tried
        assert first <= done, f"after operation {count} records from {done} on are not committed, and those below {first} are gone"
        assert first + len(numbers) >= safe, f"after operation {count}"
        # It goes on, and what is written next stands behind all of that.
        ((place, _),) = store.append([batch_of(99)], 0)
        assert store.state.sent < place.segment
        assert held(store) == [*numbers, 99]
        store.close()
        again = SpoolStore(str(target), "p", SEGMENT_BYTES, Recorder())
        assert held(again) == [*numbers, 99]
        again.close()


def test_an_operation_on_a_full_disk_is_retried_or_ends_the_run(tmp_path: Path) -> None:
    life = Life(tmp_path / "origin")
    life.run()
    passed = 0
    for after in range(len(life.recorder.ops)):
        path = tmp_path / str(after)
        tight: Tight | None = None
        try:
            tight = Tight(path, after)
            tight.run()
            passed += tight.failed
        except (DiskFailed, DirectoryRefused):  # a sync: the next run knows
            if tight is not None:
                tight.store.close()
        store = SpoolStore(str(path), "p", SEGMENT_BYTES, Unsynced())
        numbers = held(store)
        safe, done, tried = (tight.safe, tight.done, tight.tried) if tight is not None else (0, 0, 0)
        assert numbers == list(range(numbers[0] if numbers else safe, numbers[0] + len(numbers) if numbers else safe)), after
        assert (numbers[0] if numbers else safe) <= max(done, safe), after
        assert not numbers or safe <= numbers[-1] + 1 <= tried, after
        assert not list(path.rglob("*.tmp")) or tight is None or not tight.failed, after
        store.close()
    assert passed > 20


def test_every_operation_is_a_known_one(tmp_path: Path) -> None:
    life = Life(tmp_path / "origin")
    life.run()
    kinds = {kind for kind, _ in itertools.groupby(sorted(op.what for op in life.recorder.ops))}
    assert kinds >= {"create", "write", "sync", "rename", "remove", "sync directory"}
