"""Tests of speculation: if two attempts at one task stage the same records, one is committed and nothing is duplicated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.spark.job import Task
from tests.faults.spark.job_twins import NUMBERS, Twins
from tests.integration.spark.clusters.standalone import Standalone
from tests.integration.spark.rows import send
from tests.support.gateway_process import GatewayProcess
from tutti import Reader

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(400)]
BATCHES = 3


def numbers(gateway: GatewayProcess, topic: str) -> list[tuple[int, int]]:
    """Offsets and numbers."""
    with Reader(gateway.url, topics=[topic]) as reader:
        return [(record.offset or 0, int(record.value or b"")) for record in reader.records()]


def test_a_task_and_its_twin_write_once(cluster: Standalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster of two hosts, as Spark begins no twin on the same one."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    gates = tmp_path / "gates"
    gates.mkdir()
    with GatewayProcess(tmp_path) as gateway:
        send(gateway.url, "in", [b"%d" % number for number in range(NUMBERS * BATCHES)])
        source = {"gateways": gateway.url, "topics": "in", "startingOffset": "earliest"}
        task = Task(str(tmp_path / "job"), source | {"maxRecordsPerTrigger": str(NUMBERS)}, gates=str(gates), master=cluster.url)
        with Twins(task) as job:
            job.start()
            job.wait_end()
        assert {file.name for file in gates.iterdir()} == {
            f"{what}.{who}" for what in [*range(BATCHES), "batch"] for who in ("first", "twin")
        }
        stream, batch = numbers(gateway, "stream"), numbers(gateway, "batch")
    for number in range(BATCHES):
        some = stream[NUMBERS * number : NUMBERS * (number + 1)]
        assert sorted(value for _, value in some) == list(range(NUMBERS * number, NUMBERS * (number + 1)))
        assert some[-1][0] - some[0][0] == NUMBERS - 1, "in one place"
    assert len(stream) == NUMBERS * BATCHES
    assert sorted(value for _, value in batch) == list(range(NUMBERS))
