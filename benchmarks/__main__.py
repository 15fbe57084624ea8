"""`python -m benchmarks [NAME ...]`: run benchmarks, print figures with their targets; a missed one is said."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks.arguments import add_places, count, run_command
from benchmarks.figures import Figure, foreign_load
from benchmarks.kept import about, kept_figures
from benchmarks.registry import BENCHMARKS


def main() -> int:
    """Run what was asked for; 0 however the figures are."""
    listing = "\n".join(f"  {name:<10} {benchmark.about}" for name, benchmark in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", epilog=f"benchmarks:\n{listing}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all when left out")
    parser.add_argument("--quick", action="store_true", help="smaller volumes and one round")
    parser.add_argument("--rounds", type=count, default=None, help="rounds of each figure (3; 1 with --quick); the median counts")
    add_places(parser, kept="write the figures to this file too")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}: the benchmarks are {', '.join(BENCHMARKS)}")
    times = arguments.rounds or (1 if arguments.quick else 3)
    print(about(), flush=True)
    figures: list[Figure] = []
    foreign: list[float] = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tutti-bench-", dir=arguments.directory) as directory:
        for name in arguments.names or BENCHMARKS:
            with foreign_load(foreign):
                found = BENCHMARKS[name].run(Path(directory), times, arguments.quick)
            for result in found:
                print(result.line(), flush=True)
                figures.append(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(kept_figures("benchmarks", foreign, figures), indent=1))
    asked = [result for result in figures if result.target is not None]
    missed = [result.name for result in asked if not result.reached]
    text = f"benchmarks: {len(asked) - len(missed)} of {len(asked)} targets reached in {time.monotonic() - start:.0f} s"
    print(text + (f"; fell short: {', '.join(missed)}" if missed else ""))
    return 0


if __name__ == "__main__":
    run_command(main)
