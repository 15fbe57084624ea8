"""Writes a change log of several topics into a Delta table, and the newest state of each key into another.

    spark-submit changes.py --gateways tutti://127.0.0.1:7400 --topics orders,items --changes DIR --state DIR --checkpoint DIR

Each record is a change: its topic is the name of a table, its key identifies a row, and its value is the row's new content (null:
the row is deleted). Each micro-batch is one commit, so each version of a Delta table shows all topics at one offset of the log. For
example, no item appears without its order. The offset identifies a change: the job never adds a change twice, and never replaces a
newer change by an older one. Therefore, a repeated micro-batch or a new checkpoint does not modify the tables.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tutti_spark.jobs import _common

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = ("offset", "topic", "key", "value", "timestamp")
_SCHEMA = "offset BIGINT, topic STRING, key BINARY, value BINARY, timestamp TIMESTAMP"


def main(arguments: list[str] | None = None) -> int:
    """Run the job until SIGTERM, or with --available-now until the end of the available records."""
    from pyspark.sql import SparkSession

    options = parser().parse_args(arguments)
    spark = SparkSession.builder.appName("tutti changes").getOrCreate()
    try:
        _common.wait(start(spark, options), until_stopped=True)
    finally:
        spark.stop()
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="changes.py", description=(__doc__ or "").partition("\n")[0])
    found.add_argument("--gateways", required=True, metavar="URL")
    found.add_argument("--topics", metavar="NAME[,NAME]", help="default: all")
    found.add_argument("--start", default="earliest", metavar="OFFSET", help="of a new checkpoint; default earliest")
    found.add_argument("--max-records", type=int, metavar="N", help="most records in a micro-batch")
    found.add_argument("--changes", required=True, metavar="DIR", help="Delta table of all changes")
    found.add_argument("--state", metavar="DIR", help="Delta table with the newest change of each key")
    found.add_argument("--checkpoint", required=True, metavar="DIR")
    found.add_argument("--available-now", action="store_true", help="read the available records, then end")
    return found


def start(spark: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    """Create missing tables, and start the query."""
    tables = [options.changes, *([options.state] if options.state else [])]
    for table in tables:
        spark.createDataFrame([], _SCHEMA).write.format("delta").mode("ignore").save(table)
    records = spark.readStream.format("tutti").option("gateways", options.gateways).option("startingOffset", options.start)
    records = records.option("columns", ",".join(COLUMNS))
    if options.topics:
        records = records.option("topics", options.topics)
    if options.max_records:
        records = records.option("maxRecordsPerTrigger", options.max_records)

    def add(batch: DataFrame, _: int) -> None:
        batch.persist()
        try:
            first: int | None = batch.agg({"offset": "min"}).collect()[0][0]
            if first is None:
                return
            insert_changes(batch, first, options.changes)
            if options.state:
                update_state(batch, options.state)
        finally:
            batch.unpersist()

    writer = records.load().writeStream.foreachBatch(add).option("checkpointLocation", options.checkpoint)
    return (writer.trigger(availableNow=True) if options.available_now else writer).start()


def insert_changes(batch: DataFrame, first: int, table: str) -> None:
    """Add the changes that the table lacks. `first` is the first offset of the batch; the merge scans the table only from there."""
    _merge(batch, table, f"t.offset = s.offset AND t.offset >= {first}", "WHEN NOT MATCHED THEN INSERT *")


def update_state(batch: DataFrame, table: str) -> None:
    """Merge the newest change of each key into the table.

    A deletion stays in the table as a row with a null value, so that its offset still protects against older changes.
    """
    from pyspark.sql import functions as f

    newest = batch.groupBy("topic", "key").agg(f.max_by(f.struct(*COLUMNS), "offset").alias("row")).select("row.*")
    newer = "WHEN MATCHED AND s.offset > t.offset THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    _merge(newest, table, "t.topic = s.topic AND t.key <=> s.key", newer)


def _merge(rows: DataFrame, table: str, same: str, then: str) -> None:
    rows.createOrReplaceTempView("tutti_changes")
    rows.sparkSession.sql(f"MERGE INTO delta.`{table}` t USING tutti_changes s ON {same} {then}")


if __name__ == "__main__":
    sys.exit(main())
