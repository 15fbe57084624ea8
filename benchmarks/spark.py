"""How fast Spark reads: through Flight, by short-circuit and from log files, beside its own Kafka source with a real broker, and as
the limit a Python source that has its batches in memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks import kafka
from benchmarks.figures import Figure, figure, foreign_load, percentile
from benchmarks.fleet import Measured, gateway

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 10_000_000
TRIGGER_RECORDS = 1_000_000
COLUMNS = "offset,value"
# Targets of batch reads, in % of a source that reads from memory; targets of reads and waits, as multiples of Spark's Kafka source.
# With records of 1 KB, the source that reads from memory is itself only four to five times as fast as Spark's Kafka source.
SHARE_MIN = 80.0
TIMES_KAFKA = {
    100: {"Flight": 3.5, "short-circuit": 5.0, "files": 5.0},
    1024: {"Flight": 2.0, "short-circuit": 3.0, "files": 3.0},
}
STREAM_TIMES_KAFKA = {"Flight": 2.0, "short-circuit": 2.5}
WAIT_TIMES_KAFKA = {"p50": 1.1, "p95": 0.6}
_TOPIC = "bench"
_SEND_ROWS = 4096
_MEMORY = "raw: Spark, Python source from memory"

Load = Callable[[], Any]


def session(name: str, jars: Path | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A local[2] session whose Python workers are this very interpreter; `jars` is a folder of more for it."""
    from pyspark.sql import SparkSession

    from pyspark_tutti import register
    from tutti_spark.launch import LOCAL_SETTINGS, spark_environment

    os.environ.update(spark_environment())
    builder = SparkSession.builder.master("local[2]").appName(name).config("spark.driver.memory", "2g")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    if jars is not None:
        builder = builder.config("spark.driver.extraClassPath", f"{jars}/*")
    for key, value in (LOCAL_SETTINGS | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


class _Bench:
    """A gateway, a session, and a Kafka broker where its jars can be had; all end with the block."""

    def __init__(self, directory: Path, name: str) -> None:
        self._stack = ExitStack()
        self._directory = directory
        self._name = name
        self.broker: str | None = None

    def __enter__(self) -> _Bench:
        found = kafka.jars()
        self.measured: Measured = self._stack.enter_context(gateway(self._directory))
        if found is not None:
            self.broker = self._stack.enter_context(kafka.broker(self._directory, found[0])).address
        self.spark = session(self._name, None if found is None else found[1])
        self._stack.callback(self.spark.stop)
        self.spark.dataSource.register(_memory_source())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def memory(self, count: int, size: int) -> DataFrame:
        """Records that a Python source has in memory."""
        return self.spark.read.format("tutti_bench_memory").option("records", count).option("bytes", size).load()

    def fill(self, count: int, size: int) -> int:
        """The same records at the gateway, and at the broker if there is one; their first offset at the gateway."""
        from tutti import Producer, Reader

        with Reader(self.measured.url, start="latest") as reader:
            first = int(reader.position)
        values = pa.RecordBatch.from_arrays(
            [pa.nulls(_SEND_ROWS, pa.binary()), pa.array([bytes(size)] * _SEND_ROWS, pa.binary())], names=["key", "value"]
        )
        with Producer(self.measured.url) as producer:
            left = count
            while left > 0:
                producer.send_batch(_TOPIC, values.slice(0, min(left, _SEND_ROWS)))
                left -= _SEND_ROWS
        if self.broker is not None:
            kafka.fill(self.memory(count, size), self.broker, f"{_TOPIC}{size}")
        return first

    def ways(self, size: int) -> dict[str, dict[str, str]]:
        """Options of each source that reads the records of `size` bytes; `format` is one of them."""
        ours = {"format": "tutti", "columns": COLUMNS}
        found = {
            "Flight": ours | {"gateways": self.measured.url, "shortCircuit": "false"},
            "short-circuit": ours | {"gateways": self.measured.url},
            "files": ours | {"path": str(self.measured.data)},
        }
        if self.broker is not None:
            found["Kafka"] = {"format": "kafka", "kafka.bootstrap.servers": self.broker, "subscribe": f"{_TOPIC}{size}"}
        return found


def spark_reads(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Rows a second of batch reads of 100 B and 1 KB, in one session, the ways in turn."""
    found: list[Figure] = []
    with _Bench(directory, "tutti-bench-reads") as bench:
        for size, count in ((100, RECORDS), (1024, RECORDS // 5)):
            found += _reads(bench, rounds, size, count // 10 if quick else count)
    return found


def _reads(bench: _Bench, rounds: int, size: int, count: int) -> list[Figure]:
    start = bench.fill(count, size)
    span = {"startingOffset": str(start), "endingOffset": str(start + count)}
    loads: dict[str, Load] = {"memory": lambda: bench.memory(count, size)}
    for way, options in bench.ways(size).items():
        loads[way] = _loading(bench.spark, options | ({} if way == "Kafka" else span))
    unit, part = ("M rows/s", 1e6) if size < 1000 else ("GB/s", 1e9 / size)
    rates: dict[str, list[float]] = {way: [] for way in loads}
    foreign: list[float] = []
    for number in range(rounds + 1):
        for way, load in loads.items():
            with foreign_load(foreign):
                begin = time.perf_counter()
                load().select("offset", "value").write.format("noop").mode("overwrite").save()
                if number:  # the first round warms the JVM up
                    rates[way].append(count / (time.perf_counter() - begin) / part)
    state = f"{count:,} records of {size} B, columns {COLUMNS}, local[2], foreign CPU {max(foreign):.2f}"
    found = [figure(f"{_MEMORY}, {size} B", rates["memory"], unit, beside=state)]
    for way, target in TIMES_KAFKA[size].items():
        found.append(figure(f"Spark batch read, {way}, {size} B", rates[way], unit))
        share = [100 * ours / limit for ours, limit in zip(rates[way], rates["memory"], strict=True)]
        found.append(figure("  share of memory", share, "%", None if way == "Flight" else SHARE_MIN))
        if "Kafka" in rates:
            times = [ours / theirs for ours, theirs in zip(rates[way], rates["Kafka"], strict=True)]
            found.append(figure("  times Spark's Kafka source", times, "x", target))
    if "Kafka" in rates:
        found.append(figure(f"beside: Spark batch read, Kafka, {size} B", rates["Kafka"], unit))
    return found


def _loading(spark: SparkSession, options: dict[str, str]) -> Load:
    rest = {name: value for name, value in options.items() if name != "format"}
    return lambda: spark.read.format(options["format"]).options(**rest).load()


def _memory_source() -> type:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class MemoryReader(DataSourceReader):
        def __init__(self, records: int, size: int) -> None:
            self.records = records
            self.size = size

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(8)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            import numpy
            import pyarrow

            most = max(1, (6 << 20) // self.size)  # as large as what is read from a log
            values = pyarrow.array([bytes(self.size)] * most, pyarrow.binary())
            left = self.records // 8
            while left > 0:
                rows = min(left, most)
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
            return MemoryReader(int(self.options["records"]), int(self.options["bytes"]))

    return MemorySource


def sustained(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Rows a second of a stream over all that is there, in micro-batches of a million."""
    count = RECORDS // 5 if quick else RECORDS
    with _Bench(directory, "tutti-bench-sustained") as bench:
        bench.fill(count, 100)
        ways = {way: options for way, options in bench.ways(100).items() if way != "files"}
        rates: dict[str, list[float]] = {way: [] for way in ways}
        foreign: list[float] = []
        for number in range(rounds + 1):
            for way, options in ways.items():
                limit = {"maxOffsetsPerTrigger": str(TRIGGER_RECORDS), "startingOffsets": "earliest"}
                with foreign_load(foreign):
                    checkpoint = directory / f"sustained-{os.getpid()}-{way}-{number}"
                    rate = count / _drained(bench.spark, options | limit, checkpoint) / 1e6
                if number:  # the first round warms the JVM up
                    rates[way].append(rate)
    state = f"{count:,} records of 100 B in micro-batches of {TRIGGER_RECORDS:,}, local[2], foreign CPU {max(foreign):.2f}"
    found = []
    for way, told in rates.items():
        found.append(figure(f"Spark stream, {way}", told, "M rows/s", beside=state))
        if "Kafka" in rates and way != "Kafka":
            times = [ours / theirs for ours, theirs in zip(told, rates["Kafka"], strict=True)]
            found.append(figure("  times Spark's Kafka source", times, "x", STREAM_TIMES_KAFKA[way]))
    return found


def _drained(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> float:
    """Seconds from the first micro-batch's start until all was processed."""
    rest = {name: value for name, value in options.items() if name != "format"}
    rows = spark.readStream.format(options["format"]).options(**rest).load().select("offset", "value")
    begin = time.perf_counter()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
        return time.perf_counter() - begin
    finally:
        query.stop()


def streaming(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """From send() to foreachBatch at 200 records a second, ms."""
    from tutti import Producer

    seconds, rate = (10, 200) if quick else (20, 200)
    foreign: list[float] = []
    with _Bench(directory, "tutti-bench-streaming") as bench:
        ways = {way: options for way, options in bench.ways(100).items() if way in ("short-circuit", "Kafka")}
        half: dict[str, list[float]] = {way: [] for way in ways}
        most: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds):
            for way, options in ways.items():
                producer: Any = Producer(bench.measured.url)
                if way == "Kafka":
                    producer = kafka.Sender(bench.spark, bench.broker or "", f"{_TOPIC}100")
                    producer.send(_TOPIC, b"0")  # makes the topic
                    producer.flush()
                checkpoint = directory / f"checkpoint-{os.getpid()}-{way}-{number}"
                with foreign_load(foreign):
                    times = sorted(_end_to_end(bench.spark, options, checkpoint, producer, rate, seconds))
                producer.close()
                half[way].append(percentile(times, 0.5))
                most[way].append(percentile(times, 0.95))
    state = f"{rate} records/s for {seconds} s, local[2], foreign CPU {max(foreign):.2f}"
    found = []
    for way in ways:
        name = "Kafka to foreachBatch" if way == "Kafka" else "send() to foreachBatch"
        for share, waits in (("p50", half), ("p95", most)):
            found.append(figure(f"{name}, {share}", waits[way], "ms", None, "less", state if share == "p50" else ""))
            if "Kafka" in ways and way != "Kafka":
                times = [ours / theirs for ours, theirs in zip(waits[way], waits["Kafka"], strict=True)]
                found.append(figure("  times Spark's Kafka source", times, "x", WAIT_TIMES_KAFKA[share], "less"))
    return found


def _end_to_end(
    spark: SparkSession, options: dict[str, str], checkpoint: Path, producer: Any, rate: int, seconds: int
) -> list[float]:
    times: list[float] = []

    def take(batch: Any, _: int) -> None:
        rows = batch.select("value").collect()
        now = time.time_ns()
        times.extend((now - int(row.value)) / 1e6 for row in rows)

    rest = {name: value for name, value in options.items() if name != "format"}
    query = (
        spark.readStream.format(options["format"])
        .options(**rest)
        .option("startingOffsets", "latest")
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        _paced_times(producer, rate, 5)  # the first triggers load classes
        limit_s = time.monotonic() + 60
        while not times and time.monotonic() < limit_s:
            time.sleep(0.1)
        query.processAllAvailable()
        times.clear()
        sent = _paced_times(producer, rate, seconds)
        limit_s = time.monotonic() + 60
        while len(times) < sent and time.monotonic() < limit_s:
            time.sleep(0.1)
        query.processAllAvailable()  # a stop in the middle of a batch fills the page with Spark's own trouble
    finally:
        query.stop()
    return times[-sent:]


def _paced_times(producer: Any, rate: int, seconds: int) -> int:
    begin = time.perf_counter()
    for number in range(rate * seconds):
        wait = begin + number / rate - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        producer.send(_TOPIC, str(time.time_ns()).encode())
    producer.flush()
    return rate * seconds
