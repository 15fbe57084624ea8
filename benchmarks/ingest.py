"""How fast records go in: send(), send_batch(), one at a time, paced. Every receipt was fdatasync'ed before it came."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.figures import Figure, figure, foreign_load, percentile
from benchmarks.fleet import Measured, gateway
from benchmarks.machine import KIB, MIB, SEGMENT, disk_mbs, sync_us, zeromq_us
from tutti import Producer

P50_RATIO_MAX = 1.8  # of one gateway
_Work = Callable[[Producer], float]


def ingest(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Throughput into prepared segments (1 GB a round), and of large batches into fresh ones (2 GB) too."""
    volume = 256 * MIB if quick else 1024 * MIB
    segments = volume // SEGMENT + 2
    small, large, batches, raw, raw_small = [], [], [], [], []
    foreign: list[float] = []
    for _ in range(rounds):
        raw.append(disk_mbs(directory, volume, prepared=True))
        raw_small.append(disk_mbs(directory, volume, prepared=True, chunk=256 * KIB))
        with foreign_load(foreign):
            small.append(_one(directory, segments, lambda p: _send(p, bytes(100), volume // 200)))
            large.append(_one(directory, segments, lambda p: _send(p, os.urandom(1000), volume // 1024)))
            batches.append(_one(directory, segments, lambda p: _send_batches(p, 256 * 1024, volume // (256 * 1024))))
    state = f"{volume // MIB} MiB into prepared segments, foreign CPU {max(foreign):.2f}"
    out = [
        figure("raw: 1 MiB appends with fdatasync", raw, "MB/s", beside="prepared segments"),
        figure("raw: 256 KiB appends with fdatasync", raw_small, "MB/s", beside="prepared segments"),
        figure("send() of 100 B records", [value / 100e6 * 1e6 for value in small], "M/s", beside=state),
        figure("send() of 1 KB records", large, "MB/s", beside=state),
        _share(large, raw_small, "256 KiB", 75),
        figure("send_batch() of 256 KiB", batches, "MB/s", beside=state),
        _share(batches, raw, "1 MiB", 75),
        _share(batches, raw_small, "256 KiB"),
    ]
    return out + _fresh(directory, rounds, quick)


def _fresh(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    volume = 512 * MIB if quick else 2048 * MIB
    raw, raw_small, ours = [], [], []
    for _ in range(rounds):
        raw.append(disk_mbs(directory, volume, prepared=False))
        raw_small.append(disk_mbs(directory, volume, prepared=False, chunk=256 * KIB))
        ours.append(_one(directory, 0, lambda p: _send_batches(p, 256 * 1024, volume // (256 * 1024))))
    state = f"{volume // MIB} MiB into fresh segments"
    return [
        figure("raw: 1 MiB appends with fdatasync", raw, "MB/s", beside="fresh segments, allocated only"),
        figure("raw: 256 KiB appends with fdatasync", raw_small, "MB/s", beside="fresh segments, allocated only"),
        figure("send_batch() of 256 KiB, fresh", ours, "MB/s", beside=state),
        _share(ours, raw, "1 MiB", 75),
        _share(ours, raw_small, "256 KiB"),
    ]


def _share(ours: list[float], raw: list[float], chunk: str, target: float | None = None) -> Figure:
    shares = [100 * value / disk for value, disk in zip(ours, raw, strict=True)]
    return figure(f"  its share of the raw disk at {chunk}", shares, "%", target)


def _one(directory: Path, segments: int, work: _Work) -> float:
    with gateway(directory, prepared=segments) as measured:
        measured.wait_prepared(segments)
        with _producer(measured) as producer:
            producer.send("warm", b"up").result(30)
            return work(producer)


def _producer(measured: Measured) -> Producer:
    return Producer(measured.url, producer="bench")


def _send(producer: Producer, value: bytes, count: int, ordering: str = "total") -> float:
    """MB/s of values alone."""
    send = producer.send if ordering == "total" else partial(producer.send, ordering=ordering)
    start = time.perf_counter()
    for _ in range(count):
        send("bench", value)
    producer.flush()
    return count * len(value) / (time.perf_counter() - start) / 1e6


def _send_batches(producer: Producer, size: int, count: int, ordering: str = "total") -> float:
    rows = 256
    value = os.urandom(size // rows)
    batch = pa.record_batch({"key": pa.nulls(rows, pa.binary()), "value": pa.array([value] * rows, pa.binary())})
    start = time.perf_counter()
    for _ in range(count):
        producer.send_batch("bench", batch, ordering=ordering)
    producer.flush()
    return count * rows * len(value) / (time.perf_counter() - start) / 1e6


def latency(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """One record at a time, each waited for; and 1,000 a second, paced."""
    count = 1000 if quick else 5000
    half, most, paced_half, paced_most, bare = [], [], [], [], []
    foreign: list[float] = []
    with gateway(directory) as measured, _producer(measured) as producer:
        measured.wait_prepared(1)
        for _ in range(rounds):
            with foreign_load(foreign):
                times = sorted(_one_at_a_time(producer, count))
                half.append(percentile(times, 0.5))
                most.append(percentile(times, 0.99))
                bare.append((zeromq_us() + sync_us(directory, 512)) / 1000)
                times = sorted(_paced(producer, 1000, count // 1000 * 1.0))
                paced_half.append(percentile(times, 0.5))
                paced_most.append(percentile(times, 0.99))
    state = f"{count} records of 100 B, foreign CPU {max(foreign):.2f}"
    ratios = [ours / limit for ours, limit in zip(half, bare, strict=True)]
    return [
        figure("one at a time, p50", half, "ms", None, "less", state),
        figure("  times the raw", ratios, "x", P50_RATIO_MAX, "less"),
        figure("one at a time, p99", most, "ms", None, "less", state),
        figure("raw: bare ZeroMQ echo and one fdatasync", bare, "ms", better="less", beside="one after the other, p50 of each"),
        figure("1,000/s paced, p50", paced_half, "ms", better="less", beside=state),
        figure("1,000/s paced, p99", paced_most, "ms", better="less", beside=state),
    ]


def _one_at_a_time(producer: Producer, count: int, ordering: str = "total") -> list[float]:
    value, times = bytes(100), []
    send = producer.send if ordering == "total" else partial(producer.send, ordering=ordering)
    for _ in range(100):
        send("bench", value).result(30)
    for _ in range(count):
        start = time.perf_counter_ns()
        send("bench", value).result(30)
        times.append((time.perf_counter_ns() - start) / 1e6)
    return times


def _paced(producer: Producer, rate: int, seconds: float) -> list[float]:
    times: list[float] = []
    value = bytes(100)
    begin = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = begin + number / rate
        while (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        start = time.perf_counter_ns()

        def arrived(error: object, receipt: object, start: int = start) -> None:
            times.append((time.perf_counter_ns() - start) / 1e6)

        producer.send("bench", value, on_delivery=arrived)
    producer.flush()
    return times
