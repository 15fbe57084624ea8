"""`python -m benchmarks.laws [NAME ...]`: how cost grows, with the machine's own limits measured beside it; tables and a JSON."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.arguments import add_places, amount, count, run_command
from benchmarks.figures import Figure, foreign_load
from benchmarks.kept import about, header, refuse_without_room
from benchmarks.laws.law import Asked, Bench
from benchmarks.laws.names import LAWS
from benchmarks.load.generator import lacking
from benchmarks.pages import Found, by_place
from benchmarks.peers.side import MACHINE
from benchmarks.registry import BENCHMARKS

SPARK = {"spark-batch": "spark", "spark-stream": "sustained", "spark-latency": "streaming"}  # benchmarks that are taken along


class Run:
    """What was found so far, in the shape that is kept."""

    def __init__(self, directory: Path, asked: Asked, rounds: int) -> None:
        """Nothing is measured yet."""
        self._directory, self._asked, self._rounds = directory, asked, rounds
        self._foreign: list[float] = []
        self._machine: Found = {name: {MACHINE: []} for name in machine.MEASURES}
        self._laws: dict[str, Found] = {}
        self._figures: list[Figure] = []

    def measure(self, name: str) -> None:
        """One law, or what Spark does; the machine's limits just before."""
        begin = time.monotonic()
        print(f"{name} ...", flush=True)
        if name == "producers" and lacking():
            print(f"{name}: without the columns of the C load, because {lacking()} is missing", flush=True)
        for what, value in machine.one_round(self._directory).items():
            self._machine[what][MACHINE].append(value)
        with foreign_load(self._foreign):
            self._law(name) if name in LAWS else self._spark(name)
        print(f"{name}: {time.monotonic() - begin:.0f} s, foreign CPU {self._foreign[-1]:.2f}\n", flush=True)

    def _law(self, name: str) -> None:
        law = LAWS[name]
        bench = Bench(self._directory, self._asked, law.measures)
        for _ in range(1 if law.once else self._rounds):
            law.round(bench)
        self._laws[name] = bench.found
        print(f"{law.title}\n{by_place(law.along, bench.found, law.measures)}", flush=True)

    def _spark(self, name: str) -> None:
        for figure in BENCHMARKS[SPARK[name]].run(self._directory, self._rounds, self._asked.quick):
            self._figures.append(figure)
            print(figure.line(), flush=True)

    def as_json(self) -> dict[str, Any]:
        """All rounds."""
        return {
            "kind": "laws",
            **header("benchmarks.laws", self._foreign),
            "asked": self._asked._asdict(),
            "machine_limits": self._machine,
            "laws": self._laws,
            "figures": [one._asdict() for one in self._figures],
        }


def main() -> int:
    """Run what was asked for; 0 however the figures are, 2 for what cannot be asked."""
    names = [*LAWS, *SPARK]
    told = {name: law.title for name, law in LAWS.items()} | {name: BENCHMARKS[of].about for name, of in SPARK.items()}
    listing = "\n".join(f"  {name:<14} {about_it}" for name, about_it in told.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.laws",
        description=(__doc__ or "").splitlines()[0],
        epilog=f"laws, and what Spark does:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all when left out")
    parser.add_argument("--quick", action="store_true", help="small sizes, and one round, to see that it works")
    parser.add_argument("--rounds", type=count, default=None, help="rounds (3; 1 with --quick); medians count")
    parser.add_argument("--log-gb", type=amount, default=None, help="how large a log grows, GB (10; 0.5 with --quick)")
    parser.add_argument("--hours", type=amount, default=None, help="of the load that goes on (0.05; 0.01 with --quick)")
    parser.add_argument("--sustained-gb", type=amount, default=None, help="written in one go, GB (10; 1 with --quick)")
    add_places(parser, kept="write all figures to this file too, after each law")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in names]
    if unknown:
        parser.error(f"unknown law {unknown[0]!r}: the laws are {', '.join(names)}")
    quick = arguments.quick
    sizes = [
        given if given is not None else few if quick else many
        for given, few, many in ((arguments.log_gb, 0.5, 10.0), (arguments.hours, 0.01, 0.05), (arguments.sustained_gb, 1.0, 10.0))
    ]
    return _run(arguments.names or names, Asked(quick, *sizes), arguments.rounds or (1 if quick else 3), arguments)


def _run(names: list[str], asked: Asked, times: int, arguments: argparse.Namespace) -> int:
    print(about(), flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tutti-laws-", dir=arguments.directory) as scratch:
        for name in names:
            if name in LAWS:
                refuse_without_room(Path(scratch), int(LAWS[name].bytes_wanted(asked)), name)
        run = Run(Path(scratch), asked, times)
        for name in names:
            run.measure(name)
            if arguments.json:
                arguments.json.write_text(json.dumps(run.as_json(), indent=1))
    print(f"laws: {len(names)} in {time.monotonic() - begin:.0f} s" + (f", kept in {arguments.json}" if arguments.json else ""))
    return 0


if __name__ == "__main__":
    run_command(main)
