"""Tests of the jobs with state on real departures: two live runs from a gateway give the result of a replay of the files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.spark.rows import send, settings, until_tick
from tests.support.gateway_process import GatewayProcess
from tutti_gateway.cli.demo.departures import load
from tutti_spark.jobs import _common, alerts, counters, sessions
from tutti_spark.jobs.departures import CLOSING_RECORD

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]
#: Each with its plan, and where its result is read.
JOBS: dict[str, tuple[ModuleType, Any, Any, Any]] = {
    "sessions": (sessions, sessions.banks, _common.to_parquet, _common.parquet_lines),
    "alerts": (alerts, alerts.alerts, _common.to_parquet, _common.parquet_lines),
    "counters": (counters, counters.columns, counters.start, counters.lines),
}
DEPARTURES = 3000  # the year's first: three days and a half
PARTS = 4


@dataclass(frozen=True)
class Lived:
    """The output of the live runs, and the directory of their gateway."""

    out: Path
    data: Path


@pytest.fixture(scope="module", autouse=True)
def _settings(spark: SparkSession) -> Iterator[None]:
    with settings(spark, _common.SETTINGS):
        yield


def run(spark: SparkSession, name: str, out: Path, *arguments: str) -> dict[str, Any]:
    """A job to its end, in this session."""
    module, plan, start, lines = JOBS[name]
    places = ["--out", str(out / name), "--checkpoint", str(out / f"{name}-checkpoint")]
    options = _common.parser(name, module.__doc__).parse_args([*arguments, *places])
    assert isinstance(options, argparse.Namespace)
    return _common.run(spark, options, plan, start, lines)


def all_jobs(spark: SparkSession, out: Path, arguments: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    """One after the other: Spark gives each of its Python processes ten seconds to start."""
    return {name: run(spark, name, out, *given) for name, given in arguments.items()}


@pytest.fixture(scope="module")
def lived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """Send departures part by part, with jobs that read the existing ones, end, and read the rest in a second run."""
    root = tmp_path_factory.mktemp("jobs")
    airports = [airport.rows() for airport in load(DEPARTURES)]
    with GatewayProcess(root) as gateway:
        live = {name: ["live", "--gateways", gateway.url, "--available-now"] for name in JOBS}
        for part in range(PARTS):
            for rows in airports:  # one airport behind the other by a day, as producers may be
                send(gateway.url, "flights", rows[part * len(rows) // PARTS : (part + 1) * len(rows) // PARTS])
            if part == PARTS - 1:
                send(gateway.url, "flights", [CLOSING_RECORD])
            until_tick(gateway)
            if part in (1, PARTS - 1):
                reports = all_jobs(spark, root, live)
                assert reports == {name: {"mode": "live", "findings": []} for name in JOBS}
    return Lived(root, gateway.data)


def test_a_replay_from_files_comes_to_the_same(spark: SparkSession, lived: Lived, tmp_path: Path) -> None:
    """Proves that each job has no finding, and that live and replay are equal with the gateway down."""
    replay = {name: ["replay", "--path", str(lived.data), "--compare", str(lived.out / name)] for name in JOBS}
    reports = all_jobs(spark, tmp_path, replay)
    assert {name: (report["equal"], report["findings"]) for name, report in reports.items()} == dict.fromkeys(JOBS, (True, []))
    assert all(report["rows"] > 10 for report in reports.values())


def test_counters_have_each_departure_once(lived: Lived, spark: SparkSession) -> None:
    """Proves that all are counted, and that a replay into the same file, from a new checkpoint, adds nothing."""
    records = [json.loads(row) for airport in load(DEPARTURES) for row in airport.rows()]
    wanted: dict[tuple[str, str], list[int]] = {}
    for record in records:
        delay = record["dep_delay"]
        figures = (1, int((delay or 0) >= counters.LATE_MINUTES), int(delay is None), delay or 0)
        row = wanted.setdefault((record["origin"], record["carrier"]), [0, 0, 0, 0])
        row[:] = [one + other for one, other in zip(row, figures, strict=True)]
    assert counters.lines(None, str(lived.out / "counters")) == [f"{(*key, *wanted[key])}\n".encode() for key in sorted(wanted)]
    again = _common.parser("counters", "").parse_args(
        ["replay", "--path", str(lived.data), "--out", str(lived.out / "counters"), "--checkpoint", str(lived.out / "anew")]
    )
    with pytest.raises(ValueError, match="are of topic 'flights', and this job reads 'other'"):
        counters.check_topic(again.out, "other")
    before = counters.lines(None, again.out)
    assert _common.run(spark, again, counters.columns, counters.start, counters.lines)["findings"] == []
    assert counters.lines(None, again.out) == before


def test_counters_of_another_log_are_refused(lived: Lived) -> None:
    with counters.transaction(str(lived.out / "counters")) as database, pytest.raises(ValueError, match="count into another file"):
        counters.counted(database, "another")


def test_sessions_and_alerts_are_as_documented(spark: SparkSession, lived: Lived) -> None:
    """Proves that banks lie apart by more than the gap, and that alerts are raised and cleared in turns."""
    banks = spark.read.parquet(str(lived.out / "sessions")).orderBy("origin", "carrier", "begin").collect()
    assert sum(bank.departures for bank in banks) > DEPARTURES // 2
    for one, other in pairwise(banks):
        if (one.origin, one.carrier) == (other.origin, other.carrier):
            assert (other.begin - one.last).total_seconds() > 30 * 60
    told = spark.read.parquet(str(lived.out / "alerts")).orderBy("origin", "time").collect()
    for origin in {row.origin for row in told}:
        turns = [row.alert for row in told if row.origin == origin]
        assert turns[:2] == ["raised", "cleared"]
        assert all(row.late_in_a_row >= alerts.IN_A_ROW for row in told if row.alert == "raised")
