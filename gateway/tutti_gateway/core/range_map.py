"""A map from ranges of positions to values.

Each change applies to a whole range, so the map stays small and fast even if it contains a million positions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")

Range = tuple[int, int]  # first and last position, both included


class RangeMap(Generic[Value]):
    """Maps disjoint ranges of positions to values. Adjacent ranges with equal values form one range."""

    __slots__ = ("_lasts", "_ranges")

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, Value]] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._ranges)

    def __iter__(self) -> Iterator[tuple[int, int, Value]]:
        """Iterate over (first, last, value) of each range, in order.

        The iteration uses a copy of the map, so the map may change meanwhile.
        """
        return iter(self._ranges[:])

    def clear(self) -> None:
        """Delete all ranges."""
        self._ranges, self._lasts = [], []

    def lowest(self, most: int) -> list[tuple[int, int, Value]]:
        """Return the ranges with the lowest positions, at most `most` of them."""
        return self._ranges[:most]

    def slices(self, first: int, last: int) -> list[tuple[int, int, Value | None]]:
        """Split the positions `first` to `last` into slices with one value each; None is the value of positions in no range."""
        slices: list[tuple[int, int, Value | None]] = []
        at = bisect_left(self._lasts, first)
        while first <= last:
            if at == len(self._ranges) or self._ranges[at][0] > last:
                slices.append((first, last, None))
                break
            start, end, value = self._ranges[at]
            if start > first:
                slices.append((first, start - 1, None))
            slices.append((max(first, start), min(last, end), value))
            first, at = end + 1, at + 1
        return slices

    def put(self, first: int, last: int, value: Value) -> None:
        """Set the value of all positions from `first` to `last`."""
        self._replace(first, last, [(first, last, value)])

    def remove(self, first: int, last: int) -> None:
        """Delete the values of all positions from `first` to `last`."""
        self._replace(first, last, [])

    def _replace(self, first: int, last: int, middle: list[tuple[int, int, Value]]) -> None:
        if last < first:
            return
        ranges = self._ranges
        # The ranges next to the changed one are replaced too, because adjacent ranges with equal values must merge.
        start = stop = bisect_left(self._lasts, first - 1)
        before: list[tuple[int, int, Value]] = []
        after: list[tuple[int, int, Value]] = []
        while stop < len(ranges) and ranges[stop][0] <= last + 1:
            low, high, value = ranges[stop]
            if low < first:
                before.append((low, min(high, first - 1), value))
            if high > last:
                after.append((max(low, last + 1), high, value))
            stop += 1
        joined: list[tuple[int, int, Value]] = []
        for low, high, value in (*before, *middle, *after):
            if joined and joined[-1][1] + 1 == low and joined[-1][2] == value:
                joined[-1] = (joined[-1][0], high, value)
            else:
                joined.append((low, high, value))
        ranges[start:stop] = joined
        self._lasts[start:stop] = [high for _, high, _ in joined]
