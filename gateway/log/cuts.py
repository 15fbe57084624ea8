"""Where a batch of records ends that may end at ticks only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
