"""Tests of two jobs in a chain, `first` -> Tutti -> `second` -> Tutti, with an outdated driver, and killed drivers, tasks and
gateways.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.faults.spark.chain import BATCH_RECORDS, TOPICS, Chain
from tests.faults.spark.gates import Gates
from tests.faults.spark.jobs_chained import Chained, Link, start
from tests.faults.spark.processes import Job
from tests.support.running_group import RunningGroup

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


class Here(Job):
    """A job of the chain in this session, which continues from its checkpoint."""

    def __init__(self, spark: SparkSession, link: Link) -> None:
        super().__init__(link)
        self._query: StreamingQuery = start(spark, link)

    @property
    def runs(self) -> bool:
        return bool(self._query.isActive)

    def tail(self, characters: int = 4000) -> str:
        return str(self._query.exception())[:characters]


def test_a_chain_writes_each_micro_batch_once_under_kills(spark: SparkSession, tmp_path: Path) -> None:
    """Proves that each micro-batch of two jobs is in the log once, contiguous and in order; that an outdated driver, replaced by
    another one of its checkpoint, writes nothing and reports why; and that batches staged by a killed task are never visible.
    """
    with RunningGroup(tmp_path) as group, Chain(tmp_path, group, 1, print) as chain:
        left = Chained(*(chain.link(kind) for kind in TOPICS))
        chain.gates["first"].close(1, "staged")
        chain.gates["second"].close(0, "committed")
        with left:
            left.start()
            chain.send(2 * BATCH_RECORDS)
            left.until(lambda: chain.gates["first"].here(1, "staged"), "the first job to stand")
            left.until(lambda: chain.gates["second"].here(0, "committed"), "the second job to stand")
            assert list(chain.gates["first"].directory.glob("died-*")), "tasks died that had staged"
            for kind in TOPICS:
                gates = Gates(tmp_path / f"open-{kind}")
                chain.jobs[kind] = Here(spark, replace(chain.link(kind), gates=str(gates.directory)))
            chain.send(BATCH_RECORDS)
            chain.jobs["first"].until(lambda: chain.planned("first") > 2, "another driver to go on")
            chain.strike("coordinator")
            chain.gates["first"].open(1, "staged")
            left.wait_failed()
            assert "micro-batch 1 of 'spark-" in left.tail(100_000)
            assert "another driver uses this checkpoint" in left.tail(100_000)
        chain.send(BATCH_RECORDS)
        chain.settle()
        assert list(chain.findings()) == []
        assert len(chain.records("c")) > len(TOPICS)
