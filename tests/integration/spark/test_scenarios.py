"""The scenarios of the tests of Spark's own Kafka source, adapted to one ordered log. NOTES.md lists where each is."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.figures import descendants
from tests.integration.spark.rows import WAIT_S, Meanwhile, Query, numbered, send, until
from tests.support.gateway_process import GatewayProcess
from tutti import Producer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
BEGIN = datetime(2013, 1, 1, tzinfo=UTC)


def sources(query: StreamingQuery) -> list[tuple[int, int, int]]:
    """Of each micro-batch with records that is reported: start, end and rows of its (only) source."""
    found = []
    for progress in query.recentProgress:
        source = progress.sources[0]
        start, end = (json.loads(text or "null") for text in (source.startOffset, source.endOffset))
        found.append((start["offset"] if start else -1, end["offset"], source.numInputRows))
    return [batch for batch in found if batch[0] != batch[1]]


def timed(url: str, topic: str, *minutes: int) -> int:
    """Send a record for each number, whose time is so many minutes after `BEGIN`, and return the first offset."""
    with Producer(url) as producer:
        receipts = [
            producer.send(topic, str(number).encode(), timestamp=BEGIN + timedelta(minutes=minute))
            for number, minute in enumerate(minutes)
        ]
    return int(receipts[0].result(WAIT_S))


def test_available_now_ends_at_the_frontier_of_its_start(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that records that arrive during the run are left to the next one, also if several micro-batches follow."""
    first = send(gateway.url, "s-now", numbered("n", 30))[0]
    query = Meanwhile(spark, gateway.url, tmp_path / "c", topics="s-now", startingOffset=first, maxRecordsPerTrigger=20)
    query.act = lambda: send(gateway.url, "s-now", numbered("n", 30, 30))
    query.run()
    assert [len(batch) for batch in query.batches.values()] == [20, 10]
    assert query.values == numbered("n", 30)
    query.run()
    assert query.values == numbered("n", 60)


def test_limits_are_exact_in_offsets_of_all_topics(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that a limit counts offsets in the log, whichever topics are read, and that reported rows are those of the topics."""
    with Producer(gateway.url) as producer:
        receipts = [producer.send(("s-rate", "s-other")[number % 2], b"%d" % number) for number in range(50)]
    first = receipts[0].result(WAIT_S)
    query = Query(spark, gateway.url, tmp_path / "c", topics="s-rate", startingOffset=first, maxOffsetsPerTrigger=20).run()
    assert sources(query.running) == [(-1, first + 20, 10), (first + 20, first + 40, 10), (first + 40, first + 50, 5)]
    assert query.values == [b"%d" % number for number in range(0, 50, 2)]
    # The greatest number is no overflow, and another limit holds from the next micro-batch on.
    send(gateway.url, "s-rate", numbered("m", 10))
    most = Query(spark, gateway.url, tmp_path / "c", topics="s-rate", maxRecordsPerTrigger=(1 << 63) - 1).run()
    assert most.values == numbered("m", 10)
    assert sources(most.running) == [(first + 50, first + 60, 10)]


def test_once_reads_all_and_a_timed_trigger_continues(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    first = send(gateway.url, "s-once", numbered("o", 30))[0]
    stream = spark.readStream.format("tutti").options(gateways=gateway.url, topics="s-once", startingOffset=str(first))
    taken: list[int] = []
    writer = stream.option("maxRecordsPerTrigger", 10).load().writeStream.option("checkpointLocation", str(tmp_path / "c"))
    writer = writer.foreachBatch(lambda rows, _: taken.append(rows.count()))
    assert writer.trigger(once=True).start().awaitTermination(WAIT_S)
    assert taken == [30]
    send(gateway.url, "s-once", numbered("o", 15, 30))
    timed_query = writer.trigger(processingTime="50 milliseconds").start()
    until(lambda: sum(taken) == 45, "what was sent between", timed_query)
    send(gateway.url, "s-once", numbered("o", 5, 45))
    until(lambda: sum(taken) == 50, "what was sent to the running query", timed_query)
    timed_query.stop()
    assert taken == [30, 10, 5, 5]


def test_a_time_begins_with_the_first_of_its_records_wherever_others_lie(
    spark: SparkSession, own_gateway: GatewayProcess, tmp_path: Path
) -> None:
    """Proves that no record of a time is left out, that the order of the log counts, and how a time beyond its end is handled."""
    first = timed(own_gateway.url, "s-time", 0, 10, 10, 10, 5, 20)
    options = {"topics": "s-time", "startingTimestamp": (BEGIN + timedelta(minutes=10)).isoformat()}
    ties = Query(spark, own_gateway.url, tmp_path / "ties", **options).run()
    assert ties.values == [b"1", b"2", b"3", b"4", b"5"], "the record of minute 5 stands behind them in the log"
    send(own_gateway.url, "s-time", [b"later"])
    ties.run()
    assert ties.values[5:] == [b"later"]
    before = Query(
        spark, own_gateway.url, tmp_path / "before", topics="s-time", startingTimestamp=0, maxRecordsPerTrigger=1000
    ).run()
    assert before.values == [b"0", b"1", b"2", b"3", b"4", b"5", b"later"]
    beyond = Query(spark, own_gateway.url, tmp_path / "beyond", topics="s-time", startingTimestamp="2999-01-01T00:00:00Z").run()
    assert beyond.values == []
    send(own_gateway.url, "s-time", [b"next"])
    beyond.run()
    assert beyond.values == [b"next"], "it began at the frontier, and what came since is there"
    batch = spark.read.format("tutti").options(gateways=own_gateway.url, topics="s-time", startingOffset=str(first))
    until_ten = batch.option("endingTimestamp", (BEGIN + timedelta(minutes=10)).isoformat()).load()
    assert [bytes(row.value) for row in until_ten.orderBy("offset").collect()] == [b"0"], "an end is exclusive, ties included"


def test_a_query_of_two_logs_keeps_both_positions(
    spark: SparkSession, gateway: GatewayProcess, own_gateway: GatewayProcess, tmp_path: Path
) -> None:
    """Proves that each source of a query has its own log, offsets and limit, restarted too."""
    send(gateway.url, "s-two", numbered("a", 20))
    send(own_gateway.url, "s-two", numbered("b", 5))

    def values(limit: int) -> list[bytes]:
        parts = [
            spark.readStream.format("tutti")
            .options(gateways=url, topics="s-two", startingOffset="earliest", columns="value", maxRecordsPerTrigger=str(limit))
            .load()
            for url in (gateway.url, own_gateway.url)
        ]
        taken: list[bytes] = []
        writer = parts[0].union(parts[1]).writeStream.option("checkpointLocation", str(tmp_path / "c"))
        writer = writer.foreachBatch(lambda rows, _: taken.extend(bytes(row.value) for row in rows.collect()))
        assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)
        return sorted(taken)

    assert values(1 << 40) == sorted(numbered("a", 20) + numbered("b", 5))
    assert values(3) == []
    send(own_gateway.url, "s-two", numbered("b", 7, 5))
    send(gateway.url, "s-two", numbered("a", 1, 20))
    assert values(3) == sorted(numbered("b", 7, 5) + numbered("a", 1, 20))


def test_a_stream_used_twice_in_a_query_is_right_in_both_uses(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    first = send(gateway.url, "s-self", [b"1", b"2", b"3"])[0]
    options = {"gateways": gateway.url, "topics": "s-self", "startingOffset": str(first), "columns": "value"}
    stream = spark.readStream.format("tutti").options(**options).load().select(f.col("value").cast("string").cast("int").alias("n"))
    joined = stream.join(stream.select((f.col("n") - 1).alias("n"), f.col("n").alias("next")), "n")
    taken: list[tuple[Any, ...]] = []
    writer = joined.writeStream.option("checkpointLocation", str(tmp_path / "c"))
    writer = writer.foreachBatch(lambda rows, _: taken.extend(tuple(row) for row in rows.collect()))
    assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)
    assert sorted(taken) == [(1, 2), (2, 3)]
    send(gateway.url, "s-self", [b"4"])
    assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)
    assert sorted(taken) == [(1, 2), (2, 3), (3, 4)]


def test_a_restarted_query_may_have_other_options(spark: SparkSession, own_gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that a checkpoint is a position in the log and no more: topics, limits, partitions and the source may change."""
    send(own_gateway.url, "one", numbered("a", 10))
    send(own_gateway.url, "two", numbered("b", 10))
    checkpoint = tmp_path / "c"
    first = Query(spark, own_gateway.url, checkpoint, topics="one", startingOffset="earliest", maxRecordsPerTrigger=8).run()
    assert first.values == numbered("a", 10)
    send(own_gateway.url, "one", numbered("a", 10, 10))
    send(own_gateway.url, "two", numbered("b", 10, 10))
    more = Query(spark, own_gateway.url, checkpoint, topics="two,one", startingOffset="latest", minPartitions=3).run()
    assert more.values == numbered("a", 10, 10) + numbered("b", 10, 10)
    later = Query(spark, own_gateway.url, checkpoint, topicsPattern="t.*", columns="value,offset", cut="tick:1")
    later.start(available_now=True)
    send(own_gateway.url, "three", numbered("c", 10))
    later.running.awaitTermination(WAIT_S)
    assert own_gateway.stop() == 0
    files = Query(spark, own_gateway.data, checkpoint, topics="three").run()
    assert later.values + files.values == numbered("c", 10), "from the files alone, on from the same checkpoint"


def test_a_pattern_finds_topics_that_come_while_the_query_runs(
    spark: SparkSession, gateway: GatewayProcess, tmp_path: Path
) -> None:
    query = Query(spark, gateway.url, tmp_path / "c", topicsPattern="s-pattern-[ab]", startingOffset="earliest").start()
    until(lambda: 0 in query.batches, "the first, empty batch", query.running)
    send(gateway.url, "s-pattern-a", numbered("a", 10))
    query.wait_for(10)
    send(gateway.url, "s-pattern-c", numbered("c", 10))
    send(gateway.url, "s-pattern-b", numbered("b", 10))
    query.wait_for(20)
    query.stop()
    assert query.values == numbered("a", 10) + numbered("b", 10)


def test_empty_values_keys_and_headers_come_through_a_stream(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    with Producer(gateway.url) as producer:
        first = producer.send("s-null", None, key=None).result(WAIT_S)
        producer.send("s-null", b"", key=b"", headers=[("h", b""), ("h", None), ("i", b"x")]).result(WAIT_S)
    stream = spark.readStream.format("tutti").options(gateways=gateway.url, topics="s-null", startingOffset=str(first)).load()
    rows: list[Any] = []
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "c"))
    writer = writer.foreachBatch(lambda batch, _: rows.extend(batch.orderBy("offset").collect()))
    assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)
    assert [(row["key"], row["value"]) for row in rows] == [(None, None), (b"", b"")]
    assert [None if row["headers"] is None else [tuple(pair) for pair in row["headers"]] for row in rows][1] == [
        ("h", b""),
        ("h", None),
        ("i", b"x"),
    ]


def test_a_query_starts_at_the_position_of_another(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that the offset in a query's progress is one to start another query from, with nothing between them left out."""
    first = send(gateway.url, "s-other", numbered("q", 25))[0]
    one = Query(spark, gateway.url, tmp_path / "one", topics="s-other", startingOffset=first, maxRecordsPerTrigger=10).start()
    one.wait_for(25)
    one.running.processAllAvailable()
    one.stop()
    place = sources(one.running)[1][1]
    two = Query(spark, gateway.url, tmp_path / "two", topics="s-other", startingOffset=place).run()
    assert two.values == numbered("q", 5, 20)


def test_processes_of_a_query_end_with_it(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that no process stays of a query that was stopped, however often it is started again."""
    send(gateway.url, "s-ends", numbered("e", 3))

    def planners() -> set[int]:
        process = spark.sparkContext._gateway
        assert process is not None
        return {pid for pid in descendants(process.proc.pid) if b"python_streaming_source_runner" in command(pid)}

    before = planners()
    for _ in range(3):
        query = Query(spark, gateway.url, tmp_path / "c", topics="s-ends", startingOffset="earliest").start()
        until(lambda: len(planners() - before) == 1, "the query's own process", query.running)
        query.running.processAllAvailable()
        query.stop()
        until(lambda: not planners() - before, "the end of the query's own process")


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it ended since it was listed
