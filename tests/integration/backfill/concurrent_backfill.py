"""Backfills of Delta tables in one Spark, in parallel with a streaming query: concurrent_backfill.py URL ROOT. It prints the
outcome as JSON. It is a process of its own, because the session of the other tests has no Delta Lake.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.integration.backfill.delta import conf
from tutti import Producer
from tutti.errors import UsageError
from tutti_spark.backfill.ledger import Ledger, TableSource, read
from tutti_spark.backfill.run import Backfill, Plan
from tutti_spark.backfill.spark_session import session
from tutti_spark.backfill.tables import DeltaTable
from tutti_spark.jobs import changes

LIVE_FROM = 600


def transform(records: DataFrame) -> DataFrame:
    """The job, live and in backfills."""
    return records.select("offset", "topic", f.col("value").cast("string").alias("value"))


def loud(root: Path) -> str:
    """The job after a change, as a file."""
    file = root / "loud.py"
    file.write_text(
        "from pyspark.sql import functions as f\n\n\ndef transform(records):\n"
        '    return records.select("offset", "topic", f.upper(f.col("value").cast("string")).alias("value"))\n'
    )
    return str(file)


def plan(table: Path, url: str, **options: Any) -> Plan:
    """A backfill with the job above, unless it names one."""
    made = Plan(Backfill(str(table), {"gateways": url}, **options))
    made.transform = transform
    return made


def beside_a_query(spark: SparkSession, url: str, root: Path) -> dict[str, Any]:
    """Write records, append them with a query from LIVE_FROM on, and fill the range before that with two backfills."""
    table, checkpoint = root / "live", root / "checkpoint"
    stream = spark.readStream.format("tutti").option("gateways", url).option("startingOffset", LIVE_FROM)
    writer = transform(stream.option("maxRecordsPerTrigger", 50).load()).writeStream.format("delta")
    query = writer.option("checkpointLocation", str(checkpoint)).start(str(table))
    stop = threading.Event()

    def feed() -> None:
        with Producer(url) as producer:
            number = 0
            while not stop.wait(0.05):
                producer.send("late", f"late{number}".encode())
                number += 1

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        while not list((checkpoint / "commits").glob("0")):
            assert query.exception() is None, query.exception()
            time.sleep(0.1)
        refused = _error(lambda: plan(table, url, live=str(checkpoint), end=LIVE_FROM + 1))
        runs = [plan(table, url, live=str(checkpoint), slice_records=size) for size in (150, 250)]
        threads = [threading.Thread(target=run.run, args=(spark,)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        merge = plan(table, url, live=str(checkpoint), mode="merge")
        swap = plan(table, url, live=str(checkpoint), mode="swap", start=100, end=LIVE_FROM + 20, job=loud(root))
        swap.run(spark)
    finally:
        stop.set()
        feeder.join()
    query.processAllAvailable()
    query.stop()
    return {
        "refused": refused,
        "spans": [run.report.written for run in runs],
        "ends": [run.report.end for run in runs],
        "merge_end": merge.report.end,
        "again": plan(table, url, end=LIVE_FROM).nothing_to_do(),
    }


def beside_two_streams(spark: SparkSession, url: str, root: Path) -> dict[str, Any]:
    """A query of two streams that begin apart: an append is refused, a merge adds what either of them left out."""
    table, checkpoint = root / "two", root / "two-checkpoint"
    begins = {"a": 40, "b": LIVE_FROM}
    source = spark.readStream.format("tutti").option("gateways", url)
    streams = [transform(source.option("topics", topic).option("startingOffset", at).load()) for topic, at in begins.items()]
    writer = streams[0].union(streams[1]).writeStream.format("delta").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start(str(table)).awaitTermination()
    read = {"gateways": url, "topics": "a,b"}
    refused = _error(lambda: Plan(Backfill(str(table), read, live=str(checkpoint))))
    merge = Plan(Backfill(str(table), read, live=str(checkpoint), mode="merge"))
    merge.transform = transform
    merge.run(spark)
    return {"refused": refused, "begins": sorted(begins.values())}


def merged(spark: SparkSession, url: str, root: Path) -> dict[str, Any]:
    """A table that has some rows of the range from elsewhere."""
    table = root / "merged"
    records = spark.read.format("tutti").option("gateways", url).option("endingOffset", LIVE_FROM).load()
    transform(records).where("offset % 3 = 0").write.format("delta").save(str(table))
    refused = _error(lambda: plan(table, url, start=100, end=LIVE_FROM).run(spark))
    counts = [len(plan(table, url, end=LIVE_FROM, mode="merge", slice_records=400).run(spark).written) for _ in range(2)]
    return {"refused": refused, "counts": counts}


def settled(spark: SparkSession, url: str, root: Path) -> dict[str, Any]:
    """Leave claims of dead runs: one is in the table, one is not, and the Spark of one commits too late."""
    table = root / "settled"
    first = plan(table, url, end=100)
    first.run(spark)
    about: TableSource = first.about
    dead = Ledger(table / "_tutti", about)
    steps = [dead.step(100, 200), dead.step(200, 300)]
    written, lost = (step.claim for step in steps if step is not None)
    assert written is not None
    assert lost is not None
    rows = [transform(spark.read.format("tutti").option("gateways", url).option("startingOffset", claim.start)
            .option("endingOffset", claim.end).load()) for claim in (written, lost)]  # fmt: skip
    zombie = DeltaTable(spark, str(table), dead, first.log, "append")
    zombie._commit(rows[0], written, "append", {})
    dead.close()
    told: list[str] = []
    plan(table, url, end=400).run(spark, told.append)
    zombie._commit(rows[1], lost, "append", {})  # a Spark whose driver was killed comes to the end of its work
    state = read(table / "_tutti")
    assert state is not None
    return {"told": told, "done": state.done, "open": len(state.open)}


def changed(spark: SparkSession, url: str, root: Path) -> None:
    """Run the job `changes` twice, the second time from a position in the middle."""
    for run, first in enumerate(("earliest", "200")):
        arguments = ["--gateways", url, "--topics", "a,b", "--start", first, "--max-records", "300", "--available-now"]
        arguments += [
            "--changes",
            str(root / "changes"),
            "--state",
            str(root / "state"),
            "--checkpoint",
            str(root / f"changes-{run}"),
        ]
        changes.start(spark, changes.parser().parse_args(arguments)).awaitTermination()


def _error(work: Any) -> str:
    try:
        work()
    except UsageError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    address, directory = sys.argv[1], Path(sys.argv[2])
    with_delta = session("tests", "delta", "local[2]", conf(directory) | {"spark.local.dir": str(directory / "spark")})
    found = {
        work.__name__: work(with_delta, address, directory)
        for work in (beside_two_streams, beside_a_query, merged, settled, changed)
    }
    with_delta.stop()
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)
