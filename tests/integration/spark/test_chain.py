"""Two jobs in a chain, `first` -> Tutti -> `second` -> Tutti: drivers, workers and gateways killed, and two drivers at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.spark.chain import BATCH_RECORDS, Chain
from tests.faults.spark.gates import Gates
from tests.faults.spark.jobs_chained import Chained
from tests.faults.three import Three

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _no_query_outlives_its_test() -> None:
    """Nothing runs in this process: no session is needed."""


def test_a_chain_writes_each_micro_batch_once_whoever_is_killed(tmp_path: Path) -> None:
    """Proves that what two jobs write is what their micro-batches had to give, each in one place, in order; and that a driver left
    behind by another one of its checkpoint writes nothing and says why.
    """
    with Three(tmp_path) as group:
        chain = Chain(tmp_path, group, 1, print)
        chain.gates["first"].close(1, "staged")
        chain.gates["second"].close(0, "committed")
        with chain, Chained(replace(chain.link("first"), gates=str(Gates(tmp_path / "open").directory))) as other:
            chain.send(3 * BATCH_RECORDS)
            left = chain.jobs["first"]
            left.until(lambda: chain.gates["first"].here(1, "staged"), "the first driver to stand")
            chain.jobs["second"].until(lambda: chain.gates["second"].here(0, "committed"), "the second job to stand")
            other.start()
            chain.strike("second")
            chain.strike("coordinator")
            chain.gates["second"].open(0, "committed")
            other.until(lambda: chain.planned("first") > 2, "the other driver to go on")
            chain.gates["first"].open(1, "staged")
            left.wait_failed()
            assert "micro-batch 1 of 'spark-" in left.log.read_text()
            assert "another driver goes on with this checkpoint" in left.log.read_text()
            chain.jobs["first"] = other
            chain.send(BATCH_RECORDS)
            chain.strike("workers of first")
            chain.strike_at("second", "staged", "gateway")
            chain.settle()
            assert list(chain.findings()) == []
            assert len(chain.records("c")) > len(chain.records("b")) / 10 > 0
