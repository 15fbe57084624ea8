"""Proves where batches end that end at ticks: at the last within the limit, else at the next, and that a long log costs no more.
And where they end that have a limit of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.log.format.index import ROW, Rows
from tutti.log.read import micro_batch_ends
from tutti.log.read.micro_batch_ends import bytes_end, tick_end

TICKS = [(1, 10), (2, 20), (3, 20), (4, 45)]


class Log:
    """Ticks (number, offset); `looked` are the ranges that were asked for."""

    def __init__(self, ticks: list[tuple[int, int]]) -> None:
        self._ticks = ticks
        self.looked: list[tuple[int, int]] = []

    def ticks(self, start: int, end: int) -> list[tuple[int, int, int]]:
        assert start <= end
        self.looked.append((start, end))
        return [(number, 0, offset) for number, offset in self._ticks if start <= offset <= end]


@pytest.mark.parametrize(
    ("start", "available", "records_max", "every", "end"),
    [
        (0, 50, 50, 1, 45),
        (0, 44, 44, 1, 20),
        (0, 50, 25, 1, 20),
        (0, 50, 5, 1, 10),  # one alone exceeds the limit
        (0, 50, 5, 2, 20),
        (0, 50, 50, 3, 20),
        (0, 50, 50, 5, 0),
        (20, 50, 50, 1, 45),
        (20, 44, 44, 1, 20),
        (45, 50, 50, 1, 45),
        (45, 45, 50, 1, 45),
    ],
)
def test_ends_at_ticks(start: int, available: int, records_max: int, every: int, end: int) -> None:
    assert tick_end(Log(TICKS).ticks, start, min(available, start + records_max), available, every) == end


@given(
    gaps=st.lists(st.integers(0, 30), min_size=1),
    available=st.integers(0, 400),
    records_max=st.integers(1, 60),
    every=st.integers(1, 3),
    window=st.integers(1, 50),
)
def test_batches_reach_the_last_tick_and_are_as_large_as_they_may_be(
    gaps: list[int], available: int, records_max: int, every: int, window: int
) -> None:
    offsets = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    ticks = list(enumerate(offsets, start=1))
    ends = [offset for number, offset in ticks if number % every == 0 and offset <= available]
    start = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(micro_batch_ends, "_WINDOW", window)
        while True:
            limit = min(available, start + records_max)
            ahead = [offset for offset in ends if offset > start]
            expected = max((offset for offset in ahead if offset <= limit), default=min(ahead, default=start))
            assert tick_end(Log(ticks).ticks, start, limit, available, every) == expected
            if expected == start:
                break
            start = expected
    assert start == max(ends, default=0)


def test_what_is_looked_through_is_near_the_end_of_the_batch() -> None:
    second, year = 1000, 30_000_000
    log = Log([(number, number * second) for number in range(1, year, 100_000)])
    assert tick_end(log.ticks, 0, 500_000 * second, year * second, 1) == 400_001 * second
    assert min(low for low, _ in log.looked) > 200_000 * second
    log.looked.clear()
    assert tick_end(log.ticks, 0, 10, year * second, 1) == second
    assert max(high for _, high in log.looked) < 1_000_000


def rows_of(batches: list[tuple[int, int, int]]) -> Rows:
    """Index rows of batches (offset, count, size)."""
    rows = np.zeros(len(batches), dtype=ROW)
    for row, (offset, count, size) in zip(rows, batches, strict=True):
        row["offset"], row["count"], row["size"] = offset, count, size
    return rows


@given(
    batches=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 100)), max_size=20),
    into=st.integers(0, 8),
    cuts_at=st.lists(st.integers(0, 20)),
    bytes_max=st.integers(1, 500),
)
def test_a_batch_of_so_many_bytes_ends_where_the_next_one_does_not_fit(
    batches: list[tuple[int, int, int]], into: int, cuts_at: list[int], bytes_max: int
) -> None:
    found, offset = [], 0
    for gap, count, size in batches:  # gaps are what other topics have
        found.append((offset + gap, count, size * count))  # so that a share is a whole number
        offset += gap + count
    start, end = min(into, found[0][1] - 1) + found[0][0] if found else 0, offset
    borders = sorted({0, len(found), *(at for at in cuts_at if at <= len(found))})
    parts = [rows_of(found[low:high]) for low, high in pairwise(borders)] + [rows_of([])]
    held, expected = 0, end
    for number, (first, count, size) in enumerate(found):
        held += size // count * (first + count - max(first, start))
        if number and held > bytes_max:
            expected = first
            break
    assert bytes_end(parts, start, end, bytes_max) == expected


def test_no_more_of_a_long_log_is_looked_at_than_has_so_many_bytes() -> None:
    looked = []

    def parts() -> Iterator[Rows]:
        for number in range(1000):
            looked.append(number)
            yield rows_of([(10 * number, 10, 100)])

    assert bytes_end(parts(), 0, 10_000, 450) == 40
    assert len(looked) == 5
