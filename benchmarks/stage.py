"""A long Spark stage on the group's processors: nobody may be given up for being slow; and what a commit waits for meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure, figure, foreign_load
from benchmarks.fleet import coordinator_of, gateways
from benchmarks.ingest import _send
from benchmarks.pace import Paced, Span
from benchmarks.spark import COLUMNS, session
from tutti import Producer
from tutti.data.view_id import counter_of
from tutti.io.admin import AdminClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE = 200
RECORDS = 2_000_000


def spark_stage(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Three gateways and local[2] on the same processors: records at a pace alone, and beside stages that hash, sort and read."""
    count, quiet_s, busy_s = (RECORDS // 10, 3.0, 20.0) if quick else (RECORDS, 10.0, 60.0)
    boots, gaps, before, meanwhile, stages = [], [], [], [], []
    foreign: list[float] = []
    with gateways(3, directory) as running:
        for measured in running:
            measured.wait_prepared(2)
        first = coordinator_of(running)
        with Producer(first.url) as producer:
            _send(producer, bytes(100), count)
        spark = session("tutti-bench-stage")
        try:
            _work(spark, first.url, count)  # classes are loaded
            for _ in range(rounds):
                with foreign_load(foreign), Paced(first.url, RATE) as paced:
                    quiet = paced.span(quiet_s)
                    views = _views(first.url)
                    with _busy(spark, first.url, count) as done:
                        busy = paced.span(busy_s)
                    span: Span = busy[0], time.monotonic_ns()
                    before.append(paced.at_ms(quiet, 0.99))
                    meanwhile.append(paced.at_ms(span, 0.99))
                    gaps.append(paced.gap_ms(span))
                boots.append(float(_views(first.url) - views))
                stages.append(float(len(done)))
        finally:
            spark.stop()
    state = f"{RATE} records/s of 1 KB, local[2] beside three gateways, foreign CPU {max(foreign):.2f}"
    return [
        figure("stage: views that ended", boots, "", 0.0, "less", f"in {busy_s:.0f} s of Spark at work"),
        figure("stage: longest time without a receipt", gaps, "ms", better="less", beside=state),
        figure("stage: commit p99 alone", before, "ms", better="less", beside=state),
        figure("stage: commit p99 beside it", meanwhile, "ms", better="less", beside=state),
        figure(
            "stage: rounds of its work", stages, "", beside=f"hash and sort {10 * count:,} rows, read and hash {count:,} records"
        ),
    ]


def _views(url: str) -> int:
    """How many views there were: each boot, and each return, makes one."""
    with AdminClient(url) as control:
        return counter_of(int(control.status()["view"]["id"]))


def _work(spark: SparkSession, url: str, count: int) -> None:
    from pyspark.sql import functions as sql

    hashed = spark.range(0, 10 * count, 1, 8).select(sql.sha2(sql.col("id").cast("string"), 512).alias("sum"))
    hashed.sort("sum").write.format("noop").mode("overwrite").save()
    read = spark.read.format("tutti").option("gateways", url).option("columns", COLUMNS).option("endingOffset", count).load()
    read.select(sql.sha2("value", 512)).write.format("noop").mode("overwrite").save()


@contextmanager
def _busy(spark: SparkSession, url: str, count: int) -> Iterator[list[float]]:
    """Spark works from now on; when the block ends, the work under way is finished. What is given are the ends of each."""
    over = threading.Event()
    done: list[float] = []
    failed: list[Any] = []

    def run() -> None:
        try:
            while not over.is_set():
                _work(spark, url, count)
                done.append(time.monotonic())
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that waits
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]
