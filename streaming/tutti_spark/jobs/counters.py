"""Counts each departure exactly once by airport and carrier, in an SQLite file outside of Spark.

    spark-submit counters.py live --gateways tutti://127.0.0.1:7400 --out counters.sqlite --checkpoint DIR
    spark-submit counters.py replay --path DIR --out other.sqlite --checkpoint DIR --compare counters.sqlite

The log has one order, so one number is enough to store the progress: the first offset that is not counted yet. The transaction that
adds a micro-batch also updates this offset, and the job skips records below the offset. So the job counts each record once, even
with a repeated batch, a second query, a new checkpoint, or a replay into the same file. Any database with transactions can replace
SQLite.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from tutti_spark.jobs import _common

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LATE_MINUTES = 15
_TABLES = """
CREATE TABLE IF NOT EXISTS counted (log TEXT PRIMARY KEY, upto INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS counted_topic (topic TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS counters (origin TEXT, carrier TEXT, departures INTEGER, late INTEGER, cancelled INTEGER,
                                     delay_minutes INTEGER, PRIMARY KEY (origin, carrier));
"""
_ADD = """
INSERT INTO counters VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET departures = departures + excluded.departures,
    late = late + excluded.late, cancelled = cancelled + excluded.cancelled, delay_minutes = delay_minutes + excluded.delay_minutes
"""


def columns(departures: DataFrame) -> DataFrame:
    """Return the columns that the counters need."""
    return departures.select("offset", "origin", "carrier", "dep_delay")


def start(rows: DataFrame, options: argparse.Namespace) -> StreamingQuery:
    """Start a query that adds each micro-batch in one transaction."""
    log = log_of(options)
    check_topic(options.out, options.topic)
    return _common.start_query(rows.writeStream.foreachBatch(lambda batch, _: add(batch, options.out, log)), options)


def add(batch: DataFrame, file: str, log: str) -> None:
    """Add those departures of `batch` that are not counted yet. The batch comes from log `log`."""
    while not _added(batch, file, log):
        pass  # another query committed first, so try again without the records that it has counted


def _added(batch: DataFrame, file: str, log: str) -> bool:
    """Add a batch and return True; return False if another query has moved the position since this function read it."""
    from pyspark.sql import functions as f

    with transaction(file) as database:
        upto = counted(database, log)
    new = batch.where(f.col("offset") >= upto)
    delay = f.col("dep_delay")
    late, cancelled = f.count_if(delay >= LATE_MINUTES), f.count_if(delay.isNull())
    minutes = f.coalesce(f.sum(delay), f.lit(0))
    found = new.groupBy("origin", "carrier").agg(f.count("*"), late, cancelled, minutes, f.max("offset")).collect()
    with transaction(file) as database:
        if counted(database, log) != upto:
            return False
        database.executemany(_ADD, [tuple(row)[:6] for row in found])
        if found:
            database.execute("INSERT OR REPLACE INTO counted VALUES (?, ?)", (log, 1 + max(row[6] for row in found)))
    return True


def counted(database: sqlite3.Connection, log: str) -> int:
    """Return the first offset of log `log` that is not counted yet.

    Raises:
        ValueError: the counters belong to a different log.
    """
    rows: list[tuple[str, int]] = database.execute("SELECT log, upto FROM counted").fetchall()
    if any(other != log for other, _ in rows):
        raise ValueError(f"the counters are of log {rows[0][0]}, and this job reads log {log}: count into another file")
    return rows[0][1] if rows else 0


def check_topic(file: str, topic: str) -> None:
    """Check that the file counts this topic and no other, because the file stores only one offset.

    Raises:
        ValueError: the counters belong to a different topic.
    """
    with transaction(file) as database:
        other = next((name for (name,) in database.execute("SELECT topic FROM counted_topic") if name != topic), None)
        if other is not None:
            raise ValueError(
                f"the counters in {file} are of topic {other!r}, and this job reads {topic!r}: count into another file"
            )
        database.execute("INSERT OR IGNORE INTO counted_topic VALUES (?)", (topic,))


@contextmanager
def transaction(file: str) -> Iterator[sqlite3.Connection]:
    """Open the database in an exclusive write transaction, which commits at the end of the block."""
    with closing(sqlite3.connect(file, timeout=60, isolation_level=None)) as database:
        database.executescript(_TABLES)
        database.execute("BEGIN IMMEDIATE")
        with database:
            yield database


def log_of(options: Any) -> str:
    """Return the UUID of the log that the options name."""
    from tutti.sources.source import wait_for_log
    from tutti_spark.common.options import parse
    from tutti_spark.source.open_log import source_of

    origin = {"gateways": options.gateways} if options.mode == "live" else {"path": options.path}
    return wait_for_log(source_of(parse(origin))).log


def lines(spark: SparkSession | None, file: str) -> list[bytes]:
    """Return the counters as sorted text lines."""
    with transaction(file) as database:
        return [f"{row}\n".encode() for row in database.execute("SELECT * FROM counters ORDER BY origin, carrier")]


def main(arguments: list[str] | None = None) -> int:
    """Run the job with command-line arguments."""
    options = _common.parser("counters.py", __doc__).parse_args(arguments)
    return _common.main(options, columns, start, lines)


if __name__ == "__main__":
    sys.exit(main())
