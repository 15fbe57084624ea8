"""Tests of a query name that several streams share: its position is the lowest of the running streams."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.unit.streaming.fake_log import FakeLog, wait_until
from tests.unit.streaming.source.test_query_reports import FakeGateways
from tutti_spark.common.options import ReadOptions
from tutti_spark.source import query_reports, stream
from tutti_spark.source.shared_query_position import SharedPosition
from tutti_spark.source.stream import StreamReader


def test_the_least_of_all_streams_counts(tmp_path: Path) -> None:
    """Proves that a stream that lags holds the name back until it catches up or ends, and other logs and names do not."""
    ahead, lags = (SharedPosition("q", tmp_path) for _ in range(2))
    assert ahead.least("log", 100) is None, "the other one has not said where it is"
    assert lags.least("log", 40) == 40
    assert ahead.least("log", 120) == 40
    assert SharedPosition("another", tmp_path).least("log", 7) == 7
    elsewhere = SharedPosition("q", tmp_path)
    assert elsewhere.least("other", 3) == 3
    assert ahead.least("log", 130) == 40
    assert lags.least("log", 125) == 125
    lags.leave()
    assert ahead.least("log", 140) == 140
    lags.leave()
    assert SharedPosition("q", tmp_path).least("log", 9) == 9


def test_streams_of_one_name_report_the_least_position(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Proves that no report of a query passes a record which one of its streams has not processed."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(query_reports, "_gateways_of", lambda source, options: source)
    log: FakeLog = FakeGateways(100)
    monkeypatch.setattr(stream, "source_of", lambda options: log)
    readers = [StreamReader(ReadOptions(gateways="tutti://h:1", start=0, query_name="q")) for _ in range(2)]
    try:
        limits_of = [reader.getDefaultReadLimit() for reader in readers]
        assert limits_of == [ReadAllAvailable()] * 2
        first = readers[0].latestOffset({"log": "log-1", "offset": 60, "from": 0}, ReadAllAvailable())
        readers[1].latestOffset({"log": "log-1", "offset": 20, "from": 0}, ReadAllAvailable())
        assert isinstance(log, FakeGateways)
        wait_until(lambda: len(log.reports) >= 2)
        assert set(log.offsets) == {20}
        readers[1].stop()
        readers[0].latestOffset(first, ReadAllAvailable())
        wait_until(lambda: log.offsets[-1] == 100)
    finally:
        for reader in readers:
            reader.stop()
