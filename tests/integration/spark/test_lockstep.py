"""Tests of two streams of one query in lockstep: a join, duplicates, watermarks and state with timers give the same rows, late
records, state and micro-batches if they run live, restarted, killed, or replayed from files with the gateway down.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.spark import paired
from tests.integration.spark.rows import WAIT_S, send, settings, until, until_tick
from tests.support.gateway_process import GatewayProcess
from tutti.sources.flight import FlightSource
from tutti_spark.deterministic import deterministic
from tutti_spark.launch import spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]
STEPS = 4
STEP_S = 30


@dataclass(frozen=True)
class Run:
    """The result of a query: its rows by micro-batch, its checkpoint of each, and its state."""

    rows: dict[int, list[str]]
    batches: dict[int, tuple[int, list[Any]]]
    state: list[list[str]]


@pytest.fixture(scope="module", autouse=True)
def _settings(spark: SparkSession) -> Iterator[None]:
    with settings(spark, paired.SETTINGS):
        yield


@pytest.fixture(scope="module")
def live(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    """Run a query from "latest" in parallel with its producers, with a restart in between. Return its result, and the options
    of a replay from files.
    """
    root = tmp_path_factory.mktemp("live")
    with GatewayProcess(root) as gateway:
        begin = send(gateway.url, "orders", [b"before 0"])[0] + 1
        until_tick(gateway)
        common = {"cut": "tick:1", "maxRecordsPerTrigger": 1, "lockstep": "pair"}
        job = paired.paired(spark, common | {"gateways": gateway.url, "startingOffset": "latest"})
        assert [finding.expression for finding in deterministic(job)] == ["startingOffset latest"]
        query = start(job, root)
        until(lambda: query.status["message"].startswith("Waiting"), "the first question", query)
        second = paired.start(job, str(root / "second"), str(root / "second-rows"), available_now=False)
        step(gateway, 0)
        step(gateway, 1)
        until((root / "rows" / "0.json").exists, "a micro-batch", query)
        assert "set the option 'lockstep' to a name that no other running query has" in failure(second)
        query.stop()
        query = start(job, root)
        for number in range(2, STEPS):
            step(gateway, number)
        end = FlightSource(gateway.url).frontier().offset
        until(lambda: reached(root / "checkpoint") == end, "the last micro-batch", query)
        query.stop()
    replayed = common | {"path": str(gateway.data), "startingOffset": begin, "lockstep": "replay"}
    return told(spark, root), replayed


@pytest.mark.soak
def test_live_batches_match_the_log(live: tuple[Run, dict[str, Any]]) -> None:
    """Proves that the compared result covers every case: both streams at one position, late records, pairs, timers."""
    run, options = live
    ends = [[source["offset"] for source in sources] for _, sources in run.batches.values()]
    assert all(one == other for one, other in ends)
    begins = [sources[0]["from"] for _, sources in run.batches.values()]
    assert begins == [options["startingOffset"], *(one for one, _ in ends[:-1])]
    rows = [json.loads(row) for batch in run.rows.values() for row in batch]
    assert {"key": "k0", "orders": 1, "paid": 1, "last": 100_000} in rows
    assert {"key": "u0", "orders": 1, "paid": 0, "last": 101_000} in rows
    assert not any(row["key"].startswith("late") for row in rows)
    assert all(run.state), "the operators that are asked have some"


def test_a_replay_from_files_is_the_live_run_again(spark: SparkSession, live: tuple[Run, dict[str, Any]], tmp_path: Path) -> None:
    """Proves that micro-batches, watermarks, rows and state are the same if all records exist from the start."""
    run, options = live
    job = paired.paired(spark, options)
    assert deterministic(job) == []
    assert paired.start(job, *places(tmp_path)).awaitTermination(WAIT_S)
    assert told(spark, tmp_path) == run


def test_streams_that_do_not_have_one_name_are_found(spark: SparkSession) -> None:
    """Proves that `deterministic` requires the same lockstep of all streams of a query."""
    options = {"gateways": "tutti://127.0.0.1:1", "startingOffset": 0, "cut": "tick:1", "maxRecordsPerTrigger": 1}
    for one, other, found in ("a", "a", []), ("a", "b", ["2 streams"]), ("a", None, ["2 streams"]), (None, None, ["2 streams"]):
        named = [options | ({"lockstep": name} if name else {}) for name in (one, other)]
        orders = paired.events(spark, named[0], "orders", "ordered")
        payments = paired.events(spark, named[1], "payments", "paid")
        joined = orders.join(payments, f.col("ordered_key") == f.col("paid_key"))
        assert [finding.expression for finding in deterministic(joined)] == found


@pytest.mark.faults
@pytest.mark.soak
def test_killed_and_started_again_it_is_the_same(spark: SparkSession, live: tuple[Run, dict[str, Any]], tmp_path: Path) -> None:
    """Proves that a SIGKILL of all of Spark between two ends changes nothing, whichever stream is asked first afterwards."""
    run, options = live
    (tmp_path / "scratch").mkdir()
    environment = os.environ | spark_environment() | {"SPARK_LOCAL_DIRS": str(tmp_path / "scratch")}
    command = [sys.executable, paired.__file__, json.dumps(options), *places(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until(partial(planned, tmp_path / "checkpoint", 2, process), "the third micro-batch")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert paired.start(paired.paired(spark, options), *places(tmp_path)).awaitTermination(WAIT_S)
    assert told(spark, tmp_path) == run


def step(gateway: GatewayProcess, number: int) -> None:
    """Send orders and payments of 30 s, with duplicates, one unpaid order, one late order, and a tick after them."""
    at = 100 + number * STEP_S
    # Late is what is behind the watermark that the micro-batch before began with: in that one, this would be in time.
    late = at - 2 * STEP_S - 20
    send(gateway.url, "orders", [f"{name} {second}".encode() for name, second in order_book(number, at, late)])
    send(gateway.url, "payments", [f"k{number} {at + 5}".encode()] * 2)
    until_tick(gateway)


def order_book(number: int, at: int, late: int) -> list[tuple[str, int]]:
    """Names and seconds."""
    orders = [(f"k{number}", at), (f"k{number}", at), (f"u{number}", at + 1)]
    return [*orders, (f"late{number}", late)] if number > 1 else orders


def start(job: Any, root: Path) -> StreamingQuery:
    return paired.start(job, *places(root), available_now=False)


def places(root: Path) -> tuple[str, str]:
    return str(root / "checkpoint"), str(root / "rows")


def failure(query: StreamingQuery) -> str:
    until(lambda: not query.isActive, "the end of a query that is refused")
    return str(query.exception())


def planned(checkpoint: Path, batch: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "it ended by itself"
    return (checkpoint / "offsets" / str(batch)).exists()


def batches(checkpoint: Path, log: str) -> list[int]:
    return sorted(int(file.name) for file in (checkpoint / log).glob("[0-9]*"))


def of_batch(checkpoint: Path, batch: int) -> tuple[int, list[Any]]:
    """The watermark of a micro-batch, and the end of each of its sources."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    return json.loads(lines[1])["batchWatermarkMs"], [json.loads(line) for line in lines[2:]]


def reached(checkpoint: Path) -> int:
    """The end of the last micro-batch that is finished."""
    finished = batches(checkpoint, "commits")
    return of_batch(checkpoint, finished[-1])[1][0]["offset"] if finished else -1


def told(spark: SparkSession, root: Path) -> Run:
    checkpoint, rows = root / "checkpoint", root / "rows"
    state = [
        {"operatorId": "2"},  # which of the first duplicates are known
        {"operatorId": "1", "joinSide": "left"},
        {"operatorId": "0", "stateVarName": "seen"},
    ]
    finished = {batch: of_batch(checkpoint, batch) for batch in batches(checkpoint, "commits")}
    # A query that finds nothing to read begins with a micro-batch of nothing.
    first = int(finished[0][1][0]["from"] == finished[0][1][0]["offset"])
    return Run(
        {batch - first: (rows / f"{batch}.json").read_text().splitlines() for batch in finished if batch >= first},
        {batch - first: finished[batch] for batch in finished if batch >= first},
        [sorted(map(str, spark.read.format("statestore").options(**which).load(str(checkpoint)).collect())) for which in state],
    )
