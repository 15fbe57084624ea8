"""The frontier as a stream reader knows it, kept fresh by a thread of its own.

Spark asks for the latest offset every 10 ms, idle or not. One long poll at a time answers all of that: it comes back when the
frontier moves, so a query hears of new records within a round trip and asks no gateway in vain.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from tutti import limits
from tutti.errors import Unavailable

if TYPE_CHECKING:
    from tutti.sources.source import Frontier, Source

_PATIENCE_SECONDS = limits.READ_RETRY_US / 1e6


class Lag:
    """How far a query is behind: the moments at which the frontier moved, and how far."""

    def __init__(self) -> None:
        self._moments: deque[tuple[float, int]] = deque()
        self._offset = 0

    def moved(self, offset: int, now: float) -> None:
        """The frontier is at `offset` since `now` (seconds, monotonic)."""
        if offset <= self._offset:
            return
        self._offset = offset
        if len(self._moments) == limits.SPARK_MOMENTS_MAX:
            now = self._moments.pop()[0]  # lags are told too long rather than too short
        self._moments.append((now, offset))

    def behind(self, processed: int, now: float) -> tuple[int, int]:
        """Records from `processed` on, and for how many milliseconds the first of them has been known. `processed` never falls."""
        while self._moments and self._moments[0][1] <= processed:
            self._moments.popleft()
        if not self._moments:
            return 0, 0
        return self._offset - processed, max(0, round((now - self._moments[0][0]) * 1000))


class FrontierWatch:
    """Follows the frontier of a log from the moment it is made until `stop`, or until no gateway answered for too long."""

    def __init__(self, source: Source, name: str, poll_seconds: float = limits.SPARK_POLL_US / 1e6) -> None:
        """`name` says in errors whose frontier it is; a poll comes back after `poll_seconds` although no record was added."""
        self._source = source
        self._name = name
        self._poll_seconds = poll_seconds
        self._changed = threading.Condition()
        self._frontier: Frontier | None = None
        self._failure: Exception | None = None
        self._lag = Lag()
        self._stopped = False
        threading.Thread(target=self._follow, name="tutti-frontier", daemon=True).start()

    def frontier(self, at_least: int = 0) -> Frontier:
        """The newest frontier heard of; waits for the first one, for the log to begin, and for offset `at_least`.

        Raises:
            Unavailable: no gateway answered for too long, or the frontier stayed below `at_least`.
            TuttiError: the question was refused, or nothing can be asked any more. So does every later call.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._reaches(at_least), _PATIENCE_SECONDS)
            if self._failure is not None:
                raise self._failure
            if self._frontier is None or not self._frontier.log:
                raise Unavailable(f"the log of {self._name} has not begun within {_PATIENCE_SECONDS:.0f} s: is the group complete?")
            if self._frontier.offset < at_least:
                raise Unavailable(
                    f"the query has read up to offset {at_least}, but {self._name} has committed only {self._frontier.offset} "
                    f"for {_PATIENCE_SECONDS:.0f} s: is it a copy of an older state?"
                )
            return self._frontier

    def _reaches(self, offset: int) -> bool:
        return self._frontier is not None and bool(self._frontier.log) and self._frontier.offset >= offset

    def behind(self, processed: int) -> tuple[int, int]:
        """Records from `processed` to the frontier, and for how many milliseconds the first of them has been known."""
        with self._changed:
            return self._lag.behind(processed, time.monotonic())

    def stop(self) -> None:
        """Follow no longer; the thread ends with its poll."""
        self._stopped = True

    def _follow(self) -> None:
        beyond: int | None = None
        patience: float | None = None  # for the first answer as for any question; later a gateway has the time to come back
        while not self._stopped:
            try:
                frontier = self._source.frontier(beyond, self._poll_seconds, patience)
            except Exception as error:  # noqa: BLE001 - told to who asks: a frontier that nobody follows stands still
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return
            beyond, patience = frontier.offset, _PATIENCE_SECONDS
            with self._changed:
                self._frontier = frontier
                self._lag.moved(frontier.offset, time.monotonic())
                self._changed.notify_all()
