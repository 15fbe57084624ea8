"""Tests of `start = "latest"` with a real broker: records after the first ready line are copied, whatever happens later."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.integration.kafka.kafka_connectors import SourceProcess, fill, new_topic
from tests.support.connector_process import WAIT_S, until_there
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]
LATEST = 'start = "latest"'


def test_a_start_at_latest_survives_a_kill_right_after_the_ready_line(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves it for empty partitions, for one that is added while nothing runs, and for an open transaction."""
    topic = new_topic(kafka, 2)
    fill(kafka, topic, [b"old"] * 4, 2)
    writer = KafkaProducer({"bootstrap.servers": kafka, "transactional.id": topic})
    writer.init_transactions(WAIT_S)
    writer.begin_transaction()
    writer.produce(topic, b"open", partition=1)
    assert writer.flush(WAIT_S) == 0
    first = SourceProcess(tmp_path, kafka, group.url, topic, kafka=LATEST).start()
    first.end(signal.SIGKILL)
    writer.commit_transaction(WAIT_S)
    fill(kafka, topic, [b"a", b"b"], 2)
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(WAIT_S)
    wait_until(lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 3, "the third partition")
    fill(kafka, topic, [b"c", b"d", b"e"], 3)
    with SourceProcess(tmp_path, kafka, group.url, topic, kafka=LATEST) as inflow:
        found = until_there(group.url, topic, 6, inflow)
        fill(kafka, topic, [b"last"])
        found = until_there(group.url, topic, 7, inflow)
        assert inflow.end() == 0
    by_producer: dict[str, list[bytes]] = {}
    for row in found:
        by_producer.setdefault(row["producer"], []).append(row["value"])
    assert by_producer == {
        f"in.{topic}.0": [b"a", b"c", b"last"], f"in.{topic}.1": [b"open", b"b", b"d"], f"in.{topic}.2": [b"e"]
    }  # fmt: skip


def test_two_concurrent_instances_agree_on_one_start(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that they agree on one start, and that messages sent when the first of them is ready are copied once."""
    topic = new_topic(kafka, 4)
    fill(kafka, topic, [b"old"] * 8, 4)
    with (
        SourceProcess(tmp_path, kafka, group.url, topic, name="both", kafka=LATEST).start(wait=False) as one,
        SourceProcess(tmp_path, kafka, group.url, topic, name="both", kafka=LATEST).start(wait=False) as other,
    ):
        one.wait_ready()
        fill(kafka, topic, [b"%d" % number for number in range(8)], 4)
        other.wait_ready()
        fill(kafka, topic, [b"%d" % number for number in range(8, 12)], 4)
        found = [row["value"] for row in until_there(group.url, topic, 12, one, other)]
    assert sorted(found, key=int) == [b"%d" % number for number in range(12)]
