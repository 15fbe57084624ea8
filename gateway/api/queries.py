"""The queries that tell this gateway how far they are.

What they say is kept in memory alone: a query that lives tells again within a second, here or at the next gateway. What outlives
all is its position in the log, under the name that it was given.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import msgspec

from gateway.api.requests import ReportAsk
from gateway.core import limits

RUNNING, SILENT = "running", "silent"
_ALIVE_US = 5 * limits.SPARK_ALIVE_US


class QueryLine(msgspec.Struct, frozen=True):
    """A query as it told of itself last: what lies below `offset` is processed, and the first record above it has been known for
    `lag_ms`. `name` is empty for one that has none; `label` says what it is and where it runs. `trouble` is why its position is not
    kept under its name.
    """

    name: str
    run: str
    label: str
    topics: tuple[str, ...] | None
    offset: int
    lag_records: int
    lag_ms: int
    state: str
    since_us: int
    seen_us: int
    trouble: str


class _Known(msgspec.Struct):
    report: ReportAsk
    since_us: int
    seen_us: int
    trouble: str = ""


class Queries:
    """What queries told, by run. Thread-safe; bounded: who has been silent for the longest is forgotten first, or after a day."""

    def __init__(self) -> None:
        """Nobody yet."""
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()  # who told last is the last

    def note(self, report: ReportAsk, now_us: int) -> None:
        """A query tells, at `now_us` (us since 1970)."""
        with self._lock:
            before = self._known.pop(report.run, None)
            since_us = before.since_us if before is not None else now_us
            self._known[report.run] = _Known(report, since_us, now_us, before.trouble if before is not None else "")
            self._forget(now_us)

    def trouble(self, run: str, why: str) -> None:
        """Why the position of this run is not kept under its name; empty when it is."""
        with self._lock:
            if run in self._known:
                self._known[run].trouble = why

    def lines(self, frontier: int, now_us: int) -> list[QueryLine]:
        """All that are known; `frontier` is the log's, as an offset. A silent one whose name runs again is over."""
        with self._lock:
            self._forget(now_us)
            newest = {known.report.name: known.since_us for known in sorted(self._known.values(), key=_since)}
            for run, known in list(self._known.items()):
                if known.report.name and known.since_us < newest[known.report.name] and _state(known, now_us) == SILENT:
                    del self._known[run]
            all_known = list(self._known.values())
        return sorted((_line(one, frontier, now_us) for one in all_known), key=lambda line: (line.name, line.label, line.since_us))

    def _forget(self, now_us: int) -> None:
        while self._known:
            oldest = next(iter(self._known.values()))
            if len(self._known) <= limits.QUERIES_MAX and now_us - oldest.seen_us <= limits.QUERY_KEPT_US:
                return
            self._known.popitem(last=False)


def _since(known: _Known) -> int:
    return known.since_us


def _state(known: _Known, now_us: int) -> str:
    return RUNNING if now_us - known.seen_us <= _ALIVE_US else SILENT


def _line(known: _Known, frontier: int, now_us: int) -> QueryLine:
    report = known.report
    return QueryLine(
        name=report.name,
        run=report.run,
        label=report.label,
        topics=report.topics,
        offset=report.offset,
        lag_records=max(0, frontier - report.offset),
        lag_ms=report.lag_ms,
        state=_state(known, now_us),
        since_us=known.since_us,
        seen_us=known.seen_us,
        trouble=known.trouble,
    )
