"""Writes whose tasks have twins: `python -m tests.faults.spark.job_twins TASK`, a `Task` in JSON whose `gates` must be there.

Spark speculates. Of each micro-batch the first attempt at the first partition gives all its rows, and then ends only when its twin
has given all of its own, so that both stage the same records. `in` is written to `stream` by the streaming sink, then numbers to
`batch` by the other one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.faults.spark.job import SETTINGS, Task
from tests.faults.spark.processes import Job
from tutti_spark.launch import LOCAL_SETTINGS

NUMBERS = 200
TASKS = 3  # a task alone has no twin
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.minTaskRuntime": "50ms",
}
_PATIENCE_S = 100.0


class Twins(Job):
    """The processes of the driver."""

    @property
    def command(self) -> list[str]:
        return ["tests.faults.spark.job_twins", self.task.text()]


def slow(directory: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Lets records through. Who is first at the first partition waits for its twin; both leave a file."""

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is None or context.partitionId():
            return
        what = context.getLocalProperty("streaming.sql.batchId") or "batch"
        if context.attemptNumber():
            Path(directory, f"{what}.twin").touch()
            return
        Path(directory, f"{what}.first").touch()
        deadline = time.monotonic() + _PATIENCE_S
        while not Path(directory, f"{what}.twin").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: no other attempt at the first partition was begun")
            time.sleep(0.01)

    return through


def main() -> None:
    """Run to the end of what is there."""
    task = Task.parse(sys.argv[1])
    builder = SparkSession.builder.master(task.master)
    for name, value in (LOCAL_SETTINGS | SETTINGS | SPECULATION | {"spark.local.dir": task.directory} | task.settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    sink = {"gateways": task.source["gateways"], "checkpointLocation": str(Path(task.directory, "checkpoint"))}
    stream = spark.readStream.format("tutti").options(**(task.source | {"columns": "value"})).load()
    slowed = stream.repartition(TASKS).mapInArrow(slow(task.gates), stream.schema)
    slowed.writeStream.format("tutti").options(**sink, topic="stream").trigger(availableNow=True).start().awaitTermination()
    numbers = spark.range(0, NUMBERS, 1, TASKS).selectExpr("cast(id as string) as value")
    numbers.mapInArrow(slow(task.gates), numbers.schema).write.format("tutti").options(
        gateways=sink["gateways"], topic="batch"
    ).mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main()
