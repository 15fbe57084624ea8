"""Records beside the one order: what three members take in as unordered sends, and how long one waits, each beside ordered ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, figure, foreign_load, percentile
from benchmarks.fleet import coordinator_of, gateways
from benchmarks.ingest import _one_at_a_time, _send, _send_batches
from benchmarks.machine import KIB, MIB
from tutti import Producer

MEMBERS = 3
ORDERINGS = ("total", "unordered")
LOADS: dict[str, tuple[str, Callable[[Producer, int, str], float]]] = {
    "send() 1 KB": ("MB/s", lambda producer, volume, way: _send(producer, os.urandom(1000), volume // 1024, way)),
    "send() 100 B": ("MB/s", lambda producer, volume, way: _send(producer, bytes(100), volume // 200, way)),
    "send_batch() 64 KiB": ("MB/s", lambda producer, volume, way: _send_batches(producer, 64 * KIB, volume // (64 * KIB), way)),
}


def unordered(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Both ways in turn, in one group, through the coordinator and, unordered, through another member too."""
    volume, count = (32 * MIB, 500) if quick else (256 * MIB, 3000)
    rates: dict[str, dict[str, list[float]]] = {load: {way: [] for way in ORDERINGS} for load in LOADS}
    halves: dict[str, list[float]] = {"ordered": [], "unordered": [], "unordered, at another member": []}
    mosts: dict[str, list[float]] = {name: [] for name in halves}
    foreign: list[float] = []
    with gateways(MEMBERS, directory) as running:
        for measured in running:
            measured.wait_prepared(2)
        first = coordinator_of(running)
        other = next(measured for measured in running if measured is not first)
        for _ in range(rounds):
            with foreign_load(foreign):
                for load, (_, work) in LOADS.items():
                    for way in ORDERINGS:
                        with Producer(first.url) as producer:
                            producer.send("bench", b"up", ordering=way).result(60)
                            rates[load][way].append(work(producer, volume, way))
                for name, at in zip(halves, (first, first, other), strict=True):
                    with Producer(at.url) as producer:
                        times = sorted(_one_at_a_time(producer, count, "total" if name == "ordered" else "unordered"))
                    halves[name].append(percentile(times, 0.5))
                    mosts[name].append(percentile(times, 0.99))
    state = f"{MEMBERS} members, {volume // MIB} MiB each, foreign CPU {max(foreign):.2f}"
    out = []
    for load, (unit, _) in LOADS.items():
        ordered, beside = rates[load]["total"], rates[load]["unordered"]
        share = 100 * median(ours / theirs for ours, theirs in zip(beside, ordered, strict=True))
        out.append(figure(f"ordered {load}", ordered, unit, beside=state))
        out.append(figure(f"unordered {load}", beside, unit, beside=f"{share:.0f}% of the ordered"))
    for name, half in halves.items():
        out.append(figure(f"{name}: one at a time, p50", half, "ms", better="less", beside=f"{count} records of 100 B"))
        out.append(figure(f"{name}: one at a time, p99", mosts[name], "ms", better="less"))
    return out
