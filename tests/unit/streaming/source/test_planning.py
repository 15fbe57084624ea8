"""Tests of plans for reads that are too large for one request, or older than the log."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from tests.unit.streaming.fake_log import FakeLog
from tutti import limits
from tutti.errors import Unavailable, UsageError
from tutti_spark.common.options import ReadOptions
from tutti_spark.source import batch
from tutti_spark.source.batch import BatchReader
from tutti_spark.source.planning import RecordsPartition, partitions


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    fake = FakeLog(100)
    monkeypatch.setattr(batch, "source_of", lambda options: fake)
    return fake


@pytest.mark.parametrize(
    ("options", "age_s", "frontier", "warned"),
    [
        ({}, 61, 130, "61 s ago, up to 100, and the log has 30 more offsets"),
        ({}, 61, 100, ""),
        ({}, 59, 130, ""),
        ({"end": 90}, 61, 130, ""),
        ({"start": 100}, 0, 130, "planned while the range had no records"),
        ({"start": 100}, 0, 100, ""),
    ],
)
def test_a_task_of_an_old_plan_warns_where_the_log_has_more(
    log: FakeLog, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], age_s: float, frontier: int, warned: str
) -> None:
    """Proves that a DataFrame which Spark planned long ago says so in the worker's log, and that no other read asks anything."""
    reader = BatchReader(ReadOptions(gateways="tutti://h:1", **options))
    planned_at = 1_000_000.0
    monkeypatch.setattr(time, "time", lambda: planned_at)
    last = (reader.partitions() or [InputPartition(None)])[-1]
    monkeypatch.setattr(time, "time", lambda: planned_at + age_s)
    log.set(frontier)
    again = pickle.loads(pickle.dumps(last))  # noqa: S301 - our own
    if warned:
        with pytest.warns(UserWarning, match=warned):
            reader.read(again)
        log.set(failure=Unavailable("none"))
    reader.read(again)  # a warning would be an error


def test_a_pattern_that_matches_too_much_for_a_question_is_refused_when_it_is_planned(log: FakeLog) -> None:
    """Proves that a read of too many topics ends before it begins, with what to do, and that files have no such limit."""
    log.names = [f"{number:06}{'x' * 200}" for number in range(limits.TICKET_BYTES_MAX // 200)]
    options = ReadOptions(gateways="tutti://h:1", topics_pattern="0.*")
    with pytest.raises(UsageError, match=r"option 'topicsPattern' \('0.\*'\) matches 41943 topics, .* filter by column 'topic'"):
        partitions(log, log.frontier(), 0, 10, options)
    assert len(partitions(log, log.frontier(), 0, 10, ReadOptions(paths=("d",), topics_pattern="0.*"))) == 1
    assert repr(RecordsPartition("u", 0, 1, tuple(log.names))).count("x" * 200) == 10, "a message shows some of them"
