"""AsyncProducer beside Producer: CPU of the client for one record in bulk, and latency one at a time.

Both clients run in this process and send to one gateway in turns. A drift of the machine affects both, so compare the ratios of
single turns, not the absolute costs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import Figure, figure, foreign_load, percentile
from benchmarks.fleet import gateway
from benchmarks.ingest import _one_at_a_time
from benchmarks.machine import SEGMENT
from tutti import Producer
from tutti.aio import AsyncProducer

CPU_RATIO_MAX = 1.5
TURNS = 8  # of each work in one round
DRAIN_RECORDS = 1000
VALUE = bytes(100)
BULK = "CPU of send() of 100 B"


class Work(NamedTuple):
    """One kind of work for both clients. Each function returns the cost, of which less is better."""

    unit: str
    plain: Callable[[str], float]
    asynchronous: Callable[[str], float]


def _bulk(url: str, count: int, keep: bool) -> float:
    """CPU of this process for one record, ns; with `keep`, also for its receipt and its offset."""
    with Producer(url) as producer:
        producer.send("bench", VALUE).result(30)
        start = time.process_time_ns()
        if keep:
            receipts = [producer.send("bench", VALUE) for _ in range(count)]
            for receipt in receipts:
                receipt.result()
        else:
            for _ in range(count):
                producer.send("bench", VALUE)
        producer.flush()
        return (time.process_time_ns() - start) / count


async def _async_bulk(url: str, count: int, keep: bool) -> float:
    async with AsyncProducer(url) as producer:
        await producer.send("bench", VALUE)
        start = time.process_time_ns()
        receipts = []
        for _ in range(count // DRAIN_RECORDS):
            if keep:
                receipts += [producer.send("bench", VALUE) for _ in range(DRAIN_RECORDS)]
            else:
                for _ in range(DRAIN_RECORDS):
                    producer.send("bench", VALUE)
            await producer.drain()
        for receipt in receipts:
            await receipt
        await producer.flush()
        return (time.process_time_ns() - start) / count


def _median_ms(url: str, count: int) -> float:
    with Producer(url) as producer:
        return percentile(sorted(_one_at_a_time(producer, count)), 0.5)


async def _async_median_ms(url: str, count: int) -> float:
    times = []
    async with AsyncProducer(url) as producer:
        for _ in range(100):
            await producer.send("bench", VALUE)
        for _ in range(count):
            start = time.perf_counter_ns()
            await producer.send("bench", VALUE)
            times.append((time.perf_counter_ns() - start) / 1e6)
    return percentile(sorted(times), 0.5)


def aio(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Both clients in turns, in random order."""
    many, few = (100_000, 200) if quick else (500_000, 1000)
    works = {
        BULK: Work("ns", partial(_bulk, count=many, keep=False), _loop(_async_bulk, many, False)),
        "CPU of send() and its receipt": Work("ns", partial(_bulk, count=many, keep=True), _loop(_async_bulk, many, True)),
        "one at a time, p50": Work("ms", partial(_median_ms, count=few), _loop(_async_median_ms, few)),
    }
    costs: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in works}
    foreign: list[float] = []
    with gateway(directory, prepared=4) as measured:
        measured.wait_prepared(min(4, 1 + many * 150 // SEGMENT))
        for _ in range(rounds * (2 if quick else TURNS)):
            with foreign_load(foreign):
                for name, work in works.items():
                    turn = list(zip(costs[name], (work.plain, work.asynchronous), strict=True))
                    for into, run in random.sample(turn, len(turn)):
                        into.append(run(measured.url))
    figures = []
    for name, (plain, asynchronous) in costs.items():
        unit = works[name].unit
        ratios = [ours / theirs for ours, theirs in zip(asynchronous, plain, strict=True)]
        target = CPU_RATIO_MAX if name == BULK else None
        figures += [
            figure(f"{name}, Producer", plain, unit, better="less", beside=f"foreign CPU {max(foreign):.2f}"),
            figure(f"{name}, AsyncProducer", asynchronous, unit, better="less"),
            figure("  ratio", ratios, "x", target, "less"),
        ]
    return figures


def _loop(work: Callable[..., object], *arguments: object) -> Callable[[str], float]:
    """Return a function that runs a coroutine in a new event loop."""
    return lambda url: asyncio.run(work(url, *arguments))  # type: ignore[arg-type]  # each work is a coroutine function
