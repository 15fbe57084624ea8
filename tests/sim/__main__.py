"""The simulator: `python -m tests.sim --seconds 60 --seed 1` runs seeds from 1 on for a minute of CPU.

`--seed N` without `--seconds` runs that one seed, prints what happened last when it fails, and shrinks it. The last line gives
seeds, simulated hours, decided frames, violations, and frames and simulated hours per CPU time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace

from tests.sim.fast_paths import compared
from tests.sim.mixes import MIXES, SHARE, mix_of
from tests.sim.options import FAULTS, Options
from tests.sim.run import Result, play
from tests.sim.shrink import shrink
from tests.sim.swarm import drawn
from tests.sim.transcript import transcript

SWARM = "swarm"


class Totals:
    """What several runs came to, without their worlds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._failing: list[str] = []
        self._seeds = self._frames = 0
        self._simulated_s = self._cpu_s = 0.0

    def add(self, result: Result) -> None:
        """One more run."""
        world = result.world
        self.counts += world.counts + world.log.kinds + Counter({f"fault {kind}": count for kind, count in world.faults.items()})
        self._seeds += 1
        self._frames += result.frames
        self._simulated_s += result.simulated_s
        self._cpu_s += result.cpu_s
        if result.violation:
            mix = f", mix {result.options.mix}" if result.options.mix else ""
            self._failing.append(f"  seed {result.options.seed}{mix}: {result.violation[:150]}")

    def told(self) -> int:
        """Print the last line, the seeds that failed before it; the exit code."""
        for line in self._failing:
            print(line)
        cpu_s = max(self._cpu_s, 1e-9)
        print(
            f"sim: {self._seeds} seeds, {self._simulated_s / 3600:.2f} simulated hours, {self._frames} decided frames, "
            f"{len(self._failing)} violations; {self._frames / cpu_s:.0f} frames and {self._simulated_s / cpu_s:.0f} simulated "
            "seconds a CPU second"
        )
        return 1 if self._failing else 0


def main() -> int:
    """Run what the arguments say; the exit code is 1 when something that may never happen did."""
    arguments = _arguments()
    run = compared if arguments.compare else play
    if arguments.seconds is None:
        result = run(_options(arguments, arguments.seed))
        if result.violation and arguments.shrink:
            result = shrink(result)
        _tell(result, arguments.lines, arguments.verbose)
        totals = Totals()
        totals.add(result)
        return totals.told()
    totals = Totals()
    began = time.process_time()
    seed = arguments.seed
    try:
        while time.process_time() - began < arguments.seconds:
            result = run(_options(arguments, seed))
            if result.violation:
                small = shrink(result) if arguments.shrink else result
                _tell(small, arguments.lines, arguments.verbose)
            totals.add(result)
            seed += 1
    except KeyboardInterrupt:
        print(f"interrupted at seed {seed}")
    if arguments.verbose:
        print(", ".join(f"{name} {count}" for name, count in sorted(totals.counts.items())))
    return totals.told()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim",
        description="Run the real stack through seeded faults.",
        epilog="\n".join(
            [
                "kinds of faults:",
                *(f"  {name:<10} {what}" for name, what in FAULTS.items()),
                "\nmixes of faults:",
                *(f"  {mix.name:<21} {mix.what}" for mix in MIXES.values()),
            ]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seconds", type=_positive, help="of CPU, one seed after the other; without it: this seed alone")
    parser.add_argument(
        "--members", type=int, default=0, choices=range(10), metavar="0..9", help="of the group; as the seed says when it is 0"
    )
    parser.add_argument("--minutes", type=_positive, help="virtual ones with faults")
    parser.add_argument(
        "--mix",
        choices=(*MIXES, SWARM),
        metavar="MIX",
        help=f"a mix of faults (see below), or {SWARM}: the seed draws each kind by itself. By default a single seed is of the "
        f"{SWARM}, and with --seconds {100 * SHARE:.0f} of 100 seeds are of a mix",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=FAULTS,
        metavar="FAULT",
        help="leave out a kind of fault (see below); may be given again",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=(*FAULTS, "none"),
        metavar="FAULT",
        help="take this kind and no others, or none; likewise",
    )
    parser.add_argument("--producers", type=_count, help="how many")
    parser.add_argument("--readers", type=_count, help="how many")
    parser.add_argument("--unordered", type=_count, help="producers that send into lanes")
    parser.add_argument("--stagers", type=_count, help="producers that stage batches for transactions")
    parser.add_argument("--committers", type=_count, help="producers that make them visible")
    parser.add_argument("--pipeline", type=_count, help="batches of a producer at a time")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="run each seed without fast paths of the core too, and compare all events and actions",
    )
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="tell a failing run as it is")
    parser.add_argument("--lines", type=int, default=60, help="of the transcript")
    parser.add_argument("--verbose", action="store_true", help="tell every run, and heartbeats in transcripts")
    arguments = parser.parse_args()
    arguments.shrink = arguments.shrink and not arguments.compare  # a smaller run would show another violation
    return arguments


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a duration above zero")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative, but this option takes a number from 0 on")
    return number


def _options(arguments: argparse.Namespace, seed: int) -> Options:
    mix = "" if arguments.mix == SWARM else arguments.mix
    if mix is None:
        mix = mix_of(seed) if arguments.seconds is not None else ""
    options = drawn(seed, arguments.members, mix)
    faults = frozenset(arguments.only) - {"none"} if arguments.only else options.faults - set(arguments.without)
    options = replace(options, faults=faults)
    if arguments.minutes is not None:
        options = replace(options, seconds=60 * arguments.minutes)
    for name in ("producers", "readers", "unordered", "stagers", "committers", "pipeline"):
        if getattr(arguments, name) is not None:
            options = replace(options, **{name: getattr(arguments, name)})
    return options


def _tell(result: Result, lines: int, verbose: bool) -> None:
    options = result.options
    if result.violation:
        print("\n".join(transcript(result.world, lines, heartbeats=verbose)))
        print(f"\nviolation: {result.violation}")
        print(f"again: {options.command(drawn(options.seed, mix=options.mix))}")
    if verbose:
        print(f"{options}\n{result.frames} frames, {result.simulated_s:.0f} s in {result.cpu_s:.1f} s, {result.world.steps} steps")


if __name__ == "__main__":
    sys.exit(main())
