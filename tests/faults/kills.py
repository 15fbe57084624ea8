"""Kills the coordinator of a real group under load, again and again: `python -m tests.faults.kills --kills 100 [--members 3]`.

Each time the next in succession takes over while producers go on; the killed one is started again and the group is whole before the
next kill. With `--silent` its wire is taken out for some seconds instead: it is missed, and nobody is told. Ends with one line of
figures: the longest gaps between receipts. Exit 1 when anything was lost, doubled or reordered, a producer did not go on, or there
was no receipt at all for longer than `--gap` seconds.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import count
from tests.faults.group.trial import Report, Trial

GAP_S, SILENT_GAP_S = 1.0, 3.0


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def figures(report: Report) -> str:
    """The gaps of all producers together, and of the one that had the longest, which is often its own pause: bursts of 20 records
    come seconds apart at a low rate. And what there was when nobody was killed.
    """
    told = []
    for name, gaps in (
        ("gap", [one.gap_s for one in report.done]),
        ("of one producer, its own pauses between bursts included", [one.worst_gap_s for one in report.done]),
    ):
        median, most = statistics.median(gaps), max(gaps)
        told.append(f"{name} {1000 * median:.0f} / {1000 * percentile(gaps, 0.99):.0f} / {1000 * most:.0f} ms")
    told.append(f"between kills {1000 * report.calm_gap_s:.0f} ms at most")
    return f"between receipts (median / p99 / longest): {', '.join(told)}"


def main() -> int:
    """As the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills", description=__doc__)
    parser.add_argument("--kills", type=count, default=100, help="how often the coordinator is killed (100)")
    parser.add_argument("--members", type=count, default=3, help="gateways of the group (3)")
    parser.add_argument("--seed", type=int, default=1, help="determines the times of the kills (1)")
    parser.add_argument("--rate", type=float, default=150.0, help="records a second of each producer")
    parser.add_argument(
        "--silent", action="store_true", help="unplug its network instead, so that no peer sees a closed connection"
    )
    parser.add_argument(
        "--gap",
        type=float,
        default=None,
        help=f"longest allowed time without any receipt, seconds ({GAP_S}, --silent {SILENT_GAP_S})",
    )
    parser.add_argument("--keep", action="store_true", help="keep the directory even without findings")
    parser.add_argument("--record", action="store_true", help="let the gateways record their runs, for a search for the cause")
    options = parser.parse_args()
    kind, too_long = ("unplug-coordinator", SILENT_GAP_S) if options.silent else ("kill-coordinator", GAP_S)
    too_long = too_long if options.gap is None else options.gap
    root = Path(tempfile.mkdtemp(prefix="tutti-kills-"))
    trial = Trial(root, options.seed, members=options.members, rate=options.rate, log=print, record=options.record, lanes=False)
    report = trial.run([kind] * options.kills, together=1.0)
    long = [one for one in report.done if one.gap_s > too_long]
    print(report.line())
    if not report.done:
        print(f"kills: FAILED before the first kill: {'; '.join(report.findings)}; everything is in {root}")
        return 1
    what = "times the coordinator's network unplugged, of" if options.silent else "kills of the coordinator of"
    line = f"{len(report.done)} {what} {options.members}, {report.acknowledged} records, {figures(report)}"
    if report.findings or long:
        print("\n".join(report.findings))
        print(f"kills: FAILED with seed {options.seed}: {line}; {len(long)} longer than {too_long} s; everything is in {root}")
        return 1
    if options.keep:
        print(f"kept: {root}")
    else:
        shutil.rmtree(root)
    print(f"kills: {line}; nothing lost, doubled or reordered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
