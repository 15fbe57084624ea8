"""Histogram with fixed buckets. It is fast enough to count every value on hot paths."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

#: Upper bounds of the buckets for latencies, microseconds.
LATENCY_BOUNDS_US = (
    50,
    100,
    150,
    200,
    300,
    400,
    500,
    700,
    1000,
    1500,
    2000,
    3000,
    5000,
    10_000,
    20_000,
    50_000,
    100_000,
    500_000,
    2_000_000,
)


class Histogram:
    """A histogram with fixed buckets. A bucket counts the values up to its bound; the last bucket counts all values above all
    bounds.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    def add(self, value: int, times: int = 1) -> None:
        """Add `value` to the histogram `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """The number of counted values."""
        return sum(self.counts)

    def to_dict(self) -> dict[str, object]:
        """Return `{"bounds": [...], "counts": [...], "sum": n}`. The last count has no bound in `bounds`."""
        return {"bounds": list(self.bounds), "counts": list(self.counts), "sum": self.sum}
