"""Tests of Spark reads across archive and log: batches, streams from an old checkpoint, and with the gateway down."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.integration.spark.rows import Query, numbered, send
from tests.support.gateway_process import GatewayProcess
from tests.unit.archive.memory_archive import CLOSED, COUNT, ODD_TOPICS, TABLE, archived
from tests.unit.archive.memory_log import Log
from tutti import Producer
from tutti import limits as common_limits
from tutti.archive.archiver import Archiver, Settings
from tutti.archive.catalog import Archive
from tutti.sources.archiver_input import GatewayLog
from tutti.sources.flight import FlightSource
from tutti_gateway.core import limits
from tutti_spark.common.options import parse
from tutti_spark.source.partition_reader import read_partition
from tutti_spark.source.planning import RecordsPartition

pytestmark = pytest.mark.spark
SEGMENT = limits.SEGMENT_BYTES_MIN
RECORD = 1_000_000
KEPT = (
    f"[timers]\ntick_ms = 200\n[log]\nsegment_bytes = {SEGMENT}\nprepared_segments = 0\n"
    f'[retention]\nbytes = {2 * SEGMENT}\nkeep_for = ["archive"]\n'
)
FIRST, MORE = 10, 15


class Short(NamedTuple):
    """A gateway whose first records are in the archive alone; that archive; a checkpoint from when ten records were processed."""

    gateway: GatewayProcess
    archive: Path
    checkpoint: Path
    end: int


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Short]:
    root = tmp_path_factory.mktemp("short")
    with GatewayProcess(root, extra=KEPT) as running:
        send(running.url, "t", numbered("a", FIRST))
        assert Query(spark, running.url, root / "c", topics="t", startingOffset="earliest").run().values == numbered("a", FIRST)
        send(running.url, "t", numbered("b", MORE))
        with Producer(running.url) as producer:
            for _ in range(3 * SEGMENT // RECORD):
                producer.send("fill", bytes(RECORD)).result(60)
        archive, log = Archive(root / "archive", FlightSource(running.url).frontier().log, make=True), GatewayLog(running.url)
        Archiver(log, archive, Settings("archive", ticks=1)).run_once()
        deadline = time.monotonic() + 60
        while FlightSource(running.url).frontier().start < FIRST + MORE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        send(running.url, "t", numbered("c", 5))
        yield Short(running, root / "archive", root / "c", FlightSource(running.url).frontier().offset)


ALL = [*numbered("a", FIRST), *numbered("b", MORE), *numbered("c", 5)]


def values(spark: SparkSession, **options: object) -> list[bytes]:
    given = {name: str(value) for name, value in options.items()}
    rows = spark.read.format("tutti").options(**given, topics="t", columns="offset,value").load().orderBy("offset")
    return [bytes(row["value"]) for row in rows.collect()]


def test_a_batch_and_an_old_checkpoint_read_on_from_the_archive(spark: SparkSession, short: Short) -> None:
    url = short.gateway.url
    assert values(spark, gateways=url, archive=short.archive) == ALL
    assert values(spark, gateways=url, archive=short.archive, startingOffset=3, endingOffset=13) == ALL[3:13]
    with pytest.raises(PySparkException, match=r"records 0 to .* are no longer in the log"):
        values(spark, gateways=url, startingOffset=0)
    counted = spark.read.format("tutti").options(gateways=url, archive=str(short.archive), minPartitions="4").load()
    assert counted.count() == short.end
    later = Query(spark, url, short.checkpoint, topics="t", archive=str(short.archive)).run()
    assert later.values == ALL[FIRST:]
    cut = {"cut": "tick:1", "maxRecordsPerTrigger": "1", "startingOffset": "earliest"}
    anew = Query(spark, url, short.checkpoint.parent / "anew", topics="t", archive=str(short.archive), **cut).run()
    assert anew.values == ALL[: len(anew.values)]
    assert len(anew.values) >= FIRST + MORE


def test_records_trimmed_after_planning_are_read_from_the_archive(short: Short) -> None:
    given = {"gateways": short.gateway.url, "archive": str(short.archive), "topics": "t", "columns": "value"}
    log = FlightSource(short.gateway.url).frontier().log
    planned = RecordsPartition(log, 0, short.end, ("t",), (), log_start=0)  # as if the log had held all of it then
    for more in ({}, {"shortCircuit": "false"}):
        batches = read_partition(parse(given | more), planned)
        assert [value for batch in batches for value in batch.column("value").to_pylist()] == ALL


def test_with_the_gateway_down_files_and_archive_serve_and_the_archive_alone(spark: SparkSession, short: Short) -> None:
    short.gateway.kill()
    try:
        assert values(spark, path=short.gateway.data, archive=short.archive) == ALL
        assert values(spark, archive=short.archive) == ALL[: FIRST + MORE]
        stream: Any = spark.readStream.format("tutti").option("archive", str(short.archive)).load
        writer = stream().writeStream.format("noop").option("checkpointLocation", str(short.archive.parent / "x"))
        with pytest.raises(PySparkException, match="a stream cannot read an archive alone"):
            writer.start().awaitTermination(60)
    finally:
        short.gateway.start()


def test_spark_reads_the_files_of_any_topics_as_they_are(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With topics that share a file, and names that Spark would take for numbers, times or null in a directory's name."""
    monkeypatch.setattr(common_limits, "ARCHIVE_FILES_MAX", len(ODD_TOPICS) - 2)
    column = TABLE.schema.get_field_index("topic")
    topics = [ODD_TOPICS[number % len(ODD_TOPICS)] for number in range(COUNT)]
    archived(tmp_path, Log(TABLE.set_column(column, TABLE.schema.field(column), [topics])))
    found = spark.read.parquet(str(tmp_path / "data")).select("offset", "topic").orderBy("offset").collect()
    assert [tuple(row) for row in found] == list(enumerate(topics[:CLOSED]))
