"""A producer's spool: what three members take in, and how long one record waits, beside a producer without; and an outage."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import Figure, figure, foreign_load, percentile
from benchmarks.fleet import coordinator_of, gateways
from benchmarks.ingest import _one_at_a_time, _send
from benchmarks.machine import MIB
from tutti import Producer

MEMBERS = 3
SIZES = {"1 KB": 1000, "100 B": 100}
WAYS = ("plain", "spool")
NOBODY = "tutti://127.0.0.1:9"  # the port of `discard`, where nothing listens


def spool(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Both ways in turn, in one group, through the coordinator; then a spool that was filled while nobody answered."""
    volume, count = (32 * MIB, 500) if quick else (128 * MIB, 2000)
    rates: dict[str, dict[str, list[float]]] = {load: {way: [] for way in WAYS} for load in SIZES}
    halves: dict[str, list[float]] = {way: [] for way in WAYS}
    taken: list[float] = []
    drained: list[float] = []
    foreign: list[float] = []
    with gateways(MEMBERS, directory) as running:
        for measured in running:
            measured.wait_prepared(2)
        url = coordinator_of(running).url
        for number in range(rounds):
            with foreign_load(foreign):
                for load, size in SIZES.items():
                    for way in WAYS:
                        name = f"{way}{number}"
                        options: dict[str, Any] = {"spool": directory / name} if way == "spool" else {}
                        with Producer(url, producer=name, **options) as producer:
                            producer.send("bench", b"up").result(60)
                            rates[load][way].append(_send(producer, os.urandom(size), volume // (size + 100), "total"))
                            if load == "100 B":
                                halves[way].append(percentile(sorted(_one_at_a_time(producer, count, "total")), 0.5))
                into, out = _outage(url, directory / f"outage{number}", volume)
                taken.append(into)
                drained.append(out)
    found = []
    for load in SIZES:
        plain, spooled = rates[load]["plain"], rates[load]["spool"]
        share = 100 * median(ours / theirs for ours, theirs in zip(spooled, plain, strict=True))
        found.append(figure(f"send() {load}", plain, "MB/s", beside=f"{MEMBERS} members, foreign CPU {max(foreign):.2f}"))
        found.append(figure(f"send() {load}, by a spool", spooled, "MB/s", beside=f"{share:.0f}% of that"))
    for way, half in halves.items():
        found.append(figure(f"{way}: one at a time, p50", half, "ms", better="less", beside=f"{count} records of 100 B"))
    found.append(figure("into a spool while nobody answers, 1 KB", taken, "MB/s"))
    found.append(figure("out of it when somebody does", drained, "MB/s", beside=f"{volume // MIB} MiB read back"))
    return found


def _outage(url: str, path: Path, volume: int) -> tuple[float, float]:
    """Records of 1 KB go into a spool while nobody answers, and out of it; MB/s of both."""
    value, count = os.urandom(1000), volume // 1000
    begun = time.monotonic()
    with Producer(NOBODY, producer=path.name, spool=path, delivery_timeout=0.001) as producer:
        for _ in range(count):
            receipt = producer.send("bench", value)
        receipt.spooled(60)
        into = time.monotonic() - begun
    begun = time.monotonic()
    with Producer(url, producer=path.name, spool=path):
        pass
    return count / 1000 / into, count / 1000 / (time.monotonic() - begun)
