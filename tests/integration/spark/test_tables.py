"""Tests of tables and views in SQL: `CREATE TABLE ... USING tutti`, and which of them show records that arrive later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.integration.spark.rows import Query, numbered, send
from tests.support.gateway_process import GatewayProcess
from tutti_spark.deterministic import deterministic

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    for table in spark.catalog.listTables():
        kind = "VIEW" if table.tableType in ("VIEW", "TEMPORARY") else "TABLE"
        spark.sql(f"DROP {kind} {table.name}")


def count(spark: SparkSession, query: str) -> int:
    found: int = spark.sql(f"SELECT count(*) FROM {query}").collect()[0][0]  # noqa: S608 - of a test
    return found


def test_a_table_reads_the_log_whenever_it_is_asked(tables: SparkSession, own_gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that a table of the catalog keeps its options, for gateways and for files, and has the newest records at each read."""
    spark, url = tables, own_gateway.url
    send(url, "seen", numbered("s", 5))
    spark.sql(f"CREATE TABLE live USING tutti OPTIONS (gateways '{url}', subscribe 'seen', columns 'offset,value') COMMENT 'x'")
    spark.sql(f"CREATE TABLE files USING tutti OPTIONS (path '{own_gateway.data}', topics 'seen')")
    spark.sql(f"CREATE TABLE placed USING tutti LOCATION '{own_gateway.data}'")
    spark.catalog.createTable("made", source="tutti", gateways=url, topics="seen")
    for name in ("live", "files", "placed", "made"):
        assert count(spark, name) == 5, name
    assert spark.table("live").columns == ["offset", "value"]
    send(url, "seen", numbered("s", 2, 5))
    send(url, "other", numbered("o", 1))
    assert [count(spark, name) for name in ("live", "made", "files", "placed")] == [7, 7, 7, 8]
    assert count(spark, "live WITH (startingOffset = 4)") == 3
    assert spark.read.option("endingOffset", 4).table("live").count() == 4
    spark.sql("CREATE VIEW values_of AS SELECT cast(value AS string) AS text FROM live")
    assert [row.text for row in spark.sql("SELECT text FROM values_of ORDER BY text").collect()] == [f"s{n}" for n in range(7)]
    assert [finding.expression for finding in deterministic(spark.table("live"))] == ["endingOffset latest"]

    values: list[bytes] = []
    stream = spark.readStream.option("startingOffset", "earliest").option("maxRecordsPerTrigger", 3).table("live")
    writer = stream.writeStream.foreachBatch(lambda rows, _: values.extend(bytes(row.value) for row in rows.collect()))
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert values == numbered("s", 7)
    spark.sql("DROP TABLE files")
    assert own_gateway.data.is_dir()
    assert count(spark, "placed") == 8


def test_a_dataframe_reads_the_same_range_again(tables: SparkSession, own_gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves docs/how-to/spark.md for Spark 4.2 and 4.3: a DataFrame, a view of one, and the static side of a stream keep the
    range of their first action; `load()`, a table and `foreachBatch` have the newest. When this fails, Spark has changed, and so
    must the page.
    """
    spark, url = tables, own_gateway.url
    send(url, "dim", numbered("d", 1))

    def load() -> DataFrame:
        return spark.read.format("tutti").option("gateways", url).option("topics", "dim").load()

    spark.sql(f"CREATE TABLE dims USING tutti OPTIONS (gateways '{url}', topics 'dim')")
    spark.sql(f"CREATE TEMPORARY VIEW dims_view USING tutti OPTIONS (gateways '{url}', topics 'dim')")
    rows, of_table = load(), spark.table("dims")
    rows.createOrReplaceTempView("dims_of_rows")
    kept: dict[str, Callable[[], int]] = {
        "rows": rows.count,
        "view of rows": lambda: count(spark, "dims_of_rows"),
        "view": lambda: count(spark, "dims_view"),
    }
    kept |= {"filtered": lambda: rows.where("offset >= 0").count(), "of table": of_table.count}
    newest: dict[str, Callable[[], int]] = {"load": lambda: load().count(), "table": lambda: count(spark, "dims")}
    assert {name: ask() for name, ask in (kept | newest).items()} == dict.fromkeys(kept | newest, 1)
    send(url, "dim", numbered("d", 2, 1))
    assert {name: ask() for name, ask in kept.items()} == dict.fromkeys(kept, 1)
    assert {name: ask() for name, ask in newest.items()} == dict.fromkeys(newest, 3)

    static, seen = load(), dict[str, list[int]](join=[], again=[])
    query = Query(spark, url, tmp_path / "c", topics="fact", startingOffset="earliest", maxRecordsPerTrigger=1)

    def take(batch: DataFrame, _: int) -> None:
        seen["again"].append(batch.select("value").crossJoin(load().select("offset")).count())

    facts = query._stream.load()
    joined = facts.select("value").crossJoin(static.select("offset"))
    started = joined.writeStream.foreachBatch(lambda batch, _: seen["join"].append(batch.count()))
    started = started.option("checkpointLocation", str(tmp_path / "joined"))
    again = facts.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "again"))
    send(url, "fact", numbered("f", 1))
    running = []
    for writer in (started, again):
        running.append(writer.start())
        running[-1].processAllAvailable()  # two that start at once may have too little time on a busy machine
    send(url, "dim", numbered("d", 1, 3))
    send(url, "fact", numbered("f", 1, 1))
    for one in running:
        one.processAllAvailable()
        one.stop()
    assert {name: max(counts) for name, counts in seen.items()} == {"join": 3, "again": 4}
