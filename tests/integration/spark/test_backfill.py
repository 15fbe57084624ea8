"""Tests of backfills into Parquet: run twice, in parallel, or killed, the table has each record of the range once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from tests.integration.spark.rows import numbered, send, until, until_tick
from tests.support.gateway_process import GatewayProcess
from tutti.data.scan_request import ScanRequest
from tutti.errors import OffsetOutOfRange, UsageError
from tutti.sources.flight import FlightSource
from tutti_spark.backfill.ledger import Claim, read
from tutti_spark.backfill.ranges import Tick, parse_position
from tutti_spark.backfill.run import Backfill, Plan
from tutti_spark.launch import spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
ROWS = """
from pyspark.sql import functions as f

@f.udf("string")
def text(value):
    return value.decode()

def transform(records):
    return records.select("offset", "topic", text("value").alias("value"))
"""
COUNTS = """
from pyspark.sql import functions as f

def transform(records):
    return records.groupBy("topic").agg(f.count("*").alias("n"), f.min("offset").alias("first"))
"""
CHANCE = ROWS.replace('text("value")', "f.rand()")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, list[str]]]:
    """A gateway with a log of its own: two topics, in parts between ticks; and the values in the order of the log."""
    with GatewayProcess(tmp_path_factory.mktemp("backfill")) as gateway:
        values: list[str] = []
        for part in range(4):
            for topic in ("a", "b"):
                send(gateway.url, topic, sent := numbered(topic, 50, 50 * part))
                values += [value.decode() for value in sent]
            until_tick(gateway)
        yield gateway, values


def job(tmp_path: Path, text: str, name: str = "job_rows") -> str:
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    return str(file)


def rows(table: Path) -> list[tuple[int, str]]:
    """Return offset and value of the rows of a table, in the order of offsets."""
    found = ds.dataset(table, partitioning="hive").to_table(["offset", "value"])
    return sorted((row["offset"], row["value"]) for row in found.to_pylist())


def once(values: list[str], start: int = 0, end: int | None = None) -> list[tuple[int, str]]:
    return list(enumerate(values))[start:end]


def filled(spark: SparkSession, wanted: Backfill) -> list[tuple[int, int]]:
    return Plan(wanted).run(spark).written


def test_a_range_is_backfilled_once(spark: SparkSession, log: tuple[GatewayProcess, list[str]], tmp_path: Path) -> None:
    """Proves that ranges by offset, tick and frontier, that overlap, from gateways and from files, give each record once."""
    gateway, values = log
    table, rows_job = tmp_path / "t", job(tmp_path, ROWS)
    from_gateway = Backfill(str(table), {"gateways": gateway.url}, "parquet", job=rows_job, start=30, end=90, slice_records=25)
    assert filled(spark, from_gateway) == [(30, 55), (55, 80), (80, 90)]
    assert rows(table) == once(values, 30, 90)
    assert Plan(from_gateway).nothing_to_do()

    reads = FlightSource(gateway.url)
    request = ScanRequest(0, reads.frontier().offset, columns=("tick",))
    ticks = [row for found in reads.scan(request) for row in found.batch["tick"].to_pylist()]
    middle = ticks[210]
    from_files = Backfill(str(table), {"path": str(gateway.data)}, job=rows_job, start=parse_position("--start", f"tick:{middle}"))
    at = ticks.index(middle)
    assert filled(spark, from_files) == [(at, len(values))]
    runs = [Plan(Backfill(str(table), {"path": str(gateway.data)}, job=rows_job, slice_records=20)) for _ in range(2)]
    threads = [Thread(target=run.run, args=(spark,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = sorted(span for run in runs for span in run.report.written)
    assert sum(end - start for start, end in written) == 30 + at - 90
    assert rows(table) == once(values)
    assert [row.value for row in spark.read.parquet(str(table)).orderBy("offset").collect()] == values
    with pytest.raises(OffsetOutOfRange, match="the last tick of the log is"):
        Plan(Backfill(str(table), {"path": str(gateway.data)}, start=Tick(1 << 40)))


def test_a_swap_replaces_whole_ranges_in_one_step(
    spark: SparkSession, log: tuple[GatewayProcess, list[str]], tmp_path: Path
) -> None:
    """Proves that a swap writes the new rows of its range and leaves the others, and refuses a range that would split or disagree
    with existing ones.
    """
    gateway, values = log
    table, read_files = tmp_path / "t", {"path": str(gateway.data)}
    plain, shout = (
        job(tmp_path, ROWS),
        job(tmp_path, ROWS.replace("value.decode()", "value.decode().upper()"), "shout"),
    )
    filled(spark, Backfill(str(table), read_files, "parquet", job=plain, slice_records=100))
    before = table.stat().st_ino
    assert filled(spark, Backfill(str(table), read_files, job=shout, mode="swap", start=100, end=300)) == [(100, 300)]
    assert table.stat().st_ino != before
    assert rows(table) == [(at, value.upper() if 100 <= at < 300 else value) for at, value in once(values)]
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
    assert Plan(Backfill(str(table), read_files, job=plain)).nothing_to_do()
    with pytest.raises(UsageError, match="swap --start 100 --end 400"):
        Plan(Backfill(str(table), read_files, job=plain, mode="swap", start=250, end=350))
    counts = job(tmp_path, COUNTS, "counts")
    with pytest.raises(UsageError, match=r"also has the offsets 0 to 99, |the whole table with --mode swap"):
        filled(spark, Backfill(str(table), read_files, job=counts, mode="swap", start=100, end=300))
    assert filled(spark, Backfill(str(table), read_files, job=counts, mode="swap")) == [(0, 400)]
    found = ds.dataset(table, partitioning="hive").to_table(["topic", "n", "first"]).to_pylist()
    assert sorted(map(str, found)) == sorted(
        map(str, [{"topic": "a", "n": 200, "first": 0}, {"topic": "b", "n": 200, "first": 50}])
    )


def test_no_other_writer_runs_during_a_swap(spark: SparkSession, log: tuple[GatewayProcess, list[str]], tmp_path: Path) -> None:
    """Proves that an append of another range waits for the swap: the exchange took what it had staged, and the ledger said done;
    and that what strangers wrote meanwhile is refused before it, and kept and told after it.
    """
    gateway, values = log
    table, go, read_files = tmp_path / "t", tmp_path / "go", {"path": str(gateway.data)}
    held = ROWS.replace("    return value", f"    while not os.path.exists({str(go)!r}): time.sleep(0.02)\n    return value")
    plain, slow = job(tmp_path, ROWS), job(tmp_path, "import os, time\n" + held.replace("decode()", "decode().upper()"), "slow")
    filled(spark, Backfill(str(table), read_files, "parquet", job=plain, end=100))
    told: list[str] = []
    swap = Plan(Backfill(str(table), read_files, job=slow, mode="swap", end=100))
    append = Plan(Backfill(str(table), read_files, job=plain, start=100))
    threads = [Thread(target=swap.run, args=(spark,)), Thread(target=append.run, args=(spark, told.append))]
    try:
        threads[0].start()
        until(lambda: [claim for claim in open_claims(table) if claim.swap], "the swap to begin")
        threads[1].start()
        until(lambda: told or append.report.written, "the append to begin")
    finally:
        go.touch()
        for thread in threads:
            thread.join()
    assert told[0].startswith("waiting for [0, 100) of ")
    assert rows(table) == [(at, value.upper() if at < 100 else value) for at, value in once(values)]
    assert open_claims(table) == []
    (table / "part-0.parquet").touch()
    with pytest.raises(UsageError, match="which no backfill wrote"):
        swap.run(spark)
    assert (table / "part-0.parquet").exists()


def open_claims(table: Path) -> list[Claim]:
    state = read(table / "_tutti")
    return [] if state is None else state.open


def test_jobs_that_would_not_come_out_the_same_are_refused(
    spark: SparkSession, log: tuple[GatewayProcess, list[str]], tmp_path: Path
) -> None:
    """Proves that randomness, a slice through a group, another schema and other topics are refused, and leave no files."""
    gateway, values = log
    table, read_files = tmp_path / "t", {"path": str(gateway.data)}
    with pytest.raises(UsageError, match=r"--allow-nondeterministic"):
        filled(spark, Backfill(str(table), read_files, "parquet", job=job(tmp_path, CHANCE, "chance")))
    with pytest.raises(UsageError, match="--slice 10 would separate records that Aggregate"):
        filled(spark, Backfill(str(table), read_files, "parquet", job=job(tmp_path, COUNTS, "counts"), slice_records=10))
    rows_job = job(tmp_path, ROWS)
    filled(spark, Backfill(str(table), read_files, "parquet", job=rows_job, end=100))
    other = job(tmp_path, ROWS.replace(".alias", '.alias("word"), f.lit(1).alias'), "other")
    with pytest.raises(UsageError, match=r"the schema struct<.*and the table has the schema struct<"):
        filled(spark, Backfill(str(table), read_files, job=other))
    with pytest.raises(UsageError, match="filled from all topics, and this run reads a"):
        Plan(Backfill(str(table), read_files | {"topics": "a"}, job=rows_job))
    assert rows(table) == once(values, 0, 100)
    state = read(table / "_tutti")
    assert state is not None
    assert (state.done, state.open) == ([(0, 100)], [])


def killed(arguments: list[str], when: Callable[[], object]) -> None:
    """Start `tutti backfill` and kill it, Spark and all, at a moment that is seen from outside."""
    command = [sys.executable, "-m", "tutti_gateway", "backfill", *arguments]
    environment = os.environ | spark_environment()
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            until(lambda: when() or process.poll() is not None, "the moment to kill at")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert process.returncode == -signal.SIGKILL, said


@pytest.mark.soak
def test_a_killed_run_leaves_nothing_that_is_seen(
    spark: SparkSession, log: tuple[GatewayProcess, list[str]], tmp_path: Path
) -> None:
    """Proves that after a SIGKILL in the middle of a range only complete ranges are visible, and that the next run completes the
    table.
    """
    gateway, values = log
    table, rows_job = tmp_path / "t", job(tmp_path, ROWS)
    arguments = ["--path", str(gateway.data), "--table", str(table), "--format", "parquet", "--job", rows_job, "--slice", "40"]
    staged = table / "_tutti" / "staged"
    killed([*arguments, "--master", "local[2]"], lambda: len(list(table.glob("offsets=*"))) >= 2 and list(staged.glob("claim-*")))
    state = read(table / "_tutti")
    assert state is not None
    assert len(state.open) == 1
    seen = rows(table)
    assert seen == once(values, 0, len(seen))
    assert len(seen) % 40 == 0
    told: list[str] = []
    Plan(Backfill(str(table), {"path": str(gateway.data)}, job=rows_job, slice_records=100)).run(spark, told.append)
    assert told[0].startswith("resolving [")
    assert rows(table) == once(values)
    assert list(staged.iterdir()) == []
