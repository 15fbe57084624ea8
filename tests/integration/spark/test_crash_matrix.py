"""Tests of a query with state on a cluster of two executors, with a kill in its micro-batches of the driver, executors, Python
workers, one gateway, or all of them. `make spark-soak` kills at every step.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.faults.spark import matrix
from tests.faults.spark.job import Task, beside, results, start
from tests.faults.spark.matrix import Cell
from tests.faults.spark.soak import CLUSTER, LENIENT
from tests.integration.spark.rows import WAIT_S
from tests.support.running_group import RunningGroup

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]
#: Cell n is for micro-batch n. Each step is among them, and who does not cost another start of the driver, which takes long.
CELLS = [
    Cell("driver", "planned"),
    Cell("executor", "reading"),
    Cell("python worker", "read"),
    Cell("all gateways", "planned"),
    Cell("gateway", "written"),
]


@pytest.mark.soak
def test_every_attempt_at_every_micro_batch_gives_the_rows_of_a_run_without_kills(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that windows, duplicates, late records and micro-batches are the same after any kill."""
    monkeypatch.setenv("SPARK_SCALA_VERSION", "2.13")
    with RunningGroup(tmp_path) as group:
        matrix.fill(group.url, matrix.values(7, len(CELLS) + 2))
        calm = Task(str(tmp_path / "calm"), matrix.source(group.url))
        assert start(beside(spark), calm).awaitTermination(WAIT_S)
        wild = Task(str(tmp_path / "wild"), calm.source, master=CLUSTER, settings=LENIENT)
        killed = matrix.run(group, wild, CELLS, Random(7), log=print)
    assert matrix.findings(calm.out, wild.out) == []
    assert killed.starts == 2
    rows = results(calm.out)
    assert len(rows) == len(CELLS) + 2
    windows = [row for batch in rows.values() for row in batch[0]]
    assert len(windows) > 5
    assert sum(events for _, events, _ in windows) < matrix.BATCH_RECORDS * len(CELLS), "some came twice, some too late"
