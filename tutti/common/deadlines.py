"""Deadlines, and validation of the durations that applications pass."""

from __future__ import annotations

import threading
import time
from typing import TypeGuard

from tutti.errors import UsageError

_LONGEST_S = threading.TIMEOUT_MAX


class Deadline:
    """Deadline that a caller can postpone."""

    def __init__(self) -> None:
        self._at = float("inf")

    def within(self, seconds: float) -> None:
        """Set the deadline to `seconds` from now."""
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds until the deadline; 0 if it has passed."""
        return max(0.0, self._at - time.monotonic())


def check_seconds(what: str, value: object) -> None:
    """Check that `value` is a valid duration in seconds.

    Raises:
        UsageError: the value is not a number, is negative, or exceeds `threading.TIMEOUT_MAX`. The message contains `what`.
    """
    if not _is_number(value) or not 0 <= value <= _LONGEST_S:
        raise UsageError(f"{what} must be a number of seconds, not {value!r}: use 0 to {int(_LONGEST_S)}")


def check_wait(value: object) -> None:
    """Check that `value` is a valid timeout in seconds. A negative value is an expired timeout: callers pass `deadline - now`.

    Raises:
        UsageError: the value is not a number, or exceeds `threading.TIMEOUT_MAX`.
    """
    if not _is_number(value) or not value <= _LONGEST_S:
        raise UsageError(f"timeout must be a number of seconds, not {value!r}: use at most {int(_LONGEST_S)}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
