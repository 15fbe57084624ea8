"""Tests of batch reads: the gateway and its files alone give the same rows, and every option works."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.integration.spark.rows import numbered, send
from tests.support.gateway_process import GatewayProcess
from tests.support.ports import free_base
from tutti import Producer, Reader

pytestmark = pytest.mark.spark
COLUMNS = ["offset", "topic", "key", "value", "timestamp", "headers", "gateway", "producer", "sequence", "view", "tick"]


def read(spark: SparkSession, **options: object) -> DataFrame:
    return spark.read.format("tutti").options(**{name: str(value) for name, value in options.items()}).load()


def everything(rows: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in rows.orderBy("offset").collect()]


def test_reading_files_of_a_stopped_gateway_equals_reading_the_gateway(spark: SparkSession, own_gateway: GatewayProcess) -> None:
    with Producer(own_gateway.url, producer="p1") as producer:
        for number in range(3000):
            headers = [("n", str(number).encode()), ("none", None)] if number % 7 == 0 else ()
            value = None if number % 11 == 0 else b"x" * (number % 100)
            producer.send(("a", "b", "c")[number % 3], value, key=None if number % 5 else b"k", headers=headers)
    live = read(spark, gateways=own_gateway.url)
    assert live.columns == COLUMNS
    rows = everything(live)
    assert [row[0] for row in rows] == list(range(3000))
    with Reader(own_gateway.url) as reader:
        direct = [record for batch in reader for record in batch.to_pylist()]
    assert [row[2:4] for row in rows] == [(record["key"], record["value"]) for record in direct]
    some = everything(read(spark, gateways=own_gateway.url, topics="c,a", startingOffset=100, endingOffset=2000))
    assert own_gateway.stop() == 0
    assert everything(read(spark, path=own_gateway.data)) == rows
    assert everything(read(spark, path=own_gateway.data, topics="c,a", startingOffset=100, endingOffset=2000)) == some
    assert some == [row for row in rows if row[1] in ("a", "c") and 100 <= row[0] < 2000]
    assert everything(spark.read.format("tutti").load([str(own_gateway.data)])) == rows


def test_ranges_topics_columns_and_partitions(spark: SparkSession, gateway: GatewayProcess) -> None:
    offsets = send(gateway.url, "ranges", numbered("r", 100))
    send(gateway.url, "ranges2", numbered("s", 5))
    between = datetime.now(UTC)
    later = send(gateway.url, "ranges", numbered("t", 10))
    url = gateway.url
    rows = read(spark, gateways=url, subscribe="ranges", columns="value,offset")
    assert rows.columns == ["value", "offset"]
    assert [(row.offset, bytes(row.value)) for row in rows.collect()] == list(
        zip(offsets + later, numbered("r", 100) + numbered("t", 10), strict=True)
    )
    assert read(spark, gateways=url, topicsPattern="ranges.").count() == 5
    assert read(spark, gateways=url, topicsPattern="range").count() == 0
    assert read(spark, gateways=url, topics="never-sent").count() == 0
    start, end = offsets[10], offsets[20]
    assert read(spark, gateways=url, topics="ranges", startingOffset=start, endingOffset=end).count() == 10
    assert read(spark, gateways=url, startingOffset=end, endingOffset=end).count() == 0
    time = between.isoformat()
    assert read(spark, gateways=url, topics="ranges", startingTimestamp=time).count() == 10
    assert read(spark, gateways=url, topics="ranges", endingTimestamp=int(between.timestamp() * 1000)).count() == 100
    assert read(spark, gateways=url, topics="ranges", startingOffsets="latest").count() == 0


def test_more_partitions_hold_the_same_records(spark: SparkSession, gateway: GatewayProcess) -> None:
    for part in range(8):
        send(gateway.url, "parts", numbered("p", 100, part * 100))
    rows = read(spark, gateways=gateway.url, topics="parts", minPartitions=4, columns="offset,value")
    assert rows.rdd.getNumPartitions() >= 2
    assert [bytes(row.value) for row in rows.orderBy("offset").collect()] == numbered("p", 800)


def test_an_empty_log_has_no_rows(spark: SparkSession, own_gateway: GatewayProcess) -> None:
    assert read(spark, gateways=own_gateway.url).count() == 0
    assert read(spark, path=own_gateway.data).count() == 0


def test_another_log_at_the_same_address_is_read_as_such(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's workers keep running, and must not keep what they know of an address beyond the log there."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with GatewayProcess(tmp_path / "one") as one:
        send(one.url, "t", [b"one"])
        assert [bytes(row.value) for row in read(spark, gateways=one.url).collect()] == [b"one"]
    two = GatewayProcess(tmp_path / "two")
    two.config.write_text(two.config.read_text().replace(f":{two.port}", f":{one.port}"))
    two.port = one.port
    with two:
        send(two.url, "t", [b"two", b"three"])
        assert [bytes(row.value) for row in read(spark, gateways=two.url).collect()] == [b"two", b"three"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["'gateways'", "'path'"]),
        ({"gateways": "localhost"}, ["'gateways'", "'localhost'", "tutti://HOST:PORT"]),
        ({"startingOffset": "soon"}, ["'startingOffset'", "'soon'", "earliest, latest"]),
        ({"startingOffset": 10**9}, ["'startingOffset'", "1000000000", "frontier"]),
        ({"endingOffset": 10**9}, ["'endingOffset'", "1000000000", "frontier"]),
        ({"startingOffset": 1, "endingOffset": 0}, ["'startingOffset' is 1", "'endingOffset' 0"]),
        ({"columns": "offset,valu"}, ["'columns'", "'valu'", "value"]),
        ({"topcis": "a"}, ["'topcis'", "did you mean 'topics'"]),
        ({"maxRecordsPerTrigger": 5}, ["'maxRecordsPerTrigger'", "stream"]),
        ({"topics": "sp ace"}, ["sp ace"]),
    ],
)
def test_wrong_options_are_named(
    spark: SparkSession, gateway: GatewayProcess, options: dict[str, object], words: list[str]
) -> None:
    send(gateway.url, "some", [b"1", b"2"])
    origin = {} if "gateways" in options or not options else {"gateways": gateway.url}
    with pytest.raises(PySparkException) as error:
        read(spark, **origin, **options).collect()
    for word in words:
        assert word in str(error.value)


def test_an_unreadable_range_is_named(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    port = free_base()
    with pytest.raises(PySparkException, match=f"127.0.0.1:{port}"):
        read(spark, gateways=f"tutti://127.0.0.1:{port}").collect()
    with pytest.raises(PySparkException, match=f"{tmp_path} is not the data directory"):
        read(spark, path=tmp_path).collect()
    with pytest.raises(PySparkException, match="use the option 'columns'"):
        spark.read.format("tutti").schema("value binary").option("gateways", gateway.url).load().collect()


def test_tasks_on_the_host_of_a_gateway_read_its_files_by_default(spark: SparkSession, gateway: GatewayProcess) -> None:
    """Proves that short-circuit reads give the same rows, and that the gateway sends none of them."""
    send(gateway.url, "short", numbered("s", 500))

    def sent(**options: object) -> tuple[list[tuple[Any, ...]], int]:
        with urlopen(f"http://127.0.0.1:{gateway.port + 3}/v1/status", timeout=30) as page:
            before = json.load(page)["reads_served"]["streams"]["records"]
        rows = everything(read(spark, gateways=gateway.url, topics="short", **options))
        with urlopen(f"http://127.0.0.1:{gateway.port + 3}/v1/status", timeout=30) as page:
            return rows, json.load(page)["reads_served"]["streams"]["records"] - before

    rows, none = sent()
    again, all_of_them = sent(shortCircuit="false")
    assert (len(rows), none) == (500, 0)
    assert again == rows
    assert all_of_them >= 500  # an order is made of a sample first, so that all is read twice
