"""Durations that applications name."""

from __future__ import annotations

import threading
import time
from typing import TypeGuard

from tutti.errors import UsageError

_LONGEST_S = threading.TIMEOUT_MAX


class Deadline:
    """When a caller wants to hear, whatever came of its question; it may be put off."""

    def __init__(self) -> None:
        self._at = float("inf")

    def within(self, seconds: float) -> None:
        """It is so many seconds from now."""
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until then, 0 afterwards."""
        return max(0.0, self._at - time.monotonic())


def check_seconds(what: str, value: object) -> None:
    """Refuse what is no duration.

    Raises:
        UsageError: no number, negative, or longer than any wait can be; the message names `what`.
    """
    if not _is_number(value) or not 0 <= value <= _LONGEST_S:
        raise UsageError(f"{what} is a number of seconds, not {value!r}")


def check_wait(value: object) -> None:
    """Refuse what is no time to wait. One that is negative is over already, as `deadline - now` may be.

    Raises:
        UsageError: no number, or longer than any wait can be.
    """
    if not _is_number(value) or not value <= _LONGEST_S:
        raise UsageError(f"timeout is a number of seconds, not {value!r}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
