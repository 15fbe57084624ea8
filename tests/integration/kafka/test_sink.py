"""Tests of kafka-out with a real broker and killed processes: each record of the log is in Kafka once, in order."""

from __future__ import annotations

import json
import signal
import time
from datetime import UTC, datetime
from os import urandom as random_bytes
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import AdminClient

from benchmarks.kafka import Broker
from tests.integration.kafka.kafka_connectors import SinkProcess, committed, new_name, new_topic, numbers, until_in_kafka
from tests.support.connector_process import WAIT_S
from tests.support.gateway_process import GatewayProcess
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until
from tutti import Producer

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]
#: Small ones, so that many are cut in their middle.
TRANSACTIONS = "transaction = { records = 500, wait_ms = 10 }"


def test_records_are_as_they_are_in_the_log(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that key, value, time and headers are copied, missing ones stay missing, and the offset is in a header."""
    topic = new_topic(kafka, 3, new_name())
    when = datetime(2024, 2, 29, 12, 0, 0, 123_999, UTC)
    with Producer(group.url) as producer:
        first = producer.send(topic, b"v1", b"k", when, [("a", b"1"), ("a", None), ("ü", b"")]).result(30)
        producer.send(topic, None, b"k")
        producer.send(topic, b"", None)
        producer.send(topic, b"\xff", b"")
    with SinkProcess(tmp_path, kafka, group.url, topic, kafka='offset_header = "at"') as outflow:
        found = until_in_kafka(kafka, topic, 4, outflow)
        wait_until(lambda: outflow.measured().get('tutti_kafka_out_lag{connector="out"}') == 0, "the lag of all that is in Kafka")
        measured = outflow.measured()
        assert outflow.end() == 0
    by_key = {message.key(): message for message in found if message.value() is None or message.value() != b"v1"}
    one = next(message for message in found if message.value() == b"v1")
    assert (one.key(), one.timestamp(), one.headers()) == (
        b"k", (1, 1_709_208_000_123), [("a", b"1"), ("a", None), ("ü", b""), ("at", b"%d" % first)]
    )  # fmt: skip
    assert by_key[b"k"].value() is None
    assert [message.value() for message in found if message.key() == b"k"] == [b"v1", None]
    assert (by_key[None].value(), by_key[b""].value()) == (b"", b"\xff")
    assert by_key[None].partition() == by_key[b""].partition(), "records without a key are in one partition, in order"
    assert measured['tutti_kafka_out_records_total{connector="out"}'] == 4


@pytest.mark.soak
def test_killed_over_and_over_nothing_is_lost_or_doubled(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that instances which are killed at random, and gateways, leave each record in Kafka once, in the order of the log."""
    topic, chance = new_topic(kafka), Random(7)
    outflow = SinkProcess(tmp_path, kafka, group.url, topic, kafka='order = "total"', top=TRANSACTIONS).start()
    count = 20_000
    with Producer(group.url) as producer:
        for number in range(count):
            producer.send(topic, b"%08d" % number + bytes(92))
            if number % 5000 == 4999:
                time.sleep(chance.uniform(0.0, 0.6))
                outflow.end(signal.SIGKILL)
                outflow.start(wait=chance.random() < 0.5)
            if number == count // 2:
                gateway = group[chance.choice(list(group.all))]
                gateway.kill()
                gateway.start()
    found = until_in_kafka(kafka, topic, count, outflow)
    outflow.end(signal.SIGKILL)
    assert numbers(found) == list(range(count))


def test_an_instance_that_was_frozen_is_fenced(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that its records in flight are in Kafka once, from the newer instance, and that it ends with one sentence."""
    topic = new_topic(kafka)
    with Producer(group.url) as producer:
        old = SinkProcess(tmp_path, kafka, group.url, topic, top=TRANSACTIONS).start()
        for number in range(20_000):
            producer.send(topic, b"%d" % number)
        producer.flush()
        wait_until(lambda: committed(kafka, topic), "a first transaction")
        old.send_signal(signal.SIGSTOP)
        with SinkProcess(tmp_path, kafka, group.url, topic, top=TRANSACTIONS) as new:
            until_in_kafka(kafka, topic, 20_000, new)
            old.send_signal(signal.SIGCONT)
            producer.send(topic, b"20000")
            code, _ = old.ended()
            found = until_in_kafka(kafka, topic, 20_001, new)
    assert (code, "another instance of connector 'out' has taken over" in old.errors()) == (1, True), old.errors()
    assert numbers(found) == list(range(20_001))


@pytest.mark.soak
def test_a_broker_that_is_restarted_is_waited_for(the_broker: Broker, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that this is logged once, and that nothing is lost, duplicated or reordered."""
    topic = new_topic(the_broker.address)
    with SinkProcess(tmp_path, the_broker.address, group.url, topic, top=TRANSACTIONS) as outflow, Producer(group.url) as producer:
        for number in range(20_000):
            producer.send(topic, b"%d" % number)
            if number == 10_000:
                wait_until(lambda: committed(the_broker.address, topic), "a first transaction")
                the_broker.kill()
        time.sleep(3)
        the_broker.start()
        found = until_in_kafka(the_broker.address, topic, 20_000, outflow)
        told = outflow.errors()
    assert numbers(found) == list(range(20_000))
    assert len(told.splitlines()) < 20, told


@pytest.mark.soak
def test_a_removed_position_is_not_created_again(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that the connector ends with a sentence, and leaves nothing by which the next one would send all again unasked."""
    topic = new_topic(kafka)
    with SinkProcess(tmp_path, kafka, group.url, topic, name="removed") as outflow, Producer(group.url) as producer:
        producer.send(topic, b"0")
        until_in_kafka(kafka, topic, 1, outflow)
        admin, position = AdminClient({"bootstrap.servers": kafka}), "tutti.removed.position"
        admin.delete_topics([position])[position].result(WAIT_S)
        producer.send(topic, b"1").result(WAIT_S)
        code, _ = outflow.ended()
    assert (code, "find the cause of the removal" in outflow.errors()) == (2, True), outflow.errors()
    assert numbers(committed(kafka, topic)) == [0]


def test_records_that_kafka_rejects_are_quarantined_and_the_rest_continues(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that a record too large for its topic is found in quarantine, once, with the reason, and that all others come."""
    topic = new_topic(kafka, config={"max.message.bytes": "100000"})
    values = [b"%d" % number for number in range(3000)]
    values[1234] = random_bytes(200_000)
    with Producer(group.url) as producer:
        for value in values:
            producer.send(topic, value)
        producer.send(topic, b"old", timestamp=-5)
        producer.send(topic, b"last")
    with SinkProcess(tmp_path, kafka, group.url, topic) as outflow:
        found = until_in_kafka(kafka, topic, 3000, outflow)
    assert [message.value() for message in found] == [*values[:1234], *values[1235:], b"last"]
    large, old = sorted(outflow.quarantine.iterdir(), key=lambda file: -file.stat().st_size)
    assert "too large" in json.loads(large.read_text())["reason"].lower()
    assert "Kafka rejects negative times" in old.read_text()


@pytest.mark.soak
def test_another_log_is_refused(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that offsets of one log are not used for another."""
    topic = new_topic(kafka)
    with SinkProcess(tmp_path, kafka, group.url, topic, name="two"):
        pass
    (tmp_path / "other").mkdir()
    with GatewayProcess(tmp_path / "other") as other:
        outflow = SinkProcess(tmp_path, kafka, other.url, topic, name="two").start(wait=False)
        assert outflow.ended() == (2, "")
    assert "give the connector another `name`" in outflow.errors()


@pytest.mark.soak
def test_a_kafka_and_gateways_that_are_not_there(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that each ends the command at its start, with a sentence and its exit code: after ten seconds."""
    for address, url in (("127.0.0.1:1", group.url), (kafka, "tutti://127.0.0.1:1")):
        outflow = SinkProcess(tmp_path, address, url, new_name(), name="absent").start(wait=False)
        assert outflow.ended() == (3, ""), outflow.errors()
        assert "127.0.0.1:1" in outflow.errors().splitlines()[-1]
        assert "Traceback" not in outflow.errors()


@pytest.mark.soak
def test_a_topic_that_is_not_there(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that it ends the command with one sentence and its exit code, and is created on request."""
    topic = new_name()
    with Producer(group.url) as producer:
        producer.send(topic, b"v").result(30)
    outflow = SinkProcess(tmp_path, kafka, group.url, topic, name="absent").start(wait=False)
    assert outflow.ended()[0] == 2
    assert f"has no topic '{topic}'" in outflow.errors()
    assert "Traceback" not in outflow.errors()
    with SinkProcess(tmp_path, kafka, group.url, topic, name="absent", kafka="partitions = 2") as outflow:
        wait_until(lambda: topic in AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics, "the topic")
        until_in_kafka(kafka, topic, 1, outflow)


def test_a_topic_that_kafka_refuses_is_named(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that the error names the record and the topic, for names that Kafka reserves and for one that collides with another;
    that none of them is created; and that the next run continues if `topics` excludes them.
    """
    topic = new_topic(kafka)
    new_topic(kafka, name=f"{topic}_x")
    names = ["__cluster_metadata", "__consumer_offsets", "__share_group_state", f"{topic}.x"]
    before = set(AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics)
    for number, name in enumerate(names):
        outflow = SinkProcess(
            tmp_path, kafka, group.url, topic, name=f"refused{number}", kafka="partitions = 1", top='start = "latest"'
        )
        text = outflow.file.read_text()
        outflow.file.write_text(text.replace(f'topics = ["{topic}"]', ""))
        with outflow, Producer(group.url) as producer:
            offsets = [producer.send(one, b"%d" % number).result(30) for one in (topic, name, topic)]
            code, _ = outflow.ended()
        assert code == 2, outflow.errors()
        last = outflow.errors().splitlines()[-1]
        assert f"the record at offset {offsets[1]} of topic '{name}' cannot be written to Kafka: " in last
        assert "(kafka.names)" in last
        outflow.file.write_text(text)
        with outflow:
            found = until_in_kafka(kafka, topic, 2 * (number + 1), outflow)
        assert [message.value() for message in found[-2:]] == [b"%d" % number] * 2
    admin = AdminClient({"bootstrap.servers": kafka})
    created = set(admin.list_topics(timeout=10).topics) - before
    assert not created & set(names)
