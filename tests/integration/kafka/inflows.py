"""Connectors from Kafka as processes, messages for them, and what of those is in the log."""

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

from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from gateway.children import ending_with_this
from gateway.client import Reader
from gateway.errors import UsageError

WAIT_S = 90.0
_names = itertools.count(1)


def new_topic(address: str, partitions: int = 1, name: str = "") -> str:
    """A topic of its own, in Kafka."""
    name = name or f"t{next(_names)}-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
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


class Inflow:
    """One instance of the connector, as a user starts it."""

    def __init__(self, root: Path, address: str, url: str, topic: str, *, name: str = "in", top: str = "", kafka: str = "") -> None:
        """Write its configuration; `top` and `kafka` are more lines, of the top and of [kafka]."""
        self.quarantine = root / f"quarantine-{name}"
        self.file = root / f"{name}-{next(_names)}.toml"
        self.file.write_text(
            f'name = "{name}"\ngateways = "{url}"\nquarantine = "{self.quarantine}"\nmetrics = "127.0.0.1:0"\n{top}\n'
            f'[kafka]\nservers = "{address}"\ntopics = ["{topic}"]\n{kafka}\n'
            'settings = { "session.timeout.ms" = 6000, "heartbeat.interval.ms" = 500 }\n'
        )
        self.log = self.file.with_suffix(".log")
        self.process: subprocess.Popen[str] | None = None
        self.metrics = ""

    def start(self, *, wait: bool = True) -> Self:
        """Start it and wait until it says that it is there."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "connect", "kafka-in", "--config", str(self.file)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=ending_with_this(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
            )
        if wait:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, self.told()
            self.metrics = json.loads(line)["metrics"]
        return self

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
