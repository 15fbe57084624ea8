"""Tests of the sink: micro-batches and batch writes are in the log once, each contiguous, and a wrong write writes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr, struct, to_json
from pyspark.sql.streaming.query import StreamingQuery

import pyspark_tutti
from tests.support.gateway_process import GatewayProcess
from tutti import Producer, Reader
from tutti.io.admin import AdminClient
from tutti.transactions import StagingProducer
from tutti_spark.sink.options import parse
from tutti_spark.sink.sink import StagedRecords, StreamSink

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def numbers(own_gateway: GatewayProcess) -> Iterator[Producer]:
    with Producer(own_gateway.url, producer="numbers") as producer:
        yield producer


def send(producer: Producer, *values: int) -> None:
    for value in values:
        producer.send("in", b"%d" % value)
    producer.flush()


def read(spark: SparkSession, gateway: GatewayProcess, topic: str = "in") -> DataFrame:
    stream = spark.readStream.format("tutti").option("gateways", gateway.url).option("topics", topic)
    return stream.option("startingOffset", "earliest").option("maxRecordsPerTrigger", 10).load()


def write(frame: DataFrame, gateway: GatewayProcess, checkpoint: Path, topic: str = "out", mode: str = "append") -> StreamingQuery:
    stream = frame.writeStream.format("tutti").option("gateways", gateway.url).option("topic", topic)
    return stream.option("checkpointLocation", str(checkpoint)).outputMode(mode).trigger(availableNow=True).start()


def run(query: StreamingQuery) -> None:
    assert query.awaitTermination(120)


def records(gateway: GatewayProcess, topic: str) -> list[Any]:
    with Reader(gateway.url, topics=[topic]) as reader:
        return list(reader.records())


def test_micro_batches_are_written_once_each_in_one_place(
    spark: SparkSession, own_gateway: GatewayProcess, numbers: Producer, tmp_path: Path
) -> None:
    doubled = (
        read(spark, own_gateway)
        .selectExpr("cast(2 * cast(cast(value as string) as int) as string) as value", "value as key")
        .repartition(3)
    )
    send(numbers, *range(35))
    run(write(doubled, own_gateway, tmp_path / "checkpoint"))
    send(numbers, *range(35, 42))
    run(write(doubled, own_gateway, tmp_path / "checkpoint"))
    found = records(own_gateway, "out")
    assert sorted(int(record.value) for record in found) == [2 * value for value in range(42)]
    assert {record.value: int(record.key) * 2 for record in found} == {record.value: int(record.value) for record in found}
    assert len({record.producer for record in found}) == 1
    assert found[0].producer.startswith("spark-")
    assert [record.sequence for record in found] == list(range(1, 43)), "one producer's records, none twice"
    for batch in range(4):  # of ten each, at offsets that follow one another
        some = found[10 * batch : 10 * batch + 10] if batch < 3 else found[30:35]
        assert {int(record.value) // 20 for record in some} == {batch}
        assert [record.offset for record in some] == list(range(some[0].offset, some[0].offset + len(some)))
    with AdminClient(own_gateway.url) as control:
        assert {line["name"] for line in control.producers()} == {"numbers", found[0].producer}, "those who staged are forgotten"


def test_updates_are_written_once_in_foreach_batch(
    spark: SparkSession, own_gateway: GatewayProcess, numbers: Producer, tmp_path: Path
) -> None:
    """Spark has no update mode for sources in Python; a write in foreachBatch is known by its micro-batch."""
    seen: list[int] = []

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.format("tutti").option("gateways", own_gateway.url).option("topic", "out").mode("append").save()
        if batch == 1 and batch not in seen:
            seen.append(batch)
            raise RuntimeError("the driver ends behind a commit")

    parity = expr("cast(cast(value as string) as int) % 2")
    counts = read(spark, own_gateway).groupBy(parity.alias("parity")).count()
    updates = counts.select(to_json(struct("parity", "count")).alias("value")).writeStream.outputMode("update")
    updates = updates.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).foreachBatch(write)
    send(numbers, *range(30))
    with pytest.raises(PySparkException, match="the driver ends behind a commit"):
        run(updates.start())
    run(updates.start())
    assert sorted(record.value for record in records(own_gateway, "out")) == sorted(
        b'{"parity":%d,"count":%d}' % (parity, count) for parity in (0, 1) for count in (5, 10, 15)
    )


@pytest.mark.soak
def test_two_writes_of_a_micro_batch_need_names(
    spark: SparkSession, own_gateway: GatewayProcess, numbers: Producer, tmp_path: Path
) -> None:
    """Proves that the second one is refused in the run of the first and in each later one, though both look the same from outside,
    and that nothing is lost once it has a name: without one it was mistaken for the first write, and skipped silently.
    """

    def write(rows: DataFrame, batch: int, name: str) -> None:
        for remainder, write_id in ((0, ""), (1, name)):
            some = rows.select("value").where(f"cast(cast(value as string) as int) % 2 = {remainder}")
            sink = some.write.format("tutti").option("gateways", own_gateway.url).option("topic", "out")
            (sink.option("writeId", write_id) if write_id else sink).mode("append").save()

    send(numbers, *range(10, 40))
    for name in ("", "", "", "odd"):
        stream = read(spark, own_gateway).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = stream.trigger(availableNow=True).foreachBatch(partial(write, name=name)).start()
        if name:
            run(query)
        else:
            with pytest.raises(PySparkException, match="micro-batch 0 has a second write without a writeId"):
                run(query)
            assert [int(record.value) for record in records(own_gateway, "out")] == list(range(10, 20, 2))
    assert sorted(int(record.value) for record in records(own_gateway, "out")) == list(range(10, 40))
    with AdminClient(own_gateway.url) as control:
        assert len(control.producers()) == 3, "those who staged, and marked, are forgotten"


def test_a_batch_goes_to_the_topics_of_its_records_with_all_they_have(spark: SparkSession, own_gateway: GatewayProcess) -> None:
    rows = spark.range(0, 1000, numPartitions=3).selectExpr(
        "cast(id as string) as value",
        "if(id % 7 = 0, null, cast(cast(id as string) as binary)) as key",
        "concat('t', id % 2) as topic",
        "timestamp_micros(1000000 * id) as timestamp",
        "array(struct('h' as key, cast('x' as binary) as value)) as headers",
    )
    write = rows.write.format("tutti").option("gateways", own_gateway.url).option("writeId", "first").mode("append")
    write.save()
    write.save()
    found = records(own_gateway, "t0") + records(own_gateway, "t1")
    assert sorted(int(record.value) for record in found) == list(range(1000))
    for record in found:
        number = int(record.value)
        assert record.key == (None if number % 7 == 0 else record.value)
        assert record.timestamp.timestamp() == number
        assert record.headers == [("h", b"x")]
    assert sorted(record.offset for record in found) == list(range(1000)), "one write, in one place, once"
    with pytest.raises(PySparkException, match="its repeat has 999, or other topics or bytes: it is not the same write"):
        rows.where("id > 0").write.format("tutti").option("gateways", own_gateway.url).option("writeId", "first").mode(
            "append"
        ).save()


class Committing:
    """What Spark's driver does with the sink, at times of a test's choice."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.sink = StreamSink(parse({"gateways": gateway.url, "topic": "out"}, stream=True))
        self.gateway = gateway

    def stage(self, values: list[bytes]) -> StagedRecords:
        with StagingProducer(self.gateway.url) as staging:
            parts = StagingProducer.parts(staging.stage("out", pa.record_batch({"value": pa.array(values, pa.binary())})))
            return StagedRecords(staging.name, tuple(parts), {"out": sum(map(len, values))}, "q")


def test_a_repeated_commit_gets_the_first_result_and_an_old_driver_is_refused(own_gateway: GatewayProcess) -> None:
    driver, zombie = Committing(own_gateway), Committing(own_gateway)
    left = zombie.stage([b"0"])
    driver.sink.commit([driver.stage([b"0"])], 0)
    driver.sink.commit([driver.stage([b"0"])], 0)
    driver.sink.commit([driver.stage([b"1"]), None], 1)
    with pytest.raises(Exception, match="micro-batch 0 of 'spark-q' cannot follow 1, which is already in the log: another driver"):
        zombie.sink.commit([left], 0)
    for other in ([b"1", b"2"], [b"11"]):  # the job gives other rows each time: it is not held up for that
        driver.sink.commit([driver.stage(other)], 1)
    assert [record.value for record in records(own_gateway, "out")] == [b"0", b"1"]


def test_aborted_staged_records_stay_invisible_and_undo_no_commit(own_gateway: GatewayProcess) -> None:
    driver = Committing(own_gateway)
    staged = driver.stage([b"gone"])
    driver.sink.abort([staged, None], 0)
    with pytest.raises(Exception, match="nothing is staged at position"):
        driver.sink.commit([staged], 0)
    again = driver.stage([b"there"])
    driver.sink.commit([again], 0)
    driver.sink.abort([again], 0)
    assert [record.value for record in records(own_gateway, "out")] == [b"there"]


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        (["id"], {"topic": "t"}, "column 'id' is not accepted: a write accepts value, key, topic, timestamp, headers"),
        (["cast(id as string) as key"], {"topic": "t"}, "the column 'value' is missing: the DataFrame has key"),
        (["id as value"], {"topic": "t"}, "column 'value' has type bigint; it takes string or binary"),
        (["'x' as value", "id as timestamp"], {"topic": "t"}, "column 'timestamp' has type bigint; it takes timestamp"),
        (["'x' as value"], {}, "set the option 'topic', or add a column 'topic'"),
        (["'x' as value"], {"topics": "t"}, r"option 'topics' \('t'\) is not accepted: a write goes to one topic"),
        (["'x' as value"], {"topic": "a b"}, "option 'topic' is 'a b'"),
        (["'x' as value"], {"topic": "t", "writeID": "a/b"}, "option 'writeId' is 'a/b'"),
        (["'x' as value", "cast(null as string) as topic"], {}, "the column 'topic' of a record is null"),
    ],
)
def test_errors_are_reported_before_anything_is_written(
    spark: SparkSession, gateway: GatewayProcess, columns: list[str], options: dict[str, str], told: str
) -> None:
    with pytest.raises(PySparkException, match=told):
        spark.range(3).selectExpr(*columns).write.format("tutti").options(gateways=gateway.url, **options).mode("append").save()


def test_existing_files_are_not_overwritten(spark: SparkSession, gateway: GatewayProcess) -> None:
    write = spark.range(3).selectExpr("'x' as value").write.format("tutti").option("gateways", gateway.url).option("topic", "t")
    with pytest.raises(PySparkException, match="the log is append-only: use mode"):
        write.mode("overwrite").save()


def test_a_write_that_names_no_gateways_is_refused(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="a write needs the option 'gateways'"):
        spark.range(3).selectExpr("'x' as value").write.format("tutti").option("topic", "t").mode("append").save()


@pytest.fixture
def table(spark: SparkSession, own_gateway: GatewayProcess) -> Iterator[str]:
    """A table of the session's catalog over a topic."""
    spark.sql(f"CREATE TABLE out (value STRING) USING tutti OPTIONS (gateways '{own_gateway.url}', topic 'out')")
    yield f"'gateways' = '{own_gateway.url}', 'topic' = 'out'"
    spark.sql("DROP TABLE out")


def test_a_table_is_inserted_into_with_the_options_of_the_statement(
    spark: SparkSession, own_gateway: GatewayProcess, table: str
) -> None:
    spark.sql(f"INSERT INTO out WITH ({table}) VALUES ('sql')")  # noqa: S608 - the test's own
    row = spark.sql("SELECT 'frame' AS value")
    row.writeTo("out").option("gateways", own_gateway.url).option("topic", "out").append()
    row.write.format("tutti").option("gateways", own_gateway.url).option("topic", "out").mode("append").saveAsTable("out")
    assert [record.value for record in records(own_gateway, "out")] == [b"sql", b"frame", b"frame"]
    with pytest.raises(PySparkException, match="the log is append-only"):
        spark.sql(f"INSERT OVERWRITE out WITH ({table}) VALUES ('x')")  # noqa: S608 - likewise


@pytest.mark.parametrize("insert", ["INSERT INTO out VALUES ('x')", "CREATE TABLE other USING tutti AS SELECT 'x' AS value"])
def test_an_insert_without_options_gets_an_error_with_advice(spark: SparkSession, table: str, insert: str) -> None:
    """Fails when Spark begins to pass a table's options to a write: then change docs/how-to/spark.md."""
    with pytest.raises(PySparkException, match=r"Spark does not pass a table's own options.*INSERT INTO t WITH \('gateways'"):
        spark.sql(insert)


def in_thread(thread: type[threading.Thread], work: Callable[[], None]) -> None:
    """Run it in a thread and raise what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except (PySparkException, Py4JJavaError) as error:
            raised.append(error)

    started = thread(target=run)
    started.start()
    started.join()
    if raised:
        raise raised[0]


def test_a_thread_of_the_driver_writes_once_it_has_registered(spark: SparkSession, own_gateway: GatewayProcess) -> None:
    """Fails when Spark finds a sink in a thread without a session: then `register` there is unnecessary."""

    def write() -> None:
        row = spark.sql("SELECT 'x' AS value")
        row.write.format("tutti").option("gateways", own_gateway.url).option("topic", "out").mode("append").save()

    def register_and_write() -> None:
        pyspark_tutti.register(spark)
        write()

    with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
        in_thread(threading.Thread, write)
    in_thread(threading.Thread, register_and_write)
    assert [record.value for record in records(own_gateway, "out")] == [b"x"]


def test_a_thread_of_foreach_batch_is_known_by_its_micro_batch(
    spark: SparkSession, own_gateway: GatewayProcess, numbers: Producer, tmp_path: Path
) -> None:
    """Proves that an InheritableThread that has registered writes once though the micro-batch runs again."""
    failed: list[int] = []

    def write(rows: DataFrame, batch: int) -> None:
        def work() -> None:
            pyspark_tutti.register(spark)
            some = rows.select("value").write.format("tutti").option("gateways", own_gateway.url).option("topic", "out")
            some.mode("append").save()

        in_thread(InheritableThread, work)
        if not failed:
            failed.append(batch)
            raise RuntimeError("the driver ends after a commit")

    send(numbers, *range(10))
    stream = read(spark, own_gateway).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream = stream.trigger(availableNow=True).foreachBatch(write)
    with pytest.raises(PySparkException, match="the driver ends after a commit"):
        run(stream.start())
    run(stream.start())
    assert [record.value for record in records(own_gateway, "out")] == [b"%d" % number for number in range(10)]


def test_large_records_may_be_consecutive(spark: SparkSession, own_gateway: GatewayProcess) -> None:
    """Slices are split by the size of their records: by the average, some were over the limit, again in each attempt."""
    rows = spark.range(0, 3000, 1, 1).selectExpr(
        "if(id between 100 and 111, repeat('x', 1000000 + id), cast(id as string)) as value"
    )
    rows.write.format("tutti").option("gateways", own_gateway.url).option("topic", "out").mode("append").save()
    found = records(own_gateway, "out")
    assert [len(record.value) for record in found if len(record.value) > 4] == [1000000 + number for number in range(100, 112)]
    assert len(found) == 3000
