"""How fast the connectors bring records from Kafka into the log and back, beside Kafka's bare client on the same broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, figure, foreign_load
from benchmarks.fleet import Measured, gateway
from benchmarks.kafka import PARTITIONS, Broker, broker, broker_jars
from tutti.runtime.child_processes import end_with_this_process
from tutti.sources.flight import FlightSource
from tutti_connect.kafka.source.consumer import DEFAULTS

_WAIT_S = 120.0
_LOOK_S = 0.03  # each look is work for a gateway, too
_BATCH = 10_000


def kafka_connectors(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Records a second of kafka-in and kafka-out, from the first one there to the last; none where Kafka's jars cannot be had."""
    folder = broker_jars()
    if folder is None:
        return []
    out: list[Figure] = []
    with broker(directory, folder) as kafka:
        for size, count in ((1000, 50_000 if quick else 300_000), (100, 250_000 if quick else 1_500_000)):
            bare, ours, back, alone = [], [], [], []
            foreign: list[float] = []
            for number in range(rounds):
                topic = f"bench-{size}-{number}"
                alone.append(_filled(kafka, topic, size, count))
                with foreign_load(foreign):
                    bare.append(_bare(kafka, topic, count))
                    inwards, outwards = _connectors(directory, kafka, topic, count)
                ours.append(inwards)
                back.append(outwards)
            state = f"{count:,} records in {PARTITIONS} partitions, foreign CPU {max(foreign):.2f}"
            out += [
                figure(f"raw: Kafka's consumer, {size} B", bare, "k/s", beside=state),
                figure(f"kafka-in, {size} B", ours, "k/s", beside=state),
                figure("  its share of the bare consumer", _shares(ours, bare), "%", 60),
                figure(f"raw: Kafka's producer with transactions, {size} B", alone, "k/s", beside=state),
                figure(f"kafka-out, {size} B", back, "k/s", beside=state),
                figure("  its share of the bare producer", _shares(back, alone), "%"),
            ]
    return out


def _shares(ours: list[float], bare: list[float]) -> list[float]:
    return [100 * one / other for one, other in zip(ours, bare, strict=True)]


def _filled(kafka: Broker, topic: str, size: int, count: int) -> float:
    """Fill a topic as kafka-out would, 10,000 records a transaction; thousands of records a second."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.address})
    for name in (topic, f"{topic}-back"):
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(_WAIT_S)
    settings = {"bootstrap.servers": kafka.address, "transactional.id": topic, "queue.buffering.max.messages": 2 * _BATCH}
    producer = Producer(settings)
    producer.init_transactions(_WAIT_S)
    values = [os.urandom(size) for _ in range(1000)]
    start = time.perf_counter()
    for first in range(0, count, _BATCH):
        producer.begin_transaction()
        for number in range(first, min(count, first + _BATCH)):
            producer.produce(topic, values[number % 1000], partition=number % PARTITIONS)
        producer.commit_transaction(_WAIT_S)
    return count / (time.perf_counter() - start) / 1000


def _bare(kafka: Broker, topic: str, count: int) -> float:
    """Thousands of records a second that a consumer gives which only counts them."""
    from confluent_kafka import Consumer, TopicPartition

    settings: dict[str, Any] = {
        "bootstrap.servers": kafka.address,
        "group.id": "bare",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        **DEFAULTS,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    read, start, deadline = 0, 0.0, time.monotonic() + _WAIT_S
    while read < count:
        messages = consumer.consume(_BATCH, 0.02)
        start = start or (time.perf_counter() if messages else 0.0)
        read += sum(len(message.value() or b"") > 0 for message in messages)
        if time.monotonic() > deadline:
            raise SystemExit(f"Kafka's consumer gave {read} of {count} records within {_WAIT_S:.0f} s")
    taken = time.perf_counter() - start
    consumer.close()
    return count / taken / 1000


def _connectors(directory: Path, kafka: Broker, topic: str, count: int) -> tuple[float, float]:
    """Thousands of records a second into a log, and out of it."""
    with gateway(directory, prepared=8) as measured:
        measured.wait_prepared(8)
        common = f'gateways = "{measured.url}"\nquarantine = "{measured.data.parent}/quarantine"\n'
        inwards = f'name = "in"\n{common}[kafka]\nservers = "{kafka.address}"\ntopics = ["{topic}"]\n'
        with _running(measured, "kafka-in", inwards):
            reads = FlightSource(measured.url)
            into = _paced(count, lambda: reads.frontier().offset)
        names = f'names = {{ "{topic}" = "{topic}-back" }}\n'
        outwards = f'name = "{topic}"\n{common}metrics = "127.0.0.1:0"\n[kafka]\nservers = "{kafka.address}"\n{names}'
        with _running(measured, "kafka-out", outwards) as page:
            back = _paced(count, lambda: _sent(page))
    return into, back


def _paced(count: int, look: Any) -> float:
    """Thousands a second from the first look that saw some to the one that saw all."""
    first, start, deadline = 0, 0.0, time.monotonic() + _WAIT_S
    while (there := look()) < count:
        if there and not first:
            first, start = there, time.perf_counter()
        if time.monotonic() > deadline:
            raise SystemExit(f"{there} of {count} records came within {_WAIT_S:.0f} s")
        time.sleep(_LOOK_S)
    return (count - first) / (time.perf_counter() - start) / 1000


def _sent(page: str) -> int:
    """Records that kafka-out has committed, by its own page."""
    from urllib.request import urlopen

    with urlopen(page, timeout=_WAIT_S) as answer:  # noqa: S310 - its own page
        lines = answer.read().decode().splitlines()
    return next(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith("tutti_kafka_out_records_total"))


@contextmanager
def _running(measured: Measured, command: str, text: str) -> Iterator[str]:
    """A connector; its page of metrics, if it has one. It is ended with the block."""
    file = measured.data.parent / f"{command}.toml"
    file.write_text(text)
    with file.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tutti_gateway", "connect", command, "--config", str(file)],
            stdout=subprocess.PIPE,
            stderr=log,
            preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
        )
    try:
        line = process.stdout.readline() if process.stdout is not None else b""
        if not line:
            raise SystemExit(f"{command} did not start: {file.with_suffix('.log').read_text()[-2000:]}")
        yield json.loads(line).get("metrics", "")
    finally:
        process.terminate()
        process.wait(_WAIT_S)
        if process.stdout is not None:
            process.stdout.close()
