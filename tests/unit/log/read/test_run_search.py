"""Proves that a crowd of runs is found in one pass as each is alone: the newest row that fits, and nothing that is not whole."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tutti.data.frames.frame import Kind
from tutti.log.format.index import ROW, STAGED, Rows
from tutti.log.read.sequence_lookup import SequenceRun, offsets_of


def rows(*lines: tuple[Kind, int, int, int, int]) -> Rows:
    """Rows of (kind, producer, first sequence, count, offset)."""
    made = np.zeros(len(lines), ROW)
    for at, (kind, producer, first, count, offset) in enumerate(lines):
        made[at]["kind"], made[at]["producer"], made[at]["first_sequence"] = kind, producer, first
        made[at]["count"], made[at]["offset"] = count, offset
    return made


OLD = rows((Kind.BATCH, 1, 1, 3, 0), (Kind.BATCH, 2, 1, 2, 3), (Kind.TICK, 0, 0, 0, 5), (Kind.BATCH, 1, 4, 0, 5))
NEW = rows((Kind.BATCH, 2, 3, 1, 5), (Kind.BATCH, 1, 4, 2, 6), (Kind.BATCH, 1, 6, 1, 8), (Kind.BATCH, 2**60 + 1, 1, 1, 9))
ASKED = {
    SequenceRun(1, 1, 3): 0,
    SequenceRun(1, 2, 2): 1,
    SequenceRun(1, 4, 3): 6,
    SequenceRun(1, 3, 2): None,  # another producer's records stand between
    SequenceRun(1, 7, 1): None,
    SequenceRun(2, 2, 1): 4,
    SequenceRun(2, 2, 2): 4,
    SequenceRun(2, 3, 2): None,
    SequenceRun(3, 1, 1): None,
    SequenceRun(2**60 + 1, 1, 1): 9,
    SequenceRun(2**60, 1, 1): None,
}


def test_an_epoch_has_sequences_of_its_own_where_one_is_named() -> None:
    old, new = rows((Kind.BATCH, 1, 1, 3, 0)), rows((Kind.BATCH, 1, 1, 2, 3))
    old["epoch"], new["epoch"] = 1, 2
    runs = [
        SequenceRun(1, 1, 2, 1),
        SequenceRun(1, 3, 1, 1),
        SequenceRun(1, 1, 2, 2),
        SequenceRun(1, 3, 1, 2),
        SequenceRun(1, 1, 1, 3),
        SequenceRun(1, 1, 2),
    ]
    assert offsets_of(runs, [new, old]) == [0, 2, 3, None, None, 3]


def test_a_crowd_is_found_as_each_is_alone() -> None:
    assert offsets_of(list(ASKED), [NEW, OLD]) == list(ASKED.values())
    assert [offsets_of([run], [NEW, OLD])[0] for run in ASKED] == list(ASKED.values())


def test_offsets_before_the_begin_are_not_told_and_places_of_staged_batches_are() -> None:
    staged = rows((Kind.BATCH, 4, 1, 0, 3))
    staged["flags"], staged["position"] = STAGED, 2
    asked = {
        SequenceRun(1, 1, 3): None,
        SequenceRun(2, 1, 1): None,
        SequenceRun(2, 2, 1): 4,
        SequenceRun(1, 4, 3): 6,
        SequenceRun(4, 1, 5): 2,
    }
    assert offsets_of(list(asked), [NEW, OLD, staged], begin=4) == list(asked.values())


def test_older_rows_are_looked_at_only_for_what_the_newer_ones_do_not_tell() -> None:
    def parts() -> Iterator[Rows]:
        yield NEW
        raise AssertionError("there was no need to look further")

    assert offsets_of([SequenceRun(1, 4, 2), SequenceRun(2, 3, 1)], parts()) == [6, 5]
