"""Where a batch of records ends that may end at ticks only, or has a limit of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tutti.log.format.index import Rows

_WINDOW = 65_536  # offsets that are looked through first; each next look is wider

Ticks = Callable[[int, int], Sequence[tuple[int, int, int]]]
"""Ticks (number, time, offset) at offsets from the first up to the second, both included, in order."""


def tick_end(ticks: Ticks, start: int, limit: int, end: int, every: int) -> int:
    """Offset of the last tick above `start` up to `limit`, else of the first one up to `end`; `start` when there is none.

    Only ticks whose number `every` divides count. It costs what lies between the tick and `limit`, however long the log is.
    """

    def between(low: int, high: int) -> list[int]:
        """Offsets in (low, high]."""
        return [offset for number, _, offset in ticks(low + 1, high) if not number % every]

    high, window = limit, _WINDOW
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
    """Offset where a range that begins at `start` ends so that its batches have `bytes_max` bytes at most, `end` where all of them
    have; the first one is in it, whatever it weighs.

    Args:
        parts: index rows of the batches that have records in [start, end), or of some of them, in order; no more is taken of them
            than is needed.
        start: offset; of the batch that it cuts, what lies behind it counts.
        end: offset.
        bytes_max: on disk.
    """
    held = 0
    has_one = False
    for rows in parts:
        if not len(rows):
            continue
        offsets, counts = rows["offset"].astype(np.int64), np.maximum(rows["count"].astype(np.int64), 1)
        inside = np.minimum(offsets + counts, end) - np.maximum(offsets, start)
        upto = held + np.cumsum(rows["size"].astype(np.int64) * inside // counts)
        over = upto > bytes_max
        over[0] &= has_one
        if over.any():
            return int(offsets[int(np.argmax(over))])
        held, has_one = int(upto[-1]), True
    return end
