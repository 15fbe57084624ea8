"""Suppression of repeated log lines."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from tutti_connect.kafka import limits

_VARYING = re.compile(r"\(.*\)|\d+")


def shape(text: str) -> str:
    """Return a line without its variable parts: numbers, and text in parentheses."""
    return _VARYING.sub("", text)


class RepeatFilter(logging.Filter):
    """Log filter that passes a repeated line only every ten minutes. Kafka's client repeats a warning each second for each
    broker.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with no line seen."""
        super().__init__()
        self._clock = clock
        self._muted_until: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """True if no equal line passed in the last ten minutes; lines are equal if they differ only in numbers or parentheses."""
        text, now = shape(record.getMessage()), self._clock()
        if now < self._muted_until.get(text, 0.0):
            return False
        if len(self._muted_until) >= limits.LINES_MAX:
            self._muted_until.clear()
        self._muted_until[text] = now + limits.REPEATED_LINE_S
        return True
