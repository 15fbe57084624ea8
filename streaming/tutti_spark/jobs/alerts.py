"""Alerts: an airport where departure after departure is late, and when that is over.

    spark-submit alerts.py live --gateways tutti://127.0.0.1:7400 --out DIR --checkpoint DIR
    spark-submit alerts.py replay --path DIR --out DIR --checkpoint DIR --compare LIVE_DIR

An alert is raised with the third departure in a row, in the order of the log, that is half an hour late or more. It is cleared by
a departure that is in time, or when no departure has come for three hours of event time. Cancelled ones count as neither.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tutti_spark.jobs import _running
from tutti_spark.jobs.departures import WATERMARK_DELAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IN_A_ROW = 3
LATE_MINUTES, IN_TIME_MINUTES = 30, 15
QUIET_MS = 3 * 3_600_000
#: `offset` is that of the departure that raised or cleared it; null where silence did.
RESULT = "origin STRING, alert STRING, time TIMESTAMP, offset LONG, late_in_a_row INT"


class Watcher(StatefulProcessor):
    """What is known of one airport: how many in a row were late, whether there is an alert, when the last departure was."""

    def init(self, handle: Any) -> None:
        """State and timers of the airport that is looked at."""
        self._handle = handle
        self._state = handle.getValueState("airport", "late_in_a_row INT, is_raised BOOLEAN, last_ms LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 - Spark's
        """The departures of one micro-batch: they come in any order, and are looked at in that of the log."""
        (origin,) = key
        late, is_raised, last_ms = self._state.get() if self._state.exists() else (0, False, 0)
        before_ms = last_ms
        for row in sorted(rows, key=lambda row: row.offset):
            last_ms = max(last_ms, row.event_ms)
            if row.dep_delay is None:
                continue
            late = late + 1 if row.dep_delay >= LATE_MINUTES else 0
            if late == IN_A_ROW and not is_raised:
                is_raised = True
                yield _told(origin, "raised", row.event_ms, row.offset, late)
            elif is_raised and row.dep_delay < IN_TIME_MINUTES:
                is_raised = False
                yield _told(origin, "cleared", row.event_ms, row.offset, late)
        self._state.update((late, is_raised, last_ms))
        if last_ms != before_ms:
            if before_ms:
                self._handle.deleteTimer(before_ms + QUIET_MS)
            self._handle.registerTimer(last_ms + QUIET_MS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803 - Spark's
        """Nothing for three hours: what is in a row begins anew."""
        (origin,) = key
        late, is_raised, last_ms = self._state.get()
        self._state.clear()
        if is_raised:
            yield _told(origin, "cleared", last_ms + QUIET_MS, None, late)

    def close(self) -> None:
        """Nothing is held."""


def alerts(departures: DataFrame) -> DataFrame:
    """When alerts were raised and cleared, by airport."""
    from pyspark.sql import functions as f

    event_ms = f.unix_millis("event_time").alias("event_ms")
    followed = departures.withWatermark("event_time", WATERMARK_DELAY).select(
        "origin", "offset", "event_time", event_ms, "dep_delay"
    )
    return followed.groupBy("origin").transformWithState(Watcher(), RESULT, "append", "EventTime")


def _told(origin: str, alert: str, time_ms: int, offset: int | None, late: int) -> Row:
    return Row(origin=origin, alert=alert, time=datetime.fromtimestamp(time_ms / 1000, UTC), offset=offset, late_in_a_row=late)


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = _running.parser("alerts.py", __doc__).parse_args(arguments)
    return _running.main(options, alerts, _running.to_parquet, _running.parquet_lines)


if __name__ == "__main__":
    sys.exit(main())
