"""Tests of asynchronous progress tracking, for which Spark stores the ends of some batches only: a query continues
after a SIGKILL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.integration.spark import async_query
from tests.integration.spark.rows import numbered, send
from tests.support.gateway_process import GatewayProcess
from tests.support.waiting import wait_while_running
from tutti_spark.launch import spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.soak]


@contextmanager
def running(url: str, root: Path) -> Iterator[Callable[[Callable[[], object]], object]]:
    """Run the query until the block ends; yields a function that waits for a condition while the query runs."""
    log = root / "log"
    command = [sys.executable, async_query.__file__, url, "async", str(root)]
    with log.open("ab") as out:
        process = subprocess.Popen(command, env=os.environ | spark_environment(), stdout=out, stderr=out, start_new_session=True)

    try:
        yield partial(wait_while_running, process, log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_killed_query_reads_the_gap_between_two_recorded_ends(own_gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that a checkpoint with gaps is accepted, that the batch after a gap has all of its records, and that none is lost."""
    sent = [value.decode() for value in numbered("v", 60)]
    root, gap = tmp_path, tmp_path / "gap"
    send(own_gateway.url, "async", [value.encode() for value in sent])
    with running(own_gateway.url, root) as wait:
        wait(gap.exists)
    at = int(gap.read_text())
    last_kept = max(int(name) for name in os.listdir(root / "checkpoint" / "commits") if name.isdigit())
    assert last_kept < at - 1, "Spark has not kept the end of the batch before"

    def values(batch: int) -> list[str]:
        return (root / "batches" / str(batch)).read_text().splitlines()

    (root / "batches" / str(at)).unlink()
    with running(own_gateway.url, root) as wait:
        wait(lambda: (root / "batches" / str(at)).exists() and sent[-1] in values(max(map(int, os.listdir(root / "batches")))))
    assert values(at) == sent[10 * (last_kept + 1) : 10 * (at + 1)], "the batches whose ends are not kept are part of this one"
    assert [value for batch in range(last_kept + 1) for value in values(batch)] == sent[: 10 * (last_kept + 1)]
    later = range(at + 1, 1 + max(map(int, os.listdir(root / "batches"))))
    assert [value for batch in later for value in values(batch)] == sent[10 * (at + 1) :]
