"""Exponential backoff between retries."""

from __future__ import annotations


class Backoff:
    """Waits between retries, in seconds. Each wait is twice as long as the previous one, from `least_s` up to `most_s`."""

    __slots__ = ("_least_s", "_most_s", "_next_s")

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = self._next_s = min(least_s, most_s)
        self._most_s = most_s

    def next_s(self) -> float:
        """Return the wait after another failure."""
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, self._most_s)
        return wait_s

    def reset(self) -> None:
        """Begin again with the shortest wait, because an attempt succeeded."""
        self._next_s = self._least_s
