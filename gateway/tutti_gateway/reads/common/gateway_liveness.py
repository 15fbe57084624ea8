"""Whether the gateway beside this process is at work: its socket thread says so in the live page, about once a second."""

from __future__ import annotations

from collections.abc import Callable

from tutti import limits

_LOOKS = limits.FLIGHT_SILENT_MS_MAX // 1000


class Pulse:
    """Looks at the page, once a second, and counts looks, not time: the clock may be set, and what passes while this process does
    not run is no silence.
    """

    def __init__(self, beat_us: Callable[[], int]) -> None:
        """`beat_us` reads when the gateway said last that it is at work; 0 when it never did."""
        self._beat_us = beat_us
        self._last = self._looks = 0  # what was found last, and how often

    def silent(self) -> bool:
        """Look; whether the last word is four looks old and more. A gateway that said nothing yet is not silent: it begins."""
        beat = self._beat_us()
        self._looks = self._looks + 1 if beat and beat == self._last else 1
        self._last = beat
        return self._looks >= _LOOKS
