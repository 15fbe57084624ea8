"""Tests of `deterministic(df)`: each cause of different results in two runs is found, and a similar expression
without it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tutti_spark.deterministic import deterministic
from tutti_spark.jobs import flights

pytestmark = pytest.mark.spark
NOWHERE = "tutti://127.0.0.1:1"  # a plan is read; nothing is asked of a gateway
EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
CUT = {"cut": "tick:1", "maxRecordsPerTrigger": 1, "startingOffset": "earliest"}
Job = Callable[[DataFrame], DataFrame]


@pytest.fixture
def whole_batches(spark: SparkSession) -> Iterator[None]:
    """No micro-batches without records."""
    spark.conf.set(EMPTY_BATCHES, False)
    yield
    spark.conf.unset(EMPTY_BATCHES)


@pytest.fixture(scope="module")
def past(spark: SparkSession) -> DataFrame:
    """A batch read, with a number, a fraction and a name in each row."""
    read = spark.read.format("tutti").option("gateways", NOWHERE).option("endingOffset", 100).load()
    fraction = f.col("sequence") * 0.1
    return read.select("offset", "key", "timestamp", "sequence", fraction.alias("fraction"), f.col("topic").alias("name"))


@pytest.fixture(scope="module")
def cut(spark: SparkSession) -> DataFrame:
    """Return a stream whose micro-batches the log decides."""
    return stream(spark, **CUT)


def stream(spark: SparkSession, **options: Any) -> DataFrame:
    return spark.readStream.format("tutti").options(**{"gateways": NOWHERE} | options).load()


def grouped(aggregate: Callable[[], Column]) -> Job:
    return lambda df: df.groupBy("name").agg(aggregate().alias("a"))


def selected(column: Callable[[], Column]) -> Job:
    return lambda df: df.select(column().alias("a"))


def in_group(*order: str) -> Any:
    return Window.partitionBy("name").orderBy(*order)


def sql(query: str) -> Job:
    def run(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("rows")
        return df.sparkSession.sql(query)

    return run


def marked(df: DataFrame) -> DataFrame:
    return df.select(f.udf(len, "int").asNondeterministic()("name"))


def trusted(df: DataFrame) -> DataFrame:
    return df.select(f.udf(len, "int")("name")).mapInPandas(lambda parts: parts, "a int")


def mode_of() -> Any:
    def mode_of(values: pd.Series) -> str:
        return str(values.mode()[0])

    vectorized: Any = pandas_udf
    return vectorized(mode_of, "string")


class Halves:
    def eval(self, number: int) -> Iterator[tuple[int]]:
        yield (number // 2,)


def halved(mark: Callable[[Any], Any]) -> Job:
    def run(df: DataFrame) -> DataFrame:
        df.sparkSession.udtf.register("halves", mark(f.udtf(Halves, returnType="half int")))
        return sql("select half from rows, lateral halves(sequence)")(df)

    return run


#: What is found, the job, its twin, and a word of what the finding tells.
BATCHES: dict[str, tuple[str, Job, Job, str]] = {
    "rand": ("rand(", selected(f.rand), selected(lambda: f.xxhash64("offset")), "seed"),
    "rand with seed": ("rand(3L)", selected(lambda: f.rand(3)), selected(lambda: f.lit(3)), "position in its partition"),
    "randn": ("randn(", selected(f.randn), selected(lambda: f.sqrt("sequence")), "seed"),
    "randstr": ("randstr(", selected(lambda: f.randstr(5)), selected(lambda: f.hex("sequence")), "seed"),
    "uniform": (
        "uniform(",
        selected(lambda: f.uniform(f.lit(1), f.lit(9))),
        selected(lambda: f.greatest(f.lit(1), f.lit(9))),
        "seed",
    ),
    "uuid": ("uuid()", selected(f.uuid), selected(lambda: f.sha2("key", 256)), "seed"),
    "shuffle": ("shuffle(", selected(lambda: f.shuffle(f.array("offset"))), selected(lambda: f.reverse(f.array("offset"))), "seed"),
    "sample": ("Sample ", lambda df: df.sample(fraction=0.5, seed=1), lambda df: df.where("offset % 2 = 0"), "hash of columns"),
    "sampleBy": ("rand(1L)", lambda df: df.sampleBy("name", {"a": 0.5}, 1), lambda df: df.where("name = 'a'"), "seed"),
    "current_timestamp": (
        "current_timestamp()",
        selected(f.current_timestamp),
        selected(lambda: f.col("timestamp")),
        "own time",
    ),
    "now": ("now()", selected(f.now), selected(lambda: f.to_timestamp(f.lit("2013-01-01"))), "own time"),
    "current_date": ("current_date()", selected(f.current_date), selected(lambda: f.to_date("timestamp")), "own time"),
    "current_time": ("current_time(6)", selected(f.current_time), selected(lambda: f.hour("timestamp")), "own time"),
    "localtimestamp": (
        "localtimestamp()",
        selected(f.localtimestamp),
        selected(lambda: f.to_timestamp_ntz("timestamp")),
        "own time",
    ),
    "unix_timestamp": (
        "current_timestamp()",
        selected(f.unix_timestamp),
        selected(lambda: f.unix_timestamp("timestamp")),
        "own time",
    ),
    "row id": (
        "monotonically_increasing_id()",
        selected(f.monotonically_increasing_id),
        selected(lambda: f.col("offset")),
        "partitions",
    ),
    "partition": ("SPARK_PARTITION_ID()", selected(f.spark_partition_id), selected(lambda: f.crc32("key")), "partitions"),
    "file": ("input_file_name()", selected(f.input_file_name), selected(lambda: f.col("name")), "file"),
    "reflection": (
        "reflect(",
        selected(lambda: f.reflect(f.lit("java.util.UUID"), f.lit("randomUUID"))),
        selected(lambda: f.assert_true(f.col("offset") >= 0)),
        "marked as nondeterministic",
    ),
    "marked UDF": ("len(name)", marked, trusted, "asNondeterministic"),
    "marked aggregate": (
        "mode_of(key)",
        lambda df: df.groupBy("name").agg(mode_of().asNondeterministic()("key")),
        lambda df: df.groupBy("name").agg(mode_of()("key")),
        "asNondeterministic",
    ),
    "table function": (
        "halves(",
        halved(lambda function: function),
        halved(lambda function: function.asDeterministic()),
        "table function",
    ),
    "subquery": (
        "current_date()",
        sql("select offset from rows where offset < (select max(day(current_date())) from rows)"),
        sql("select offset from rows where offset < (select max(day(timestamp)) from rows)"),
        "own time",
    ),
    "first": ("first(offset)", grouped(lambda: f.first("offset")), grouped(lambda: f.min("offset")), "min_by"),
    "last": ("last(key)", grouped(lambda: f.last("key")), grouped(lambda: f.max_by("key", "offset")), "min_by"),
    "any_value": ("any_value(key)", grouped(lambda: f.any_value("key")), grouped(lambda: f.max("key")), "min_by"),
    "first of one": (
        "first(key)",
        grouped(lambda: f.first("key")),
        lambda df: df.groupBy("offset").agg(f.first("key").alias("a")),
        "min_by",
    ),
    "collect_list": (
        "collect_list(key)",
        grouped(lambda: f.collect_list("key")),
        grouped(lambda: f.sort_array(f.collect_list("key"))),
        "sort_array",
    ),
    "collect_set": (
        "collect_set(key)",
        grouped(lambda: f.collect_set("key")),
        grouped(lambda: f.size(f.collect_set("key"))),
        "sort_array",
    ),
    "listagg": (
        "listagg(name, NULL)",
        grouped(lambda: f.listagg("name")),
        sql("select listagg(name) within group (order by name) from rows"),
        "WITHIN GROUP",
    ),
    "listagg in an order with ties": (
        "listagg(CAST(",
        sql("select listagg(cast(sequence as string)) within group (order by name) from rows"),
        sql("select listagg(cast(sequence as string)) within group (order by offset) from rows"),
        "WITHIN GROUP",
    ),
    "mode": ("mode(name)", grouped(lambda: f.mode("name")), grouped(lambda: f.mode("name", True)), "lowest"),
    "max_by": (
        "max_by(key, timestamp)",
        grouped(lambda: f.max_by("key", "timestamp")),
        grouped(lambda: f.max_by("key", f.struct("timestamp", "offset"))),
        "first to arrive",
    ),
    "min_by": (
        "min_by(key, (offset %",
        grouped(lambda: f.min_by("key", f.col("offset") % 2)),
        grouped(lambda: f.min_by("key", "key")),
        "first to arrive",
    ),
    "several of max_by": (
        "max_by(rows.sequence, rows.timestamp, 2)",
        sql("select max_by(sequence, timestamp, 2) from rows"),
        sql("select max_by(sequence, offset, 2) from rows"),
        "first to arrive",
    ),
    "sum": ("sum(fraction)", grouped(lambda: f.sum("fraction")), grouped(lambda: f.sum("sequence")), "decimals"),
    "try_sum": (
        "try_sum(fraction)",
        grouped(lambda: f.try_sum("fraction")),
        grouped(lambda: f.sum(f.col("fraction").cast("decimal(20,1)"))),
        "decimals",
    ),
    "avg": ("avg(fraction)", grouped(lambda: f.avg("fraction")), grouped(lambda: f.avg("sequence")), "decimals"),
    "stddev": ("stddev(CAST(sequence", grouped(lambda: f.stddev("sequence")), grouped(lambda: f.median("sequence")), "decimals"),
    "corr": ("corr(", grouped(lambda: f.corr("sequence", "fraction")), grouped(lambda: f.max("fraction")), "decimals"),
    "regression": (
        "regr_slope(",
        grouped(lambda: f.regr_slope("fraction", "fraction")),
        grouped(lambda: f.regr_count("fraction", "fraction")),
        "decimals",
    ),
    "estimate": (
        "approx_percentile(",
        grouped(lambda: f.approx_percentile("sequence", 0.5)),
        grouped(lambda: f.percentile("sequence", 0.5)),
        "exact",
    ),
    "sketch": (
        "hll_sketch_agg(",
        grouped(lambda: f.hll_sketch_agg("sequence")),
        grouped(lambda: f.approx_count_distinct("sequence")),
        "exact",
    ),
    "row_number": (
        "row_number() OVER",
        lambda df: df.select(f.row_number().over(in_group("timestamp"))),
        lambda df: df.select(f.row_number().over(in_group("timestamp", "offset")), f.rank().over(in_group("timestamp"))),
        "offset",
    ),
    "lag": (
        "lag(key, 1, NULL) OVER",
        lambda df: df.select(f.lag("key").over(in_group("timestamp"))),
        lambda df: df.select(f.lag("key").over(in_group("offset")), f.max("key").over(in_group("timestamp"))),
        "offset",
    ),
    "first of a window": (
        "first(key) OVER",
        lambda df: df.select(f.first("key").over(in_group("timestamp"))),
        lambda df: df.select(f.first("key").over(in_group("offset"))),
        "equal in the order of the window",
    ),
    "rows of a window": (
        "sum(sequence) OVER",
        lambda df: df.select(f.sum("sequence").over(in_group("timestamp").rowsBetween(-1, 0))),
        lambda df: df.select(f.sum("sequence").over(in_group("timestamp")), f.sum("sequence").over(Window.partitionBy("name"))),
        "equal in the order of the window",
    ),
    "fractions of a window": (
        "sum(fraction) OVER",
        lambda df: df.select(f.sum("fraction").over(Window.partitionBy("name"))),
        lambda df: df.select(f.sum("fraction").over(in_group("offset"))),
        "decimals",
    ),
    "limit": (
        "GlobalLimit 3",
        lambda df: df.limit(3),
        lambda df: df.orderBy("name", f.desc("offset")).select("name").limit(3),
        "without a preceding order",
    ),
    "limit with ties": (
        "GlobalLimit 3",
        lambda df: df.orderBy("name").limit(3),
        lambda df: df.groupBy("name", f.to_date("timestamp").alias("day")).count().orderBy("day", f.desc("name")).limit(3),
        "equal in the preceding order",
    ),
    "limit of a join": (
        "GlobalLimit 3",
        lambda df: df.join(df.select("name", f.col("offset").alias("o")), "name").orderBy("offset").limit(3),
        lambda df: df.join(df.select("name", f.col("offset").alias("o")), "name").orderBy("o", "offset").limit(3),
        "equal in the preceding order",
    ),
    "limit of distinct rows": (
        "GlobalLimit 3",
        lambda df: df.select("name", "key").distinct().orderBy("name").limit(3),
        lambda df: df.select("name", "key").distinct().orderBy("key", "name").limit(3),
        "equal in the preceding order",
    ),
    "offset": ("Offset 3", lambda df: df.offset(3), lambda df: df.agg(f.count("*")).offset(3), "without a preceding order"),
    "dropDuplicates": (
        "Deduplicate [name]",
        lambda df: df.dropDuplicates(["name"]),
        lambda df: df.select("name").dropDuplicates().join(df.distinct(), "name").dropDuplicates(["offset", "name"]),
        "first row of each key",
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_nondeterministic_batch_is_found_and_its_deterministic_twin_is_not(past: DataFrame, name: str) -> None:
    expression, job, twin, told = BATCHES[name]
    (found,) = deterministic(job(past))
    assert found.expression.startswith(expression)
    assert told in str(found)
    assert "#" not in str(found)
    assert deterministic(twin(past)) == []


class Counting(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timer_values: Any) -> Iterator[Any]:  # noqa: N802 - Spark's name
        yield from ()

    def close(self) -> None: ...


def by_key(df: DataFrame) -> GroupedData:
    return df.withWatermark("timestamp", "1 minute").groupBy("key")


def with_state(timeout: str) -> Job:
    return lambda df: by_key(df).applyInPandasWithState(lambda key, parts, state: parts, "a int", "b int", "update", timeout)


def transformed(mode: str) -> Job:
    return lambda df: by_key(df).transformWithState(Counting(), "a int", "update", mode)


def latest(df: DataFrame) -> DataFrame:
    return by_key(df).agg(f.max_by("value", "offset"))


STREAMS: dict[str, tuple[str, Job, Job, str]] = {
    "rand with seed": ("rand(3L)", selected(lambda: f.rand(3)), selected(lambda: f.xxhash64("offset")), "even if you set one"),
    "clock": ("current_timestamp()", selected(f.current_timestamp), selected(lambda: f.col("timestamp")), "own time"),
    "first": ("first(value)", lambda df: by_key(df).agg(f.first("value")), latest, "min_by"),
    "limit": ("GlobalLimit 3", lambda df: df.limit(3), lambda df: df.where("offset < 3"), "without a preceding order"),
    "dropDuplicates": (
        "Deduplicate [key]",
        lambda df: df.dropDuplicates(["key"]),
        lambda df: df.select("key", "value").dropDuplicates(),
        "first row of each key",
    ),
    "dropDuplicatesWithinWatermark": (
        "DeduplicateWithinWatermark [key]",
        lambda df: df.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(["key"]),
        lambda df: df.withWatermark("timestamp", "1 minute").select("timestamp").dropDuplicatesWithinWatermark(["timestamp"]),
        "first row of each key",
    ),
    "timers of applyInPandasWithState": (
        "ProcessingTimeTimeout",
        with_state(GroupStateTimeout.ProcessingTimeTimeout),
        with_state(GroupStateTimeout.EventTimeTimeout),
        "event time",
    ),
    "timers of transformWithState": ("ProcessingTime", transformed("ProcessingTime"), transformed("EventTime"), "event time"),
    "two reads": (
        "2 streams",
        lambda df: df.select("key", "timestamp").unionAll(stream(df.sparkSession, **CUT).select("key", "timestamp")).distinct(),
        lambda df: df.select("key", "timestamp").unionAll(df.select("key", "timestamp")).distinct(),
        "pairing of their micro-batches",
    ),
    "a stream joined with itself": (
        "2 streams",
        lambda df: df.join(df.select("offset", "view"), "offset"),
        lambda df: df.join(df.sparkSession.range(9).withColumnRenamed("id", "offset"), "offset"),
        "reads its stream twice",
    ),
    "another source": (
        "stream rate",
        lambda df: df.sparkSession.readStream.format("rate").load().groupBy("value").count(),
        lambda df: df.sparkSession.readStream.format("rate").load().where("value < 5"),
        "send its records to Tutti",
    ),
    "session windows": (
        "rand()",
        lambda df: df.where("rand() < 0.5").groupBy(f.session_window("timestamp", "1 minute")).count(),
        lambda df: by_key(df.where("key > 'a'")).agg(f.count("*")).groupBy("key").count(),
        "seed",
    ),
}


@pytest.mark.usefixtures("whole_batches")
@pytest.mark.parametrize("name", STREAMS)
def test_a_nondeterministic_stream_is_found_and_its_deterministic_twin_is_not(cut: DataFrame, name: str) -> None:
    expression, job, twin, told = STREAMS[name]
    (found,) = deterministic(job(cut))
    assert found.expression.startswith(expression)
    assert told in str(found)
    assert deterministic(twin(cut)) == []


@pytest.mark.usefixtures("whole_batches")
def test_a_stateful_stream_without_tick_batches_is_found(spark: SparkSession) -> None:
    start = {"startingOffset": 0}
    plain, loose = stream(spark, **start), stream(spark, cut="tick:1", maxRecordsPerTrigger=100, **start)
    (found,) = deterministic(latest(plain))
    assert found.expression == "stream tutti"
    assert "tick:N" in found.instead
    (found,) = deterministic(latest(loose))
    assert found.operator.startswith("Aggregate [key]")
    assert "with `cut`" in found.instead
    assert deterministic(plain.select("value")) == []
    assert deterministic(latest(stream(spark, **CUT))) == []


def test_a_range_that_depends_on_the_time_of_the_read_is_found(spark: SparkSession) -> None:
    (found,) = deterministic(stream(spark).select("value"))
    assert found.expression == "startingOffset latest"
    read = spark.read.format("tutti").option("gateways", NOWHERE)
    (found,) = deterministic(read.load().select("value"))
    assert found.expression == "endingOffset latest"
    assert deterministic(read.option("endingTimestamp", "2013-01-01T00:00:00Z").load()) == []


def test_the_source_is_known_by_its_name_in_any_case(spark: SparkSession) -> None:
    options: dict[str, Any] = CUT | {"gateways": NOWHERE}
    df = spark.readStream.format("Tutti").options(**options).load()
    assert deterministic(df.groupBy("key").agg(f.max_by("value", "offset"))) == []


def test_the_job_flights_depends_live_on_its_micro_batches_and_on_nothing_else(spark: SparkSession) -> None:
    def statistics(records: DataFrame) -> DataFrame:
        weather = spark.createDataFrame([], "origin STRING, time_hour TIMESTAMP, rain BOOLEAN, murky BOOLEAN")
        return flights.statistics(flights.departures(records), weather)

    live = deterministic(statistics(stream(spark, startingOffset="earliest", columns="offset,value")))
    assert [found.expression for found in live] == ["stream tutti", EMPTY_BATCHES]
    assert [found.expression for found in deterministic(statistics(stream(spark, **CUT)))] == [EMPTY_BATCHES]
    replay = spark.read.format("tutti").option("gateways", NOWHERE).option("endingOffset", 9)
    assert deterministic(statistics(replay.load())) == []
