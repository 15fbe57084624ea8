"""What a table holds of a log: ranges of offsets that are in it, and those that runs work on at the moment.

One file, `ledger.json`, changed under a lock. A range is claimed by one run before its rows are written, and done when they are in
the table. Whether a run lives is told by a lock that the kernel lets go of when its process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tutti.errors import Damaged, TuttiError, UsageError
from tutti.runtime.fsync import open_file, sync_directory
from tutti_spark.common.file_locks import is_held

VERSION = 2
_READ = (1, 2)  # a ledger of version 1 has no id
FILE, LOCK, RUNS = "ledger.json", "lock", "runs"
_AGAIN_S = 0.01

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Claim:
    """Records [start, end), which one run brings into the table; `swap`: in place of what the table has of them."""

    number: int
    start: int
    end: int
    run: str
    swap: bool = False

    def __str__(self) -> str:
        """As messages name it."""
        return f"[{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class About:
    """What a table is filled from; a run that would fill it from something else is refused.

    Attributes:
        log: uuid of the log, hex.
        format: delta or parquet.
        topics: names or the pattern, as text; "" for all.
    """

    log: str
    format: str
    topics: str


@dataclass(slots=True)
class State:
    """What the file says.

    Attributes:
        id: of this ledger, random: claims of a ledger that was removed and of its successor have the same numbers.
        schema: of the rows, in Spark's words, once it is known.
    """

    about: About
    id: str = ""
    schema: str = ""
    next: int = 1
    done: list[Span] = field(default_factory=list)
    open: list[Claim] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """What a run does next: write `claim`; with `settle`, find out what became of it, as its run is dead; or wait for `waits`."""

    claim: Claim | None = None
    settle: bool = False
    waits: tuple[Claim, ...] = ()


class Lost(TuttiError):
    """A claim is no longer this run's: others found its lock free and settled it."""


class Ledger:
    """One run's hold on the ledger in `directory`, which is made if it is not there.

    Raises:
        UsageError: the table is filled from something else than `about`.
    """

    def __init__(self, directory: Path, about: About) -> None:
        self.directory = directory
        self._about = about
        self.run = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        (directory / RUNS).mkdir(parents=True, exist_ok=True)
        with _lock(directory):  # a swap takes the names of runs along: one that came meanwhile would pass for dead
            self._alive = open_file(directory / RUNS / self.run, os.O_CREAT | os.O_RDWR)
            fcntl.flock(self._alive, fcntl.LOCK_EX)
        try:
            with self.locked() as state:
                check_same(state.about, about, directory)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go; what this run claimed and did not finish is settled by the next one."""
        (self.directory / RUNS / self.run).unlink(missing_ok=True)
        os.close(self._alive)

    @contextmanager
    def locked(self) -> Iterator[State]:
        """What the ledger says, while nobody else changes it; what the block changed is on disk when it ends well."""
        with _lock(self.directory):
            state = self.state()
            yield state
            write(self.directory, state)

    def state(self) -> State:
        """What the ledger says at this moment."""
        return read(self.directory) or State(self._about, uuid.uuid4().hex)

    def step(self, start: int, end: int, slice_records: int | None = None) -> Step | None:
        """What to do next so that the table holds [start, end); None when it does. What it says is claimed for this run.

        While a swap of any range is open nothing is claimed: it may put another directory in the table's place.

        Args:
            start: first record.
            end: the one to stop before.
            slice_records: claim no more records at once, so that a kill costs no more; None: what is missing in one piece.
        """
        with self.locked() as state:
            overlapping = [claim for claim in state.open if claim.start < end and start < claim.end]
            near = [claim for claim in state.open if claim.swap or claim in overlapping]
            dead = next((claim for claim in near if not self._lives(claim.run)), None)
            if dead is not None:
                return Step(self._take_over(state, dead), settle=True)
            gaps = missing(start, end, [*state.done, *((claim.start, claim.end) for claim in overlapping)])
            if gaps and not any(claim.swap for claim in near):
                first, last = gaps[0]
                return Step(self._claim(state, first, last if slice_records is None else min(last, first + slice_records)))
            return Step(waits=tuple(near)) if gaps or overlapping else None

    def step_swap(self, start: int, end: int) -> Step:
        """The same for a run that replaces [start, end): all of it, as soon as nobody else works on the table, wherever."""
        with self.locked() as state:
            dead = next((claim for claim in state.open if not self._lives(claim.run)), None)
            if dead is not None:
                return Step(self._take_over(state, dead), settle=True)
            if state.open:
                return Step(waits=tuple(state.open))
            return Step(self._claim(state, start, end, swap=True))

    def finish(self, claim: Claim, schema: str = "", *, alone: bool = False) -> None:
        """The rows of `claim`, with that schema, are in the table; with `alone` no others are."""
        with self.locked() as state:
            finish_claim(state, claim, self.run, schema, alone=alone)

    def drop(self, claim: Claim) -> None:
        """No row of `claim` is in the table, nor will be."""
        with self.locked() as state:
            close_claim(state, claim, self.run)

    def _claim(self, state: State, start: int, end: int, swap: bool = False) -> Claim:
        claim = Claim(state.next, start, end, self.run, swap)
        state.next += 1
        state.open.append(claim)
        return claim

    def _take_over(self, state: State, claim: Claim) -> Claim:
        state.open.remove(claim)
        mine = replace(claim, run=self.run)
        state.open.append(mine)
        return mine

    def _lives(self, run: str) -> bool:
        """Whether a run is there, this one or another; a name that nobody holds any more is taken away.

        A claim of this run that it comes to anew is one that it did not finish.
        """
        if run == self.run:
            return False
        if is_held(self.directory / RUNS / run):
            return True
        (self.directory / RUNS / run).unlink(missing_ok=True)
        return False


def missing(start: int, end: int, there: list[Span]) -> list[Span]:
    """The parts of [start, end) that no span of `there` has, in order."""
    gaps, at = [], start
    for first, last in sorted(there):
        if last <= at or first >= end:
            continue
        if first > at:
            gaps.append((at, first))
        at = max(at, last)
    if at < end:
        gaps.append((at, end))
    return gaps


def joined(spans: list[Span]) -> list[Span]:
    """The same places in as few spans as can be, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def close_claim(state: State, claim: Claim, run: str) -> None:
    """Take `claim` off those that are open.

    Raises:
        Lost: it is not open any more, or another run's.
    """
    if replace(claim, run=run) not in state.open:
        raise Lost(
            f"the range {claim} was taken over by another run, which did not see this one live: its rows count, not those of this "
            "run. The ledger has to lie where locks work (flock), on the same file system for all runs"
        )
    state.open.remove(replace(claim, run=run))


def finish_claim(state: State, claim: Claim, run: str, schema: str = "", *, alone: bool = False) -> None:
    """Note that the rows of `claim`, with that schema, are in the table; with `alone` no others are.

    Raises:
        Lost: it is not open any more, or another run's.
    """
    close_claim(state, claim, run)
    state.done = joined([(claim.start, claim.end)] if alone else [*state.done, (claim.start, claim.end)])
    state.schema = schema or state.schema


def read(directory: Path) -> State | None:
    """What the ledger in a directory says; None: there is none.

    Raises:
        Damaged: it says nothing that this release understands.
        UsageError: a newer release wrote it, or the directory is a file.
    """
    file = directory / FILE
    try:
        held = json.loads(_text(file))
        version = held.get("version")
        if version in _READ:
            done = [(start, end) for start, end in held["done"]]
            claims = [Claim(**claim) for claim in held["open"]]
            return State(About(**held["about"]), held.get("id", ""), held["schema"], held["next"], done, claims)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise UsageError(
            f"{directory} cannot be the directory of a ledger, as a part of that path is a file: name another one"
        ) from None
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{file} is no ledger ({type(error).__name__}: {error}): restore it, or fill another table") from error
    raise UsageError(f"{file} has version {version!r}, and this release reads {VERSION}: use a newer release")


def write(directory: Path, state: State) -> None:
    """Put the ledger in its place, whole and on disk, or leave the one that is there."""
    text = json.dumps({"version": VERSION} | asdict(state), indent=1)
    file = directory / FILE
    if file.exists() and _text(file) == text:
        return
    partial = file.with_name(f".{FILE}.{os.getpid()}")
    with open(partial, "w", encoding="utf-8", opener=open_file) as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    partial.replace(file)
    sync_directory(directory)


def _text(file: Path) -> str:
    with open(file, encoding="utf-8", opener=open_file) as lines:
        return lines.read()


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Be the only one. A table that is swapped brings its lock with it: until then who waits holds that of the old one."""
    while True:
        held = open_file(directory / LOCK, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            if _is_at(held, directory / LOCK):
                yield
                return
        finally:
            os.close(held)
        time.sleep(_AGAIN_S)


def _is_at(held: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(held), path.stat())
    except FileNotFoundError:
        return False


def check_same(is_about: About, wanted: About, directory: Path) -> None:
    """Raise UsageError unless the table, whose ledger is in `directory`, is filled from what is wanted."""
    if is_about == wanted:
        return
    if is_about.log != wanted.log:
        raise UsageError(
            f"the table was filled from log {is_about.log}, and this is log {wanted.log}: offsets of one mean nothing in the "
            f"other. Read from the first, or fill another table (what the table holds stands in {directory / FILE})"
        )
    if is_about.format != wanted.format:
        raise UsageError(f"the table is {is_about.format}, and --format is {wanted.format}: leave it out, or fill another table")
    raise UsageError(
        f"the table was filled from {is_about.topics or 'all topics'}, and this run reads {wanted.topics or 'all topics'}: what is "
        "in it is counted in offsets, whatever their topic. Name the same topics, or fill another table"
    )
