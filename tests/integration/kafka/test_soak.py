"""Soak test from Kafka through the log to Kafka, with both connectors killed 50 times.

Run it with `python -m pytest -m soak tests/integration/kafka`.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.integration.kafka.kafka_connectors import SinkProcess, SourceProcess, fill, new_topic, numbers, until_in_kafka
from tests.support.connector_process import ConnectorProcess, records
from tests.support.running_group import RunningGroup

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1500)]
KILLS, PARTITIONS = 50, 3
PART = 3_000


def test_killed_fifty_times_each_nothing_is_lost_or_doubled(kafka: str, group: RunningGroup, tmp_path: Path) -> None:
    """Proves that each record is in the log once, in its partition's order, and in another topic of Kafka, in the log's."""
    source, target = new_topic(kafka, PARTITIONS), new_topic(kafka)
    inflows = [SourceProcess(tmp_path, kafka, group.url, source, name="soak-in").start() for _ in range(2)]
    more = f'topic = "{target}"\norder = "total"'
    outflow = SinkProcess(
        tmp_path, kafka, group.url, source, name="soak-out", kafka=more, top="transaction = { records = 700, wait_ms = 10 }"
    ).start()
    chance, count = Random(11), 0
    # From one thread: a process ends with the thread that started it.
    victims: list[ConnectorProcess] = [*chance.choices(inflows, k=KILLS), *[outflow] * KILLS]
    chance.shuffle(victims)
    try:
        for victim in victims:
            fill(kafka, source, (b"%08d" % number + bytes(92) for number in range(count, count + PART)), PARTITIONS)
            count += PART
            time.sleep(chance.uniform(0.0, 2.0))
            assert victim.process is not None
            assert victim.process.poll() is None, victim.errors()[-3000:]
            victim.end(signal.SIGKILL)
            victim.start(wait=chance.random() < 0.5)
        there = numbers(until_in_kafka(kafka, target, count, outflow))
        logged = [int(row["value"][:8]) for row in records(group.url, source)]
    finally:
        for instance in (*inflows, outflow):
            instance.end(signal.SIGKILL)
    assert len(logged) == len(set(logged)) == count
    assert there == logged, "all of the log is in Kafka, once, in its order"
    for partition in range(PARTITIONS):
        of_it = [number for number in logged if number % PART % PARTITIONS == partition]
        assert of_it == sorted(of_it)
