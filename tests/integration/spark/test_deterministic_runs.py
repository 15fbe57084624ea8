"""Tests in Spark of the assumptions of `deterministic`: seeds in streams, and micro-batches without records. A job without findings
gives the same rows in the same micro-batches at any speed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.integration.spark.rows import send, until_tick
from tests.support.gateway_process import GatewayProcess
from tutti_spark.deterministic import deterministic

pytestmark = pytest.mark.spark
EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


def stream(spark: SparkSession, url: str, topic: str, start: int) -> DataFrame:
    options: dict[str, Any] = {
        "gateways": url,
        "topics": topic,
        "startingOffset": start,
        "cut": "tick:1",
        "maxRecordsPerTrigger": 1,
    }
    return spark.readStream.format("tutti").options(**options).load()


def run(df: DataFrame, checkpoint: Path) -> dict[int, list[Any]]:
    """Return the rows of each micro-batch over the existing records."""
    batches: dict[int, list[Any]] = {}
    writer = df.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.foreachBatch(lambda rows, batch: batches.update({batch: sorted(map(tuple, rows.collect()))})).start()
    assert query.awaitTermination(100)
    return batches


def test_a_seed_does_not_help_a_stream(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that Spark draws it again for each run."""
    start = send(gateway.url, "seed", [b"a", b"b", b"c"])[0]
    drawn = stream(spark, gateway.url, "seed", start).select("offset", f.rand(3))
    assert run(drawn, tmp_path / "one") != run(drawn, tmp_path / "two")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("empty_batches", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_micro_batches_without_records_decide_which_records_are_late(
    spark: SparkSession, gateway: GatewayProcess, tmp_path: Path, empty_batches: bool
) -> None:
    """Proves that with `cut` a slow and a fast run give the same rows in the same micro-batches, once Spark adds no empty ones."""
    topic = f"late-{empty_batches}"
    spark.conf.set(EMPTY_BATCHES, empty_batches)
    try:
        start = seconds(gateway, topic, 0, 100)
        late = by_second(stream(spark, gateway.url, topic, start))
        slow = run(late, tmp_path / "slow")
        seconds(gateway, topic, 50, 200)  # the first of them is late by what came before
        slow |= run(late, tmp_path / "slow")
        quick = run(late, tmp_path / "quick")
        found = [finding.expression for finding in deterministic(late)]
    finally:
        spark.conf.unset(EMPTY_BATCHES)
    assert (50, 1) in [row for rows in quick.values() for row in rows]
    assert found == ([EMPTY_BATCHES] if empty_batches else [])
    assert (slow == quick) is not empty_batches
    assert ((50, 1) in [row for rows in slow.values() for row in rows]) is not empty_batches


def seconds(gateway: GatewayProcess, topic: str, *named: int) -> int:
    """Send a record for each second, with a tick after each, and return the first offset."""
    offsets = []
    for second in named:
        offsets += send(gateway.url, topic, [str(second).encode()])
        until_tick(gateway)
    return offsets[0]


def by_second(records: DataFrame) -> DataFrame:
    """How many records name each second, when the watermark has passed it."""
    time = f.timestamp_seconds(f.col("value").cast("string").cast("long")).alias("time")
    counted = records.select(time).withWatermark("time", "10 seconds").groupBy("time").count()
    return counted.select(f.unix_seconds("time"), "count")
