"""The command `tutti backfill`, which `spark-submit streaming/tutti_spark/jobs/backfill.py` runs too."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

import click

from tutti.common.gateway_url import DEFAULT_URL, DEFAULT_URL_USED
from tutti.errors import TuttiError, UsageError
from tutti_spark.backfill.ranges import parse_position

if TYPE_CHECKING:
    from tutti_spark.backfill.run import Plan, Report

_CAUSE_LINES = 3  # number of lines of Spark's error text in an error message
_EXIT_INTERRUPTED = 130
_TRACEBACK = "Traceback (most recent call last):"


@click.command()
@click.option(
    "--url",
    envvar="TUTTI_URL",
    metavar="URL",
    help=f"Read from these gateways. [$TUTTI_URL; without it, --path and --archive: {DEFAULT_URL}]",
)
@click.option("--path", metavar="DIR[,DIR]", help="Read data directories instead; gateways may be down.")
@click.option("--archive", metavar="ARCHIVE", help="Archive of the log, a directory or a URL: for removed records, or alone.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only these topics (may be given several times).")
@click.option("--columns", metavar="NAME[,NAME]", help="Read only these columns of the records, which is faster.")
@click.option(
    "--start",
    default="earliest",
    show_default=True,
    metavar="PLACE",
    help="First record: an offset, earliest, latest, tick:N (after tick N), or an ISO 8601 time with its zone.",
)
@click.option(
    "--end",
    default="latest",
    show_default=True,
    metavar="PLACE",
    help="The record to stop before, in the same forms; latest is the frontier when the command starts.",
)
@click.option("--table", required=True, metavar="DIR", help="The table, which is created if missing. Delta Lake: also a URI.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["delta", "parquet"]),
    help="Format of the table. [default: the present format of the table; delta for a new table]",
)
@click.option(
    "--mode",
    type=click.Choice(["append", "merge", "swap"]),
    default="append",
    show_default=True,
    help="append: add the missing parts of the range. merge: add the missing parts without the records whose offset is already in "
    "the table (Delta Lake only). swap: replace the range in the table.",
)
@click.option(
    "--job",
    metavar="FILE",
    help="Python file with transform(records), which takes a DataFrame of records and returns a DataFrame of rows. [the records]",
)
@click.option(
    "--slice",
    "slice_records",
    type=click.IntRange(1),
    metavar="RECORDS",
    help="Maximum number of records in a transaction. [10 million if each row comes from one record, else the whole range]",
)
@click.option(
    "--live",
    metavar="CHECKPOINT",
    help="Checkpoint of the streaming query that writes into the table. The range ends where the streams of the query began "
    "(append), or at the offset that all streams of the query have finished.",
)
@click.option(
    "--ledger",
    metavar="DIR",
    help="Directory of the ledger of finished ranges, for a Delta table on another system. [in the table]",
)
@click.option("--allow-nondeterministic", is_flag=True, help="Run a job that is not deterministic.")
@click.option("--master", metavar="MASTER", help="Spark master. [local[*]]")
@click.option("--conf", "settings", multiple=True, metavar="NAME=VALUE", help="A Spark setting (may be given several times).")
@click.option("--json", "as_json", is_flag=True, help="Report as one line of JSON.")
@click.pass_context
def backfill(
    context: click.Context,
    url: str | None,
    path: str | None,
    archive: str | None,
    topics: tuple[str, ...],
    columns: str | None,
    start: str,
    end: str,
    table: str,
    kind: str | None,
    mode: str,
    job: str | None,
    slice_records: int | None,
    live: str | None,
    ledger: str | None,
    allow_nondeterministic: bool,
    master: str | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Copy a range of the log into a table, each record once.

    The command adds the parts of the range that the table lacks, in atomic transactions. You can run the command twice, kill
    it at any time, run it twice at once, or run it in parallel to the streaming query that fills the table. After a kill, run the
    command again.

    \b
    Copy a month into a Delta table, with the job of a live query:
      tutti backfill --path data/g1 --start 2026-01-01T00:00:00Z --end 2026-02-01T00:00:00Z --table lake/delays --job delays.py
    Copy all records from before the start of a query that is still running:
      tutti backfill --url tutti://127.0.0.1:7400 --table lake/delays --job delays.py --live checkpoints/delays
    Replace a range after a correction of the job:
      tutti backfill --path data/g1 --end 500000 --table lake/delays --job delays.py --mode swap

    docs/how-to/backfill.md explains the command, and the rules for a job.
    """
    if path is not None and context.get_parameter_source("url") is click.core.ParameterSource.COMMANDLINE:
        raise UsageError("--url and --path exclude each other: give one of them")
    if path is None and url is None and archive is None:
        url, context.meta[DEFAULT_URL_USED] = DEFAULT_URL, True
    if path is None and not url and archive is None:
        raise UsageError("no origin given: give --url tutti://HOST:PORT, --path DIR or --archive DIR")
    from tutti_spark.backfill.spark_session import check_spark

    check_spark()
    from tutti_spark.backfill.run import Backfill, Plan

    read = {"path": path} if path is not None else {"gateways": url} if url else {}
    if archive is not None:
        read["archive"] = archive
    if topics:
        read["topics"] = ",".join(topics)
    if columns is not None:
        read["columns"] = columns
    request = Backfill(
        table=table,
        read=read,
        format=kind,
        mode=mode,
        start=parse_position("--start", start),
        end=parse_position("--end", end),
        job=job,
        slice_records=slice_records,
        live=live,
        ledger=ledger,
        allow_nondeterministic=allow_nondeterministic,
    )
    _print_report(_run(Plan(request), master, dict(_setting(text) for text in settings)), as_json)


def _run(plan: Plan, master: str | None, settings: dict[str, str]) -> Report:
    """Run the plan in a Spark session, and stop the session.

    Raises:
        TuttiError: Spark failed; the message contains Spark's error.
    """
    from tutti_spark.backfill.spark_session import session

    if plan.nothing_to_do():
        return plan.report
    signal.signal(signal.SIGINT, _interrupted)
    try:
        spark = session(f"tutti backfill {plan.request.table}", plan.format, master, settings)
        signal.signal(signal.SIGINT, _interrupted)  # again, because Spark has set its own handler, which prints long tracebacks
        try:
            return plan.run(spark, _print_progress)
        finally:
            spark.stop()
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j") or os.environ.get("TUTTI_TRACEBACK"):
            raise
        raise TuttiError(
            f"Spark failed: {cause(str(error))} (the table is consistent: repair the cause and run the command again; "
            "TUTTI_TRACEBACK=1 in the environment shows the whole traceback)"
        ) from error


def cause(text: str) -> str:
    """Return the cause in the text of a Spark error: the exception after a Python traceback, or else the first lines."""
    lines = [line for line in text.splitlines() if line.strip()]
    last = max((number for number, line in enumerate(lines, 1) if line.rstrip().endswith(_TRACEBACK)), default=len(lines))
    raised = next((line for line in lines[last:] if not line[0].isspace()), "")
    return raised or " ".join(line.strip() for line in lines[:_CAUSE_LINES])


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    """End the process at once at Ctrl-C, as a kill would. The JVM ends with this process, and the next run continues the work."""
    os.write(2, b"interrupted\n")
    os._exit(_EXIT_INTERRUPTED)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise UsageError(f"--conf {text} is not a Spark setting: write --conf spark.NAME=VALUE")
    return name, value


def _print_progress(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _print_report(report: Report, as_json: bool) -> None:
    if as_json:
        fields = {"log": report.log, "start": report.start, "end": report.end, "table": report.table, "format": report.format}
        fields |= {"mode": report.mode, "records": report.records, "written": report.written}
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()
    elif report.written:
        _print_progress(
            f"{report.table} now has [{report.start}, {report.end}) of the log; this run wrote {report.records:,} offsets"
        )
    else:
        _print_progress(f"{report.table} already has all of [{report.start}, {report.end}): nothing to do")
