"""Liveness of this process's gateway, whose socket thread writes a heartbeat to the live page about once a second."""

from __future__ import annotations

from collections.abc import Callable

from tutti import limits

_CHECKS = limits.FLIGHT_SILENCE_MS_MAX // 1000


class Liveness:
    """Checks the heartbeat once a second, and counts checks instead of time.

    Unlike a time, a count stays correct when the clock is set, and leaves out the time in which this process is suspended.
    """

    def __init__(self, beat_us: Callable[[], int]) -> None:
        """Begin without checks; `beat_us` returns the time of the last heartbeat, 0 before the first."""
        self._beat_us = beat_us
        self._last = self._checks = 0  # the last heartbeat, and the number of successive checks that found it

    def silent(self) -> bool:
        """Check the heartbeat; return True if five checks in a row found the same heartbeat.

        A gateway that has not yet written its first heartbeat does not count as silent.
        """
        beat = self._beat_us()
        self._checks = self._checks + 1 if beat and beat == self._last else 1
        self._last = beat
        return self._checks >= _CHECKS
