"""A query with state, which stands still at gates: `python -m tests.faults.spark.job ARGUMENTS`, a `Task` in JSON.

Events that were sent twice count once, and are counted by windows of event time behind a watermark. Each attempt at a micro-batch
leaves its rows in a file of its own, so that it is seen whether a batch that was repeated gave the same.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from tests.faults.spark.gates import pass_through
from tutti_spark.launch import LOCAL_SETTINGS

WATERMARK_S = 30
WINDOW_S = 20
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # a batch without records would move the watermark at a restart
    # A query that is ended while its first offset is written leaves a part of it, which Spark takes for another query's checkpoint.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",  # so that a task that stands still has taken few of its records
    "spark.sql.session.timeZone": "UTC",
    "spark.executor.memory": "512m",
}


@dataclass(frozen=True)
class Task:
    """What a job is to do. `gates` is "" for none; `source` are options of the source tutti."""

    directory: str
    source: dict[str, str]
    gates: str = ""
    master: str = "local[2,4]"
    available_now: bool = True
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        """Where rows are left, a file for each attempt at a micro-batch."""
        return Path(self.directory, "out")

    def text(self) -> str:
        """As a command takes it."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """What `text` made."""
        return cls(**json.loads(text))


def gate_of(directory: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Lets records through; behind the first of a task is the gate `reading`."""

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        for place, batch in enumerate(batches):
            if place == 1 and directory and number is not None:
                pass_through(directory, int(number), "reading")
            yield batch

    return through


def counted(records: DataFrame) -> DataFrame:
    """Windows that the watermark has passed: `begin` (s), events and the sum of their ids. A value is an event: "ID SECOND ..."."""
    parts = f.split(f.col("value").cast("string"), " ")
    events = records.select(parts[0].cast("long").alias("id"), f.timestamp_seconds(parts[1].cast("long")).alias("time"))
    once = events.withWatermark("time", f"{WATERMARK_S} seconds").dropDuplicates(["id", "time"])
    windows = once.groupBy(f.window("time", f"{WINDOW_S} seconds").alias("window"))
    totals = windows.agg(f.count("*").alias("events"), f.sum("id").alias("ids"))
    return totals.select(f.unix_seconds("window.start").alias("begin"), "events", "ids")


def start(spark: SparkSession, task: Task) -> StreamingQuery:
    """The query, from its checkpoint if it has one."""
    task.out.mkdir(parents=True, exist_ok=True)
    records = spark.readStream.format("tutti").options(**(task.source | {"columns": "value"})).load()

    def take(rows: DataFrame, batch: int) -> None:
        pass_through(task.gates, batch, "planned")
        found = sorted(list(row) for row in rows.collect())
        pass_through(task.gates, batch, "read")
        write(task.out, batch, found)
        pass_through(task.gates, batch, "written")

    writer = counted(records.mapInArrow(gate_of(task.gates), records.schema)).writeStream.outputMode("append").foreachBatch(take)
    writer = writer.option("checkpointLocation", str(Path(task.directory, "checkpoint")))
    return (writer.trigger(availableNow=True) if task.available_now else writer).start()


def beside(spark: SparkSession) -> SparkSession:
    """A session with the settings of the job, beside one that is there."""
    own = spark.newSession()
    for name, value in SETTINGS.items():
        if name.startswith("spark.sql."):
            own.conf.set(name, value)
    return own


def write(out: Path, batch: int, rows: list[list[Any]]) -> None:
    """Whole or not at all, as one more attempt."""
    attempt = len(list(out.glob(f"{batch:05d}-*.json")))
    whole = out / f"{batch:05d}-{attempt:03d}.json"
    part = whole.with_suffix(".part")
    part.write_text(json.dumps(rows))
    part.rename(whole)


def results(out: Path) -> dict[int, list[list[list[int]]]]:
    """The rows of each attempt at each micro-batch."""
    found: dict[int, list[list[list[int]]]] = {}
    for file in sorted(out.glob("*.json")):
        found.setdefault(int(file.name[:5]), []).append(json.loads(file.read_text()))
    return found


def main() -> None:
    """Run to the end of what is there, or until killed."""
    task = Task.parse(sys.argv[1])
    builder = SparkSession.builder.master(task.master)
    for name, value in (LOCAL_SETTINGS | SETTINGS | {"spark.local.dir": task.directory} | task.settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    Path(task.directory, f"up-{os.getpid()}").touch()
    start(spark, task).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
