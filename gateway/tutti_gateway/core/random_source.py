"""Chance in the core: what it draws, from whoever it is given. It is made of the run's entropy alone (`Started.entropy`), so that a
recorded run replays; `random.Random` is one.
"""

from __future__ import annotations

from typing import Protocol


class Chance(Protocol):
    """Numbers that the same entropy gives again, in the same order."""

    def random(self) -> float:
        """A number of [0, 1)."""

    def randrange(self, stop: int, /) -> int:
        """An integer of [0, stop)."""

    def getrandbits(self, count: int, /) -> int:
        """An integer of so many bits."""
