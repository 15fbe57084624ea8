"""Tests of backfills into Delta tables: in parallel with a streaming query, over existing data, and killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.backfill import concurrent_backfill
from tests.integration.backfill.delta import arguments, claims, rows
from tests.integration.spark.rows import numbered, send, until
from tests.support.gateway_process import GatewayProcess
from tutti.data.scan_request import ScanRequest
from tutti.sources.flight import FlightSource
from tutti_spark.backfill.ledger import read
from tutti_spark.launch import spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(500)]
WAIT_S = 400
JOB = """
from pyspark.sql import functions as f

def transform(records):
    return records.select("offset", "topic", f.col("value").cast("string").alias("value"))
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """With 800 records of two topics."""
    with GatewayProcess(tmp_path_factory.mktemp("backfill")) as running:
        for part in range(4):
            for topic in ("a", "b"):
                send(running.url, topic, numbered(topic, 100, 100 * part))
        yield running


def in_the_log(url: str) -> list[tuple[int, str]]:
    """Offset and value of all records."""
    reads = FlightSource(url)
    request = ScanRequest(0, reads.frontier().offset, columns=("offset", "value"))
    return [(row["offset"], row["value"].decode()) for found in reads.scan(request) for row in found.batch.to_pylist()]


@pytest.mark.soak
def test_beside_a_query_over_other_rows_and_after_dead_runs(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that each record is in the table once: with a query that appends in parallel, over existing rows, after a swap, and
    after dead runs whose Spark commits later.
    """
    command = [sys.executable, concurrent_backfill.__file__, gateway.url, str(tmp_path)]
    ran = subprocess.run(command, env=os.environ | spark_environment(), capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    told: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    log = in_the_log(gateway.url)

    live = told["beside_a_query"]
    swapped = range(100, concurrent_backfill.LIVE_FROM + 20)
    assert rows(tmp_path / "live") == [(at, value.upper() if at in swapped else value) for at, value in log]
    assert re.search(r"the query of --live began at 600 and", live["refused"])
    assert live["ends"] == [concurrent_backfill.LIVE_FROM] * 2
    assert sum(end - start for spans in live["spans"] for start, end in spans) == concurrent_backfill.LIVE_FROM
    assert live["merge_end"] > concurrent_backfill.LIVE_FROM
    assert live["again"]

    assert rows(tmp_path / "two") == log[:800], "two topics, each from its own begin, and the rest by the merge"
    assert "they began at different offsets (40 and 600)" in told["beside_two_streams"]["refused"]

    assert rows(tmp_path / "merged") == log[: concurrent_backfill.LIVE_FROM]
    assert "has rows with offsets 102 to 597 in the range" in told["merged"]["refused"]
    assert told["merged"]["counts"] == [2, 0]

    assert rows(tmp_path / "settled") == log[:400]
    assert [line.split(" of ")[0].split(",")[0] for line in told["settled"]["told"]] == [
        "resolving [100",
        "resolving [200",
        "records [200",
    ]
    assert (told["settled"]["done"], told["settled"]["open"]) == ([[0, 400]], 0)
    assert claims(tmp_path / "settled") == ["append 0-100", "append 100-200", "fence 200-300", "append 200-400"]

    assert [(at, value.decode()) for at, value in rows(tmp_path / "changes")] == log[:800]
    last = {value[0]: (at, value.encode()) for at, value in log[:800]}
    assert rows(tmp_path / "state") == sorted(last.values())


def killed(command: list[str], when: Callable[[], object], *, spark_too: bool) -> None:
    """Run a backfill and kill it at a moment that is seen from outside: the driver alone, or with its Spark."""
    with subprocess.Popen(
        command, env=os.environ | spark_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            until(lambda: when() or process.poll() is not None, "the moment to kill at")
            if not spark_too:
                process.kill()
                process.wait()
        finally:
            if spark_too or process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        assert process.stderr is not None
        said = process.stderr.read().decode()  # until Spark has ended, too
    assert process.returncode == -signal.SIGKILL, said[-3000:]


@pytest.mark.soak
def test_a_killed_run_is_run_again(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that each record is in the table once after a driver was killed while its Spark wrote on, and after both were killed
    when a commit had just been made.
    """
    table, job = tmp_path / "t", tmp_path / "values.py"
    job.write_text(JOB)
    command = [
        sys.executable,
        "-m",
        "tutti_gateway",
        "backfill",
        "--path",
        str(gateway.data),
        "--table",
        str(table),
        "--job",
        str(job),
    ]
    command += ["--end", "800", "--slice", "300", *arguments(tmp_path)]

    def is_open() -> bool:
        state = read(table / "_tutti") if (table / "_tutti").exists() else None
        return state is not None and bool(state.open)

    killed(command, is_open, spark_too=False)
    before = len(list((table / "_delta_log").glob("*.json")))
    killed(command, lambda: len(list((table / "_delta_log").glob("*.json"))) > before, spark_too=True)
    ran = subprocess.run(
        [*command, "--json"], env=os.environ | spark_environment(), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "resolving [" in ran.stderr
    assert rows(table) == in_the_log(gateway.url)[:800]
    state = read(table / "_tutti")
    assert state is not None
    assert (state.done, state.open) == ([(0, 800)], [])
