"""Banks: departures of one carrier at one airport that follow each other within half an hour, as sessions.

    spark-submit sessions.py live --gateways tutti://127.0.0.1:7400 --out DIR --checkpoint DIR
    spark-submit sessions.py replay --path DIR --out DIR --checkpoint DIR --compare LIVE_DIR

A bank is given out when the watermark has passed its end; a departure that comes later is left out, in a replay too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tutti_spark.jobs import _running
from tutti_spark.jobs.departures import WATERMARK_DELAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GAP = "30 minutes"
LATE_MINUTES = 15


def banks(departures: DataFrame) -> DataFrame:
    """Each bank with how many departures it has, how many left late or not at all, and minutes of delay."""
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
    """Run what the command line asks for."""
    options = _running.parser("sessions.py", __doc__).parse_args(arguments)
    return _running.main(options, banks, _running.to_parquet, _running.parquet_lines)


if __name__ == "__main__":
    sys.exit(main())
