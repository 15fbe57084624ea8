"""How long a member waits before it asks or answers: so that one does and the others hear it."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, log2

from tutti_gateway.core import limits
from tutti_gateway.core.random_source import Chance
from tutti_gateway.core.view.view_state import Standing


class Timing:
    """Waits in microseconds, drawn anew each time.

    All who may do the same draw from one interval, whose length grows with the logarithm of their number, and most of them late in
    it: density rising by e^(log n + 1) from one end to the other. Where all n want the same, the first of them is early and the
    next ones hear it; where only one does, it waits no longer than the interval (Nonnenmacher and Biersack 1999).
    """

    def __init__(self, standing: Standing, distances: Callable[[int], int], random: Chance) -> None:
        self._standing = standing
        self._distances = distances
        self._random = random

    def typical_us(self) -> int:
        """One way to a typical member of the view: the median, so that neither one that is far off nor one that is near counts."""
        distances = sorted(map(self._distances, self._standing.others))
        return _within(distances[(len(distances) - 1) // 2]) if distances else limits.DISTANCE_US_MIN

    def source_us(self) -> int:
        """One way from the coordinator, whose stream it is."""
        return _within(self._distances(self._standing.coordinator))

    def nearest(self) -> int:
        """The nearest member of the view; 0 in a view of one."""
        return min(self._standing.others, key=self._distances, default=0)

    def round_us(self, member: int = 0) -> int:
        """From a request to the repair by the member (0: by a typical one), and some: how long one is waited for, and held down."""
        return limits.REPAIR_ROUND_DISTANCES * (_within(self._distances(member)) if member else self.typical_us())

    def ask_us(self) -> int:
        """Before the first request, and the unit of what is waited before later ones."""
        spread = limits.REPAIR_ASK_SPREAD * self._late()
        return round(self.typical_us() * (limits.REPAIR_ASK_AFTER + spread))

    def answer_us(self, asker: int) -> int:
        """Before the repair of what `asker` misses: the nearest is first, and they hear it who are further away."""
        distance_us = _within(self._distances(asker))
        spread = limits.REPAIR_ANSWER_SPREAD * self._late()
        return round(distance_us - limits.DISTANCE_US_MIN + distance_us * spread)

    def _late(self) -> float:
        """A place in the interval, whose length is log2 of how many members there are beside the source, or beside the asker."""
        rivals = len(self._standing.others)
        if rivals < 2:
            return 0.0
        bend = log(rivals) + 1
        return log2(rivals) * log(1 + self._random.random() * (exp(bend) - 1)) / bend


def _within(distance_us: int) -> int:
    return min(max(distance_us, limits.DISTANCE_US_MIN), limits.REPAIR_DISTANCE_US_MAX)
