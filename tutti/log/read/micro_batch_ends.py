"""Computes where a micro-batch ends: at a tick, or at a byte limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tutti.log.format.index import Rows

_WINDOW = 65_536  # number of offsets in the first search window; each further window is twice as large as the previous window

Ticks = Callable[[int, int], Sequence[tuple[int, int, int]]]
"""Function that returns the ticks (number, time, offset) at offsets from its first to its second argument, inclusive, in order."""


def tick_end(ticks: Ticks, start: int, limit: int, end: int, every: int) -> int:
    """Return the offset of the last tick in (start, limit], else that of the first tick in (limit, end], else `start`.

    The function ignores ticks whose number is not divisible by `every`. The duration of the search depends only on the distance
    between the tick and `limit`.
    """

    def between(low: int, high: int) -> list[int]:
        """Return the offsets of the ticks in (low, high] whose number is divisible by `every`."""
        return [offset for number, _, offset in ticks(low + 1, high) if not number % every]

    high, window = limit, _WINDOW
    # The search goes backwards from the limit in growing windows, because the last tick is usually near the limit.
    while high > start:
        low = max(start, high - window)
        if found := between(low, high):
            return found[-1]
        high, window = low, 2 * window
    low, window = max(start, limit), _WINDOW
    while low < end:
        high = min(end, low + window)
        if found := between(low, high):
            return found[0]
        low, window = high, 2 * window
    return start


def bytes_end(parts: Iterable[Rows], start: int, end: int, bytes_max: int) -> int:
    """Return the end of the longest prefix of [start, end) with at most `bytes_max` bytes. The prefix has at least one batch.

    Args:
        parts: index rows of batches with records in [start, end), in order; rows of other topics may be left out. The function
            reads only as many rows as it needs.
        start: first offset of the range. If a batch begins before `start`, only the bytes of its records from `start` on count.
        end: offset after the last record of the range.
        bytes_max: maximum number of bytes on disk.
    """
    total = 0
    has_one = False
    for rows in parts:
        if not len(rows):
            continue
        offsets, counts = rows["offset"].astype(np.int64), np.maximum(rows["count"].astype(np.int64), 1)
        inside = np.minimum(offsets + counts, end) - np.maximum(offsets, start)
        upto = total + np.cumsum(rows["size"].astype(np.int64) * inside // counts)
        too_large = upto > bytes_max
        # The first batch is always included, because otherwise a batch above the limit would block the reader permanently.
        too_large[0] &= has_one
        if too_large.any():
            return int(offsets[int(np.argmax(too_large))])
        total, has_one = int(upto[-1]), True
    return end
