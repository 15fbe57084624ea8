"""The outside checker: compares what clients saw with what each gateway holds. It knows the contract, not the gateways.

Each function returns what it found wrong, one sentence each; nothing means that the promise held. The numbers are those of the
contract (design, section 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, islice, pairwise
from typing import NamedTuple

from tests.faults.group.journal import Story, View

FINDINGS_MAX = 20


class Record(NamedTuple):
    """A committed record as the log has it; `use` and `place` stand in its value."""

    offset: int
    producer: str
    sequence: int
    use: int
    place: int


@dataclass
class Log:
    """What one gateway's directory holds. `blocks`: (start, end) -> sum of these records."""

    gateway: str
    start: int
    records: list[Record] = field(default_factory=list)
    blocks: dict[tuple[int, int], str] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.start + len(self.records)


def check(stories: Sequence[Story], views: Sequence[View], logs: Sequence[Log]) -> list[str]:
    """Everything that can be told from journals and the gateways' logs."""
    whole = together(logs)
    found = chain(
        *(dense(log) for log in logs),
        *(sound(log) for log in logs),
        *(same(one, other) for one, other in combinations(logs, 2)),
        acknowledged(stories, whole),
        aborted(stories, whole),
        fifo(stories, whole),
        copied(stories, whole),
        resumed(stories),
        fenced(stories),
        real_time(stories, whole),
        *(monotone(view) for view in views),
        *(replay(view, log) for view in views for log in logs),
    )
    return list(dict.fromkeys(islice(found, FINDINGS_MAX)))


def together(logs: Sequence[Log]) -> Log:
    """What the gateways hold between them: the longest log, and below its start what another one still has."""
    longest = max(logs, key=lambda log: log.end)
    oldest = min(logs, key=lambda log: log.start)
    if oldest.start >= longest.start or oldest.end < longest.start:
        return longest
    return Log("the group", oldest.start, oldest.records[: longest.start - oldest.start] + longest.records)


def dense(log: Log) -> Iterator[str]:
    """C1: offsets are dense."""
    for expected, record in enumerate(log.records, start=log.start):
        if record.offset != expected:
            yield f"C1: {log.gateway} has offset {record.offset} instead of {expected}"
            return


def sound(log: Log) -> Iterator[str]:
    """C5: what is in the log is what was sent, and no frame is damaged."""
    for record in log.records:
        if not record.use:
            yield f"C5: {log.gateway} has at offset {record.offset} a record that no producer sent"
            return
    for damage in log.damage:
        yield f"C5: {log.gateway}: {damage}"


def same(one: Log, other: Log) -> Iterator[str]:
    """C1, C2, C8: every gateway's log is a part of one sequence, the same bytes."""
    for offset in range(max(one.start, other.start), min(one.end, other.end)):
        here, there = one.records[offset - one.start], other.records[offset - other.start]
        if here != there:
            yield f"C1: at offset {offset} {one.gateway} has {here[1:]}, but {other.gateway} has {there[1:]}"
            return
    for block in sorted(one.blocks.keys() & other.blocks.keys()):
        if one.blocks[block] != other.blocks[block]:
            yield f"C8: records {block[0]} to {block[1]} differ between {one.gateway} and {other.gateway}"
            return


def acknowledged(stories: Iterable[Story], log: Log) -> Iterator[str]:
    """C2, C3: what was reported committed is in the log once, at the offset that was reported, or behind the place where it begins.

    Offset -1 is reported of what was committed so long ago that nobody knows its place any more. It is gone only
    where all that its producer sent before it is gone too.
    """
    places: dict[tuple[str, int], int] = {}
    oldest: dict[str, int] = {}  # producer -> its first use that is still there
    for record in log.records:
        oldest.setdefault(record.producer, record.use)
        before = places.setdefault((record.producer, record.use), record.offset)
        if before != record.offset:
            yield f"C2: use {record.use} of {record.producer} is at {before} and at {record.offset}"
    for story in stories:
        for number, use in story.uses.items():
            there = places.get((story.producer, number))
            unknown = use.offset == -1 and number < oldest.get(story.producer, number + 1)
            trimmed = log.start > 0 and (unknown or 0 <= use.offset < log.start)
            if use.outcome == "c" and there is None and not trimmed:
                yield f"C3: use {number} of {story.producer} was committed at {use.offset}, but is lost; the log ends at {log.end}"
            elif use.outcome == "c" and there is not None and use.offset not in (there, -1):
                yield f"C2: use {number} of {story.producer} was committed at {use.offset}, but is at {there}"


def aborted(stories: Iterable[Story], log: Log) -> Iterator[str]:
    """C2: what was reported aborted is in no log."""
    there = {(record.producer, record.use): record.offset for record in log.records}
    for story in stories:
        for number, use in story.uses.items():
            if use.outcome == "a" and (story.producer, number) in there:
                yield f"C2: use {number} of {story.producer} was aborted, but is at {there[story.producer, number]}"


def fifo(stories: Iterable[Story], log: Log) -> Iterator[str]:
    """C4: a producer's records in the order sent, sequences without a gap, nothing left out that had no answer."""
    sequences: dict[str, int] = {}
    uses: dict[str, int] = {}
    committed: dict[str, set[int]] = {}
    for record in log.records:
        name = record.producer
        expected = sequences.get(name, record.sequence - 1 if log.start else 0) + 1
        if record.sequence != expected:
            yield f"C4: offset {record.offset} has sequence {record.sequence} of {name} instead of {expected}"
        if record.use <= uses.get(name, 0):
            yield f"C4: offset {record.offset} has use {record.use} of {name} after use {uses[name]}"
        sequences[name], uses[name] = record.sequence, record.use
        committed.setdefault(name, set()).add(record.use)
    for story in stories:
        there = committed.get(story.producer, set())
        silent: dict[int, int] = {}  # life -> its first use that is not there although nobody said that it failed
        for number, use in sorted(story.uses.items()):
            if number in there:
                if use.life in silent:
                    left = silent[use.life]
                    yield f"C4: use {number} of {story.producer} is in the log, but use {left} before it neither is nor failed"
                    break
            elif not use.outcome and not log.start:
                silent.setdefault(use.life, number)


def copied(stories: Iterable[Story], log: Log) -> Iterator[str]:
    """C2, C4: a source that is copied with progress is there place by place, each once."""
    names = {story.producer for story in stories if story.dense}
    last: dict[str, int] = {}
    for record in log.records:
        if record.producer in names:
            expected = last.get(record.producer, record.place - 1 if log.start else 0) + 1
            if record.place != expected:
                yield f"C4: offset {record.offset} has position {record.place} of {record.producer}'s source instead of {expected}"
            last[record.producer] = record.place


def resumed(stories: Iterable[Story]) -> Iterator[str]:
    """C3: a producer never resumes below a record for which it had a receipt."""
    for story in stories:
        for life in story.lives:
            if life.sequence < life.committed_before:
                known = f"has receipts for {life.committed_before} records"
                yield f"C3: {story.producer} resumes after {life.sequence}, but {known}"
            if story.dense and life.place < life.place_before:
                yield f"C3: {story.producer} resumes at position {life.place}, but {life.place_before} was committed"


def fenced(stories: Iterable[Story]) -> Iterator[str]:
    """C4: nobody is fenced where nobody else took over."""
    for story in stories:
        number = next((number for number, use in story.uses.items() if use.outcome == "f"), None)
        if number is not None:
            yield f"C4: {story.producer} was fenced at use {number}, but no other instance of it ran"


def real_time(stories: Iterable[Story], log: Log) -> Iterator[str]:
    """Design, section 9: what was sent after something was acknowledged has the higher offset."""
    uses = {(story.producer, number): use for story in stories for number, use in story.uses.items()}
    latest_sent, latest = -1, ""
    for record in log.records:
        use = uses.get((record.producer, record.use))
        if use is None:
            yield f"C5: offset {record.offset} has use {record.use} of {record.producer}, which no producer sent"
            return
        if use.outcome == "c" and latest_sent > use.told:
            yield f"order: {latest} was sent after the receipt for use {record.use} of {record.producer} at {record.offset}"
        if use.sent > latest_sent:
            latest_sent, latest = use.sent, f"use {record.use} of {record.producer} at {record.offset}"


def monotone(view: View) -> Iterator[str]:
    """C7: the frontiers that one reader was shown never go back."""
    for shown in view.frontiers:
        for before, after in pairwise(shown):
            if after < before:
                yield f"C7: {view.reader} read the frontier {before} and then {after}"


def replay(view: View, log: Log) -> Iterator[str]:
    """C8: what was read live is what the files hold, on every gateway."""
    for start, end, digest in view.read:
        held = log.blocks.get((start, end))
        if held is not None and held != digest:
            yield f"C8: {view.reader} read records {start} to {end}, which differ from the files of {log.gateway}"
            return
