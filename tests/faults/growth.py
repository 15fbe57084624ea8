"""Grows a real group of one under load to three and five, with its log: `python -m tests.faults.growth [--to 3 5] [--log-s 10]`.

Each new gateway learns the log, gets its vote and is in the view before the next one comes; the coordinator is killed at each of
the sizes. What clients were told is held against the logs of all. Ends with one line of figures; exit 1 when anything was lost,
doubled or reordered, a gateway did not get its vote, or a producer did not go on.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.faults.group.trial import NS, RATE, Report, Trial, table
from tutti_gateway.cli.group.dev import GATEWAYS_MAX

KILL = "kill-coordinator"


def grown(
    root: Path,
    seed: int,
    sizes: Sequence[int],
    log_s: float,
    *,
    log: Callable[[str], None] = lambda _: None,
    rate: float = RATE,
    keys: bool = False,
) -> Report:
    """One trial: the group of one takes records for `log_s` seconds, then grows to each of the sizes."""
    trial = Trial(root, seed, members=sizes[-1], founders=1, log=log, rate=rate, keys=keys)
    return trial.run(course(trial, sizes, log_s), together=1.0)


def course(trial: Trial, sizes: Sequence[int], log_s: float) -> Iterator[str]:
    """What happens, one after another."""
    trial.wait(log_s)
    for size in sizes:
        while len(trial.lab.names) < size:
            yield "grow"
        yield KILL


def figures(report: Report) -> str:
    """How long each gateway took until it voted, and for how long there was no receipt meanwhile."""
    joined = [one for one in report.done if one.kind == "grow"]
    took = ", ".join(f"{(one.ended - one.begun) / NS:.1f}" for one in joined)
    return f"started to voting {took} s, longest time without a receipt {1000 * max(one.gap_s for one in joined):.0f} ms"


def main() -> int:
    """As the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.growth", description=__doc__)
    parser.add_argument("--to", type=int, nargs="+", default=[3, 5], help="the sizes, one after another")
    parser.add_argument(
        "--log-s", type=float, default=10.0, help="seconds for which the group of one receives records before it grows"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=RATE, help="records a second of each producer")
    parser.add_argument("--keys", action="store_true", help="encrypt the connections between the gateways")
    parser.add_argument("--keep", action="store_true", help="keep the directory even without findings")
    options = parser.parse_args()
    if max(options.to) > GATEWAYS_MAX:
        parser.error(f"sizes are {GATEWAYS_MAX} at most, as all are on this machine")
    if min(options.to) < 2 or sorted(set(options.to)) != options.to:
        parser.error("sizes are two or more, each larger than the one before")
    root = Path(tempfile.mkdtemp(prefix="tutti-growth-"))
    report = grown(root, options.seed, options.to, options.log_s, log=print, rate=options.rate, keys=options.keys)
    print(report.line())
    if report.findings:
        print("\n".join(report.findings))
        print(f"growth: FAILED with seed {options.seed}; everything is in {root}")
        return 1
    print(table(report.done))
    if options.keep:
        print(f"kept: {root}")
    else:
        shutil.rmtree(root)
    sizes = " to ".join(map(str, [1, *options.to]))
    print(f"growth: {sizes}, {report.acknowledged} records, {figures(report)}; nothing lost, doubled or reordered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
