"""What a query of thousands of micro-batches leaves behind in memory: in the driver's JVM, its planner, the workers of tasks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure, descendants, figure, foreign_load
from benchmarks.fleet import gateway
from benchmarks.ingest import _producer, _send
from benchmarks.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 2000
SAMPLES = 20
RECORDS = 20  # of a micro-batch: more than a range that is not planned
MB = 1e6
#: By default Spark remembers the last thousand of each, for pages that nobody asked for here.
FORGETFUL = {f"spark.{what}": "20" for what in ("ui.retainedJobs", "ui.retainedStages", "sql.ui.retainedExecutions")}
_PAGE = os.sysconf("SC_PAGE_SIZE")


def micro_batches(directory: Path, _: int, quick: bool) -> list[Figure]:
    """MB that each kind of process grew by from the second quarter to the end of `BATCHES` micro-batches with state."""
    batches = BATCHES // 10 if quick else BATCHES
    foreign: list[float] = []
    with gateway(directory) as measured:
        with _producer(measured) as producer:
            _send(producer, bytes(100), batches * RECORDS)
        spark = session("tutti-bench-growth", settings=FORGETFUL)
        try:
            with foreign_load(foreign):
                samples = run(spark, measured.url, directory / "growth", batches)
        finally:
            spark.stop()
    state = f"{batches:,} micro-batches of {RECORDS} records with state, local[2], foreign CPU {foreign[0]:.2f}"
    return [_grown(name, [sample[name] for sample in samples], state) for name in samples[0]]


def run(spark: SparkSession, url: str, directory: Path, batches: int) -> list[dict[str, float]]:
    """The query to its end; samples of memory, MB, taken evenly between its micro-batches."""
    from pyspark.sql import functions as f

    samples: list[dict[str, float]] = []
    every = batches // SAMPLES

    def take(rows: Any, batch: int) -> None:
        rows.write.format("noop").mode("append").save()
        if batch % every == every - 1:
            samples.append(memory(spark))

    stream = spark.readStream.format("tutti").option("gateways", url).option("columns", "offset")
    records = stream.option("startingOffset", "earliest").option("maxRecordsPerTrigger", RECORDS).load()
    timed = records.select(f.timestamp_seconds(f.col("offset") + 1).alias("time")).withWatermark("time", f"{2 * RECORDS} seconds")
    counted = timed.groupBy(f.window("time", "10 seconds")).count()  # as many windows as it begins it ends
    writer = counted.writeStream.outputMode("append").foreachBatch(take).option("checkpointLocation", str(directory))
    writer.trigger(availableNow=True).start().awaitTermination()
    return samples


def memory(spark: SparkSession) -> dict[str, float]:
    """MB: the JVM's heap after a collection, resident memory of the Python driver, the planner and the workers of tasks."""
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()
    heap = jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
    below = descendants(os.getpid())
    return {
        "JVM heap after gc": heap / MB,
        "Python driver": largest([os.getpid()]),
        "planner": largest(_named(below, b"python_streaming_source_runner")),
        "workers, the largest": largest(_named(below, b"pyspark.daemon")),
    }


def _named(pids: Sequence[int], word: bytes) -> list[int]:
    found = []
    for pid in pids:
        try:
            if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue  # it ended since it was listed
    return found


def largest(pids: Sequence[int]) -> float:
    """MB that the largest of these processes holds; 0 for none."""
    sizes = []
    for pid in pids:
        try:
            sizes.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / MB)
        except OSError:
            continue  # it ended since it was listed
    return max(sizes, default=0.0)


def _grown(name: str, sizes: list[float], state: str) -> Figure:
    """From the second quarter of the samples, when everything is loaded, to the last one."""
    quarter = len(sizes) // 4
    before, after = median(sizes[quarter : 2 * quarter]), median(sizes[-quarter:])
    told = f"{before:.0f} MB in the second quarter, {after:.0f} MB in the last; {state}"
    return figure(f"growth: {name}", [after - before], "MB", max(2.0, 0.05 * before), "less", told)
