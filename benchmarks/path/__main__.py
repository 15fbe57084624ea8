"""The cost of one record in gateways and in clients, apart: rates, latencies and CPU time by process.

The load generator in C uses little CPU time, so its works measure the gateways. The same works of Tutti's client show what the
client adds. With `--against`, the groups of both checkouts run at the same time, and take turns in random order. The report has the
median of the ratios of single turns. These ratios are valid even on a busy machine, unlike the times of separate runs.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import connections
from benchmarks.arguments import a_checkout, add_places, count, run_command
from benchmarks.fanout import MIB, FanOut, fan_out
from benchmarks.figures import foreign_load, number, percentile
from benchmarks.kept import about, header
from benchmarks.load import generator
from benchmarks.pages import spread
from benchmarks.path.group import HERE, Group, serving
from benchmarks.path.served import FLIGHT, RATE, Figures, Spent

_BARE_BYTES = 200  # a value of 100 B, and the fields that identify the record
_QUICK = 10
_BULK_SEGMENTS = 8
OURS, BARE = "this tree", "the machine"
CPU = "CPU of a record, us"


class LoadOf(NamedTuple):
    """A run of the load generator: connections, records in flight on each, and records a second (0: as fast as receipts)."""

    connections: int
    in_flight: int = 1
    rate: float = 0.0


class Work(NamedTuple):
    """One comparison.

    Attributes:
        title: title of its rows in the report.
        records: number of records in each turn.
        load: the run of the load generator; None if Tutti's client works.
        bulk: True if the benchmark runs the work only when the command line names it.
    """

    title: str
    records: int
    load: LoadOf | None = None
    bulk: bool = False


ALL: dict[str, Work] = {
    "many-load": Work(f"{FLIGHT} connections, C load", 50_000, LoadOf(FLIGHT)),
    "many": Work(f"{FLIGHT} connections, Tutti's client", 30_000),
    "one-load": Work("one at a time, C load", 2000, LoadOf(1)),
    "one": Work("one at a time, Tutti's client", 2000),
    "paced-load": Work(f"{RATE:,}/s, C load", 5000, LoadOf(1, 1000, RATE)),
    "paced": Work(f"{RATE:,}/s, Tutti's client", 5000),
    "flight-load": Work(f"{FLIGHT} under way, one connection, C load", 50_000, LoadOf(1, FLIGHT)),
    "flight": Work(f"{FLIGHT} under way, one connection, Tutti's client", 50_000),
    "100B": Work("100 B in bulk", 1_000_000, bulk=True),
    "1KB": Work("1 KB in bulk", 200_000, bulk=True),
    "unordered": Work("100 B unordered in bulk", 1_000_000, bulk=True),
    "64KiB": Work("send_batch of 64 KiB", 4000, bulk=True),
    "256KiB": Work("send_batch of 256 KiB", 1000, bulk=True),
}


def figures_of(load: generator.Load, of: LoadOf) -> Figures:
    """Return the figures of a run: latencies for one record at a time and for a paced run, otherwise the rate."""
    if of.rate or of.connections * of.in_flight == 1:
        return {"p50": load.at_ms(0.5), "p99": load.at_ms(0.99)}
    return {"k/s": load.rate / 1e3}


class Bare:
    """The same work without gateways: bare sockets or bare ZeroMQ to three processes, each with a sync."""

    def __init__(self, fanned: FanOut, directory: Path) -> None:
        """`fanned`: the processes that bare ZeroMQ connects; `directory`: for the files of the processes with bare sockets."""
        self._fanned, self._directory = fanned, directory

    def figures(self, name: str, records: int) -> Figures:
        """Return the figures of one turn; empty for a work that has no yardstick."""
        if name in self._YARDSTICKS:
            return self._YARDSTICKS[name](self, records)
        of = ALL["paced-load" if name == "paced" else name].load
        if of is None or (of.in_flight > 1 and not of.rate) or generator.lacking():
            return {}  # a bare server cannot separate the messages in bulk, or several messages in flight
        return figures_of(connections.load(self._directory, of.connections, _BARE_BYTES, records, of.rate), of)

    def _many(self, records: int) -> Figures:
        return {"k/s": connections.rate(self._directory, FLIGHT, _BARE_BYTES, records) / 1e3}

    def _one(self, records: int) -> Figures:
        times = self._fanned.one_ms(_BARE_BYTES, records)
        return {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}

    def _batches(self, size: int, records: int) -> Figures:
        return {"MB/s": self._fanned.mbs(size, size * records)}

    _YARDSTICKS: Mapping[str, Callable[[Bare, int], Figures]] = {
        "many": _many,
        "one": _one,
        "64KiB": lambda self, records: self._batches(64 * 1024, records),
        "256KiB": lambda self, records: self._batches(256 * 1024, records),
    }


Found = dict[tuple[str, str], dict[str, list[float]]]  # (work, measure) -> side -> rounds


class Turns:
    """All turns so far."""

    def __init__(self, groups: Mapping[str, Group], bare: Bare | None) -> None:
        """`groups`: the groups by the name of their side; `bare`: the yardsticks, or None for a run without them."""
        self._groups, self._bare = groups, bare
        self.found: Found = {}
        self.spent: dict[tuple[str, str], list[Spent]] = {}  # (work, side) -> rounds
        self.foreign: list[float] = []

    def take(self, name: str, records: int) -> None:
        """Let all sides do a work once, in random order."""
        sides = [*self._groups, *([BARE] if self._bare is not None else [])]
        with foreign_load(self.foreign):
            for side in random.sample(sides, len(sides)):
                for measure, value in self._figures(name, side, records).items():
                    self.found.setdefault((name, measure), {}).setdefault(side, []).append(value)

    def alone(self) -> dict[str, float]:
        """Return the smallest share of `Group.alone` of each side with a load generator."""
        return {side: min(group.alone) for side, group in self._groups.items() if group.alone}

    def _figures(self, name: str, side: str, records: int) -> Figures:
        if side == BARE:
            assert self._bare is not None  # otherwise it is not among the sides
            return self._bare.figures(name, records)
        work, group = ALL[name], self._groups[side]
        if work.load is not None:
            load, spent = group.load(work.load.connections, records, work.load.in_flight, work.load.rate)
            figures = figures_of(load, work.load)
        else:
            figures, spent = group.clients(name, records)
        self.spent.setdefault((name, side), []).append(spent)
        roles = by_role(spent)
        return figures | {CPU: sum(roles.values())} | {f"  {role}": cpu_us for role, cpu_us in roles.items()}


def by_role(spent: Spent) -> dict[str, float]:
    """Return the CPU time of each role, us."""
    found: dict[str, float] = {}
    for kind, (cpu_us, _) in sorted(spent.items()):
        role = kind.partition(",")[0]
        found[role] = found.get(role, 0.0) + cpu_us
    return found


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median of the ratios of single turns."""
    return median(one / other if other else float("nan") for one, other in zip(ours, theirs, strict=True))


def report(found: Found, sides: list[str]) -> str:
    """Return a table: the medians of each side with the smallest and largest round, and the ratios of single turns."""
    pair = len(sides) > 1
    lines = [f"ratio: {sides[0]} to {sides[1]}, median of single turns"] if pair else []
    for title in dict.fromkeys(name for name, _ in found):
        rows = {measure: of for (name, measure), of in found.items() if name == title}
        lines.append(ALL[title].title)
        for measure, of in rows.items():
            cells = [f"{side} {spread(of[side])}" for side in sides]
            if pair:
                cells.append(f"ratio {number(ratio(of[sides[0]], of[sides[1]]))}")
            if BARE in of:
                beside = ", ".join(number(ratio(of[side], of[BARE])) for side in sides)
                cells.append(f"{BARE} {spread(of[BARE])}, beside it {beside}")
            lines.append(f"  {measure:<22}" + "; ".join(cells))
    return "\n".join(lines)


def thread_lines(spent: Mapping[tuple[str, str], list[Spent]]) -> str:
    """Return the cost of each kind of thread."""
    lines = []
    for (name, side), rounds in spent.items():
        lines.append(f"{ALL[name].title}, {side}")
        for kind in sorted({kind for one in rounds for kind in one}):
            cpu_us = median(one.get(kind, (0.0, 0.0))[0] for one in rounds)
            sleeps = median(one.get(kind, (0.0, 0.0))[1] for one in rounds)
            lines.append(f"  {kind:<32} {cpu_us:7.0f} us of CPU, slept {sleeps:5.2f} times")
    return "\n".join(lines)


def measurable(names: list[str]) -> list[str]:
    """Return the works that this machine can measure, and report the others.

    Raises:
        SystemExit: none of the works can be measured.
    """
    missing = generator.lacking()
    left_out = [name for name in names if missing and ALL[name].load is not None]
    if left_out:
        print(f"left out, because {missing} is missing: {', '.join(left_out)}", flush=True)
    if len(left_out) == len(names):
        raise SystemExit("nothing is left to measure")
    return [name for name in names if name not in left_out]


def main() -> int:
    """Print the cost of a record, and return 0."""
    listing = "\n".join(f"  {name:<12} {work.title}{' (only when named)' if work.bulk else ''}" for name, work in ALL.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.path",
        description=(__doc__ or "").splitlines()[0],
        epilog=f"works:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="WORK", help="works to measure; default: the first eight")
    parser.add_argument("--against", type=a_checkout, default=None, help="another checkout, which runs with this interpreter")
    parser.add_argument("--members", type=int, default=3, choices=range(1, 8), metavar="1..7", help="gateways of a group (3)")
    parser.add_argument("--rounds", type=count, default=3, help="rounds (3); medians count")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, as a trial of the benchmark")
    parser.add_argument("--bare", action="store_true", help="measure the machine's yardsticks in turns with the groups")
    parser.add_argument("--threads", action="store_true", help="print the cost of each kind of thread too")
    add_places(parser, kept="write all figures to this file too")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in ALL]
    if unknown:
        parser.error(f"unknown work {unknown[0]!r}: the works are {', '.join(ALL)}")
    names = measurable(arguments.names or [name for name, work in ALL.items() if not work.bulk])
    checkouts = {OURS: HERE} | ({str(arguments.against): arguments.against.resolve()} if arguments.against else {})
    print(about(), flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tutti-path-", dir=arguments.directory) as scratch, ExitStack() as opened:
        turns = _started(arguments, names, checkouts, Path(scratch), opened)
        for round_number in range(1, arguments.rounds + 1):
            for name in names:
                turns.take(name, max(FLIGHT, ALL[name].records // (_QUICK if arguments.quick else 1)))
            print(f"round {round_number} of {arguments.rounds}: {time.monotonic() - begin:.0f} s", flush=True)
    print(report(turns.found, list(checkouts)))
    if arguments.threads:
        print(thread_lines(turns.spent))
    for side, least in turns.alone().items():
        print(f"{side}: at least {100 * least:.1f} % of the load generator's frames took the shortest way through the gateway")
    foreign = f"foreign CPU {median(turns.foreign):.2f} (at most {max(turns.foreign):.2f})"
    print(f"path: {len(names)} works, {arguments.rounds} rounds, {time.monotonic() - begin:.0f} s, {foreign}")
    if arguments.json:
        found = [{"work": work, "measure": measure, "rounds": of} for (work, measure), of in turns.found.items()]
        arguments.json.write_text(
            json.dumps({"kind": "path", **header("benchmarks.path", turns.foreign), "found": found}, indent=1)
        )
    return 0


def _started(
    arguments: argparse.Namespace, names: list[str], checkouts: Mapping[str, Path], scratch: Path, opened: ExitStack
) -> Turns:
    """Start the groups, and the processes of the yardsticks."""
    prepared = _BULK_SEGMENTS if any(ALL[name].bulk for name in names) else 2
    groups = {
        side: opened.enter_context(serving(checkout, arguments.members, prepared, scratch)) for side, checkout in checkouts.items()
    }
    bare = Bare(opened.enter_context(fan_out(scratch, arguments.members, 512 * MIB)), scratch) if arguments.bare else None
    for group in groups.values():
        group.wait_ready()
    return Turns(groups, bare)


if __name__ == "__main__":
    run_command(main)
