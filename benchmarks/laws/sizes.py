"""Members, record sizes, topics, batches: loads of a fresh group with segments prepared for them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.fanout import fan_out
from benchmarks.figures import percentile
from benchmarks.fleet import Measured, coordinator_of, gateways
from benchmarks.ingest import _one_at_a_time, _send, _send_batches
from benchmarks.laws.law import Asked, Bench, Held, Law
from benchmarks.machine import KIB, MIB, SEGMENT
from benchmarks.pages import Measure
from tutti import Producer

MEMBERS = (1, 3, 4, 5, 7)
SIZES = (10, 100, 1000, 10_000, 100_000, 1_000_000)
TOPICS = (1, 10, 100, 1000, 10_000)
_FRAME_BYTES = 100  # of a record besides its value, at most: for the room that is asked for
_RECORDS_MAX = 2_000_000
_GROUP = 3


def volume(asked: Asked) -> int:
    """Bytes of a load."""
    return (64 if asked.quick else 512) * MIB


@contextmanager
def group(bench: Bench, members: int, load_bytes: int) -> Iterator[tuple[Measured, list[Measured]]]:
    """The coordinator and all gateways of a group with segments prepared for a load."""
    segments = load_bytes // SEGMENT + 2
    with gateways(members, bench.directory, segments) as running:
        for measured in running:
            measured.wait_prepared(segments)
        yield coordinator_of(running), running


def _members(bench: Bench) -> None:
    for members in MEMBERS[:2] if bench.asked.quick else MEMBERS:
        with group(bench, members, volume(bench.asked)) as (coordinator, _), Producer(coordinator.url) as producer:
            times = sorted(_one_at_a_time(producer, 300 if bench.asked.quick else 2000))
            bench.add("one at a time, p50", str(members), percentile(times, 0.5))
            bench.add("one at a time, p99", str(members), percentile(times, 0.99))
            bench.add("send() of 1 KB", str(members), _send(producer, os.urandom(1000), volume(bench.asked) // 1024))


def records_of(size: int, load_bytes: int) -> int:
    """How many records of `size` bytes a load has."""
    return max(20, min(_RECORDS_MAX, load_bytes // (size + _FRAME_BYTES)))


def _sizes(bench: Bench) -> None:
    for size in SIZES:
        count = records_of(size, volume(bench.asked))
        with group(bench, _GROUP, count * (size + _FRAME_BYTES)) as (coordinator, _), Producer(coordinator.url) as producer:
            producer.send("bench", b"up").result(30)
            mbs = _send(producer, os.urandom(size), count)
            bench.add("volume", name_of(size), mbs)
            bench.add("records", name_of(size), mbs * 1e3 / size)


def name_of(size: int) -> str:
    """10 B, 1 KB, 1 MB."""
    for unit, part in (("MB", 1_000_000), ("KB", 1000)):
        if size >= part:
            return f"{size // part} {unit}"
    return f"{size} B"


def _topics(bench: Bench) -> None:
    count = 20_000 if bench.asked.quick else 200_000
    with group(bench, _GROUP, volume(bench.asked)) as (coordinator, running), Producer(coordinator.url) as producer:
        for topics in TOPICS[:4] if bench.asked.quick else TOPICS:
            names = [f"topic{number}" for number in range(topics)]
            for name in names:
                producer.send(name, b"made")
            producer.flush()
            value, begin = bytes(100), time.perf_counter()
            for number in range(count):
                producer.send(names[number % topics], value)
            producer.flush()
            bench.add("records in turn to each", f"{topics:,}", count / (time.perf_counter() - begin) / 1e3)
            begin = time.perf_counter()
            for number in range(count):
                producer.send(names[number * topics // count], value)
            producer.flush()
            bench.add("records topic by topic", f"{topics:,}", count / (time.perf_counter() - begin) / 1e3)
            bench.add("largest member", f"{topics:,}", max(measured.memory_mb() for measured in running))


def _batches(bench: Bench) -> None:
    load = volume(bench.asked)
    with (
        fan_out(bench.directory, _GROUP, load + 4 * MIB) as bare,
        group(bench, _GROUP, 2 * load) as (coordinator, _),
        Producer(coordinator.url) as producer,
    ):
        producer.send("bench", b"up").result(30)
        for size in (64 * KIB, 256 * KIB):
            place = f"{size // KIB} KiB"
            limit, ours = bare.mbs(size, load), _send_batches(producer, size, load // size)
            bench.add("bare ZeroMQ fan-out", place, limit)
            bench.add("send_batch()", place, ours)
            bench.add("share of the bare fan-out", place, 100 * ours / limit)


def _room(members: int, loads: int = 1) -> float:
    return members * (loads * volume(Asked()) + 3 * SEGMENT)


LAWS = {
    "batches": Law(
        "Batches beside the bare fan-out",
        "batch",
        {
            "bare ZeroMQ fan-out": Measure("MB/s", "more"),
            "send_batch()": Measure("MB/s", "more"),
            "share of the bare fan-out": Measure("%", "more"),
        },
        "Apart from its bytes, each batch costs the same: a header, votes, a decision, an index row. So a large batch"
        " comes nearer to bare messages with the same three syncs and no log.",
        _batches,
        False,
        lambda _: _room(_GROUP, 4),
        (
            Held("share of the bare fan-out", "64 KiB", 80),
            Held("share of the bare fan-out", "256 KiB", 80),
        ),
    ),
    "members": Law(
        "Members",
        "members",
        {
            "one at a time, p50": Measure("ms", "less"),
            "one at a time, p99": Measure("ms", "less"),
            "send() of 1 KB": Measure("MB/s", "more"),
        },
        "Each record travels once to each member, and each member syncs it. All members work in parallel, so a record"
        " waits for one round trip and one sync. On this machine they share two processors and one disk, and each"
        " member adds its own work.",
        _members,
        False,
        lambda _: _room(MEMBERS[-1]),
        (Held("one at a time, p50", "4", 3, than="1"),),
    ),
    "sizes": Law(
        "Record size",
        "record",
        {"records": Measure("k/s", "more"), "volume": Measure("MB/s", "more")},
        "A record costs its client and each member a fixed part and a part for each byte. Below 1 KB the fixed part"
        " dominates, and records a second hardly depend on the size. Above it the bytes dominate, and MB/s hardly"
        " depend on the size.",
        _sizes,
        False,
        lambda _: _room(_GROUP),
    ),
    "topics": Law(
        "Topics",
        "topics",
        {
            "records in turn to each": Measure("k/s", "more"),
            "records topic by topic": Measure("k/s", "more"),
            "largest member": Measure("MB", "less"),
        },
        "All topics share one sequence and have no files or threads of their own. Only a table of names grows, by a"
        " few KB for each topic. But a batch has one topic, so a producer that changes the topic with each record"
        " sends batches of one record. Sent topic by topic, the same 200,000 records are batches of 20 with 10,000"
        " topics.",
        _topics,
        False,
        lambda _: _room(_GROUP, 4),
    ),
}
