"""Ledger of a table: the ranges of the log that the table contains, and the ranges that runs are writing.

The ledger is one file, `ledger.json`, which runs change only under a lock. A run claims a range before it writes rows, and marks
the range as done when the rows are in the table. Each run also holds a lock on its own file while it is alive, which the kernel
releases when the process ends.
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
from tutti.runtime.durable_files import open_file, sync_directory
from tutti_spark.common.file_locks import is_held

VERSION = 2
_READ = (1, 2)  # a ledger of version 1 has no id
FILE, LOCK, RUNS = "ledger.json", "lock", "runs"
_LOCK_RETRY_S = 0.01

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a run: records [start, end) that the run writes into the table. With `swap`, the run replaces the old rows."""

    number: int
    start: int
    end: int
    run: str
    swap: bool = False

    def __str__(self) -> str:
        """Return the text for messages."""
        return f"[{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class TableSource:
    """Source of a table's rows. The ledger refuses a run with a different source.

    Attributes:
        log: the log's UUID, hexadecimal.
        format: delta or parquet.
        topics: names or pattern of the topics as text; "" for all topics.
    """

    log: str
    format: str
    topics: str


@dataclass(slots=True)
class State:
    """Content of the ledger file.

    Attributes:
        about: source of the table's rows.
        id: random id of this ledger, which distinguishes its claims from equal numbers in a deleted ledger of the same table.
        schema: schema of the rows as Spark prints it; empty while unknown.
        next: number of the next claim.
        done: ranges that the table contains.
        open: claims that runs have not finished.
    """

    about: TableSource
    id: str = ""
    schema: str = ""
    next: int = 1
    done: list[Span] = field(default_factory=list)
    open: list[Claim] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """Next step of a run: write `claim`, resolve the `claim` of a dead run (`resolve`), or wait for claims of other runs."""

    claim: Claim | None = None
    resolve: bool = False
    waits_for: tuple[Claim, ...] = ()


class ClaimLost(TuttiError):
    """Another run took over the claim of this run, because the lock of this run was free."""


class Ledger:
    """Access of one run to the ledger in `directory`, which is created if missing.

    Raises:
        UsageError: the source of the table's rows differs from `about`.
    """

    def __init__(self, directory: Path, about: TableSource) -> None:
        self.directory = directory
        self._about = about
        self.run = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        (directory / RUNS).mkdir(parents=True, exist_ok=True)
        # Register under the lock: a swap copies the files of all runs, and a run that it missed would look dead.
        with _lock(directory):
            self._run_lock = open_file(directory / RUNS / self.run, os.O_CREAT | os.O_RDWR)
            fcntl.flock(self._run_lock, fcntl.LOCK_EX)
        try:
            with self.locked() as state:
                check_source(state.about, about, directory)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock of this run. If the run has an open claim, the next run resolves it."""
        (self.directory / RUNS / self.run).unlink(missing_ok=True)
        os.close(self._run_lock)

    @contextmanager
    def locked(self) -> Iterator[State]:
        """Lock the ledger for a change, and write the ledger durably at the end of the block."""
        with _lock(self.directory):
            state = self.state()
            yield state
            write(self.directory, state)

    def state(self) -> State:
        """Return the present content of the ledger."""
        return read(self.directory) or State(self._about, uuid.uuid4().hex)

    def step(self, start: int, end: int, slice_records: int | None = None) -> Step | None:
        """Return the next step for adding [start, end) to the table, a new claim if possible; None if the table has the range.

        While a swap of any range is open, no range can be claimed, because a swap may replace the table's directory.

        Args:
            start: first offset.
            end: offset to stop before.
            slice_records: maximum number of records of a claim, which limits the work that a kill can lose (None: no limit).
        """
        with self.locked() as state:
            overlapping = [claim for claim in state.open if claim.start < end and start < claim.end]
            conflicting = [claim for claim in state.open if claim.swap or claim in overlapping]
            dead = next((claim for claim in conflicting if not self._is_alive(claim.run)), None)
            if dead is not None:
                return Step(self._take_over(state, dead), resolve=True)
            gaps = missing(start, end, [*state.done, *((claim.start, claim.end) for claim in overlapping)])
            if gaps and not any(claim.swap for claim in conflicting):
                first, last = gaps[0]
                return Step(self._claim(state, first, last if slice_records is None else min(last, first + slice_records)))
            return Step(waits_for=tuple(conflicting)) if gaps or overlapping else None

    def step_swap(self, start: int, end: int) -> Step:
        """Return the next step for a swap of [start, end), which can begin only when the table has no open claim."""
        with self.locked() as state:
            dead = next((claim for claim in state.open if not self._is_alive(claim.run)), None)
            if dead is not None:
                return Step(self._take_over(state, dead), resolve=True)
            if state.open:
                return Step(waits_for=tuple(state.open))
            return Step(self._claim(state, start, end, swap=True))

    def finish(self, claim: Claim, schema: str = "", *, alone: bool = False) -> None:
        """Mark `claim` as written, with the schema of its rows. With `alone`, the table then contains only this range."""
        with self.locked() as state:
            finish_claim(state, claim, self.run, schema, alone=alone)

    def drop(self, claim: Claim) -> None:
        """Remove `claim`, because none of its rows is in the table or ever will be."""
        with self.locked() as state:
            close_claim(state, claim, self.run)

    def _claim(self, state: State, start: int, end: int, swap: bool = False) -> Claim:
        claim = Claim(state.next, start, end, self.run, swap)
        state.next += 1
        state.open.append(claim)
        return claim

    def _take_over(self, state: State, claim: Claim) -> Claim:
        state.open.remove(claim)
        taken_over = replace(claim, run=self.run)
        state.open.append(taken_over)
        return taken_over

    def _is_alive(self, run: str) -> bool:
        """Return True if `run` is another run and alive. Delete the file of a dead run.

        The present run counts as dead, so that it resolves a claim that it has left open itself.
        """
        if run == self.run:
            return False
        if is_held(self.directory / RUNS / run):
            return True
        (self.directory / RUNS / run).unlink(missing_ok=True)
        return False


def missing(start: int, end: int, covered: list[Span]) -> list[Span]:
    """Return, in order, the parts of [start, end) that are in no span of `covered`."""
    gaps, at = [], start
    for first, last in sorted(covered):
        if last <= at or first >= end:
            continue
        if first > at:
            gaps.append((at, first))
        at = max(at, last)
    if at < end:
        gaps.append((at, end))
    return gaps


def merge_spans(spans: list[Span]) -> list[Span]:
    """Return the spans in order, with overlapping and adjacent spans merged."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def close_claim(state: State, claim: Claim, run: str) -> None:
    """Remove `claim` from the open claims.

    Raises:
        ClaimLost: the claim is no longer open, or belongs to another run.
    """
    if replace(claim, run=run) not in state.open:
        raise ClaimLost(
            f"another run took over the range {claim}, because this run looked dead: the table keeps the rows of the other run. "
            "Keep the ledger on one file system with working locks (flock) for all runs"
        )
    state.open.remove(replace(claim, run=run))


def finish_claim(state: State, claim: Claim, run: str, schema: str = "", *, alone: bool = False) -> None:
    """Mark `claim` as written, with the schema of its rows. With `alone`, the table then contains only this range.

    Raises:
        ClaimLost: the claim is no longer open, or belongs to another run.
    """
    close_claim(state, claim, run)
    state.done = merge_spans([(claim.start, claim.end)] if alone else [*state.done, (claim.start, claim.end)])
    state.schema = schema or state.schema


def read(directory: Path) -> State | None:
    """Read the ledger of a directory; None if the directory has no ledger.

    Raises:
        Damaged: the file is not a valid ledger.
        UsageError: a newer release wrote the ledger, or a part of the path is a file.
    """
    file = directory / FILE
    try:
        content = json.loads(_text(file))
        version = content.get("version")
        if version in _READ:
            done = [(start, end) for start, end in content["done"]]
            claims = [Claim(**claim) for claim in content["open"]]
            return State(TableSource(**content["about"]), content.get("id", ""), content["schema"], content["next"], done, claims)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise UsageError(
            f"{directory} cannot be the directory of a ledger, because a part of that path is a file: name another directory"
        ) from None
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{file} is not a ledger ({type(error).__name__}: {error}): restore it, or fill another table") from error
    raise UsageError(f"{file} has version {version!r}, and this release reads {VERSION}: use a newer release")


def write(directory: Path, state: State) -> None:
    """Replace the ledger file atomically and durably, unless its content is the same."""
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
    """Hold the lock of the ledger within the block.

    A swap also replaces the lock file, so a process that waited may get the lock of the old file. Then it must try again.
    """
    while True:
        descriptor = open_file(directory / LOCK, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_current(descriptor, directory / LOCK):
                yield
                return
        finally:
            os.close(descriptor)
        time.sleep(_LOCK_RETRY_S)


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def check_source(is_about: TableSource, wanted: TableSource, directory: Path) -> None:
    """Raise UsageError unless the table, whose ledger is in `directory`, has the source `wanted`."""
    if is_about == wanted:
        return
    if is_about.log != wanted.log:
        raise UsageError(
            f"the table was filled from log {is_about.log}, and this is log {wanted.log}: offsets of one log mean nothing in the "
            f"other. Read from the first log, or fill another table ({directory / FILE} lists the table's content)"
        )
    if is_about.format != wanted.format:
        raise UsageError(f"the table is {is_about.format}, and --format is {wanted.format}: omit the option, or fill another table")
    raise UsageError(
        f"the table was filled from {is_about.topics or 'all topics'}, and this run reads {wanted.topics or 'all topics'}: the "
        "ledger records offsets without topics. Name the same topics, or fill another table"
    )
