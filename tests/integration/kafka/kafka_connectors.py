"""The Kafka connectors as processes, messages for them, and the contents of the log and of Kafka."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.connector_process import WAIT_S, ConnectorProcess
from tests.support.waiting import wait_until

_names = itertools.count(1)


def new_topic(address: str, partitions: int = 1, name: str = "", config: dict[str, str] | None = None) -> str:
    """A topic of its own, in Kafka."""
    name = name or new_name()
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=config or {})]).values():
        future.result(WAIT_S)
    return name


def fill(address: str, topic: str, values: Iterable[bytes], partitions: int = 1) -> None:
    """Send values in turn to the partitions; each is there afterwards."""
    producer = KafkaProducer({"bootstrap.servers": address, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(WAIT_S) == 0


class SourceProcess(ConnectorProcess):
    """From Kafka."""

    def __init__(self, root: Path, address: str, url: str, topic: str, *, name: str = "in", top: str = "", kafka: str = "") -> None:
        """`top` and `kafka` are more lines, of the top and of [kafka]."""
        self.quarantine = root / f"quarantine-{name}"
        super().__init__(
            root,
            "kafka-in",
            f'name = "{name}"\ngateways = "{url}"\nquarantine = "{self.quarantine}"\nmetrics = "127.0.0.1:0"\n{top}\n'
            f'[kafka]\nservers = "{address}"\ntopics = ["{topic}"]\n{kafka}\n'
            'settings = { "session.timeout.ms" = 6000, "heartbeat.interval.ms" = 500 }\n',
        )


class SinkProcess(ConnectorProcess):
    """To Kafka."""

    def __init__(
        self, root: Path, address: str, url: str, topic: str, *, name: str = "out", top: str = "", kafka: str = ""
    ) -> None:
        """Of one topic of the log; `top` and `kafka` are more lines, of the top and of [kafka]."""
        self.quarantine = root / f"quarantine-{name}"
        super().__init__(
            root,
            "kafka-out",
            f'name = "{name}"\ngateways = "{url}"\nquarantine = "{self.quarantine}"\nmetrics = "127.0.0.1:0"\n'
            f'topics = ["{topic}"]\n{top}\n[kafka]\nservers = "{address}"\n{kafka}\n',
        )


def new_name() -> str:
    """Of a topic that is nowhere yet."""
    return f"t{next(_names)}-{time.time_ns()}"


def committed(address: str, topic: str) -> list[Message]:
    """All committed messages of a topic in Kafka, partition by partition."""
    settings = {
        "bootstrap.servers": address,
        "group.id": "look",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer, found = Consumer(settings), list[Message]()
    try:
        known = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        for number in known:
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
            deadline = time.monotonic() + WAIT_S
            while True:
                assert time.monotonic() < deadline, f"{topic}[{number}] is not read to its end"
                got = consumer.consume(10_000, 0.2)
                found += [message for message in got if message.error() is None]
                if any((error := message.error()) is not None and error.code() == KafkaError._PARTITION_EOF for message in got):
                    break
    finally:
        consumer.close()
    return found


def numbers(messages: Iterable[Message]) -> list[int]:
    """Return the numbers at the start of the values."""
    return [int((message.value() or b"")[:8].rstrip(b"\0")) for message in messages]


def until_in_kafka(address: str, topic: str, count: int, *instances: ConnectorProcess) -> list[Message]:
    """Wait until Kafka has `count` committed messages of a topic and return them; AssertionError if an instance ends before."""

    def found() -> list[Message] | None:
        for one in instances:
            assert one.runs, one.errors()
        messages = committed(address, topic)
        return messages if len(messages) >= count else None

    return wait_until(found, lambda: f"{count} messages; " + "".join(one.errors()[-2000:] for one in instances))
