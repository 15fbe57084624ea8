"""What the jobs with state have in common: arguments, settings, live and replay, and a result that can be compared.

Live and replay are the same stream, from gateways or from log files, in the same micro-batches: what came between two ticks. So
both come to the same rows, late records and state. A job in whose plan `deterministic` finds anything does not start.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tutti_spark.jobs.departures import CLOSING_TIME, TOPIC
from tutti_spark.jobs.flights import departures, digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: What a replay needs to be the same, and the state store that `transformWithState` works with.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
#: From a stream of departures to the rows of the result.
Job = Callable[["DataFrame"], "DataFrame"]
#: From these rows, the options and the checkpoint to a query that is started.
Start = Callable[["DataFrame", argparse.Namespace], "StreamingQuery"]


def parser(name: str, text: str | None) -> argparse.ArgumentParser:
    """The arguments that all of these jobs take; `text` begins with what the job does."""
    found = argparse.ArgumentParser(prog=name, description=(text or "").partition("\n")[0])
    modes = found.add_subparsers(dest="mode", required=True)
    live = modes.add_parser("live", help="from gateways, until SIGTERM; it goes on from its checkpoint")
    live.add_argument("--gateways", required=True, metavar="URL")
    live.add_argument("--available-now", action="store_true", help="read what is there, then end")
    replay = modes.add_parser("replay", help="from log directories, no gateway is asked; ends where they end")
    replay.add_argument("--path", required=True, metavar="DIR[,DIR]")
    replay.add_argument("--compare", metavar="OUT", help="what `live` wrote: report whether it is the same")
    for mode in (live, replay):
        mode.add_argument("--topic", default=TOPIC)
        mode.add_argument("--start", default="earliest", metavar="OFFSET", help="of a new checkpoint; default earliest")
        mode.add_argument("--ticks", type=int, default=1, metavar="N", help="micro-batches end at each Nth tick; default 1")
        mode.add_argument("--out", required=True, metavar="OUT", help="what the result is written to")
        mode.add_argument("--checkpoint", required=True, metavar="DIR", help="a local directory")
        mode.add_argument("--shuffle-partitions", type=int, default=2, metavar="N", help="of a new checkpoint")
    return found


def main(options: argparse.Namespace, job: Job, start: Start, lines: Callable[[SparkSession, str], list[bytes]]) -> int:
    """Run a job until its end; 0 when it went well, 1 when it is not deterministic, or live and replay differ.

    `lines` gives the result at a place as sorted lines. The last line on stdout is a report in JSON.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"tutti {options.mode}")
    for setting, value in (SETTINGS | {"spark.sql.shuffle.partitions": str(options.shuffle_partitions)}).items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    try:
        report = run(spark, options, job, start, lines)
    finally:
        spark.stop()
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    return 0 if report.get("equal", True) and not report["findings"] else 1


def run(
    spark: SparkSession, options: argparse.Namespace, job: Job, start: Start, lines: Callable[[SparkSession, str], list[bytes]]
) -> dict[str, Any]:
    """The same in a session that is there, which has `SETTINGS`."""
    from tutti_spark.deterministic import deterministic

    rows = job(timed(stream(spark, options)))
    report: dict[str, Any] = {"mode": options.mode, "findings": [str(finding) for finding in deterministic(rows)]}
    if report["findings"]:
        return report
    wait(start(rows, options), until_stopped=options.mode == "live" and not options.available_now)
    if options.mode == "replay" and options.compare:
        replayed, lived = lines(spark, options.out), lines(spark, options.compare)
        report |= {"rows": len(replayed), "sha256": digest(replayed), "live_sha256": digest(lived), "equal": replayed == lived}
    return report


def stream(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    """Records of the topic, in micro-batches that end at ticks."""
    origin = {"gateways": options.gateways} if options.mode == "live" else {"path": options.path}
    given: dict[str, str] = {"topics": options.topic, "startingOffset": options.start, "columns": "offset,value"}
    cut = {"cut": f"tick:{options.ticks}", "maxRecordsPerTrigger": "1"}
    return spark.readStream.format("tutti").options(**origin, **given, **cut).load()


def timed(records: DataFrame) -> DataFrame:
    """Departures with `offset`; the closing record, which would move the watermark past everything, is left out."""
    from pyspark.sql import functions as f

    return departures(records).where(f.col("event_time") < f.lit(CLOSING_TIME).cast("timestamp"))


def to_parquet(rows: DataFrame, options: argparse.Namespace) -> StreamingQuery:
    """Start a query into a directory of Parquet; its list of files has those of each micro-batch once, whatever was killed."""
    writer = rows.writeStream.format("parquet").outputMode("append").option("path", options.out)
    return begun(writer, options)


def begun(writer: DataStreamWriter, options: argparse.Namespace) -> StreamingQuery:
    """Start it. A replay, and a live run that is told so, end with what is there; others go on."""
    writer = writer.option("checkpointLocation", options.checkpoint)
    return (writer.trigger(availableNow=True) if options.mode == "replay" or options.available_now else writer).start()


def parquet_lines(spark: SparkSession, out: str) -> list[bytes]:
    """The rows of a result as sorted lines of JSON."""
    from pyspark.sql import functions as f

    rows = spark.read.parquet(out)
    line = f.to_json(f.struct(*sorted(rows.columns)), {"ignoreNullFields": "false"})
    return sorted(row[0].encode() + b"\n" for row in rows.select(line).toLocalIterator())


def wait(query: StreamingQuery, *, until_stopped: bool) -> None:
    """Until the query ends by itself, or SIGTERM where it would go on (`until_stopped`). Raises what it failed with."""
    if not until_stopped:
        query.awaitTermination()
        return
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not query.awaitTermination(1) and not stop.is_set():
        pass
    query.stop()
