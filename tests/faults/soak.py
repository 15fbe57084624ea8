"""Kills a real gateway under load for as long as it is told to: `python -m tests.faults.soak --minutes M [--seed S] [--keep DIR]`.

Runs of a dozen kills each, each with its own seed, directory and producers, until the time is over and at least fifty kills were
done. Ends with one line of figures; exit 1 when anything was found, and the directory of that run is kept.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.crash.run import crash_run

KILLS_A_RUN = 12
KILLS_MIN = 50


def main() -> int:
    """As the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--producers", type=int, default=2)
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    runs = kills = records = acknowledged = 0
    seed = options.seed
    while time.monotonic() < deadline or kills < KILLS_MIN:
        root = Path(tempfile.mkdtemp(prefix="tutti-soak-"))
        report = crash_run(root, seed, KILLS_A_RUN, producers=options.producers)
        print(report.line(), flush=True)
        runs += 1
        kills += report.kills
        records += report.records
        acknowledged += report.acknowledged
        if report.findings:
            print("\n".join(report.findings))
            print(f"soak: FAILED with seed {seed} after {kills} kills in {runs} runs; everything is in {root}")
            return 1
        shutil.rmtree(root)
        seed += 1
    print(f"soak: {kills} kills in {runs} runs, {records} records, {acknowledged} acknowledged, every promise kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
