"""How fast Spark reads: through Flight, from log files, and as the limit a Python source that has its batches in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.figures import Figure, figure, foreign_load, percentile
from benchmarks.fleet import gateway
from benchmarks.ingest import _producer, _send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 10_000_000
COLUMNS = "offset,value"


def session(name: str) -> SparkSession:
    """A local[2] session whose Python workers are this very interpreter."""
    from pyspark.sql import SparkSession

    from pyspark_tutti import register
    from streaming.launch import LOCAL_SETTINGS, spark_environment

    os.environ.update(spark_environment())
    builder = SparkSession.builder.master("local[2]").appName(name).config("spark.driver.memory", "2g")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    for key, value in LOCAL_SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def spark_reads(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Rows a second of a batch read of 100 B records, in one session, the three ways in turn."""
    count = RECORDS // 10 if quick else RECORDS
    with gateway(directory) as measured:
        with _producer(measured) as producer:
            _send(producer, bytes(100), count)
        spark = session("tutti-bench-reads")
        try:
            spark.dataSource.register(_memory_source())

            def flight() -> Any:
                return spark.read.format("tutti").option("gateways", measured.url).option("columns", COLUMNS).load()

            def files() -> Any:
                return spark.read.format("tutti").option("path", str(measured.data)).option("columns", COLUMNS).load()

            def memory() -> Any:
                return spark.read.format("tutti_bench_memory").option("records", count).load()

            ways: dict[str, Callable[[], Any]] = {"memory": memory, "flight": flight, "files": files}
            rates: dict[str, list[float]] = {way: [] for way in ways}
            foreign: list[float] = []
            for number in range(rounds + 1):
                for way, load in ways.items():
                    with foreign_load(foreign):
                        start = time.perf_counter()
                        load().write.format("noop").mode("overwrite").save()
                        if number:  # the first round warms the JVM up
                            rates[way].append(count / (time.perf_counter() - start) / 1e6)
        finally:
            spark.stop()
    state = f"{count:,} records of 100 B, columns {COLUMNS}, local[2], foreign CPU {max(foreign):.2f}"
    share = [100 * ours / limit for ours, limit in zip(rates["files"], rates["memory"], strict=True)]
    return [
        figure("raw: Spark, Python source from memory", rates["memory"], "M rows/s", beside=state),
        figure("Spark batch read through Flight", rates["flight"], "M rows/s", 5.0, beside=state),
        figure("Spark batch read from log files", rates["files"], "M rows/s", 6.5, beside=state),
        figure("Spark batch read from files, share of memory", share, "%", 75),
    ]


def _memory_source() -> type:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class MemoryReader(DataSourceReader):
        def __init__(self, records: int) -> None:
            self.records = records

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(8)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            import numpy
            import pyarrow

            values = pyarrow.array([bytes(100)] * 65_536, pyarrow.binary())
            left = self.records // 8
            while left > 0:
                rows = min(left, 65_536)
                offsets = pyarrow.array(numpy.arange(rows, dtype=numpy.int64))
                yield pyarrow.RecordBatch.from_arrays([offsets, values.slice(0, rows)], names=["offset", "value"])
                left -= rows

    class MemorySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "tutti_bench_memory"

        def schema(self) -> str:
            return "offset bigint, value binary"

        def reader(self, schema: object) -> DataSourceReader:
            return MemoryReader(int(self.options["records"]))

    return MemorySource


def streaming(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """From send() to foreachBatch at 200 records a second, ms."""
    seconds, rate = (10, 200) if quick else (20, 200)
    half, most = [], []
    foreign: list[float] = []
    with gateway(directory) as measured:
        spark = session("tutti-bench-streaming")
        try:
            for number in range(rounds):
                with foreign_load(foreign):
                    times = sorted(
                        _end_to_end(spark, measured.url, directory / f"checkpoint-{os.getpid()}-{number}", rate, seconds)
                    )
                half.append(percentile(times, 0.5))
                most.append(percentile(times, 0.95))
        finally:
            spark.stop()
    state = f"{rate} records/s for {seconds} s, local[2], foreign CPU {max(foreign):.2f}"
    return [
        figure("send() to foreachBatch, p50", half, "ms", 160, "less", state),
        figure("send() to foreachBatch, p95", most, "ms", better="less", beside=state),
    ]


def _end_to_end(spark: SparkSession, url: str, checkpoint: Path, rate: int, seconds: int) -> list[float]:
    times: list[float] = []

    def take(batch: Any, _: int) -> None:
        rows = batch.select("value").collect()
        now = time.time_ns()
        times.extend((now - int(row.value)) / 1e6 for row in rows)

    query = (
        spark.readStream.format("tutti")
        .option("gateways", url)
        .option("columns", "offset,value")
        .option("startingOffset", "latest")
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        with _producer_of(url) as producer:
            _paced_times(producer, rate, 5)  # the first triggers load classes
            limit_s = time.monotonic() + 60
            while not times and time.monotonic() < limit_s:
                time.sleep(0.1)
            times.clear()
            sent = _paced_times(producer, rate, seconds)
            limit_s = time.monotonic() + 60
            while len(times) < sent and time.monotonic() < limit_s:
                time.sleep(0.1)
            query.processAllAvailable()  # a stop in the middle of a batch fills the page with Spark's own trouble
    finally:
        query.stop()
    return times[-sent:]


def _producer_of(url: str) -> Any:
    from tutti import Producer

    return Producer(url)


def _paced_times(producer: Any, rate: int, seconds: int) -> int:
    begin = time.perf_counter()
    for number in range(rate * seconds):
        wait = begin + number / rate - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        producer.send("bench", str(time.time_ns()).encode())
    producer.flush()
    return rate * seconds
