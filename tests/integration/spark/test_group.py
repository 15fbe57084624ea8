"""Tests of a killed gateway of three during a batch read and during a stream: tasks and the driver's polls
continue at another one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from tests.integration.spark.rows import WAIT_S, Query, numbered, send
from tests.support.running_group import RunningGroup
from tutti import Producer

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(300)]
RECORDS = 40_000
RECORD_BYTES = 1000  # so that a part is more than what is on its way to a task at a time


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RunningGroup]:
    with RunningGroup(tmp_path) as three:
        yield three


def test_a_task_continues_at_another_gateway_from_its_record(spark: SparkSession, group: RunningGroup, tmp_path: Path) -> None:
    with Producer(group.url) as producer:
        for value in numbered("x" * RECORD_BYTES, RECORDS):
            producer.send("t", value)
    reading, killed = tmp_path / "reading", tmp_path / "killed"
    rows = (
        spark.read.format("tutti")
        .option("gateways", group["g2"].url)
        .option("minPartitions", 2)
        .option("shortCircuit", "false")
        .option("columns", "offset,value")
        .load()
    )

    def slowly(partition: Iterable[Row]) -> Iterator[int]:
        """In a worker: read some, wait until the gateway is dead, read on."""
        import time
        from pathlib import Path as Place

        for number, row in enumerate(partition):
            if number == 100:
                Place(f"{reading}-{row.offset}").touch()
                deadline = time.monotonic() + WAIT_S
                while not Place(killed).exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
            yield int(row.offset)

    def kill() -> None:
        wait = threading.Event()
        while len(list(tmp_path.glob("reading-*"))) < 2:
            wait.wait(0.05)
        for name in ("g1", "g2"):  # two tasks turn to two gateways: one at least to one of these
            group[name].kill()
        killed.touch()

    threading.Thread(target=kill, daemon=True).start()
    offsets = rows.select("offset").rdd.mapPartitions(slowly).collect()
    assert killed.exists(), "both tasks were in the middle of their records"
    assert sorted(offsets) == list(range(RECORDS))


def test_a_query_resumes_although_the_only_configured_gateway_is_dead(
    spark: SparkSession, group: RunningGroup, tmp_path: Path
) -> None:
    named = group.coordinator()
    send(named.url, "t", numbered("a", 200))
    query = Query(spark, named.url, tmp_path / "c", topics="t", startingOffset="earliest", shortCircuit="false").start()
    query.wait_for(200)
    named.kill()
    rest = next(gateway for gateway in group.all.values() if gateway.runs)
    send(rest.url, "t", numbered("a", 200, 200))
    query.wait_for(400)
    query.stop()
    assert query.values == numbered("a", 400)
