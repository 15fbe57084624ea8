"""Connectors from and to Kafka as processes, messages for them, what of those is in the log, and what of the log is in Kafka."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from gateway.children import ending_with_this
from gateway.client import Reader
from gateway.errors import UsageError

WAIT_S = 90.0
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


class Instance:
    """One instance of a connector, as a user starts it: `tutti connect COMMAND` on a file."""

    command = ""

    def __init__(self, file: Path, text: str) -> None:
        """Write its configuration."""
        self.file = file
        file.write_text(text)
        self.log = file.with_suffix(".log")
        self.process: subprocess.Popen[str] | None = None
        self.metrics = ""

    def start(self, *, wait: bool = True) -> Self:
        """Start it and wait until it says that it is there."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "connect", self.command, "--config", str(self.file)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=ending_with_this(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until it says that it is there."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.told()
        self.metrics = json.loads(line)["metrics"]

    def ended(self) -> tuple[int, str]:
        """Wait until it ends by itself: its exit code, and what it said on standard output."""
        assert self.process is not None
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        return self.end(), said

    def told(self) -> str:
        """What it said on standard error."""
        return self.log.read_text()

    def send_signal(self, number: int) -> None:
        """To its process."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        try:
            return self.process.wait(WAIT_S)
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()

    def measured(self) -> dict[str, float]:
        """Its metrics: "family{labels}" -> value."""
        with urllib.request.urlopen(self.metrics, timeout=WAIT_S) as page:  # noqa: S310 - its own page
            lines = page.read().decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """End it, however it is."""
        self.end(signal.SIGKILL)


class Inflow(Instance):
    """From Kafka."""

    command = "kafka-in"

    def __init__(self, root: Path, address: str, url: str, topic: str, *, name: str = "in", top: str = "", kafka: str = "") -> None:
        """`top` and `kafka` are more lines, of the top and of [kafka]."""
        self.quarantine = root / f"quarantine-{name}"
        super().__init__(
            root / f"{name}-{next(_names)}.toml",
            f'name = "{name}"\ngateways = "{url}"\nquarantine = "{self.quarantine}"\nmetrics = "127.0.0.1:0"\n{top}\n'
            f'[kafka]\nservers = "{address}"\ntopics = ["{topic}"]\n{kafka}\n'
            'settings = { "session.timeout.ms" = 6000, "heartbeat.interval.ms" = 500 }\n',
        )


class Outflow(Instance):
    """To Kafka."""

    command = "kafka-out"

    def __init__(
        self, root: Path, address: str, url: str, topic: str, *, name: str = "out", top: str = "", kafka: str = ""
    ) -> None:
        """Of one topic of the log; `top` and `kafka` are more lines, of the top and of [kafka]."""
        self.quarantine = root / f"quarantine-{name}"
        super().__init__(
            root / f"{name}-{next(_names)}.toml",
            f'name = "{name}"\ngateways = "{url}"\nquarantine = "{self.quarantine}"\nmetrics = "127.0.0.1:0"\n'
            f'topics = ["{topic}"]\n{top}\n[kafka]\nservers = "{address}"\n{kafka}\n',
        )


def until(happened: Callable[[], object], what: str) -> None:
    """Wait for something."""
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}"
        time.sleep(0.1)


def records(url: str, topic: str) -> list[dict[str, Any]]:
    """All records of a topic in the log."""
    try:
        with Reader(url, topics=[topic], start=0) as reader:
            return [row for batch in reader for row in batch.to_pylist()]
    except UsageError as error:
        if "there is no topic" in str(error):
            return []
        raise


def until_there(url: str, topic: str, count: int, *inflows: Inflow) -> list[dict[str, Any]]:
    """The records of a topic as soon as there are `count` of them."""
    deadline = time.monotonic() + WAIT_S
    while len(found := records(url, topic)) < count:
        for one in inflows:
            assert one.process is not None
            assert one.process.poll() is None, one.told()
        assert time.monotonic() < deadline, f"{len(found)} of {count} records; " + "".join(one.told()[-2000:] for one in inflows)
        time.sleep(0.1)
    return found


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
    """Those that their values begin with."""
    return [int((message.value() or b"")[:8].rstrip(b"\0")) for message in messages]


def until_in_kafka(address: str, topic: str, count: int, *instances: Instance) -> list[Message]:
    """The committed messages of a topic in Kafka as soon as there are `count` of them."""
    deadline = time.monotonic() + WAIT_S
    while len(found := committed(address, topic)) < count:
        for one in instances:
            assert one.process is not None
            assert one.process.poll() is None, one.told()
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages; " + "".join(one.told()[-2000:] for one in instances)
        time.sleep(0.1)
    return found
