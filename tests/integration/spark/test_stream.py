"""Tests of streams: a query continues from its checkpoint after any end, with no record lost and none duplicated."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.integration.spark.rows import Query, numbered, send, until, until_tick
from tests.support.gateway_process import GatewayProcess
from tutti import Producer, Reader
from tutti.data.scan_request import ScanRequest
from tutti.sources.flight import FlightSource

pytestmark = pytest.mark.spark


def test_available_now_reads_all_records_in_batches_of_the_limit(
    spark: SparkSession, gateway: GatewayProcess, tmp_path: Path
) -> None:
    first = send(gateway.url, "now", numbered("n", 250))[0]
    query = Query(spark, gateway.url, tmp_path / "c", topics="now", startingOffset=first, maxRecordsPerTrigger=100).run()
    assert [len(batch) for batch in query.batches.values()] == [100, 100, 50]
    assert query.values == numbered("n", 250)
    send(gateway.url, "now", numbered("n", 30, 250))
    query.run()
    assert query.values == numbered("n", 280)
    query.run()  # nothing to do
    assert query.values == numbered("n", 280)


def test_a_query_resumes_from_its_checkpoint(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    send(gateway.url, "again", numbered("a", 50))
    query = Query(spark, gateway.url, tmp_path / "c", topics="again", startingOffset="earliest").start()
    query.wait_for(50)
    send(gateway.url, "again", numbered("a", 50, 50))
    query.wait_for(100)
    query.stop()
    send(gateway.url, "again", numbered("a", 50, 100))
    # The checkpoint wins: where a query that is started again begins is no longer a matter of options.
    again = Query(spark, gateway.url, tmp_path / "c", topics="again", startingOffset="latest")
    again.batches |= query.batches  # a batch that `stop` interrupted comes again, under its number
    again.run()
    assert again.values == numbered("a", 150)


def test_a_failed_batch_is_read_again(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    first = send(gateway.url, "failed", numbered("f", 40))[0]
    query = Query(spark, gateway.url, tmp_path / "c", topics="failed", startingOffset=first, maxRecordsPerTrigger=10)
    query.fail_at = 2
    with pytest.raises(PySparkException, match="told to fail"):
        query.run()
    offsets = json.loads((tmp_path / "c/offsets/2").read_text().splitlines()[2])
    send(gateway.url, "failed", numbered("f", 40, 40))
    query.fail_at = None
    query.run()
    assert query.values == numbered("f", 80)
    assert json.loads((tmp_path / "c/offsets/2").read_text().splitlines()[2]) == offsets


def test_a_failure_in_batch_0_loses_nothing_although_the_start_was_latest(
    spark: SparkSession, gateway: GatewayProcess, tmp_path: Path
) -> None:
    """Spark requests the initial offset again, and "latest" is another one by then."""
    send(gateway.url, "zero", numbered("before", 5))
    query = Query(spark, gateway.url, tmp_path / "c", topics="zero").start()
    query.fail_at = 0
    until((tmp_path / "c/offsets/0").exists, "the first batch to be planned")
    with pytest.raises(PySparkException, match="told to fail"):
        query.running.awaitTermination(60)
    planned = json.loads((tmp_path / "c/offsets/0").read_text().splitlines()[2])
    send(gateway.url, "zero", numbered("z", 30))
    query.fail_at = None
    query.run()
    assert query.values == numbered("z", 30)
    assert json.loads((tmp_path / "c/offsets/1").read_text().splitlines()[2])["from"] == planned["offset"]


def test_batch_0_with_records_in_it_is_read_again_from_its_own_start(
    spark: SparkSession, gateway: GatewayProcess, tmp_path: Path
) -> None:
    send(gateway.url, "zero0", numbered("before", 5))
    start = send(gateway.url, "zero0", numbered("z", 20))[0]
    query = Query(spark, gateway.url, tmp_path / "c", topics="zero0", startingOffset=start)
    query.fail_at = 0
    with pytest.raises(PySparkException, match="told to fail"):
        query.run()
    send(gateway.url, "zero0", numbered("z", 20, 20))
    again = Query(spark, gateway.url, tmp_path / "c", topics="zero0", startingOffset="latest").run()
    assert again.values == numbered("z", 40)


def test_a_query_on_an_empty_log_waits_for_its_first_record(
    spark: SparkSession, own_gateway: GatewayProcess, tmp_path: Path
) -> None:
    query = Query(spark, own_gateway.url, tmp_path / "c", startingOffset="earliest").start()
    until(lambda: 0 in query.batches, "the first, empty batch", query.running)
    assert query.values == []
    send(own_gateway.url, "t", numbered("e", 10))
    query.wait_for(10)
    until(lambda: any(progress.numInputRows for progress in query.running.recentProgress), "a report", query.running)
    source = next(progress for progress in query.running.recentProgress if progress.numInputRows).sources[0]
    start, latest = json.loads(source.startOffset), json.loads(source.latestOffset)
    assert latest["log"] == start["log"]
    assert latest["lagRecords"] == latest["offset"] - start["offset"]
    assert latest["lagMs"] >= 0
    query.stop()
    assert query.values == numbered("e", 10)


def test_two_queries_at_once_read_all_records_each_and_the_gateway_may_be_killed(
    spark: SparkSession, own_gateway: GatewayProcess, tmp_path: Path
) -> None:
    url = own_gateway.url
    send(url, "old", numbered("o", 20))
    late = Query(spark, url, tmp_path / "late").start()  # from latest
    early = Query(spark, url, tmp_path / "early", startingOffset="earliest").start()
    early.wait_for(20)
    until(lambda: 0 in late.batches, "the late query's first batch", late.running)
    send(url, "new", numbered("n", 100))
    early.wait_for(120)
    own_gateway.kill()
    own_gateway.start()
    send(url, "new", numbered("n", 100, 100))
    early.wait_for(220)
    late.wait_for(200)
    early.stop()
    late.stop()
    assert late.values == numbered("n", 200)
    assert early.values == numbered("o", 20) + numbered("n", 200)


def test_batches_end_at_ticks_if_configured(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    for part in range(3):
        send(gateway.url, "ticks", numbered("t", 10, part * 10))
        until_tick(gateway)
    query = Query(
        spark, gateway.url, tmp_path / "c", topics="ticks", startingOffset="earliest", cut="tick:1", maxRecordsPerTrigger=1
    )
    query.run()
    assert query.values == numbered("t", 30)
    with Reader(gateway.url, topics=["ticks"], start=0, columns=["tick"]) as reader:
        ticks: list[Any] = [tick for batch in reader for tick in batch.column(0).to_pylist()]
    between = Counter(ticks)
    assert len(between) >= 3
    # Ticks of other topics, sent before, end batches without records.
    assert [len(batch) for batch in query.batches.values() if batch] == list(between.values())


def test_a_limit_of_bytes_holds_between_batches_of_producers(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    parts = [numbered("b", 100, 100 * part) for part in range(6)]
    with Producer(gateway.url) as p, FlightSource(gateway.url) as reads:
        sent = [p.send_batch("bytes", pa.record_batch({"value": pa.array(part, pa.binary())})).result(30) for part in parts]
        first = sent[0]
        whole = reads.plan(ScanRequest(first, first + 100, ("bytes",)))[0].bytes
        assert reads.bytes_end(first, first + 600, 2 * whole + whole // 2, ["bytes"]) == first + 200
    query = Query(
        spark, gateway.url, tmp_path / "c", topics="bytes", startingOffset=first, maxBytesPerTrigger=2 * whole + whole // 2
    )
    query.run()
    assert query.values == numbered("b", 600)
    assert [len(batch) for batch in query.batches.values()] == [200, 200, 200]
    small = Query(spark, gateway.url, tmp_path / "small", topics="bytes", startingOffset=first, maxBytesPerTrigger=1).run()
    assert [len(batch) for batch in small.batches.values()] == [100] * 6, "one of a producer's batches at a time"


def test_few_records_are_held_back_until_there_are_enough_or_it_took_too_long(
    spark: SparkSession, gateway: GatewayProcess, tmp_path: Path
) -> None:
    first = send(gateway.url, "few", numbered("f", 10))[0]
    options = {"topics": "few", "startingOffset": first, "minRecordsPerTrigger": 100}
    query = Query(spark, gateway.url, tmp_path / "c", **options, maxTriggerDelay="1h").start()
    query.wait_for(10)  # the first of a run
    for part in range(1, 10):
        send(gateway.url, "few", numbered("f", 10, 10 * part))
    send(gateway.url, "few", numbered("f", 10, 100))
    query.wait_for(110)
    query.stop()
    assert max(len(batch) for batch in query.batches.values()) == 100
    send(gateway.url, "few", numbered("f", 10, 110))
    again = Query(spark, gateway.url, tmp_path / "c", **options, maxTriggerDelay="100ms").start()
    again.wait_for(10)
    send(gateway.url, "few", numbered("f", 10, 120))
    again.wait_for(20)
    again.stop()
    now = Query(spark, gateway.url, tmp_path / "now", **options, maxRecordsPerTrigger=120).run()
    assert [len(batch) for batch in now.batches.values()] == [120, 10], "a run that ends holds nothing back"


def test_a_checkpoint_of_another_log_is_refused(
    spark: SparkSession, gateway: GatewayProcess, own_gateway: GatewayProcess, tmp_path: Path
) -> None:
    send(gateway.url, "mine", numbered("m", 3))
    Query(spark, gateway.url, tmp_path / "c", topics="mine", startingOffset="earliest").run()
    send(own_gateway.url, "mine", numbered("m", 3))
    with pytest.raises(PySparkException, match="offsets of one log mean nothing in the other"):
        Query(spark, own_gateway.url, tmp_path / "c", topics="mine").run()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": 10**9}, "above the frontier"),
        ({"endingOffset": 5}, "a stream has no end"),
        ({"maxRecordsPerTrigger": 0}, "a number of records from 1"),
        ({"maxBytesPerTrigger": "10MB"}, "a number of bytes from 1"),
        ({"minRecordsPerTrigger": 3, "maxRecordsPerTrigger": 2}, "no batch can reach the minimum"),
    ],
)
def test_wrong_options_end_the_query(
    spark: SparkSession, gateway: GatewayProcess, tmp_path: Path, options: dict[str, object], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        Query(spark, gateway.url, tmp_path / "c", **options).run()
