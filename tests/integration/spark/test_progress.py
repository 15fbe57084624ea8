"""Tests of a producer's wait for a query: it ends when the sink has the record and Spark has stored the batch, at any gateway."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.integration.spark.rows import WAIT_S, Query, numbered, send, until
from tests.support.commands import tutti
from tests.support.gateway_process import GatewayProcess
from tests.support.running_group import RunningGroup
from tutti import Producer
from tutti.sources.query_progress import QueryProgress

pytestmark = pytest.mark.spark


class Gated(Query):
    """A query whose batches end while the gate is open."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.gate = threading.Event()
        self.gate.set()
        self.begun = 0

    def _take(self, rows: DataFrame, batch: int) -> None:
        self.begun += 1
        self.gate.wait(WAIT_S)
        super()._take(rows, batch)

    def __enter__(self) -> Gated:
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()


def committed(checkpoint: Path) -> int:
    """How many micro-batches Spark has noted as done."""
    return len(list((checkpoint / "commits").glob("[0-9]*")))


def test_the_position_of_two_streams_is_that_of_the_one_that_lags(
    spark: SparkSession, gateway: GatewayProcess, tmp_path: Path
) -> None:
    """Proves that a query name covers all streams of the query: a record that one of them has not read does not
    count as processed.
    """
    first = send(gateway.url, "pair", numbered("p", 20))[0]
    source = spark.readStream.format("tutti").option("gateways", gateway.url).option("topics", "pair").option("queryName", "pair")
    streams = [source.option("startingOffset", first).option("maxRecordsPerTrigger", most).load() for most in (20, 5)]
    gate, begun = threading.Event(), threading.Event()

    def take(_: DataFrame, batch: int) -> None:
        if batch == 1:
            begun.set()
            gate.wait(WAIT_S)

    writer = streams[0].union(streams[1]).writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "c"))
    query = writer.start()
    try:
        until(begun.is_set, "the second batch", query)
        with QueryProgress(gateway.url) as gateways:
            until(lambda: len([one for one in gateways.queries() if one.name == "pair"]) == 2, "both streams to report", query)
            until(lambda: gateways.readers().get("pair") == first + 5, "the position of the stream that lags", query)
            both = {first + 5}
            until(lambda: {one.offset for one in gateways.queries() if one.name == "pair"} == both, "both to say so", query)
            gate.set()
            until(lambda: gateways.readers()["pair"] >= first + 20, "both streams to end", query)
    finally:
        gate.set()
        query.stop()


def test_a_record_is_processed_when_its_batch_has_ended(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that the reply comes after the sink and the checkpoint have the record, also for a record in a failed batch, and that
    `tutti queries` shows the query's position.
    """
    checkpoint = tmp_path / "c"
    with Producer(gateway.url) as producer, QueryProgress(gateway.url) as gateways:
        first = producer.send("reply", b"r0").result(WAIT_S)
        query = Gated(spark, gateway.url, checkpoint, topics="reply", startingOffset=first, queryName="replies")
        query.start()
        receipts = [producer.send("reply", value) for value in numbered("r", 3, 1)]
        for number, receipt in enumerate(receipts, 1):
            assert receipt.processed_by("replies", timeout=WAIT_S) > receipt.result()
            assert f"r{number}".encode() in query.values
        assert committed(checkpoint) == len(query.batches)

        query.gate.clear()
        begun, query.fail_at = query.begun, len(query.batches)
        held = producer.send("reply", b"held")
        with query:
            until(lambda: query.begun > begun, "the batch to begin", query.running)
            with pytest.raises(TimeoutError, match=f"'replies' has not processed .* offset {held.result()}"):
                held.processed_by("replies", timeout=0.3)
        with pytest.raises(PySparkException, match="told to fail"):
            query.running.awaitTermination(WAIT_S)
        with pytest.raises(TimeoutError):
            held.processed_by("replies", timeout=0.3)

        query.fail_at = None
        query.run()
        # A run that takes what is there tells of its last batch before it ends.
        assert gateways.readers()["replies"] == gateways.frontier().offset
        assert held.processed_by("replies", timeout=WAIT_S) == gateways.frontier().offset
        assert query.values == [*numbered("r", 4), b"held"]
        listed: list[dict[str, Any]] = tutti("queries", "--json", url=gateway.url).json
        line = max((line for line in listed if line["name"] == "replies"), key=lambda line: line["since"])
        assert (line["offset"], line["lag_records"], line["topics"]) == (gateways.frontier().offset, 0, ["reply"])
        assert "@" in line["label"]


def test_a_new_checkpoint_resets_the_position(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that a new waiter waits until the query reaches the record again, and one that has seen it there does not."""
    with Producer(gateway.url) as producer, Producer(gateway.url) as other, QueryProgress(gateway.url) as gateways:
        seen, unseen = producer.send("back", b"b0"), other.send("back", b"b1")
        first = min(seen.result(WAIT_S), unseen.result(WAIT_S))
        end = first + 2
        Query(spark, gateway.url, tmp_path / "old", topics="back", startingOffset=first, queryName="back").run()
        assert seen.processed_by("back", timeout=WAIT_S) >= end
        again = Gated(spark, gateway.url, tmp_path / "new", topics="back", startingOffset=first, queryName="back")
        again.gate.clear()
        with again:
            again.start()
            until(lambda: gateways.readers()["back"] == first, "the position to go back", again.running)
            assert seen.processed_by("back", timeout=0) >= end
            with pytest.raises(TimeoutError, match=f"records below offset {first}"):
                unseen.processed_by("back", timeout=0.3)
        assert unseen.processed_by("back", timeout=WAIT_S) >= end
        again.stop()


def test_a_query_reports_to_the_next_gateway_when_its_own_dies(spark: SparkSession, tmp_path: Path) -> None:
    """Proves that progress is reported and received although the gateway of both sides is killed."""
    with RunningGroup(tmp_path) as group, Producer(group.url) as producer:
        send(group.url, "three", numbered("t", 2))
        options = {"topics": "three", "startingOffset": "earliest", "queryName": "three"}
        query = Query(spark, group.url, tmp_path / "c", **options).start()
        assert producer.send("three", b"t2").processed_by("three", timeout=WAIT_S) == 3

        def told() -> str:
            return next(
                (line["gateway"] for line in tutti("queries", "--json", url=group.url).json if line["state"] == "running"), ""
            )

        until(told, "the query to be listed", query.running)
        before = told()
        group[before].kill()
        assert producer.send("three", b"t3").processed_by("three", timeout=WAIT_S) == 4
        assert query.values == numbered("t", 4)
        until(lambda: told() not in ("", before), "the query to be listed elsewhere", query.running)
        query.stop()
