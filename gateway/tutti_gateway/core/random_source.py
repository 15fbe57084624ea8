"""Random numbers for the core. The only seed of the generator is the run's entropy (`Started.entropy`), so a recorded run can be
replayed.

`random.Random` satisfies the protocol.
"""

from __future__ import annotations

from typing import Protocol


class RandomSource(Protocol):
    """A generator that returns the same numbers in the same order for the same entropy."""

    def random(self) -> float:
        """Return a number in [0, 1)."""

    def randrange(self, stop: int, /) -> int:
        """Return an integer in [0, stop)."""

    def getrandbits(self, count: int, /) -> int:
        """Return an integer of `count` random bits."""
