"""Tests with other Kafka clients: the log gets their messages, and they read the messages of kafka-out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer

from tests.integration.kafka.kafka_connectors import SinkProcess, SourceProcess, new_name, until_in_kafka
from tests.support.connector_process import WAIT_S, until_there
from tests.support.running_group import RunningGroup
from tutti import Producer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # The second client reads its own files so when it is imported, which is therefore done in the tests.
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]
TIME_MS = 1_700_000_000_123


def made(address: str, partitions: int = 1) -> str:
    """A topic, by the second client's admin."""
    from kafka.admin import KafkaAdminClient, NewTopic

    name = new_name()
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])
    finally:
        admin.close()
    return name


def test_records_of_the_second_client_are_read(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves it for keys, headers, null values, times and the ways to compress that each client has."""
    from kafka import KafkaProducer as SecondProducer

    topic = made(kafka)
    large = b"compressible" * 500
    for codec in (None, "gzip", "zstd"):
        producer = SecondProducer(bootstrap_servers=kafka, compression_type=codec, acks="all")
        producer.send(topic, large, b"%r" % codec, [("codec", str(codec).encode()), ("none", b"")], timestamp_ms=TIME_MS)
        producer.send(topic, None, b"gone")
        producer.close()
    for codec in ("snappy", "lz4"):
        first = KafkaProducer({"bootstrap.servers": kafka, "compression.type": codec})
        for _ in range(2):
            first.produce(topic, large, b"%r" % codec, timestamp=TIME_MS)
        assert first.flush(WAIT_S) == 0
    with SourceProcess(tmp_path, kafka, group.url, topic, name="second") as inflow:
        found = until_there(group.url, topic, 10, inflow)
    assert [row["key"] for row in found[:6]] == [b"None", b"gone", b"'gzip'", b"gone", b"'zstd'", b"gone"]
    assert [row["value"] for row in found] == [large, None] * 3 + [large] * 4
    assert {row["timestamp"].timestamp() for row in found if row["value"]} == {TIME_MS / 1000}
    assert found[2]["headers"] == [{"key": "codec", "value": b"gzip"}, {"key": "none", "value": b""}]
    assert not found[1]["headers"]


def test_the_second_client_reads_the_exported_records(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that a read-committed consumer sees the messages unchanged, by key in the partition that its own
    client would choose.
    """
    from kafka import KafkaConsumer, TopicPartition
    from kafka import KafkaProducer as SecondProducer

    topic = made(kafka, 3)
    with Producer(group.url) as producer:
        for number in range(300):
            producer.send(topic, b"%d" % number, b"k%d" % (number % 10), TIME_MS * 1000, [("n", b"1"), ("none", None)])
        producer.send(topic, None, b"k0")
    with SinkProcess(
        tmp_path, kafka, group.url, topic, name="second", kafka='settings = { "compression.type" = "zstd" }'
    ) as outflow:
        until_in_kafka(kafka, topic, 301, outflow)
    consumer = KafkaConsumer(bootstrap_servers=kafka, isolation_level="read_committed", enable_auto_commit=False)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    found: list[Any] = []
    while len(found) < 301:
        got = consumer.poll(timeout_ms=10_000)
        assert got, f"{len(found)} of 301"
        found += [record for records in got.values() for record in records]
    consumer.close()
    for number in range(10):
        of_key = [record for record in found if record.key == b"k%d" % number]
        assert len({record.partition for record in of_key}) == 1
        numbers = [record.value for record in of_key]
        assert numbers == [b"%d" % one for one in range(number, 300, 10)] + ([None] if number == 0 else [])
    assert {(record.timestamp, tuple(record.headers)) for record in found if record.value} == {
        (TIME_MS, (("n", b"1"), ("none", None)))
    }
    writer = SecondProducer(bootstrap_servers=kafka)
    assert {record.key: record.partition for record in found} == {
        b"k%d" % number: writer.send(topic, b"", b"k%d" % number).get(WAIT_S).partition for number in range(10)
    }
    writer.close()
