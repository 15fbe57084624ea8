"""Kafka: brokers of one cluster (KRaft, each with both roles), one partition, since that is what has one order; the client is
confluent-kafka's with acks=all, idempotent, so that a repeat makes no double.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.kafka import Cluster, broker_jars
from benchmarks.peers.work import FLIGHT, PACED_RATE, Latency, Running, gap_s, latency

TOPIC = "bench"
WAIT_S = 120.0
_QUIET = logging.getLogger("benchmarks.peers.kafka")  # a broker that is killed is no news
_QUIET.disabled = True


class _Brokers(Running):
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def _producer(self, **settings: object) -> Any:
        from confluent_kafka import Producer

        return Producer(
            {
                "bootstrap.servers": self._cluster.address,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.size": 1_000_000,
                "message.max.bytes": 8_000_000,
                "queue.buffering.max.messages": 1_000_000,
                "message.timeout.ms": 60_000,
                "log_level": 0,
                **settings,
            },
            logger=_QUIET,
        )

    def rate(self, size: int, count: int) -> float:
        producer, value = self._producer(**{"delivery.report.only.error": True}), bytes(size)
        producer.produce(TOPIC, b"up", on_delivery=_failed)
        _settle(producer)
        begin = time.perf_counter()
        for _ in range(count):
            while True:
                try:
                    producer.produce(TOPIC, value, on_delivery=_failed)
                    break
                except BufferError:
                    producer.poll(0.01)
        _settle(producer)
        return count / (time.perf_counter() - begin)

    def one_at_a_time(self, count: int) -> Latency:
        producer, value = self._producer(**{"linger.ms": 0}), bytes(100)
        times: list[int] = []
        for number in range(count + 100):
            begin = time.perf_counter_ns()
            producer.produce(TOPIC, value, on_delivery=_failed)
            _settle(producer)
            if number >= 100:
                times.append(time.perf_counter_ns() - begin)
        return latency(times)

    def paced(self, seconds: float) -> Latency:
        producer, value = self._producer(**{"linger.ms": 0}), bytes(100)
        times: list[int] = []
        warm = PACED_RATE
        begin = time.perf_counter()
        for number in range(int(PACED_RATE * seconds) + warm):
            while (wait := begin + number / PACED_RATE - time.perf_counter()) > 0:
                producer.poll(wait)
            sent = time.perf_counter_ns()

            def told(error: object, message: object, sent: int = sent, counts: bool = number >= warm) -> None:
                _failed(error, message)
                if counts:
                    times.append(time.perf_counter_ns() - sent)

            producer.produce(TOPIC, value, on_delivery=told)
            producer.poll(0)
        _settle(producer)
        return latency(times)

    def small(self, count: int) -> float:
        producer, value = self._producer(**{"linger.ms": 0}), bytes(100)
        left = count

        def told(error: object, message: object) -> None:
            nonlocal left
            _failed(error, message)
            left -= 1
            if left >= FLIGHT:
                producer.produce(TOPIC, value, on_delivery=told)

        begin = time.perf_counter()
        for _ in range(FLIGHT):
            producer.produce(TOPIC, value, on_delivery=told)
        limit = begin + WAIT_S
        while left > 0:
            producer.poll(1)
            if time.perf_counter() > limit:
                raise SystemExit("Kafka: records had no receipts")
        return count / (time.perf_counter() - begin)

    def gap(self) -> float | None:
        if len(self._cluster.brokers) == 1:
            return None
        producer, value = self._producer(**{"linger.ms": 0}), bytes(100)
        leader = producer.list_topics(TOPIC, 10).topics[TOPIC].partitions[0].leader

        def send(told: Callable[[], None]) -> None:
            producer.produce(TOPIC, value, on_delivery=lambda error, _: None if error else told())

        return gap_s(send, producer.poll, self._cluster.brokers[leader - 1].kill)

    def members(self) -> Sequence[int]:
        return [broker.pid for broker in self._cluster.brokers]


def _failed(error: object, _: object) -> None:
    if error is not None:
        raise SystemExit(f"Kafka: {error}")


def _settle(producer: Any) -> None:
    if producer.flush(WAIT_S):
        raise SystemExit(f"Kafka: records had no receipts after {WAIT_S:.0f} s")


class Kafka:
    """A cluster, with `flush.messages=1` or as it comes."""

    def __init__(self, brokers: int, *, synced: bool) -> None:
        """Nothing is started yet."""
        self._count, self._synced = brokers, synced
        self.name = f"Kafka, {brokers} broker{'s' if brokers > 1 else ''}" + (", synced" if synced else "")
        where = "in memory of all in sync" if brokers > 1 else "in memory of one"
        self.promise = ("synced on " + ("all in sync" if brokers > 1 else "one")) if synced else where

    def lacking(self) -> str:
        """Its jars, where they cannot be had."""
        return "" if broker_jars() else "its jars (Maven), or Java"

    @contextmanager
    def running(self, directory: Path) -> Iterator[Running]:
        """Start it, with one topic of one partition."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        folder = broker_jars()
        assert folder is not None  # asked before
        cluster = Cluster(directory, folder, self._count)
        try:
            cluster.start()
            admin = AdminClient({"bootstrap.servers": cluster.address})
            settings = {"flush.messages": "1"} if self._synced else {}
            if self._count > 1:
                settings["min.insync.replicas"] = "2"
            asked = NewTopic(TOPIC, 1, self._count, config=settings)
            for future in admin.create_topics([asked], operation_timeout=30).values():
                future.result(60)
            time.sleep(2)
            yield _Brokers(cluster)
        finally:
            cluster.close()
