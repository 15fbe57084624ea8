"""What a group of one, three and five takes in, beside bare ZeroMQ with the same syncs, and what an idle member costs.

    python -m benchmarks.group [--members 1 3 5] [--volume-mb 1024] [--rounds 3] [--json FILE]

The figures of each size as they come, then all sizes in one table. All gateways and the client share this machine and its disk.
Every member has synced each record before its receipt comes. The client is connected to the coordinator; one row tells what the
way through another member costs.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.arguments import run_command
from benchmarks.fanout import bare
from benchmarks.figures import Figure, figure, foreign_load, number, percentile
from benchmarks.fleet import Measured, coordinator_of, gateways
from benchmarks.ingest import _one_at_a_time, _send, _send_batches
from benchmarks.kept import kept_figures
from benchmarks.machine import KIB, MIB, SEGMENT
from tutti import Producer

SIZES = (1, 3, 5)
IDLE_S = 10.0
LOADS: dict[str, Callable[[Producer, int], float]] = {
    "send() 1 KB": lambda producer, volume: _send(producer, os.urandom(1000), volume // 1024),
    "send() 100 B": lambda producer, volume: _send(producer, bytes(100), volume // 200),
    "send_batch() 64 KiB": lambda producer, volume: _send_batches(producer, 64 * KIB, volume // (64 * KIB)),
    "send_batch() 256 KiB": lambda producer, volume: _send_batches(producer, 256 * KIB, volume // (256 * KIB)),
}
RAW = {"send() 1 KB": "256 KiB", "send() 100 B": "256 KiB", "send_batch() 64 KiB": "64 KiB", "send_batch() 256 KiB": "256 KiB"}
SHARES = {"send() 1 KB": 90.0, "send_batch() 64 KiB": 80.0, "send_batch() 256 KiB": 80.0}  # target of three members, % of RAW
P50_RATIO_MAX, OTHER_RATIO_MAX = 1.0, 1.4  # targets of three members
IDLE_MB_MAX, IDLE_CPU_MAX = 120.0, 2.0


def group(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Figures of the sizes, each beside the bare group of that size in the same round."""
    volume = 256 * MIB if quick else 1024 * MIB
    return [one for members in (SIZES[:2] if quick else SIZES) for one in of_size(directory, members, rounds, volume)]


def of_size(directory: Path, members: int, rounds: int, volume: int) -> Iterator[Figure]:
    """All figures of one size."""
    count = max(500, min(5000, volume // (256 * KIB)))
    foreign: list[float] = []
    raw: list[dict[str, float]] = []
    found: dict[str, list[float]] = {load: [] for load in LOADS}
    for _ in range(rounds):
        with foreign_load(foreign):
            raw.append(bare(directory, members, volume, count))
            for load, work in LOADS.items():
                found[load].append(_loaded(directory, members, volume, work))
    state = f"{volume // MIB} MiB into prepared segments, foreign CPU {max(foreign):.2f}"
    for name in ("64 KiB", "256 KiB"):
        fan_outs = [one[name] for one in raw]
        yield figure(f"{members} x raw: ZeroMQ fan-out, {name}", fan_outs, "MB/s", beside="fdatasync on each, 4 MiB under way")
    for load, values in found.items():
        yield figure(f"{members} x {load}", values, "MB/s", beside=state)
        shares = [100 * value / one[RAW[load]] for value, one in zip(values, raw, strict=True)]
        yield figure(
            f"{members} x {load}, share of the raw",
            shares,
            "%",
            _of_three(members, SHARES.get(load)),
            beside=f"fan-out, {RAW[load]}",
        )
    for name in ("p50", "p99"):
        yield figure(f"{members} x raw: one at a time, {name}", [one[name] for one in raw], "ms", better="less")
    yield from _quiet(directory, members, [one["p50"] for one in raw], count)


def table(figures: Sequence[Figure]) -> str:
    """The medians of all sizes beside one another, a line each; targets are those of three members."""
    sizes = list(dict.fromkeys(one.name.split(" x ")[0] for one in figures))
    found = {tuple(one.name.split(" x ", 1)): one for one in figures}
    lines = [f"{'members':<42} {'':<5}" + "".join(f"{size:>10}" for size in sizes)]
    for what in dict.fromkeys(one.name.split(" x ", 1)[1] for one in figures):
        of = {size: found[size, what] for size in sizes if (size, what) in found}
        values = "".join(f"{number(of[size].value) if size in of else '-':>10}" for size in sizes)
        asked = next((one for one in of.values() if one.target is not None), None)
        target = (
            f"   {'>=' if asked.better == 'more' else '<='} {number(asked.target)}" if asked and asked.target is not None else ""
        )
        lines.append(f"{what:<42} {next(iter(of.values())).unit:<5}{values}{target}")
    return "\n".join(lines)


def _loaded(directory: Path, members: int, volume: int, work: Callable[[Producer, int], float]) -> float:
    segments = volume // SEGMENT + 2
    with gateways(members, directory, segments) as running:
        for measured in running:
            measured.wait_prepared(segments)
        with Producer(coordinator_of(running).url, producer="bench") as producer:
            producer.send("warm", b"up").result(30)
            return work(producer, volume)


def _of_three(members: int, target: float | None) -> float | None:
    """Return the target, which only a group of three has."""
    return target if members == 3 else None


def _quiet(directory: Path, members: int, raw: Sequence[float], count: int) -> Iterator[Figure]:
    """One at a time, through the coordinator and through another member; then nothing at all.

    Args:
        directory: for the logs.
        members: gateways of the group.
        raw: p50 of bare messages in each round, ms.
        count: records of a round.
    """
    times: dict[str, list[float]] = {"p50": [], "p99": [], "other": []}
    foreign: list[float] = []
    with gateways(members, directory) as running:
        for measured in running:
            measured.wait_prepared(2)  # what prepares them shares the disk
        coordinator = coordinator_of(running)
        for _ in raw:
            with foreign_load(foreign):
                one = _latency(coordinator, count)
                times["p50"].append(percentile(one, 0.5))
                times["p99"].append(percentile(one, 0.99))
                if members > 1:
                    other = next(measured for measured in running if measured is not coordinator)
                    times["other"].append(percentile(_latency(other, count), 0.5))
        cpu, memory = _idle(running)
    state = f"{count} records of 100 B, foreign CPU {max(foreign):.2f}"
    for name in ("p50", "p99"):
        yield figure(f"{members} x one at a time, {name}", times[name], "ms", None, "less", state)
    ratios = [ours / bare for ours, bare in zip(times["p50"], raw, strict=True)]
    yield figure(f"{members} x one at a time, p50, times the raw", ratios, "x", _of_three(members, P50_RATIO_MAX), "less")
    if times["other"]:
        yield figure(f"{members} x the same at another member, p50", times["other"], "ms", None, "less", state)
        ratios = [other / first for other, first in zip(times["other"], times["p50"], strict=True)]
        target = _of_three(members, OTHER_RATIO_MAX)
        yield figure(f"{members} x the same, times that at the coordinator", ratios, "x", target, "less")
    target = _of_three(members, IDLE_MB_MAX)
    yield figure(f"{members} x memory of an idle member", memory, "MB", target, "less", "PSS, its reads process included")
    target = _of_three(members, IDLE_CPU_MAX)
    yield figure(f"{members} x CPU of an idle member", cpu, "%", target, "less", f"of one processor, over {IDLE_S:.0f} s")


def _latency(measured: Measured, count: int) -> list[float]:
    with Producer(measured.url) as producer:
        return sorted(_one_at_a_time(producer, count))


def _idle(running: Sequence[Measured]) -> tuple[list[float], list[float]]:
    """CPU (% of one processor) and memory (MB) of each member while nothing happens."""
    time.sleep(5)
    before, begin = [measured.cpu_s() for measured in running], time.monotonic()
    time.sleep(IDLE_S)
    took = time.monotonic() - begin
    cpu = [100 * (measured.cpu_s() - was) / took for measured, was in zip(running, before, strict=True)]
    return cpu, [measured.memory_mb() for measured in running]


@contextmanager
def _scratch(root: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tutti-bench-", dir=root) as directory:
        yield Path(directory)


def main() -> int:
    """The figures of some sizes; 0 however they are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--members", type=int, nargs="+", default=list(SIZES), choices=range(1, 8), metavar="1..7")
    parser.add_argument("--volume-mb", type=int, default=1024, help="of each load, MiB; a multiple of 128")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None, help="where the logs lie: the disk that is measured")
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file too")
    arguments = parser.parse_args()
    if arguments.volume_mb < 1 or arguments.volume_mb * MIB % SEGMENT or arguments.rounds < 1:
        parser.error(f"a volume is a multiple of {SEGMENT // MIB} MiB, and rounds are one or more")
    with _scratch(arguments.directory) as directory:
        figures, foreign = [], list[float]()
        for members in arguments.members:
            with foreign_load(foreign):
                for one in of_size(directory, members, arguments.rounds, arguments.volume_mb * MIB):
                    print(one.line(), flush=True)
                    figures.append(one)
    print(table(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(kept_figures("benchmarks.group", foreign, figures), indent=1))
    return 0


if __name__ == "__main__":
    run_command(main)
