"""Keeps the progress that Spark queries report to this gateway.

The reports are in memory only: a live query reports again within a second, to this gateway or another. Only the position of a named
query is durable, in the log.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import msgspec

from tutti import limits as common_limits
from tutti.data.query_info import RUNNING, SILENT, QueryInfo, without_ended
from tutti_gateway.core import limits
from tutti_gateway.reads.protocol.tickets import ReportRequest

_ALIVE_US = 5 * common_limits.SPARK_ALIVE_US


class _Run(msgspec.Struct):
    report: ReportRequest
    since_us: int
    seen_us: int
    trouble: str = ""


class QueryReports:
    """The latest report of each query run. Thread-safe.

    A run is dropped after a day without a report, or if the table is full and the run's report is the oldest.
    """

    def __init__(self) -> None:
        """Start without reports."""
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, _Run] = OrderedDict()  # in order of the last report

    def record(self, report: ReportRequest, now_us: int) -> None:
        """Record a report that arrived at `now_us` (us since 1970)."""
        with self._lock:
            before = self._runs.pop(report.run, None)
            since_us = before.since_us if before is not None else now_us
            self._runs[report.run] = _Run(report, since_us, now_us, before.trouble if before is not None else "")
            self._drop_old(now_us)

    def trouble(self, run: str, why: str) -> None:
        """Record the reason why a run's position could not be committed to the log; `why` is empty after a successful commit."""
        with self._lock:
            # The table may have dropped the run between its report and the end of its commit.
            if run in self._runs:
                self._runs[run].trouble = why

    def lines(self, frontier: int, now_us: int) -> list[QueryInfo]:
        """Return all runs that have not ended.

        Args:
            frontier: end of the committed log, from which the lag is computed.
            now_us: current time, us since 1970.
        """
        with self._lock:
            self._drop_old(now_us)
            known = [_line(one, frontier, now_us) for one in self._runs.values()]
        return sorted(without_ended(known), key=lambda line: (line.name, line.label, line.since_us))

    def _drop_old(self, now_us: int) -> None:
        while self._runs:
            oldest = next(iter(self._runs.values()))
            if len(self._runs) <= limits.QUERIES_MAX and now_us - oldest.seen_us <= limits.QUERY_KEPT_US:
                return
            self._runs.popitem(last=False)


def _line(known: _Run, frontier: int, now_us: int) -> QueryInfo:
    report = known.report
    behind = frontier > report.offset
    silent_us = max(0, now_us - known.seen_us)
    silent = silent_us > _ALIVE_US
    return QueryInfo(
        name=report.name,
        run=report.run,
        label=report.label,
        topics=report.topics,
        offset=report.offset,
        lag_records=max(0, frontier - report.offset),
        # Add the time since the last report of a silent run: the records that it has not processed have aged since then.
        lag_ms=report.lag_ms + (silent_us // 1000 if silent and behind else 0),
        state=SILENT if silent else RUNNING,
        since_us=known.since_us,
        seen_us=known.seen_us,
        trouble=known.trouble,
    )
