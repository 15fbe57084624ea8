"""What one record costs on its way: latency one at a time, and CPU and wake-ups of each kind of thread; beside another checkout.

    python -m benchmarks.path [--members 3] [--records 60] [--rounds 40] [--against DIRECTORY]

CPU and wake-ups drift less than times where the machine has other work, and tell where the time goes. With `--against` a group of
each checkout runs at once and they take turns of some records, in random order: the median of the ratios turn by turn holds on a
machine that others load, where times of one run after the other say nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import orjson

Spent = dict[str, tuple[float, float]]  # kind of thread -> CPU us, and times that it went to sleep
Turn = tuple[float, float, Spent]  # p50 and p99 of a record, ms; what was spent for one record
_START_S_MAX = 300
_WARM = 10  # records before each turn: the other group had the processors' caches


def _threads(role: str, pid: int) -> Iterator[tuple[str, int, int]]:
    """(kind, CPU ns, sleeps) of each thread of a process."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return  # it ended since it was found
    for task in tasks:
        place = f"/proc/{pid}/task/{task}"
        try:
            name = Path(f"{place}/comm").read_text().strip()
            cpu_ns = int(Path(f"{place}/schedstat").read_text().split()[0])
            status = Path(f"{place}/status").read_text()
        except OSError:
            continue  # it ended since it was listed
        kind = "ZeroMQ" if name.startswith("ZMQ") else "main thread" if int(task) == pid else "other threads"
        sleeps = int(next(line for line in status.splitlines() if line.startswith("voluntary")).split()[1])
        yield f"{role}, {kind}", cpu_ns, sleeps


def _spent(roles: dict[int, str]) -> Spent:
    spent: defaultdict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for pid, role in roles.items():
        for kind, cpu_ns, sleeps in _threads(role, pid):
            cpu_us, before = spent[kind]
            spent[kind] = cpu_us + cpu_ns / 1000, before + sleeps
    return dict(spent)


def _serve(members: int, records: int, directory: Path) -> None:
    """Run a group; take a turn for each line of stdin, and answer it with a line."""
    from benchmarks.figures import descendants, percentile
    from benchmarks.fleet import gateways
    from tutti import Producer
    from tutti.io.admin import AdminClient

    with gateways(members, directory) as running:
        for measured in running:
            measured.wait_prepared(2)  # what prepares them shares the disk
        with AdminClient(running[0].url) as control:
            name = control.status()["view"]["coordinator"]
        first = next(measured for measured in running if measured.data.name == name or members == 1)
        roles = {os.getpid(): "client"}
        for measured in running:
            role = "coordinator" if measured is first else f"{members - 1} others"
            roles |= dict.fromkeys([measured.process.pid, *descendants(measured.process.pid)], role)
        with Producer(first.url) as producer:
            print("ready", flush=True)
            for _ in sys.stdin:
                before, times = _spent(roles), []
                for _ in range(_WARM + records):
                    start = time.perf_counter_ns()
                    producer.send("bench", bytes(100)).result(30)
                    times.append((time.perf_counter_ns() - start) / 1e6)
                after, count = _spent(roles), len(times)
                times = sorted(times[_WARM:])
                spent = {
                    kind: ((cpu_us - before.get(kind, (0, 0))[0]) / count, (sleeps - before.get(kind, (0, 0))[1]) / count)
                    for kind, (cpu_us, sleeps) in after.items()
                }
                print(orjson.dumps((percentile(times, 0.5), percentile(times, 0.99), spent)).decode(), flush=True)


class Group:
    """A group of one checkout, in processes of their own."""

    def __init__(self, checkout: Path, process: subprocess.Popen[str]) -> None:
        """Made by `_group`."""
        self.checkout = checkout
        self.turns: list[Turn] = []
        self._process = process

    def hear(self) -> str:
        """Its next line."""
        line = self._process.stdout.readline()  # type: ignore[union-attr]  # a pipe was asked for
        if not line:
            raise SystemExit(f"the group of {self.checkout} ended")
        return str(line)

    def take_turn(self) -> None:
        """One turn more."""
        self._process.stdin.write("\n")  # type: ignore[union-attr]  # a pipe was asked for
        self._process.stdin.flush()  # type: ignore[union-attr]  # likewise
        self.turns.append(orjson.loads(self.hear()))

    def middle(self, column: int) -> float:
        """Median of p50 (0) or p99 (1), ms."""
        return median(float(turn[column]) for turn in self.turns)  # type: ignore[arg-type]  # the third column is not asked for

    def cpu_us(self) -> list[float]:
        """CPU of all together for one record, us, of each turn."""
        return [sum(cpu_us for cpu_us, _ in spent.values()) for _, _, spent in self.turns]


def _package_roots(checkout: Path) -> list[Path]:
    """The folders that a checkout's packages are imported from."""
    return [checkout, *sorted({package.parent for package in checkout.glob("*/*tutti*") if package.is_dir()})]


@contextmanager
def _group(checkout: Path, members: int, records: int, directory: Path) -> Iterator[Group]:
    arguments = [str(members), str(records), str(directory)]
    # Each checkout serves with its own copy of this file, because module names differ between releases.
    process = subprocess.Popen(
        [sys.executable, "-P", str(checkout / "benchmarks" / "path.py"), "--serve", *arguments],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, _package_roots(checkout)))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Group(checkout, process)
    finally:
        process.stdin.close()  # type: ignore[union-attr]  # a pipe was asked for
        process.wait(_START_S_MAX)


def _report(group: Group) -> None:
    print(f"{group.checkout}: p50 {group.middle(0):.3f} ms, p99 {group.middle(1):.3f} ms, {median(group.cpu_us()):.0f} us of CPU")
    for kind in sorted({kind for _, _, spent in group.turns for kind in spent}):
        cpu_us = median(spent.get(kind, (0.0, 0.0))[0] for _, _, spent in group.turns)
        sleeps = median(spent.get(kind, (0.0, 0.0))[1] for _, _, spent in group.turns)
        print(f"  {kind:<28} {cpu_us:7.0f} us of CPU, slept {sleeps:5.1f} times")


def _ratios(group: Group, other: Group) -> None:
    pairs = list(zip(group.turns, other.turns, strict=True))
    p50 = median(ours[0] / theirs[0] for ours, theirs in pairs)
    p99 = median(ours[1] / theirs[1] for ours, theirs in pairs)
    cpu = median(ours / theirs for ours, theirs in zip(group.cpu_us(), other.cpu_us(), strict=True))
    print(f"{group.checkout} to {other.checkout}, turn by turn: p50 {p50:.2f}, p99 {p99:.2f}, CPU {cpu:.2f}")


def main() -> int:
    """Print what a record costs; 0 however much it is."""
    if sys.argv[1:2] == ["--serve"]:
        _serve(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
        return 0
    from benchmarks.arguments import a_checkout, add_places, count

    parser = argparse.ArgumentParser(prog="python -m benchmarks.path", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--members", type=int, default=3, choices=range(1, 8), metavar="1..7")
    parser.add_argument("--records", type=count, default=60, help="one after the other, in each turn")
    parser.add_argument("--rounds", type=count, default=40, help="turns")
    parser.add_argument("--against", type=a_checkout, default=None, help="another checkout, which runs with this interpreter")
    add_places(parser)
    arguments = parser.parse_args()
    checkouts = [Path(__file__).resolve().parents[1], *([arguments.against.resolve()] if arguments.against else [])]
    with tempfile.TemporaryDirectory(prefix="tutti-bench-", dir=arguments.directory) as directory:
        _measure(checkouts, arguments.members, arguments.records, arguments.rounds, Path(directory))
    return 0


def _measure(checkouts: list[Path], members: int, records: int, rounds: int, directory: Path) -> None:
    with ExitStack() as opened:
        groups = [opened.enter_context(_group(checkout, members, records, directory)) for checkout in checkouts]
        for group in groups:
            group.hear()
        for _ in range(rounds):
            for group in random.sample(groups, len(groups)):
                group.take_turn()
        for group in groups:
            _report(group)
        if len(groups) > 1:
            _ratios(*groups)


if __name__ == "__main__":
    from benchmarks.arguments import run_command

    run_command(main)
