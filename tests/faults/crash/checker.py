"""The outside checker: compares what producers and readers saw with the final log. It knows the contract, not the gateway.

Each function returns what it found wrong, one sentence each; nothing means that the promise held. The numbers are those of the
contract (design, section 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.faults.crash.witness import Witness

FINDINGS_MAX = 20


class Record(NamedTuple):
    """A committed record. Producers in these tests write their name and the record's number into the value."""

    offset: int
    producer: str
    sequence: int
    value: bytes


def value_of(producer: str, number: int) -> bytes:
    """What record `number` of a producer holds; the tail makes sizes differ."""
    return f"{producer} {number} ".encode() + b"x" * (number * 7919 % 2000)


def check(witnesses: Sequence[Witness], log: Sequence[Record]) -> list[str]:
    """Everything that can be checked from receipts and the final log."""
    findings = [
        *dense(log),
        *whole(log),
        *acknowledged(witnesses, log),
        *aborted(witnesses, log),
        *in_order(log),
        *real_time(witnesses),
    ]
    return findings[:FINDINGS_MAX]


def dense(log: Sequence[Record]) -> Iterator[str]:
    """C1: offsets are dense from 0."""
    for expected, record in enumerate(log):
        if record.offset != expected:
            yield f"C1: offset {record.offset} is at the position of offset {expected}"
            return


def whole(log: Iterable[Record]) -> Iterator[str]:
    """C5: what is in the log is what was sent."""
    for record in log:
        if record.value != value_of(record.producer, record.sequence):
            yield f"C5: offset {record.offset} has {record.value[:40]!r}, not record {record.sequence} of {record.producer}"


def acknowledged(witnesses: Iterable[Witness], log: Sequence[Record]) -> Iterator[str]:
    """C2, C3: what was reported committed is in the log, at the offset that was reported."""
    for witness in witnesses:
        for number, (offset, _) in witness.committed.items():
            if not 0 <= offset < len(log):
                yield f"C3: record {number} of {witness.producer} was committed at {offset}, but the log ends at {len(log)}"
            elif (log[offset].producer, log[offset].sequence) != (witness.producer, number):
                found = log[offset]
                there = f"{found.sequence} of {found.producer}"
                yield f"C3: record {number} of {witness.producer} was committed at {offset}, but the log has {there} there"


def aborted(witnesses: Iterable[Witness], log: Iterable[Record]) -> Iterator[str]:
    """C2: what was reported aborted, and not sent again since, is in no log."""
    there = {(record.producer, record.sequence): record.offset for record in log}
    for witness in witnesses:
        for number in witness.aborted:
            offset = there.get((witness.producer, number))
            if offset is not None and number not in witness.committed:
                yield f"C2: record {number} of {witness.producer} was aborted, but is at offset {offset}"


def in_order(log: Iterable[Record]) -> Iterator[str]:
    """C4: each producer's records in the order sent, none missing, none twice."""
    last: dict[str, int] = {}
    for record in log:
        expected = last.get(record.producer, 0) + 1
        if record.sequence != expected:
            yield f"C4: offset {record.offset} has record {record.sequence} of {record.producer} instead of {expected}"
        last[record.producer] = record.sequence


def real_time(witnesses: Iterable[Witness]) -> Iterator[str]:
    """C1 (design, section 9): a record that was sent after another was acknowledged has the higher offset."""
    facts = sorted(
        (offset, acknowledged_at, witness.sent[number], f"{number} of {witness.producer}")
        for witness in witnesses
        for number, (offset, acknowledged_at) in witness.committed.items()
        if number in witness.sent
    )
    latest_sent, latest_name, latest_offset = -1, "", -1
    for offset, acknowledged_at, sent_at, name in facts:
        if latest_sent > acknowledged_at:
            yield f"order: record {latest_name} at {latest_offset} was sent after the receipt for {name} at {offset}"
        if sent_at > latest_sent:
            latest_sent, latest_name, latest_offset = sent_at, name, offset


def monotone(frontiers: Sequence[int]) -> Iterator[str]:
    """C7: the frontiers that one reader was shown never go back."""
    for before, after in pairwise(frontiers):
        if after < before:
            yield f"C7: the frontier went back from {before} to {after}"


def same(live: Sequence[Record], replayed: Sequence[Record], where: str) -> Iterator[str]:
    """C8: what was read once reads the same again."""
    for first, again in zip(live, replayed, strict=False):
        if first != again:
            yield f"C8: offset {first.offset} read {first[1:3]} before and {again[1:3]} {where}"
            return
    if len(live) > len(replayed):
        yield f"C8: {len(live)} records were read live, but {len(replayed)} {where}"
