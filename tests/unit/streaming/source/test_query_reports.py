"""Tests of query reports: a query sends its latest progress to gateways repeatedly, despite the failure of any report."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.unit.streaming.fake_log import FakeLog, wait_until
from tutti import limits
from tutti.errors import Refused, TuttiError, Unavailable, UsageError
from tutti_spark.common.options import ReadOptions, parse
from tutti_spark.source import query_reports, stream
from tutti_spark.source.query_reports import Reporter, driver_label

GATEWAYS = {"gateways": "tutti://h:1"}


class FakeGateways(FakeLog):
    """Takes reports; answers with `trouble`, fails, or holds them until `gate` is set."""

    def __init__(self, offset: int = 0) -> None:
        super().__init__(offset)
        self.reports: list[dict[str, Any]] = []
        self.trouble = ""
        self.error: TuttiError | None = None
        self.gate = threading.Event()
        self.gate.set()

    def report(self, run: str, offset: int, **fields: Any) -> str:
        self.reports.append({"run": run, "offset": offset, **fields})
        self.gate.wait(30)
        if self.error is not None:
            raise self.error
        return self.trouble

    @property
    def offsets(self) -> list[int]:
        return [report["offset"] for report in self.reports]


@pytest.fixture
def gateways(monkeypatch: pytest.MonkeyPatch) -> FakeGateways:
    fake = FakeGateways(100)
    monkeypatch.setattr(query_reports, "_gateways_of", lambda source, options: source)
    monkeypatch.setattr(stream, "source_of", lambda options: fake)
    return fake


def test_a_report_has_some_of_many_topics(gateways: FakeGateways) -> None:
    """Proves that a query of more topics than a report may have is reported all the same."""
    topics = tuple(f"t{number}" for number in range(limits.TOPICS_A_REPORT_MAX + 1))
    many = Reporter(gateways, ReadOptions(gateways="tutti://h:1", topics=topics), lambda offset: (0, 0))
    many.processed(5)
    wait_until(lambda: gateways.offsets == [5])
    many.stop()
    assert gateways.reports[0]["topics"] == topics[:-1]


@pytest.fixture
def reporter(gateways: FakeGateways) -> Iterator[Reporter]:
    made = Reporter(gateways, ReadOptions(gateways="tutti://h:1", query_name="q", topics=("t",)), lambda offset: (100 - offset, 7))
    yield made
    gateways.gate.set()
    made.stop()


def test_a_report_has_everything_known_of_a_query(gateways: FakeGateways, reporter: Reporter) -> None:
    """Proves that a report has name, topics and lag, and that none is sent before there is progress."""
    reporter.processed(5)
    reporter.flush(30)
    first = gateways.reports[0]
    assert (first["offset"], first["name"], first["topics"], first["lag_ms"]) == (5, "q", ("t",), 7)
    assert first["label"] == driver_label()


def test_a_run_goes_back_once(gateways: FakeGateways, reporter: Reporter) -> None:
    """Proves that the first word that is kept sets the position, and later ones only raise it."""
    gateways.trouble = "the gateway does not answer"
    reporter.processed(5)
    reporter.flush(30)
    gateways.trouble = ""
    reporter.processed(6)
    reporter.flush(30)
    reporter.processed(7)
    reporter.flush(30)
    told = {report["offset"]: report["back"] for report in reversed(gateways.reports)}
    assert told == {5: True, 6: True, 7: False}


def test_only_the_latest_progress_is_reported(gateways: FakeGateways, reporter: Reporter) -> None:
    """Proves that a slow gateway gets no outdated reports."""
    gateways.gate.clear()
    reporter.processed(1)
    wait_until(lambda: gateways.offsets)
    for offset in range(2, 10):
        reporter.processed(offset)
    gateways.gate.set()
    reporter.flush(30)
    assert [*dict.fromkeys(gateways.offsets)] == [1, 9]


def test_an_idle_query_is_still_reported(gateways: FakeGateways, reporter: Reporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the same report is repeated, under the same run."""
    monkeypatch.setattr(query_reports, "_KEEP_ALIVE_S", 0.01)
    reporter.processed(5)
    wait_until(lambda: len(gateways.reports) > 2)
    assert {(report["run"], report["offset"]) for report in gateways.reports} == {(gateways.reports[0]["run"], 5)}


@pytest.mark.parametrize("error", [Unavailable("gone"), Refused("not now"), Refused("no such action", "unknown_action")])
def test_a_failed_report_ends_nothing_and_is_retried(
    gateways: FakeGateways, reporter: Reporter, monkeypatch: pytest.MonkeyPatch, error: TuttiError
) -> None:
    """Proves that a lost report is repeated, and that an urgent one does not wait without limit."""
    monkeypatch.setattr(query_reports, "_KEEP_ALIVE_S", 0.01)
    monkeypatch.setattr(query_reports, "_UNSUPPORTED_PAUSE_S", 0.01)
    gateways.error = error
    reporter.processed(5)
    reporter.flush(0.01)
    wait_until(lambda: len(gateways.reports) > 1)
    gateways.error = None
    reporter.flush(30)
    assert reporter._reported == 5


def test_a_stream_reports_processed_records_and_not_read_ones(gateways: FakeGateways) -> None:
    """Proves that the end of the last finished micro-batch is reported, also at the end of a run, before the process ends."""
    reader = stream.StreamReader(parse({**GATEWAYS, "queryName": "q"}, "stream"))
    start = {"log": "log-1", "offset": 40, "from": 20}
    try:
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end["offset"] == 100
        reader._reporter.flush(30)
        assert {*gateways.offsets} == {40}
        assert reader.latestOffset(end, ReadAllAvailable()) is end
        assert gateways.offsets[-1] == 100
    finally:
        reader.stop()


def test_reads_from_files_are_not_reported() -> None:
    """Proves that a stream from files reports to no gateway, whatever its name."""
    log = FakeLog()
    reporter = Reporter(log, parse({"path": "/x", "queryName": "q"}, "stream"), lambda offset: (0, 0))
    reporter.processed(5)
    reporter.flush(30)  # returns
    assert log.asked == []


def test_the_option_requires_a_name_and_belongs_to_streams() -> None:
    """Proves that an invalid name is refused with the option, and that a batch read has no such option."""
    assert parse({**GATEWAYS, "queryname": "delays.v2"}, "stream").query_name == "delays.v2"
    assert parse(GATEWAYS, "stream").query_name == ""
    with pytest.raises(UsageError, match=r"'queryName' is 'my query' .*' '.*letters"):
        parse({**GATEWAYS, "queryName": "my query"}, "stream")
    with pytest.raises(UsageError, match=r"'queryName' .*batch"):
        parse({**GATEWAYS, "queryName": "q"}, "batch")


SUBMIT = ["java", "-cp", "x", "org.apache.spark.deploy.SparkSubmit"]


@pytest.mark.parametrize(
    ("driver", "parent", "what"),
    [
        ([*SUBMIT, "--master", "local[2]", "/jobs/flights.py", "live", "--out", "x.py"], [], "flights.py"),
        ([*SUBMIT, "--name", "delays", "/jobs/flights.py"], [], "delays"),
        ([*SUBMIT, "--class", "a.Main", "job.jar"], [], "job.jar"),
        ([*SUBMIT, "--class", "org.apache.spark.sql.connect.SparkConnectServer", "spark-internal"], ["bash"], "SparkConnectServer"),
        ([*SUBMIT, "--conf", "a=b", "pyspark-shell"], ["/x/python", "-u", "/jobs/mine.py", "arg.py"], "mine.py"),
        ([*SUBMIT, "--name", "PySparkShell", "pyspark-shell"], ["/x/python3", "-m", "jobs.mine", "x"], "jobs.mine"),
        ([*SUBMIT, "pyspark-shell"], ["/x/python3"], "python3"),
        ([], [], "spark"),
    ],
)
def test_a_driver_is_identified_by_its_run(
    monkeypatch: pytest.MonkeyPatch, driver: list[str], parent: list[str], what: str
) -> None:
    """Proves that people see the script, or the name that spark-submit was given, however the driver was started."""
    monkeypatch.setattr(query_reports, "_command", lambda process: driver if process == os.getppid() else parent)
    monkeypatch.setattr(query_reports, "_parent", lambda process: 1)
    assert driver_label().startswith(f"{what}@")
    assert driver_label().endswith(f":{os.getppid()}")
    assert limits.SPARK_REPORT_US < limits.SPARK_ALIVE_US
