"""Tests of queries that cannot continue: the error comes before any record is read, and names the log, its remaining range, the
deciding option, the contacted gateways and the wait.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.integration.spark.rows import WAIT_S, Meanwhile, Query, numbered, send, until, until_tick
from tests.support.gateway_process import GatewayProcess
from tests.support.ports import free_base
from tutti import Producer
from tutti import limits as common_limits
from tutti.sources.flight import FlightSource
from tutti_gateway.core import limits

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
SEGMENT = limits.SEGMENT_BYTES_MIN
KEPT = f"[log]\nsegment_bytes = {SEGMENT}\nprepared_segments = 0\n[retention]\nbytes = {2 * SEGMENT}\n"
RECORD = 1_000_000


def refusal(query: Query) -> str:
    """Return the error of a run."""
    with pytest.raises(PySparkException) as caught:
        query.run()
    return str(caught.value)


def edit(checkpoint: Path, batch: int, **changes: object) -> None:
    """Overwrite the end of a planned batch with a wrong value; the batch will run again."""
    file = checkpoint / "offsets" / str(batch)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], json.dumps(json.loads(lines[2]) | changes)]))
    for old in (file.with_name(f".{batch}.crc"), checkpoint / "commits" / str(batch), checkpoint / f"commits/.{batch}.crc"):
        old.unlink(missing_ok=True)


def test_a_checkpoint_whose_batches_are_not_contiguous_is_refused(
    spark: SparkSession, gateway: GatewayProcess, tmp_path: Path
) -> None:
    """Proves that offsets that go back, or overlap, are reported and not used."""
    first = send(gateway.url, "r-back", numbered("b", 20))[0]
    query = Query(spark, gateway.url, tmp_path / "c", topics="r-back", startingOffset=first, maxRecordsPerTrigger=10).run()
    end = first + 20
    edit(tmp_path / "c", 1, offset=first + 5)
    assert f"would begin at {first + 10}, above its end {first + 5}: the checkpoint is corrupt" in refusal(query)
    edit(tmp_path / "c", 1, **{"offset": end, "from": first + 8})
    assert f"began at {first + 8}, but the one before it ended at {first + 10}: the checkpoint is corrupt" in refusal(query)
    edit(tmp_path / "c", 1, **{"offset": end, "from": first + 10})
    query.batches.clear()
    query.run()
    assert query.values == numbered("b", 10, 10), "as it was, it is run again"


def test_a_checkpoint_of_another_source_is_refused(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").load().writeStream.foreachBatch(lambda rows, _: None)
    other = rate.option("checkpointLocation", str(tmp_path / "c")).start()
    until((tmp_path / "c/commits/1").exists, "batches of the other source", other)
    other.stop()
    said = refusal(Query(spark, gateway.url, tmp_path / "c", topics="r-other"))
    assert "which is not an offset of the source tutti" in said
    assert "use the checkpointLocation of this query, or a new one" in said


def test_a_checkpoint_of_another_log_names_both(
    spark: SparkSession, gateway: GatewayProcess, own_gateway: GatewayProcess, tmp_path: Path
) -> None:
    send(gateway.url, "r-log", numbered("m", 3))
    send(own_gateway.url, "r-log", numbered("m", 3))
    Query(spark, gateway.url, tmp_path / "c", topics="r-log", startingOffset="earliest").run()
    said = refusal(Query(spark, own_gateway.url, tmp_path / "c", topics="r-log"))
    for url in (gateway.url, own_gateway.url):
        assert FlightSource(url).frontier().log in said
    assert own_gateway.url in said
    assert "checkpointLocation" in said


def test_the_error_names_each_silent_gateway_and_the_waiting_time(spark: SparkSession, tmp_path: Path) -> None:
    """Proves that a stream reports the failure at every address, and the time waited."""
    ports = [free_base(), free_base()]
    url = "tutti://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    seconds = f"within {common_limits.REQUEST_TIMEOUT_US / 1e6:g} s"
    said = refusal(Query(spark, url, tmp_path / "c", topics="t"))
    for port in ports:
        assert f"127.0.0.1:{port}: " in said
    assert seconds in said


@pytest.fixture(scope="module")
def shortened(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[tuple[GatewayProcess, Path, int]]:
    """A gateway whose log lost its first records to retention, and a checkpoint from before with its position."""
    root = tmp_path_factory.mktemp("shortened")
    with GatewayProcess(root, extra=KEPT) as running:
        send(running.url, "t", numbered("a", 10))
        before = Query(spark, running.url, root / "c", topics="t", startingOffset="earliest").run()
        assert before.values == numbered("a", 10)
        shorten(running, 10)
        yield running, root / "c", 10


def shorten(gateway: GatewayProcess, upto: int) -> None:
    """Send records until those below an offset are deleted."""
    with Producer(gateway.url) as producer:
        while FlightSource(gateway.url).frontier().start < upto:
            for receipt in [producer.send("fill", bytes(RECORD)) for _ in range(16)]:
                receipt.result(WAIT_S)


Shortened = tuple[GatewayProcess, Path, int]


def check_told(said: str, first: int) -> None:
    """Check that the error names the lost range, the remaining one, and the deciding option. More may be lost in between."""
    found = re.search(rf"records {first} to (\d+) are no longer in the log of .*, it has (\d+) to \d+: .* failOnDataLoss", said)
    assert found is not None, said
    assert int(found[2]) == int(found[1]) + 1


def test_a_query_whose_next_records_were_removed_reports_the_rest_and_the_option(spark: SparkSession, shortened: Shortened) -> None:
    gateway, checkpoint, place = shortened
    check_told(refusal(Query(spark, gateway.url, checkpoint, topics="t")), place)
    for reading in (spark.read, spark.readStream):
        with pytest.raises(PySparkException) as caught:
            begin(reading.format("tutti").options(gateways=gateway.url, topics="t", startingOffset="3").load(), checkpoint)
        check_told(str(caught.value), 3)


def begin(rows: DataFrame, beside: Path) -> Any:
    """Run it to its end, batch or stream."""
    if not rows.isStreaming:
        return rows.collect()
    writer = rows.writeStream.foreachBatch(lambda batch, _: None).option("checkpointLocation", str(beside.parent / "new"))
    return writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)


def test_lost_records_are_passed_over_where_that_is_wanted(spark: SparkSession, shortened: Shortened, tmp_path: Path) -> None:
    """Proves that all remaining records come once: from a checkpoint, in micro-batches that begin before the log, in a batch."""
    gateway, checkpoint, place = shortened
    start = FlightSource(gateway.url).frontier().start
    send(gateway.url, "t", numbered("z", 5))
    passing = {"topics": "t", "failOnDataLoss": "false"}
    until_tick(gateway)
    shutil.copytree(checkpoint, tmp_path / "ticks")
    at_ticks = Query(spark, gateway.url, tmp_path / "ticks", cut="tick:1", maxRecordsPerTrigger=1, **passing).run()
    assert at_ticks.values == numbered("z", 5), "the first limit lies in what is gone"
    limited = start - place - 1  # the first micro-batches are gone as a whole, and in part
    query = Query(spark, gateway.url, checkpoint, maxRecordsPerTrigger=limited, **passing).run()
    assert query.values == numbered("z", 5)
    assert len(query.batches) > 1
    query.run()
    assert query.values == numbered("z", 5), "they come once"
    new = Query(spark, gateway.url, tmp_path / "new", startingOffset=0, **passing).run()
    assert new.values == numbered("z", 5)
    rows = spark.read.format("tutti").options(gateways=gateway.url, startingOffset="0", **passing)
    assert rows.load().count() == 5
    assert rows.option("endingOffset", start).load().count() == 0
    earliest = spark.read.format("tutti").options(gateways=gateway.url, startingOffset="earliest").load()
    assert earliest.agg({"offset": "min"}).collect()[0][0] >= start


def test_records_that_go_while_a_micro_batch_runs_are_passed_over(
    spark: SparkSession, shortened: Shortened, tmp_path: Path
) -> None:
    """Proves that a task handles a loss as the plan does: records lost between the two are skipped, and the remaining ones are
    read.
    """
    gateway = shortened[0]
    offsets = send(gateway.url, "going", numbered("g", 5))
    query = Meanwhile(spark, gateway.url, tmp_path / "c", topics="going", startingOffset=offsets[0], failOnDataLoss="false")
    query.act = lambda: shorten(gateway, offsets[-1] + 1)
    query.run()
    assert query.batches == {0: []}, "it was planned with five records"
    send(gateway.url, "going", numbered("h", 5))
    query.run()
    assert query.values == numbered("h", 5)
