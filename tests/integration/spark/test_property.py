"""Property test with random restarts, rates, options and gateways: the windows of a query with state have exactly
the sent events.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.faults.spark.job import Task, beside, start
from tests.faults.spark.trial import DISTURBANCES, Trial
from tests.support.running_group import RunningGroup

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]


class InSession:
    """Runs the query here, and stops it in the middle of whatever it does."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._query: StreamingQuery | None = None

    def start(self, task: Task) -> None:
        self._query = start(self._spark, task)

    def end(self, chance: Random) -> None:
        assert self._query is not None
        self._query.stop()

    def check(self) -> None:
        assert self._query is not None
        assert self._query.exception() is None, self._query.exception()


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    own = beside(spark)
    yield own
    for query in own.streams.active:
        query.stop()


@pytest.mark.parametrize("rounds", [3, pytest.param(len(DISTURBANCES), marks=pytest.mark.soak)])
def test_windows_are_those_of_the_events_that_were_sent(session: SparkSession, tmp_path: Path, rounds: int) -> None:
    """Proves that neither restarts with other options, nor rates, nor gateways that die change a result with state."""
    with RunningGroup(tmp_path) as group:
        trial = Trial(group, Task(str(tmp_path / "query"), {}), InSession(session), seed=1, log=print)
        assert trial.run(rounds) == []
        assert trial.kills > 0
