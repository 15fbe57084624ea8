"""Raises and clears alerts for airports with a series of late departures.

    spark-submit alerts.py live --gateways tutti://127.0.0.1:7400 --out DIR --checkpoint DIR
    spark-submit alerts.py replay --path DIR --out DIR --checkpoint DIR --compare LIVE_DIR

The third consecutive departure (in log order) that is at least half an hour late raises an alert. The alert is cleared by a
punctual departure, or after three hours of event time without a departure. Cancelled departures have no effect.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tutti_spark.jobs import _common
from tutti_spark.jobs.departures import WATERMARK_DELAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IN_A_ROW = 3
LATE_MINUTES, IN_TIME_MINUTES = 30, 15
QUIET_MS = 3 * 3_600_000
#: Schema of the result. `offset` is that of the departure that raised or cleared the alert; null if the timer cleared the alert.
RESULT = "origin STRING, alert STRING, time TIMESTAMP, offset LONG, late_in_a_row INT"


class Watcher(StatefulProcessor):
    """State of one airport: the number of consecutive late departures, the alert, and the time of the last departure."""

    def init(self, handle: Any) -> None:
        """Open the state and the timers."""
        self._handle = handle
        self._state = handle.getValueState("airport", "late_in_a_row INT, is_raised BOOLEAN, last_ms LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 - Spark's
        """Process the departures of one micro-batch in log order. (Spark passes the departures in any order.)"""
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
                yield _alert_row(origin, "raised", row.event_ms, row.offset, late)
            elif is_raised and row.dep_delay < IN_TIME_MINUTES:
                is_raised = False
                yield _alert_row(origin, "cleared", row.event_ms, row.offset, late)
        self._state.update((late, is_raised, last_ms))
        if last_ms != before_ms:
            if before_ms:
                self._handle.deleteTimer(before_ms + QUIET_MS)
            self._handle.registerTimer(last_ms + QUIET_MS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803 - Spark's
        """Clear the alert and the count of late departures after three hours without a departure."""
        (origin,) = key
        late, is_raised, last_ms = self._state.get()
        self._state.clear()
        if is_raised:
            yield _alert_row(origin, "cleared", last_ms + QUIET_MS, None, late)

    def close(self) -> None:
        """Do nothing, because the processor has no resources to release."""


def alerts(departures: DataFrame) -> DataFrame:
    """Return one row each time that an alert is raised or cleared."""
    from pyspark.sql import functions as f

    event_ms = f.unix_millis("event_time").alias("event_ms")
    followed = departures.withWatermark("event_time", WATERMARK_DELAY).select(
        "origin", "offset", "event_time", event_ms, "dep_delay"
    )
    return followed.groupBy("origin").transformWithState(Watcher(), RESULT, "append", "EventTime")


def _alert_row(origin: str, alert: str, time_ms: int, offset: int | None, late: int) -> Row:
    return Row(origin=origin, alert=alert, time=datetime.fromtimestamp(time_ms / 1000, UTC), offset=offset, late_in_a_row=late)


def main(arguments: list[str] | None = None) -> int:
    """Run the job with command-line arguments."""
    options = _common.parser("alerts.py", __doc__).parse_args(arguments)
    return _common.main(options, alerts, _common.to_parquet, _common.parquet_lines)


if __name__ == "__main__":
    sys.exit(main())
