"""Virtual time: what is to happen, in order of time, and of asking where the time is the same."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

SECOND = 1_000_000
MS = 1_000


class Schedule:
    """The heap of what is to come.

    Attributes:
        now: virtual time, microseconds.
        calls: how many things have happened.
    """

    __slots__ = ("_heap", "_number", "calls", "now")

    def __init__(self) -> None:
        self.now = 0
        self.calls = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, time: int, call: Callable[..., None], *args: Any) -> None:
        """Call at the time, or now if that is over."""
        self._number += 1
        heapq.heappush(self._heap, (time if time > self.now else self.now, self._number, call, args))

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Call so many microseconds from now."""
        self._number += 1
        heapq.heappush(self._heap, (self.now + int(delay), self._number, call, args))

    def run(self, until: int) -> None:
        """Let everything happen that comes before the time; then it is that time."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            self.now, _, call, args = pop(heap)
            self.calls += 1
            call(*args)
        self.now = until
