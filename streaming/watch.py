"""The frontier as a stream reader knows it, kept fresh by a thread of its own.

Spark asks for the latest offset every 10 ms, idle or not. One long poll at a time answers all of that: it comes back when the
frontier moves, so a query hears of new records within a round trip and asks no gateway in vain.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.core import limits
from gateway.errors import TuttiError, Unavailable

if TYPE_CHECKING:
    from streaming.origin import Frontier

_SILENCE_SECONDS = limits.READ_RETRY_US / 1e6


class Lag:
    """How far a query is behind: moments at which the frontier moved, and how far."""

    def __init__(self, offset: int) -> None:
        """`offset` is the frontier now; records below it have been waiting from now on, as far as is known."""
        self._moments: deque[tuple[float, int]] = deque()
        self.offset = 0
        self.moved(offset, time.monotonic())

    def moved(self, offset: int, now: float) -> None:
        """The frontier is at `offset` since `now` (seconds, monotonic)."""
        if offset <= self.offset:
            return
        self.offset = offset
        if len(self._moments) == limits.SPARK_MOMENTS_MAX:
            now = self._moments.pop()[0]  # lags are told too long rather than too short
        self._moments.append((now, offset))

    def behind(self, processed: int, now: float) -> tuple[int, int]:
        """Records from `processed` on, and for how many milliseconds the first of them has been there. `processed` never falls."""
        while self._moments and self._moments[0][1] <= processed:
            self._moments.popleft()
        if not self._moments:
            return 0, 0
        return self.offset - processed, max(0, round((now - self._moments[0][0]) * 1000))


class FrontierWatch:
    """Follows the frontier from the moment it is made until `stop`."""

    def __init__(self, ask: Callable[[int | None, float], Frontier], name: str) -> None:
        """`ask(beyond, seconds)` gives the frontier, at once or when it is above the offset `beyond`; `name` is for messages."""
        self._ask = ask
        self._name = name
        self._changed = threading.Condition()
        self._frontier: Frontier | None = None
        self._lag = Lag(0)
        self._heard = time.monotonic()
        self._failure: TuttiError | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._follow, name="tutti-frontier", daemon=True).start()

    def frontier(self, at_least: int = 0) -> Frontier:
        """The newest frontier heard of; waits for the first one, and for one at `at_least`.

        Raises:
            Unavailable: nothing was heard for the limit, or the frontier stayed below `at_least`.
            TuttiError: the question itself was refused.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._settled(at_least), _SILENCE_SECONDS)
            if self._failure is not None and not isinstance(self._failure, Unavailable):
                raise self._failure
            silent = time.monotonic() - self._heard
            if self._frontier is None or silent > _SILENCE_SECONDS:
                raise Unavailable(f"{self._name} has not answered for {silent:.0f} s: {self._failure}")
            if self._frontier.offset < at_least:
                raise Unavailable(
                    f"the query has seen offset {at_least} and the frontier of {self._name} stayed at {self._frontier.offset} for "
                    f"{_SILENCE_SECONDS:.0f} s: is it a copy of an older state?"
                )
            return self._frontier

    def _settled(self, at_least: int) -> bool:
        if self._failure is not None and not isinstance(self._failure, Unavailable):
            return True
        if time.monotonic() - self._heard > _SILENCE_SECONDS:
            return True
        return self._frontier is not None and self._frontier.offset >= at_least

    def behind(self, processed: int) -> tuple[int, int]:
        """Records from `processed` to the frontier, and the age of the first of them in milliseconds."""
        with self._changed:
            return self._lag.behind(processed, time.monotonic())

    def stop(self) -> None:
        """Follow no longer; the thread ends with its poll."""
        self._stopped.set()

    def _follow(self) -> None:
        beyond: int | None = None
        while not self._stopped.is_set():
            try:
                frontier = self._ask(beyond, limits.SPARK_POLL_US / 1e6)
            except TuttiError as error:
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                if not isinstance(error, Unavailable):
                    return
                self._stopped.wait(limits.SPARK_RETRY_US / 1e6)
                continue
            beyond = frontier.offset
            with self._changed:
                now = time.monotonic()
                self._frontier, self._failure, self._heard = frontier, None, now
                self._lag.moved(frontier.offset, now)
                self._changed.notify_all()
