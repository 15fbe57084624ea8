"""Every kind of fault mixed, on a real group under load: `python -m tests.faults.soak --minutes M [--seed S] [--members N]`.

Trials of some minutes, each with its own seed, group and clients, until the time is over; every fourth one is a gateway alone that
is killed at random moments (`tests/faults/crash`). For half of the seeds, the segments of the log start small and double in size.
Prints each trial, then the faults by kind with the longest gaps between receipts, and one line of figures. Exit 1 when anything was
found: the directory of that trial is kept, and the same seed chooses the same faults again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from tests.faults.crash.run import crash_run
from tests.faults.group.faults import FAULTS
from tests.faults.group.trial import Done, Report, Trial, table

TRIAL_S = 150.0
KILLS = 12
ALONE_EVERY = 4
TWICE = 0.25  # how often a second fault happens in the middle of one
DEEP = 3  # how many times a kind is put into the bag of which faults are drawn without laying back


def mixed(seed: int, seconds: float, kinds: Sequence[str]) -> Iterator[str]:
    """Kinds of faults in an order that the seed gives, every kind about as often as any other, until the time is over."""
    chance, deadline = Random(seed), time.monotonic() + seconds
    bag: list[str] = []
    while time.monotonic() < deadline:
        if not bag:
            bag = list(kinds) * DEEP
            chance.shuffle(bag)
        yield bag.pop()


def grows(seed: int) -> bool:
    """True if a trial with this seed has segments that start small and double in size."""
    return Random(f"growing {seed}").random() < 0.5


def group_trial(seed: int, seconds: float, kinds: Sequence[str], options: argparse.Namespace) -> tuple[Report, Path]:
    """One trial of a group as the command line says; what it found, and its directory."""
    root = Path(tempfile.mkdtemp(prefix="tutti-soak-"))
    how = {name: getattr(options, name) for name in ("members", "record", "transport", "keys", "retention")}
    trial = Trial(root, seed, log=(lambda _: None) if options.quiet else print, growing=grows(seed), **how)
    return trial.run(mixed(seed, seconds, kinds), twice=TWICE), root


def alone_trial(seed: int) -> tuple[list[str], str, Path]:
    """One gateway alone, killed under load, ordered and unordered; what was found, what to say of it, and its directory."""
    root = Path(tempfile.mkdtemp(prefix="tutti-soak-"))
    report = crash_run(root, seed, KILLS, growing=grows(seed))
    return report.findings, f"one gateway: {report.line()}", root


def main() -> int:
    """As the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS), default=list(FAULTS), help="only these kinds")
    parser.add_argument("--keep", action="store_true", help="keep the directories of trials without findings too")
    parser.add_argument("--quiet", action="store_true", help="do not print each fault")
    parser.add_argument("--record", action="store_true", help="let the gateways record their runs, for a search for the cause")
    parser.add_argument("--transport", choices=["mesh", "multicast"], default="mesh", help="between the gateways")
    parser.add_argument("--keys", action="store_true", help="encrypt the connections between the gateways")
    parser.add_argument("--retention", action="store_true", help="retain only a short log, so that its start advances")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    done: list[Done] = []
    trials = records = acknowledged = aborted = beside = 0
    seed = options.seed
    while trials == 0 or time.monotonic() < deadline:
        if trials % ALONE_EVERY == ALONE_EVERY - 1 and options.faults == list(FAULTS):
            findings, told, root = alone_trial(seed)
        else:
            seconds = min(TRIAL_S, max(10.0, deadline - time.monotonic()))
            report, root = group_trial(seed, seconds, options.faults, options)
            findings, told = report.findings, report.line()
            done += report.done
            beside += report.beside
            records, acknowledged, aborted = (
                records + report.records,
                acknowledged + report.acknowledged,
                aborted + report.aborted,
            )
        print(told + ", growing segments" * grows(seed), flush=True)
        trials += 1
        if findings:
            print(table(done))
            print("\n".join(findings))
            print(f"soak: FAILED with seed {seed} after {len(done)} faults in {trials} trials; everything is in {root}")
            return 1
        if options.keep:
            print(f"kept: {root}")
        else:
            shutil.rmtree(root)
        seed += 1
    print(table(done))
    print(
        f"soak: {len(done)} faults in {trials} trials, {records} records, {acknowledged} acknowledged, {aborted} aborted, "
        f"{beside} unordered records acknowledged, "
        "0 lost, doubled or reordered"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
