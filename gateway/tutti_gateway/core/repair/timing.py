"""Random waits before a request or a repair, so that one member acts and the others notice it (protocol/repair, R3)."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, log2

from tutti_gateway.core import limits
from tutti_gateway.core.random_source import RandomSource
from tutti_gateway.core.view.view_state import ViewState


class Timing:
    """Random waits in microseconds.

    All members that may act draw their wait from the same interval. The length of the interval grows with the logarithm of their
    number n. The probability density rises by a factor of e^(log n + 1) from start to end. If all n members may act, the first one
    acts early and the others notice. A single member waits for at most the interval (Nonnenmacher and Biersack 1999).
    """

    def __init__(self, view_state: ViewState, distances: Callable[[int], int], random: RandomSource) -> None:
        self._view_state = view_state
        self._distances = distances
        self._random = random

    def typical_us(self) -> int:
        """Return the one-way distance to the median member of the view, so that single far or near members have no influence."""
        distances = sorted(map(self._distances, self._view_state.others))
        return _within(distances[(len(distances) - 1) // 2]) if distances else limits.DISTANCE_US_MIN

    def source_us(self) -> int:
        """Return the one-way distance to the coordinator, the source of the stream."""
        return _within(self._distances(self._view_state.coordinator))

    def nearest(self) -> int:
        """Return the nearest member of the view; 0 in a view of one."""
        return min(self._view_state.others, key=self._distances, default=0)

    def round_us(self, member: int = 0) -> int:
        """Return the time from a request to the repair by the member (0: the median member), with a reserve. It is also the
        hold-down time.
        """
        return limits.REPAIR_ROUND_DISTANCES * (_within(self._distances(member)) if member else self.typical_us())

    def ask_us(self) -> int:
        """Return the wait before the first request, which is also the unit of later waits."""
        spread = limits.REPAIR_ASK_SPREAD * self._late()
        return round(self.typical_us() * (limits.REPAIR_ASK_AFTER + spread))

    def answer_us(self, requester: int) -> int:
        """Return the wait before a repair for `requester`. The nearest holder acts first, and other holders notice its repair."""
        distance_us = _within(self._distances(requester))
        # The nearest holder has no fixed wait, so it usually acts first.
        spread = limits.REPAIR_ANSWER_SPREAD * self._late()
        return round(distance_us - limits.DISTANCE_US_MIN + distance_us * spread)

    def _late(self) -> float:
        """Return a random part of the interval. Its length is log2 of the number of other members."""
        rivals = len(self._view_state.others)
        if rivals < 2:
            return 0.0
        bend = log(rivals) + 1
        # Inverse of the truncated exponential distribution (Nonnenmacher and Biersack 1999).
        return log2(rivals) * log(1 + self._random.random() * (exp(bend) - 1)) / bend


def _within(distance_us: int) -> int:
    return min(max(distance_us, limits.DISTANCE_US_MIN), limits.REPAIR_DISTANCE_US_MAX)
