"""Durations that applications name."""

from __future__ import annotations

from gateway.errors import UsageError


def check_seconds(what: str, value: object) -> None:
    """Refuse what is no duration.

    Raises:
        UsageError: no number, negative or without end; the message names `what`.
    """
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise UsageError(f"{what} is a number of seconds, not {value!r}")
