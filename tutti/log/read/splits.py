"""Splits a range of offsets into parts of about equal size, at batch boundaries.

A range over many segments is split at segment starts, based on file sizes, because a scan of all index rows would delay the first
reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tutti import limits
from tutti.errors import UsageError
from tutti.log.format.index import Rows


class Range(NamedTuple):
    """A range of offsets [start, end), with the number of its records (`rows`) and of its bytes on disk.

    After a split at batches, `rows` and `bytes` are exact and count only the selected topics. After a split at segment starts, they
    are estimates and count all topics.
    """

    start: int
    end: int
    rows: int
    bytes: int


def split_range(start: int, end: int, parts: Sequence[Rows], split_bytes: int | None, splits: int | None) -> list[Range]:
    """Split [start, end) at starts of batches. `parts` contains the index rows of the selected batches, in order.

    The returned ranges cover all offsets, including offsets without selected records. The result for an empty range is empty.
    """
    if end <= start:
        return []
    offsets = _column(parts, "offset")
    ends = np.minimum(offsets + _column(parts, "count"), end)
    rows = ends - np.maximum(offsets, start)
    # Rows without visible records have count 0, so the divisor is at least 1.
    counts = np.maximum(_column(parts, "count"), 1)
    sizes = _column(parts, "size") * rows // counts  # only the bytes of records inside the range count
    total = int(sizes.sum())
    # The size of a part is rounded up, so that the range gets at most `splits` parts.
    goal = max(-(-total // splits), 1) if splits is not None else split_bytes or max(total, 1)
    before = np.cumsum(sizes) - sizes
    # Each batch belongs to the part that contains the batch's first byte.
    numbers = before // goal
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1)) if len(numbers) else np.zeros(1, np.int64)
    found = []
    for index, first in enumerate(firsts):
        last = int(firsts[index + 1]) if index + 1 < len(firsts) else len(offsets)
        low = start if index == 0 else int(offsets[first])
        high = int(offsets[last]) if last < len(offsets) else end
        found.append(Range(low, high, int(rows[first:last].sum()), int(sizes[first:last].sum())))
    return found


def split_at_segments(
    start: int, end: int, sizes: npt.NDArray[np.int64], base: Callable[[int], int], split_bytes: int | None, splits: int | None
) -> list[Range] | None:
    """Split [start, end) at starts of segments.

    Return None if each part would have too few segments, because the sizes of such parts would differ too much.

    Args:
        sizes: approximate number of bytes of the range in each of its segments.
        base: function that returns the first offset of the segment with a given index in `sizes`.
    """
    cumulative = np.cumsum(sizes)
    total = int(cumulative[-1])
    parts = splits if splits is not None else -(-total // (split_bytes or max(total, 1)))
    if parts * limits.PLAN_SEGMENTS_A_PART_MIN > len(sizes):
        return None
    goals = np.arange(1, parts, dtype=np.int64) * total // max(parts, 1)
    into = np.searchsorted(cumulative, goals)  # index of the segment that contains each boundary
    nearest = into + (2 * goals > 2 * cumulative[into] - sizes[into])
    borders = [0, *(border for border in np.unique(nearest).tolist() if 0 < border < len(sizes)), len(sizes)]
    offsets = [start, *(min(max(base(border), start), end) for border in borders[1:-1]), end]
    before = [0, *(int(cumulative[border - 1]) for border in borders[1:])]
    return [
        Range(low, high, high - low, upto - since)
        for (low, high), (since, upto) in zip(pairwise(offsets), pairwise(before), strict=True)
        if low < high
    ]


def check_parts(split_bytes: int | None, splits: int | None) -> None:
    """Raise UsageError if `split_bytes` or `splits` is given and not above 0."""
    for what, number in (("splits", splits), ("split_bytes", split_bytes)):
        if number is not None and number <= 0:
            raise UsageError(f"{what} is {number}: it must be above 0")


def _column(parts: Sequence[Rows], name: str) -> npt.NDArray[np.int64]:
    return np.concatenate([part[name].astype(np.int64) for part in parts]) if parts else np.empty(0, np.int64)
