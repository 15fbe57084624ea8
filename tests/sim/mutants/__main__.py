"""`python -m tests.sim.mutants`: shows that the simulator finds every mutant, with the seeds that it took.

The last line gives how many were found; the exit code is 1 when one was not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.sim.mutants.catalogue import MUTANTS, by_name
from tests.sim.mutants.hunt import Catch, hunt_by_name


def main() -> int:
    """Hunt what the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description="Break the protocol, and look who notices.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mutant, or those that begin so")
    parser.add_argument("--seconds-each", type=float, default=60.0, help="of CPU for one mutant")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--long", action="store_true", help="tell violations whole")
    arguments = parser.parse_args()
    wanted = [one for one in MUTANTS if not arguments.only or any(one.name.startswith(name) for name in arguments.only)]
    if not wanted or not 0 < arguments.seconds_each < 1e9 or arguments.jobs < 1:
        known = ", ".join(mutant.name for mutant in MUTANTS)
        parser.error(f"one mutant, one job and some time are needed at least; the mutants are {known}")
    names = [mutant.name for mutant in wanted]
    context = multiprocessing.get_context("spawn")
    # A process for each mutant: what one leaves behind is nobody's.
    with ProcessPoolExecutor(arguments.jobs, context, max_tasks_per_child=1) as pool:
        catches = []
        for catch in pool.map(hunt_by_name, names, [arguments.seconds_each] * len(names), [arguments.seed] * len(names)):
            catches.append(catch)
            _tell(catch, arguments.long)
    return _summary(catches)


def _tell(catch: Catch, long: bool) -> None:
    mutant = by_name(catch.name)
    told = catch.violation or catch.why or "nothing was seen"
    if not catch.found:
        told = f"NOT FOUND: {told}; {catch.failed} runs failed otherwise"
    seeds = f"{catch.seeds:>5}" if not mutant.proof else " test"
    print(f"{mutant.name:36} {mutant.section:8} {seeds} seeds {catch.cpu_s:6.1f} s  {mutant.rule}")
    print(f"{'':36} {told if long else told[:160]}", flush=True)


def _summary(catches: Sequence[Catch]) -> int:
    missed = [catch.name for catch in catches if not catch.found]
    if missed:
        print(f"not found: {', '.join(missed)}")
    seeds = sorted(catch.seeds for catch in catches if catch.found and catch.seeds)
    typical = seeds[len(seeds) // 2] if seeds else 0
    print(
        f"mutants: {len(catches) - len(missed)} of {len(catches)} found, {typical} seeds typically, "
        f"{max(seeds, default=0)} at most, "
        f"{sum(catch.cpu_s for catch in catches):.0f} CPU s"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
