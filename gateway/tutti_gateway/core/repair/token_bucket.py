"""Token bucket: limits how many units (such as requests or bytes) an activity uses a second, but allows bursts."""

from __future__ import annotations

SECOND_US = 1_000_000


class Bucket:
    """A bucket that is full with `burst` units at the start, and gains `a_second` units a second until it is full again.

    Attributes:
        refused: number of calls of `consume` that failed because the bucket held too few units.
    """

    __slots__ = ("_a_second", "_filled_us", "_level", "_most", "refused")

    def __init__(self, a_second: int, burst: int) -> None:
        self._a_second = a_second
        self._most = self._level = burst * SECOND_US  # levels in millionths of a unit, so that no fraction is rounded
        self._filled_us = 0
        self.refused = 0

    def has(self, amount: int, now_us: int) -> bool:
        """True if the bucket holds at least `amount` units at the time `now_us`."""
        self._level = min(self._most, self._level + max(0, now_us - self._filled_us) * self._a_second)
        self._filled_us = max(now_us, self._filled_us)
        return amount * SECOND_US <= self._level

    def consume(self, amount: int, now_us: int) -> bool:
        """Remove `amount` units from the bucket. If the bucket holds fewer units, remove none and return False."""
        if not self.has(amount, now_us):
            self.refused += 1
            return False
        self._level -= amount * SECOND_US
        return True
