"""Common part of the stateful jobs: arguments, settings, live and replay runs, and the comparison of their results.

A live run reads the stream from gateways, and a replay reads the same stream from log files. Both runs have the same micro-batches,
which end at ticks, so both compute the same rows, late records and state. A job with findings of `deterministic` does not start.
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

#: Spark settings that make replays equal to live runs, and the state store that `transformWithState` needs.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
#: Function that turns a stream of departures into result rows.
Job = Callable[["DataFrame"], "DataFrame"]
#: Function that starts a query from result rows and options.
Start = Callable[["DataFrame", argparse.Namespace], "StreamingQuery"]


def parser(name: str, text: str | None) -> argparse.ArgumentParser:
    """Return a parser with the common arguments. Its description is the first line of `text`."""
    command_line = argparse.ArgumentParser(prog=name, description=(text or "").partition("\n")[0])
    modes = command_line.add_subparsers(dest="mode", required=True)
    live = modes.add_parser("live", help="read from gateways until SIGTERM; resumes from its checkpoint")
    live.add_argument("--gateways", required=True, metavar="URL")
    live.add_argument("--available-now", action="store_true", help="read the available records, then end")
    replay = modes.add_parser("replay", help="read log directories to their end, without gateways")
    replay.add_argument("--path", required=True, metavar="DIR[,DIR]")
    replay.add_argument("--compare", metavar="OUT", help="the result of `live`: report whether both are equal")
    for mode in (live, replay):
        mode.add_argument("--topic", default=TOPIC)
        mode.add_argument("--start", default="earliest", metavar="OFFSET", help="of a new checkpoint; default earliest")
        mode.add_argument("--ticks", type=int, default=1, metavar="N", help="end micro-batches at each Nth time mark; default 1")
        mode.add_argument("--out", required=True, metavar="OUT", help="destination of the result")
        mode.add_argument("--checkpoint", required=True, metavar="DIR", help="a local directory")
        mode.add_argument("--shuffle-partitions", type=int, default=2, metavar="N", help="of a new checkpoint")
    return command_line


def main(options: argparse.Namespace, job: Job, start: Start, lines: Callable[[SparkSession, str], list[bytes]]) -> int:
    """Run a job. Return 0 for success, 1 if the job is not deterministic or if the results of live run and replay differ.

    `lines` is a function that returns a result as sorted lines. The last line on stdout is a JSON report.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"tutti {options.mode}")
    for setting, value in (SETTINGS | {"spark.sql.shuffle.partitions": str(options.shuffle_partitions)}).items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Spark's own handler calls the JVM, which Ctrl-C also ends, and prints tracebacks
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
    """Run a job in an existing session and return the job's report. The session must have `SETTINGS`."""
    from tutti_spark.deterministic import deterministic

    rows = job(departures_without_closing(stream(spark, options)))
    report: dict[str, Any] = {"mode": options.mode, "findings": [str(finding) for finding in deterministic(rows)]}
    if report["findings"]:
        return report
    wait(start(rows, options), until_stopped=options.mode == "live" and not options.available_now)
    if options.mode == "replay" and options.compare:
        replay_lines, live_lines = lines(spark, options.out), lines(spark, options.compare)
        report |= {
            "rows": len(replay_lines),
            "sha256": digest(replay_lines),
            "live_sha256": digest(live_lines),
            "equal": replay_lines == live_lines,
        }
    return report


def stream(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    """Return the records of the topic as a stream. Each micro-batch ends at a tick, which is a time mark in the log."""
    origin = {"gateways": options.gateways} if options.mode == "live" else {"path": options.path}
    given: dict[str, str] = {"topics": options.topic, "startingOffset": options.start, "columns": "offset,value"}
    cut = {"cut": f"tick:{options.ticks}", "maxRecordsPerTrigger": "1"}
    return spark.readStream.format("tutti").options(**origin, **given, **cut).load()


def departures_without_closing(records: DataFrame) -> DataFrame:
    """Return the departures with `offset`, without the closing record, whose event time would make all later departures late."""
    from pyspark.sql import functions as f

    return departures(records).where(f.col("event_time") < f.lit(CLOSING_TIME).cast("timestamp"))


def to_parquet(rows: DataFrame, options: argparse.Namespace) -> StreamingQuery:
    """Start a query that writes Parquet. Even after kills, Spark's file list contains the files of each micro-batch once."""
    writer = rows.writeStream.format("parquet").outputMode("append").option("path", options.out)
    return start_query(writer, options)


def start_query(writer: DataStreamWriter, options: argparse.Namespace) -> StreamingQuery:
    """Start a query. In a replay, and in a live run with --available-now, the query ends after the available records."""
    writer = writer.option("checkpointLocation", options.checkpoint)
    return (writer.trigger(availableNow=True) if options.mode == "replay" or options.available_now else writer).start()


def parquet_lines(spark: SparkSession, out: str) -> list[bytes]:
    """Return the rows of a result as sorted JSON lines."""
    from pyspark.sql import functions as f

    rows = spark.read.parquet(out)
    line = f.to_json(f.struct(*sorted(rows.columns)), {"ignoreNullFields": "false"})
    return sorted(row[0].encode() + b"\n" for row in rows.select(line).toLocalIterator())


def wait(query: StreamingQuery, *, until_stopped: bool) -> None:
    """Wait until the query ends, and raise the error of a failed query. With `until_stopped`, SIGTERM stops the query."""
    if not until_stopped:
        query.awaitTermination()
        return
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not query.awaitTermination(1) and not stop.is_set():
        pass
    query.stop()
