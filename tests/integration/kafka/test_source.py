"""Tests of kafka-in with a real broker and killed processes: each record is in the log once, in the order of its partition."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.kafka.kafka_connectors import SourceProcess, fill, new_topic
from tests.support.connector_process import WAIT_S, records, until_there
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until
from tutti_connect.kafka import limits

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]


def test_records_are_as_they_were_in_kafka(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that key, value, time and headers are copied, missing ones stay missing, and a partition keeps its order."""
    topic = new_topic(kafka)
    producer = KafkaProducer({"bootstrap.servers": kafka})
    producer.produce(topic, b"v1", b"k1", timestamp=1_700_000_000_123, headers=[("a", b"1"), ("a", None), ("ü", b"")])
    producer.produce(topic, None, b"gone")
    producer.produce(topic, b"", None)
    assert producer.flush(WAIT_S) == 0
    with SourceProcess(tmp_path, kafka, group.url, topic) as inflow:
        first, second, third = until_there(group.url, topic, 3, inflow)
        labels = f'{{connector="in",partition="0",topic="{topic}"}}'
        wait_until(lambda: inflow.measured().get(f"tutti_kafka_in_lag{labels}") == 0, "the lag of all that is in the log")
        measured = inflow.measured()
    assert (first["key"], first["value"]) == (b"k1", b"v1")
    assert first["timestamp"].timestamp() == 1_700_000_000.123
    assert [(h["key"], h["value"]) for h in first["headers"]] == [("a", b"1"), ("a", None), ("ü", b"")]
    assert (second["key"], second["value"], second["headers"]) == (b"gone", None, None)
    assert (third["key"], third["value"]) == (None, b"")
    assert first["producer"] == f"in.{topic}.0"
    assert measured[f"tutti_kafka_in_records_total{labels}"] == 3
    assert measured[f"tutti_kafka_in_flowing{labels}"] == 1


@pytest.mark.soak
def test_killed_over_and_over_nothing_is_lost_or_doubled(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that instances which are killed, frozen and started again, and a gateway that is killed, leave each record in the log
    once and in the order of its partition.
    """
    partitions, chance = 3, Random(5)
    topic = new_topic(kafka, partitions)
    values = [b"%08d" % number + bytes(92) for number in range(54_000)]
    inflows = [SourceProcess(tmp_path, kafka, group.url, topic, name="many").start() for _ in range(2)]
    try:
        for turn, start in enumerate(range(0, len(values), 9_000)):
            fill(kafka, topic, values[start : start + 9_000], partitions)
            time.sleep(chance.uniform(0.2, 1.0))
            victim = chance.choice(inflows)
            if turn % 3 == 2:
                victim.send_signal(signal.SIGSTOP)  # a zombie: its partitions go to the other one, then it comes back
                time.sleep(7)
                victim.send_signal(signal.SIGCONT)
            elif turn % 3 == 1:
                gateway = group[chance.choice(list(group.all))]
                gateway.kill()
                gateway.start()
            else:
                victim.end(signal.SIGKILL)
                victim.start()
        found = [row["value"] for row in until_there(group.url, topic, len(values), *inflows)]
    finally:
        for one in inflows:
            one.end(signal.SIGKILL)
    assert len(found) == len(set(found)) == len(values)
    numbers = [int(value[:8]) for value in found]
    for partition in range(partitions):
        of_it = [number for number in numbers if number % partitions == partition]
        assert of_it == sorted(of_it)
    assert found != values, "partitions are interleaved"


@pytest.mark.soak
def test_aborted_kafka_transactions_are_not_imported(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that aborted transactions of the source leave nothing, and open ones are waited for."""
    topic = new_topic(kafka)
    producer = KafkaProducer({"bootstrap.servers": kafka, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    for number, commit in enumerate([True, False, True]):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        if commit:
            producer.commit_transaction(WAIT_S)
        else:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(WAIT_S)
    with SourceProcess(tmp_path, kafka, group.url, topic) as inflow:
        until_there(group.url, topic, 2, inflow)
        assert [row["value"] for row in records(group.url, topic)] == [b"0", b"2"]
        producer.commit_transaction(WAIT_S)
        assert [row["value"] for row in until_there(group.url, topic, 3, inflow)] == [b"0", b"2", b"open"]
        assert inflow.end() == 0
    with SourceProcess(tmp_path, kafka, group.url, topic) as inflow:
        fill(kafka, topic, [b"later"])
        assert [row["value"] for row in until_there(group.url, topic, 4, inflow)][3:] == [b"later"]


@pytest.mark.soak
def test_the_mark_of_a_transaction_is_no_lag_and_no_loss(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that the position moves over transaction marks after the last record, also after Kafka's retention
    deleted everything.
    """
    topic = new_topic(kafka)
    producer = KafkaProducer({"bootstrap.servers": kafka, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"0")
    producer.commit_transaction(WAIT_S)
    with SourceProcess(tmp_path, kafka, group.url, topic) as inflow:
        labels = f'{{connector="in",partition="0",topic="{topic}"}}'
        wait_until(lambda: inflow.measured().get(f"tutti_kafka_in_offset{labels}") == 2, "the place behind the mark")
        wait_until(lambda: inflow.measured().get(f"tutti_kafka_in_lag{labels}") == 0, "no lag, once Kafka's end is known")
        assert inflow.end() == 0
    there = TopicPartition(topic, 0, 2)
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_records([there])[there].result(WAIT_S)
    with SourceProcess(tmp_path, kafka, group.url, topic) as inflow:
        fill(kafka, topic, [b"1"])
        assert [row["value"] for row in until_there(group.url, topic, 2, inflow)] == [b"0", b"1"]


def test_rejected_records_are_quarantined_and_the_rest_continues(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that a record too large for the log is in quarantine once, with its source and the reason."""
    topic = new_topic(kafka)
    producer = KafkaProducer({"bootstrap.servers": kafka, "message.max.bytes": 2 * limits.RECORD_BYTES_MAX})
    producer.produce(topic, b"before")
    producer.produce(topic, bytes(limits.RECORD_BYTES_MAX + 1), b"large")
    producer.produce(topic, b"behind")
    assert producer.flush(WAIT_S) == 0
    inflow = SourceProcess(tmp_path, kafka, group.url, topic)
    with inflow:
        assert [row["value"] for row in until_there(group.url, topic, 2, inflow)] == [b"before", b"behind"]
    (file,) = inflow.quarantine.iterdir()
    assert file.name.startswith(f"{topic}-0-1-")
    assert f"the limit of a record is {limits.RECORD_BYTES_MAX}" in file.read_text()


def test_records_that_kafka_removed_before_import_are_reported(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that a gap before the log's position ends the command, and is skipped and logged on request."""
    topic = new_topic(kafka)
    fill(kafka, topic, [b"0", b"1"])
    with SourceProcess(tmp_path, kafka, group.url, topic) as inflow:
        until_there(group.url, topic, 2, inflow)
        assert inflow.end() == 0
    fill(kafka, topic, [b"2", b"3", b"4"])
    there = TopicPartition(topic, 0, 4)
    admin = AdminClient({"bootstrap.servers": kafka})  # who lets go of it is never answered
    admin.delete_records([there])[there].result(WAIT_S)
    inflow = SourceProcess(tmp_path, kafka, group.url, topic).start()
    assert inflow.process is not None
    assert inflow.process.wait(WAIT_S) == 2
    inflow.end()
    assert "the next message to copy has offset 2, but Kafka has offsets 4 to 5" in inflow.errors()
    with SourceProcess(tmp_path, kafka, group.url, topic, kafka='lost = "skip"') as inflow:
        assert [row["value"] for row in until_there(group.url, topic, 3, inflow)] == [b"0", b"1", b"4"]
        assert "continues at 4" in inflow.errors()


def test_a_recreated_topic_is_refused(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that offsets of another topic of the same name are not mistaken for those in the log."""
    topic = new_topic(kafka)
    fill(kafka, topic, [b"old"] * 3)
    with SourceProcess(tmp_path, kafka, group.url, topic) as inflow:
        until_there(group.url, topic, 3, inflow)
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(WAIT_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic's end")
    new_topic(kafka, name=topic)
    fill(kafka, topic, [b"new"] * 5)
    inflow = SourceProcess(tmp_path, kafka, group.url, topic).start()
    assert inflow.process is not None
    assert inflow.process.wait(WAIT_S) == 2
    inflow.end()
    assert "was created later" in inflow.errors()
    assert f"tutti producers forget in.{topic}.0" in inflow.errors()
    assert len(records(group.url, topic)) == 3


@pytest.mark.soak
def test_an_absent_topic_kafka_or_gateway_is_reported(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that a topic, a Kafka and gateways that are not there end the command with a sentence and its exit code."""
    for address, url, topic, code, told in (
        (kafka, group.url, "nothing-here", 2, "choose a topic that exists"),
        ("127.0.0.1:1", group.url, "any", 3, "Connection refused"),
        (kafka, "tutti://127.0.0.1:1", new_topic(kafka), 3, "no gateway"),
    ):
        inflow = SourceProcess(tmp_path, address, url, topic).start(wait=False)
        assert inflow.process is not None
        assert inflow.process.wait(WAIT_S) == code
        assert inflow.process.stdout is not None
        assert inflow.process.stdout.read() == "", "it was never there"
        inflow.end()
        assert told in inflow.errors()
        assert "Traceback" not in inflow.errors()
