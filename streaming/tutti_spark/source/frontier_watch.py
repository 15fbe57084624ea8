"""Follows the frontier in a background thread, so that a stream reader always has a recent value.

Spark requests the latest offset every 10 ms, even when the query is idle. This module answers these requests from one
long poll at a time. The poll returns when the frontier moves, so a query sees new records within one round trip and sends no
useless requests.
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

_RETRY_SECONDS = limits.READ_RETRY_US / 1e6


class Lag:
    """Lag of a query, computed from the times at which the frontier moved and the offsets to which it moved."""

    def __init__(self) -> None:
        self._moves: deque[tuple[float, int]] = deque()
        self._offset = 0

    def record_move(self, offset: int, now: float) -> None:
        """Record that the frontier moved to `offset` at `now` (monotonic seconds)."""
        if offset <= self._offset:
            return
        self._offset = offset
        if len(self._moves) == limits.SPARK_FRONTIER_SAMPLES_MAX:
            # If the list is full, replace the previous move but keep its time, so that the reported lag is never too short.
            now = self._moves.pop()[0]
        self._moves.append((now, offset))

    def at(self, processed: int, now: float) -> tuple[int, int]:
        """Return the lag of a query that has processed all records below `processed`, as (records, milliseconds).

        The milliseconds count from the time at which the oldest unprocessed record became known. `processed` must not decrease
        between calls.
        """
        while self._moves and self._moves[0][1] <= processed:
            self._moves.popleft()
        if not self._moves:
            return 0, 0
        return self._offset - processed, max(0, round((now - self._moves[0][0]) * 1000))


class FrontierWatch:
    """Follows the frontier of a log until `stop`, or until no gateway answers within `READ_RETRY_US`."""

    def __init__(self, source: Source, name: str, poll_seconds: float = limits.SPARK_POLL_US / 1e6) -> None:
        """Start the thread.

        Args:
            source: source of the log, for the polls.
            name: name of the log's origin, for error messages.
            poll_seconds: longest duration of a long poll without new records.
        """
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
        """Return the newest known frontier. Wait until the log exists and its frontier is at least `at_least`.

        Raises:
            Unavailable: no gateway answered in time, or the frontier stayed below `at_least`.
            TuttiError: a poll failed; every later call raises the same error.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._reaches(at_least), _RETRY_SECONDS)
            if self._failure is not None:
                raise self._failure
            if self._frontier is None or not self._frontier.log:
                raise Unavailable(f"the log of {self._name} has not begun within {_RETRY_SECONDS:.0f} s: is the group complete?")
            if self._frontier.offset < at_least:
                raise Unavailable(
                    f"the query has read up to offset {at_least}, but {self._name} has committed only {self._frontier.offset} "
                    f"for {_RETRY_SECONDS:.0f} s: check whether its data directory is an older copy"
                )
            return self._frontier

    def _reaches(self, offset: int) -> bool:
        return self._frontier is not None and bool(self._frontier.log) and self._frontier.offset >= offset

    def lag_at(self, processed: int) -> tuple[int, int]:
        """Return the lag of a query that has processed all records below `processed`, as (records, milliseconds)."""
        with self._changed:
            return self._lag.at(processed, time.monotonic())

    def stop(self) -> None:
        """Stop following the frontier. The thread ends after its present poll."""
        self._stopped = True

    def _follow(self) -> None:
        known: int | None = None
        timeout: float | None = None  # None (the default) for the first poll; later polls have time for a restart of a gateway
        while not self._stopped:
            try:
                frontier = self._source.frontier(known, self._poll_seconds, timeout)
            except Exception as error:  # noqa: BLE001 - stored, so that `frontier` raises the error in the caller's thread
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return
            known, timeout = frontier.offset, _RETRY_SECONDS
            with self._changed:
                self._frontier = frontier
                self._lag.record_move(frontier.offset, time.monotonic())
                self._changed.notify_all()
