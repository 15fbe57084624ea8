"""A query as a process to be killed: killed_query.py URL TOPIC START CHECKPOINT OUT."""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tutti_spark.launch import LOCAL_SETTINGS


def start(
    spark: SparkSession, url: str, topic: str, first: str, checkpoint: str, out: str, *, available_now: bool = False
) -> StreamingQuery:
    """Records into Parquet; what a batch that was cut short left behind is not listed in the sink's own log, so it is not read."""
    records: DataFrame = (
        spark.readStream.format("tutti")
        .option("gateways", url)
        .option("topics", topic)
        .option("startingOffset", first)
        .option("columns", "offset,value")
        .option("maxRecordsPerTrigger", 1000)
        .load()
    )
    writer = records.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if available_now else writer).start()


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]")
    for name, value in LOCAL_SETTINGS.items():
        builder = builder.config(name, value)
    start(builder.getOrCreate(), *sys.argv[1:]).awaitTermination()
