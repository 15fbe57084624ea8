"""Tests of examples/kafka: it copies Kafka's messages into the log, as its README says; only the addresses differ."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.kafka.kafka_connectors import fill, new_topic
from tests.support.connector_process import WAIT_S, records
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until
from tutti.runtime.child_processes import end_with_this_process
from tutti_connect.kafka.config import load_source_config

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_its_configuration_is_good() -> None:
    assert load_source_config(str(EXAMPLES / "kafka/orders.toml")).kafka.topics == ["orders"]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_orders_of_kafka_are_in_the_log(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    lines = (EXAMPLES / "orders.jsonl").read_bytes().splitlines()
    fill(kafka, new_topic(kafka, name="orders"), lines)
    text = (EXAMPLES / "kafka/orders.toml").read_text("utf-8")
    for ours, theirs in {"tutti://127.0.0.1:7400": group.url, "127.0.0.1:9092": kafka, "data/": f"{tmp_path}/"}.items():
        assert ours in text
        text = text.replace(ours, theirs)
    (tmp_path / "orders.toml").write_text(text)
    connector = subprocess.Popen(
        [sys.executable, "-m", "tutti_gateway", "connect", "kafka-in", "--config", str(tmp_path / "orders.toml")],
        stdout=subprocess.PIPE,
        preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
    )
    try:
        assert connector.stdout is not None
        assert json.loads(connector.stdout.readline())["ready"]
        wait_until(lambda: len(records(group.url, "orders")) == len(lines), "the orders")
        assert [record["value"] for record in records(group.url, "orders")] == lines
        connector.terminate()
        assert connector.wait(WAIT_S) == 0
    finally:
        connector.kill()
        connector.wait()
        if connector.stdout is not None:
            connector.stdout.close()
