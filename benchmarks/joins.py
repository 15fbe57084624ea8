"""What it costs those who send that a gateway learns a large log meanwhile: one that comes back, and those a group grows by.

At the end of a round the logs of all gateways are compared by their digests: a run whose logs differ has no figures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure, figure, foreign_load
from benchmarks.fleet import Measured, coordinator_of, gateways, laid_out
from benchmarks.ingest import _send_batches
from benchmarks.machine import KIB, MIB
from benchmarks.pace import RATE, Paced, Span
from tutti import Producer
from tutti.errors import OffsetOutOfRange
from tutti.io.admin import AdminClient
from tutti_gateway.log.tools.digest import digest

JOIN_S_MAX = 300.0
RATIO_MAX = 3.0
SIZES = (3, 5)


def rejoin(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """One of three is killed, misses a volume, and learns it while the others commit: their latency before and meanwhile."""
    volume, seconds = (128 * MIB, 3.0) if quick else (1024 * MIB, 10.0)
    before, meanwhile, ratio, gaps, took, after = [], [], [], [], [], []
    foreign: list[float] = []
    for _ in range(rounds):
        with gateways(3, directory) as running, foreign_load(foreign):
            coordinator = coordinator_of(running)
            away = next(measured for measured in running if measured is not coordinator)
            for measured in running:
                measured.wait_prepared(2)
            with Paced(coordinator.url) as paced:
                quiet = paced.span(seconds)
                away.kill()
                _fill(coordinator, volume)
                paced.settle()
                since = time.monotonic_ns()
                away.start()
                _wait_voting(coordinator, running)
                busy = since, time.monotonic_ns()
                away.wait_ready()
                calm = paced.span(seconds)
                before.append(paced.at_ms(quiet, 0.99))
                meanwhile.append(paced.at_ms(busy, 0.99))
                after.append(paced.at_ms(calm, 0.99))
                gaps.append(paced.gap_ms(busy))
            took.append(_seconds(busy))
            ratio.append(meanwhile[-1] / before[-1])
            _same(running)
    state = f"{RATE} records/s of 1 KB, one of three has {volume // MIB} MiB to learn, foreign CPU {max(foreign):.2f}"
    return [
        figure("rejoin: commit p99 before", before, "ms", better="less", beside=state),
        figure("rejoin: commit p99 while one learns", meanwhile, "ms", better="less", beside=state),
        figure("rejoin: that p99 to the one before", ratio, "x", RATIO_MAX, "less", "round by round"),
        figure("rejoin: commit p99 afterwards", after, "ms", better="less", beside="its segments are prepared meanwhile"),
        figure("rejoin: longest time without a receipt", gaps, "ms", better="less", beside="while it learns and is taken in"),
        figure("rejoin: from its start until it votes", took, "s", better="less", beside="exec, imports and the start included"),
    ]


def growth(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """A group of one with a log grows to three and to five while records are committed."""
    volume, seconds = (128 * MIB, 3.0) if quick else (1024 * MIB, 10.0)
    names = ["one", *(f"to {size}" for size in SIZES), *(f"of {size}" for size in SIZES)]
    p99: dict[str, list[float]] = {name: [] for name in names}
    p50: dict[str, list[float]] = {name: [] for name in names}
    took: dict[int, list[float]] = {size: [] for size in SIZES}
    gaps: dict[int, list[float]] = {size: [] for size in SIZES}
    foreign: list[float] = []
    for _ in range(rounds):
        with laid_out(1, SIZES[-1], directory) as group, foreign_load(foreign):
            first = group[0]
            first.start()
            first.wait_ready()
            _fill(first, volume)
            first.wait_prepared(2)
            with Paced(first.url) as paced:
                spans = {"one": paced.span(seconds)}
                running = 1
                for size in SIZES:
                    spans[f"to {size}"] = _grow(first, group[:size], group[running:size])
                    running = size
                    spans[f"of {size}"] = paced.span(seconds)
                for name, span in spans.items():
                    p99[name].append(paced.at_ms(span, 0.99))
                    p50[name].append(paced.at_ms(span, 0.5))
                for size in SIZES:
                    took[size].append(_seconds(spans[f"to {size}"]))
                    gaps[size].append(paced.gap_ms(spans[f"to {size}"]))
            _same(group)
    state = f"{RATE} records/s of 1 KB, a log of {volume // MIB} MiB before, foreign CPU {max(foreign):.2f}"
    figures = []
    for name, values in p99.items():
        what = "of 1" if name == "one" else f"while it grows {name}" if name.startswith("to") else name
        figures.append(figure(f"growth: p50 {what}", p50[name], "ms", better="less", beside=state))
        figures.append(figure(f"growth: p99 {what}", values, "ms", better="less", beside=state))
    for size in SIZES:
        beside = "two more, one after the other: start, learn, vote"
        figures.append(figure(f"growth: until all of {size} vote", took[size], "s", better="less", beside=beside))
        figures.append(figure(f"growth: to {size}, longest without a receipt", gaps[size], "ms", better="less", beside=state))
    return figures


def _seconds(span: Span) -> float:
    return (span[1] - span[0]) / 1e9


def _fill(measured: Measured, volume: int) -> None:
    with Producer(measured.url, producer="fill") as producer:
        _send_batches(producer, 256 * KIB, volume // (256 * KIB))


def _grow(first: Measured, members: Sequence[Measured], more: Sequence[Measured]) -> Span:
    """Start and add each of `more`, the next one when that votes."""
    since = time.monotonic_ns()
    for measured in more:
        measured.start()
        with AdminClient(first.url, timeout=JOIN_S_MAX) as control:
            control.change_roster("add", measured.name, f"127.0.0.1:{measured.base}")
        _wait_voting(first, members[: members.index(measured) + 1])
        measured.wait_ready()
    return since, time.monotonic_ns()


def _wait_voting(asked: Measured, members: Sequence[Measured]) -> None:
    """Wait until all of them vote in one view, as one of them knows it."""
    wanted, limit_s = {measured.name for measured in members}, time.monotonic() + JOIN_S_MAX
    with AdminClient(asked.url) as control:
        while True:
            found = control.members()
            if {one["name"] for one in found if one["voter"] and one["state"] == "primary" and one["age"]} == wanted:
                return
            if time.monotonic() > limit_s:
                raise SystemExit(f"not all of {sorted(wanted)} vote after {JOIN_S_MAX:.0f} s: {found}")
            time.sleep(0.05)


def _same(running: Sequence[Measured]) -> None:
    """All hold the same records.

    Raises:
        SystemExit: they do not, or one does not get there.
    """
    with AdminClient(running[0].url) as control:
        end = int(control.status()["frontier"])
    sums = {measured.name: _sum(measured, end) for measured in running}
    if len(set(sums.values())) != 1:
        raise SystemExit(f"the logs differ: {sums}")


def _sum(measured: Measured, end: int) -> str:
    limit_s = time.monotonic() + JOIN_S_MAX
    while True:
        try:
            return digest(measured.data, 0, end).sha256
        except OffsetOutOfRange:  # what its files say of the frontier is behind for a moment
            if time.monotonic() > limit_s:
                raise
            time.sleep(0.1)
