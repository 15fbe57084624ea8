"""Groups departures into banks: sessions of one carrier at one airport with gaps of at most half an hour.

    spark-submit sessions.py live --gateways tutti://127.0.0.1:7400 --out DIR --checkpoint DIR
    spark-submit sessions.py replay --path DIR --out DIR --checkpoint DIR --compare LIVE_DIR

The job outputs a bank when the watermark passes the end of the bank. The job drops departures that arrive later, also in a replay.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tutti_spark.jobs import _common
from tutti_spark.jobs.departures import WATERMARK_DELAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GAP = "30 minutes"
LATE_MINUTES = 15


def banks(departures: DataFrame) -> DataFrame:
    """Return each bank with its number of departures, late departures and cancelled departures, and its minutes of delay."""
    from pyspark.sql import functions as f

    delay = f.col("dep_delay")
    followed = departures.withWatermark("event_time", WATERMARK_DELAY)
    grouped = followed.groupBy(f.session_window("event_time", GAP).alias("bank"), "origin", "carrier")
    figures = grouped.agg(
        f.count("*").alias("departures"),
        f.count_if(delay >= LATE_MINUTES).alias("late"),
        f.count_if(delay.isNull()).alias("cancelled"),
        f.sum(delay).alias("delay_minutes"),
    )
    begin, last = f.col("bank.start").alias("begin"), (f.col("bank.end") - f.expr(f"INTERVAL {GAP}")).alias("last")
    return figures.select(begin, last, *[name for name in figures.columns if name != "bank"])


def main(arguments: list[str] | None = None) -> int:
    """Run the job with command-line arguments."""
    options = _common.parser("sessions.py", __doc__).parse_args(arguments)
    return _common.main(options, banks, _common.to_parquet, _common.parquet_lines)


if __name__ == "__main__":
    sys.exit(main())
