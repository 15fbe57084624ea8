"""Token bucket: limits the units a second of an activity, such as requests or bytes, and allows bursts."""

from __future__ import annotations

SECOND_US = 1_000_000


class Bucket:
    """A bucket that gains `a_second` units a second, up to `burst`. It is full at the start.

    Attributes:
        refused: number of requests for more units than the bucket held.
    """

    __slots__ = ("_a_second", "_filled_us", "_level", "_most", "refused")

    def __init__(self, a_second: int, burst: int) -> None:
        self._a_second = a_second
        self._most = self._level = burst * SECOND_US  # in millionths of a unit, to avoid rounding errors
        self._filled_us = 0
        self.refused = 0

    def has(self, amount: int, now_us: int) -> bool:
        """True if the bucket holds `amount` at the time."""
        self._level = min(self._most, self._level + max(0, now_us - self._filled_us) * self._a_second)
        self._filled_us = max(now_us, self._filled_us)
        return amount * SECOND_US <= self._level

    def consume(self, amount: int, now_us: int) -> bool:
        """Remove `amount` from the bucket. Return False if it does not hold that much."""
        if not self.has(amount, now_us):
            self.refused += 1
            return False
        self._level -= amount * SECOND_US
        return True
