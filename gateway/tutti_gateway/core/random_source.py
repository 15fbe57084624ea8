"""Random numbers for the core.

The event `Started` contains the only seed of the generator (`entropy`), so that a recorded run can be replayed. The class
`random.Random` of the standard library satisfies the protocol `RandomSource`.
"""

from __future__ import annotations

from typing import Protocol


class RandomSource(Protocol):
    """A generator that returns the same sequence of numbers for the same entropy."""

    def random(self) -> float:
        """Return a number in [0, 1)."""

    def randrange(self, stop: int, /) -> int:
        """Return an integer in [0, stop)."""

    def getrandbits(self, count: int, /) -> int:
        """Return an integer of `count` random bits."""
