"""Tests of a SIGKILL of a complete query, including Spark, during a stream: a sink that lists its files has each record once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.spark import killed_query
from tests.integration.spark.rows import WAIT_S, numbered, send
from tests.support.gateway_process import GatewayProcess
from tests.support.waiting import wait_while_running
from tutti import Producer
from tutti_spark.launch import spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(400)]
KILLS = 2


@contextmanager
def query_process(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The query in a process group of its own, killed at the end."""
    command = [sys.executable, killed_query.__file__, *arguments]
    with log.open("ab") as out:
        process = subprocess.Popen(command, env=os.environ | spark_environment(), stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_every_record_is_there_once(spark: SparkSession, gateway: GatewayProcess, tmp_path: Path) -> None:
    checkpoint, out, log = tmp_path / "checkpoint", tmp_path / "out", tmp_path / "log"
    sent = numbered("k", 1)
    first = send(gateway.url, "killed", sent)[0]
    arguments = (gateway.url, "killed", str(first), str(checkpoint), str(out))
    stop = threading.Event()

    def feed() -> None:
        with Producer(gateway.url) as producer:
            while not stop.is_set():
                more = numbered("k", 20, len(sent))
                for value in more:
                    producer.send("killed", value)
                sent.extend(more)
                stop.wait(0.2)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        for _ in range(KILLS):
            with query_process(log, *arguments) as process:
                enough = planned(checkpoint) + 4
                wait_while_running(process, log, partial(reached, checkpoint, enough))
    finally:
        stop.set()
        feeder.join()
    killed_query.start(spark, *arguments, available_now=True).awaitTermination(WAIT_S)
    rows = spark.read.parquet(str(out)).orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == sent


def planned(checkpoint: Path) -> int:
    """Return the last batch with a decided end, -1 before any."""
    return max((int(file.name) for file in (checkpoint / "offsets").glob("[0-9]*")), default=-1)


def reached(checkpoint: Path, batch: int) -> bool:
    return planned(checkpoint) >= batch
