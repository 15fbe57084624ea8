"""The same trouble is told once, not each time that it is met again."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from tutti_connect.kafka import limits

_VARYING = re.compile(r"\(.*\)|\d+")


def shape(text: str) -> str:
    """A line without what differs from time to time: numbers, and what stands in brackets."""
    return _VARYING.sub("", text)


class Once(logging.Filter):
    """Lets the same line pass once a while: Kafka's client says every second, of each broker, that it is away."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was said yet."""
        super().__init__()
        self._clock = clock
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is new; what differs in numbers alone is not."""
        text, now = shape(record.getMessage()), self._clock()
        if now < self._said.get(text, 0.0):
            return False
        if len(self._said) >= limits.LINES_MAX:
            self._said.clear()
        self._said[text] = now + limits.SAME_LINE_S
        return True
