"""Random waits before a request or a repair, so that one member acts first and the others need not act (protocol/repair, R3)."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, log2

from tutti_gateway.core import limits
from tutti_gateway.core.random_source import RandomSource
from tutti_gateway.core.view.view_state import ViewState


class Timing:
    """Random waits in microseconds (Nonnenmacher and Biersack 1999).

    The n members that may act draw their waits from the same interval, whose length grows with the logarithm of n. The probability
    density of a wait rises by a factor of e^(log n + 1) from the start of the interval to its end. Most members therefore draw late
    times and a few draw early ones, and the first member that acts stops the others. Even if only one member may act, it waits no
    longer than the interval.
    """

    def __init__(self, view_state: ViewState, distances: Callable[[int], int], random: RandomSource) -> None:
        self._view_state = view_state
        self._distances = distances
        self._random = random

    def typical_us(self) -> int:
        """Return the one-way delay to the median member of the view. A single far or near member does not change the median."""
        distances = sorted(map(self._distances, self._view_state.others))
        return _within(distances[(len(distances) - 1) // 2]) if distances else limits.DISTANCE_US_MIN

    def source_us(self) -> int:
        """Return the one-way delay from the coordinator, which is the source of the stream."""
        return _within(self._distances(self._view_state.coordinator))

    def nearest(self) -> int:
        """Return the number of the nearest other member of the view; 0 if there is no other member."""
        return min(self._view_state.others, key=self._distances, default=0)

    def round_us(self, member: int = 0) -> int:
        """Return the time, with a reserve, from a request to its repair by a member; 0 stands for the median member.

        A member that has sent a repair ignores further requests for the same frames during this time (hold-down time).
        """
        return limits.REPAIR_ROUND_DISTANCES * (_within(self._distances(member)) if member else self.typical_us())

    def ask_us(self) -> int:
        """Return a random wait before a request. Each later round of the same request doubles the wait."""
        spread = limits.REPAIR_ASK_SPREAD * self._late()
        return round(self.typical_us() * (limits.REPAIR_ASK_AFTER + spread))

    def answer_us(self, requester: int) -> int:
        """Return how long this member waits before it repairs frames for `requester`. A nearer member usually waits less."""
        distance_us = _within(self._distances(requester))
        # The fixed part of the wait is 0 at the nearest members, so that one of them usually acts first.
        spread = limits.REPAIR_ANSWER_SPREAD * self._late()
        return round(distance_us - limits.DISTANCE_US_MIN + distance_us * spread)

    def _late(self) -> float:
        """Return a random number from 0 to log2 of the number of other members. Small numbers are rare."""
        rivals = len(self._view_state.others)
        if rivals < 2:
            return 0.0
        bend = log(rivals) + 1
        # The formula is the inverse of the truncated exponential distribution (Nonnenmacher and Biersack 1999).
        return log2(rivals) * log(1 + self._random.random() * (exp(bend) - 1)) / bend


def _within(distance_us: int) -> int:
    return min(max(distance_us, limits.DISTANCE_US_MIN), limits.REPAIR_DISTANCE_US_MAX)
