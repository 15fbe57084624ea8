"""A query over two streams in lockstep: a join by time, duplicates dropped, and state with timers. It also runs as a process to be
killed: paired.py OPTIONS CHECKPOINT OUT, with the options of both streams as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tutti_spark.launch import LOCAL_SETTINGS

#: What the state store has to be for transformWithState, and what a replay needs to be the same.
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
}
QUIET_MS = 20_000


class Quiet(StatefulProcessor):
    """How many orders of a key, and how many of them paid; told and forgotten when the watermark is 20 s past the last."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._state = handle.getValueState("seen", "orders long, paid long, last long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 - Spark
        orders, paid, last = self._state.get() if self._state.exists() else (0, 0, 0)
        before = last
        for row in rows:
            orders, paid = orders + 1, paid + row.paid
            last = max(last, to_ms(row.ordered))
        self._state.update((orders, paid, last))
        if before:
            self._handle.deleteTimer(before + QUIET_MS)
        self._handle.registerTimer(last + QUIET_MS)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803 - Spark
        orders, paid, last = self._state.get()
        self._state.clear()
        yield Row(key=key[0], orders=orders, paid=paid, last=last)

    def close(self) -> None:
        """Nothing is held."""


def to_ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def events(spark: SparkSession, options: dict[str, Any], topic: str, name: str) -> DataFrame:
    """Records `key second` of a topic, each once; the first ten seconds behind the newest are waited for."""
    records = spark.readStream.format("tutti").options(**options).option("topics", topic).load()
    parts = f.split(f.col("value").cast("string"), " ")
    time = f.timestamp_seconds(parts[1].cast("long"))
    named = records.select(parts[0].alias(f"{name}_key"), time.alias(name)).withWatermark(name, "10 seconds")
    return named.dropDuplicates()


def paired(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    """Orders with their payments, which come within 20 seconds of the order or not at all, by key when it has become quiet."""
    orders, payments = events(spark, options, "orders", "ordered"), events(spark, options, "payments", "paid")
    fits = (f.col("ordered_key") == f.col("paid_key")) & f.col("paid").between(
        f.col("ordered"), f.col("ordered") + f.expr("INTERVAL 20 SECONDS")
    )
    both = orders.join(payments, fits, "left_outer").select("ordered_key", "ordered", f.isnotnull("paid").alias("paid"))
    return both.groupBy("ordered_key").transformWithState(
        Quiet(), "key string, orders long, paid long, last long", "append", "EventTime"
    )


def start(df: DataFrame, checkpoint: str, out: str, *, available_now: bool = True) -> StreamingQuery:
    """Each micro-batch into a directory of its own, with an end that says that it is whole."""

    def write(rows: DataFrame, batch: int) -> None:
        lines = sorted(json.dumps(row.asDict()) for row in rows.collect())
        Path(out).mkdir(exist_ok=True)
        Path(out, f"{batch}.json").write_text("\n".join(lines))

    writer = df.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if available_now else writer).start()


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]")
    for setting, value in (LOCAL_SETTINGS | SETTINGS).items():
        builder = builder.config(setting, value)
    start(paired(builder.getOrCreate(), json.loads(sys.argv[1])), *sys.argv[2:]).awaitTermination()
