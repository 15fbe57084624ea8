"""Tutti: three gateways, their client in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import descendants, percentile, proportional_memory_bytes
from benchmarks.fleet import Measured, coordinator_of, gateways
from benchmarks.ingest import _one_at_a_time, _paced, _send, _send_batches
from benchmarks.load.generator import Load, lacking, run
from benchmarks.load.sessions import VALUE_BYTES, message_of, sessions
from benchmarks.machine import SEGMENT
from benchmarks.peers.side import OURS
from benchmarks.peers.work import FLIGHT, PACED_RATE, Client, Latency, Running, gap_s
from tutti import Producer

_LOADS = 4  # of the whole volume, with headers: records of 1 KB and 100 B, batches of 64 and 256 KiB
_SEGMENTS_MAX = 64  # that a gateway keeps ready


class _Gateways(Running):
    def __init__(self, running: list[Measured]) -> None:
        self._all = running
        self._coordinator = coordinator_of(running)

    def rate(self, size: int, count: int) -> float:
        with Producer(self._coordinator.url, producer="rate") as producer:
            producer.send("bench", b"up").result(30)
            return _send(producer, bytes(size), count) * 1e6 / size

    def batches(self, size: int, volume: int) -> float:
        with Producer(self._coordinator.url, producer="batches") as producer:
            producer.send("bench", b"up").result(30)
            return _send_batches(producer, size, volume // size)

    def one_at_a_time(self, count: int) -> Latency:
        return self._latency(self._coordinator, count)

    def elsewhere(self, count: int) -> Latency:
        return self._latency(next(one for one in self._all if one is not self._coordinator), count)

    def _latency(self, through: Measured, count: int) -> Latency:
        with Producer(through.url) as producer:
            times = sorted(_one_at_a_time(producer, count))
        return Latency(percentile(times, 0.5), percentile(times, 0.99))

    def paced(self, seconds: float) -> Latency:
        with Producer(self._coordinator.url) as producer:
            _paced(producer, PACED_RATE, 1.0)
            times = sorted(_paced(producer, PACED_RATE, seconds))
        return Latency(percentile(times, 0.5), percentile(times, 0.99))

    def small(self, count: int) -> float:
        with Producer(self._coordinator.url) as producer:
            return _in_flight([producer], FLIGHT, count)

    def small_each(self, count: int) -> float:
        producers = [Producer(self._coordinator.url) for _ in range(FLIGHT)]
        try:
            for producer in producers:
                producer.send("bench", b"up").result(30)
            return _in_flight(producers, 1, count)
        finally:
            for producer in producers:
                producer.close()

    def compiled(self) -> Client | None:
        """The load generator."""
        if lacking():
            return None

        def load(connections: int, count: int, in_flight: int = 1, rate: float = 0.0) -> Load:
            with sessions(self._coordinator.base, connections) as opened:
                return run(opened, message_of(opened[0].topic, VALUE_BYTES), count, in_flight=in_flight, rate=rate)

        def latency(load: Load) -> Latency:
            return Latency(load.at_ms(0.5), load.at_ms(0.99))

        return Client(
            lambda count: load(FLIGHT, count).rate,
            lambda count: latency(load(1, count)),
            lambda seconds: latency(load(1, int(seconds * PACED_RATE), PACED_RATE, PACED_RATE)),
        )

    def python(self) -> Client:
        """`send()`."""
        return Client(self.small_each, self.one_at_a_time, self.paced)

    def gap(self) -> float:
        others = ",".join(one.url.removeprefix("tutti://") for one in self._all)
        with Producer(f"tutti://{others}", producer="gap") as producer:

            def send(told: Callable[[], None]) -> None:
                producer.send("bench", bytes(100), on_delivery=lambda error, _: None if error else told())

            return gap_s(send, time.sleep, self._coordinator.process.kill)

    def members(self) -> Sequence[int]:
        return [one.process.pid for one in self._all]

    def memory_mb(self) -> float:
        return max(proportional_memory_bytes([pid, *descendants(pid)]) for pid in self.members()) / 1e6


def _in_flight(producers: list[Producer], each: int, count: int) -> float:
    """Records of 100 B a second with `each` under way for each producer: a receipt sends the next one."""
    value, over = bytes(100), threading.Event()
    shares = [count // len(producers)] * len(producers)
    left = len(producers)
    lock = threading.Lock()
    failures: list[object] = []

    def drive(number: int, producer: Producer) -> None:
        awaited = shares[number]

        def told(error: object, _: object) -> None:
            nonlocal awaited, left
            if error is not None:
                failures.append(error)  # the client only logs an exception of a callback
                over.set()
                return
            awaited -= 1
            if awaited >= each:
                producer.send("bench", value, on_delivery=told)
            elif awaited == 0:
                with lock:
                    left -= 1
                    if not left:
                        over.set()

        for _ in range(each):
            producer.send("bench", value, on_delivery=told)

    begin = time.perf_counter()
    for number, producer in enumerate(producers):
        drive(number, producer)
    if not over.wait(300):
        raise SystemExit("records have had no receipts for five minutes")
    if failures:
        raise SystemExit(f"a record failed: {failures[0]}")
    return sum(shares) / (time.perf_counter() - begin)


class Tutti:
    """Three gateways of this checkout."""

    name = OURS
    promise = "synced on all three"

    def __init__(self, volume: int) -> None:
        """`volume`: bytes that prepared segments are wanted for."""
        self._segments = min(_SEGMENTS_MAX, _LOADS * volume // SEGMENT + 2)

    def lacking(self) -> str:
        """Nothing."""
        return ""

    @contextmanager
    def running(self, directory: Path) -> Iterator[Running]:
        """Start them."""
        with gateways(3, directory, self._segments) as running:
            for measured in running:
                measured.wait_prepared(self._segments)
            yield _Gateways(running)
