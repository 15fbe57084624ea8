"""How fast Spark writes: a DataFrame, and a stream in micro-batches, to one gateway and to a group of three on this machine; and
what the sink adds to a micro-batch of a few records.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure, figure, foreign_load, percentile
from benchmarks.fleet import Measured, coordinator_of, gateways
from benchmarks.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 3_000_000
TRIGGER_RECORDS = 500_000
SMALL_RATIO_MAX = 2.0  # of a micro-batch of a few records, to one with Spark's no-op sink
SMALL_BATCHES = 30
VALUE_BYTES = 100


def sink(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Rows a second of batch writes and of streams, and ms of a micro-batch with few records, beside Spark's own no-op sink."""
    count = RECORDS // 5 if quick else RECORDS
    found: list[Figure] = []
    spark = session("tutti-bench-sink")
    try:
        for members in (1, 3):
            with gateways(members, directory, prepared=4) as running:
                for measured in running:
                    measured.wait_prepared(4)
                found += _group(spark, running, directory, rounds, count)
    finally:
        spark.stop()
    return found


def _group(spark: SparkSession, running: list[Measured], directory: Path, rounds: int, count: int) -> list[Figure]:
    url = "tutti://" + ",".join(measured.url.removeprefix("tutti://") for measured in running)
    foreign: list[float] = []
    written: list[float] = []
    streamed: list[float] = []
    for number in range(rounds + 1):
        with foreign_load(foreign):
            some = count if number else count // 10  # the first round loads classes
            begin = time.perf_counter()
            _values(spark, some).write.format("tutti").options(gateways=url, topic=f"b{number}").mode("append").save()
            middle = time.perf_counter()
            trigger = min(TRIGGER_RECORDS, some)
            source = _stream(spark, url, f"b{number}", maxRecordsPerTrigger=trigger).select("value")
            _drain(source, directory / f"sink-{os.getpid()}-{len(running)}-{number}", {"gateways": url, "topic": f"s{number}"})
            if number:
                written.append(some / (middle - begin))
                streamed.append(some / (time.perf_counter() - middle))
    small = {way: _small(spark, url, directory / f"small-{os.getpid()}-{len(running)}-{way}", way) for way in ("noop", "tutti")}
    who = "one gateway" if len(running) == 1 else f"{len(running)} gateways, {coordinator_of(running).name} coordinates"
    state = f"{count:,} records of {VALUE_BYTES} B, {who}, local[2], foreign CPU {max(foreign):.2f}"
    group = f"{len(running)} gateway" + "s" * (len(running) > 1)
    return [
        figure(f"Spark batch write, {group}", written, "rows/s", beside=state),
        figure(f"Spark stream from and to Tutti, {group}", streamed, "rows/s"),
        figure(f"micro-batch of 10 records, {group}", small["tutti"], "ms", None, "less"),
        figure("  with Spark's no-op sink", small["noop"], "ms", None, "less"),
        figure("  times Spark's no-op sink", [median(small["tutti"]) / median(small["noop"])], "x", SMALL_RATIO_MAX, "less"),
    ]


def _values(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, numPartitions=4).selectExpr(f"lpad(cast(id as string), {VALUE_BYTES}, 'x') as value")


def _stream(spark: SparkSession, url: str, topic: str, **options: Any) -> DataFrame:
    stream = spark.readStream.format("tutti").options(gateways=url, topics=topic, startingOffset="earliest", columns="value")
    return stream.options(**{name: str(value) for name, value in options.items()}).load()


def _drain(rows: DataFrame, checkpoint: Path, options: dict[str, str]) -> None:
    write = rows.writeStream.format("tutti").options(**options).option("checkpointLocation", str(checkpoint))
    write.trigger(availableNow=True).start().awaitTermination()


def _small(spark: SparkSession, url: str, checkpoint: Path, way: str) -> list[float]:
    """Medians of three parts of the run, ms: how long Spark says that a micro-batch took."""
    from tutti import Producer

    rows = _stream(spark, url, "small", startingOffset="latest")
    options = {"gateways": url, "topic": "small-out"} if way == "tutti" else {}
    query = rows.writeStream.format(way).options(**options).option("checkpointLocation", str(checkpoint)).start()
    lasted: dict[int, float] = {}
    try:
        with Producer(url) as producer:
            for number in range(SMALL_BATCHES + 5):
                for _ in range(10):
                    producer.send("small", bytes(VALUE_BYTES))
                producer.flush()
                query.processAllAvailable()
                if number >= 5:  # the first load classes
                    told = [progress for progress in query.recentProgress[-3:] if progress.numInputRows]
                    lasted |= {progress.batchId: progress.durationMs["triggerExecution"] for progress in told}
    finally:
        query.stop()
    took = list(lasted.values())
    third = max(1, len(took) // 3)
    return [percentile(sorted(took[at : at + third]), 0.5) for at in range(0, 3 * third, third) if took[at : at + third]]
