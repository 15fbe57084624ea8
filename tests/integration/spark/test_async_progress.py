"""Tests of asynchronous progress tracking, for which Spark stores the ends of some batches only: a query continues
after a SIGKILL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.gateways import GatewayProcess
from tests.integration.spark import async_query
from tests.integration.spark.rows import WAIT_S, numbered, send
from tutti_spark.launch import spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.soak]


@contextmanager
def running(url: str, root: Path) -> Iterator[Callable[[Callable[[], object]], None]]:
    """The query, killed at the end; gives a function that waits for something while it runs."""
    log = root / "log"
    command = [sys.executable, async_query.__file__, url, "async", str(root)]
    with log.open("ab") as out:
        process = subprocess.Popen(command, env=os.environ | spark_environment(), stdout=out, stderr=out, start_new_session=True)

    def wait(happened: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not happened():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.05)

    try:
        yield wait
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_killed_query_reads_the_range_between_two_kept_ends(own_gateway: GatewayProcess, tmp_path: Path) -> None:
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
