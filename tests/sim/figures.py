"""Figures of the group, as Markdown: `python -m tests.sim.figures [--quick] [--only traffic|pauses|steps] [--against CHECKOUT]`.

Messages per decided frame, pauses of ordering at every change of the group, and what a step costs. The first two are virtual and
the same on every machine; the last is measured. The last line sums up.
"""

from __future__ import annotations

import argparse

from tests.sim import traffic


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.figures", description="Figures of the group, as Markdown tables.")
    parser.add_argument("--quick", action="store_true", help="few runs, small groups, a short log to learn")
    arguments = parser.parse_args()
    for one in traffic.table((1, 3, 5) if arguments.quick else (1, 3, 5, 7, 25), 300 if arguments.quick else 2000):
        print(
            one.members,
            one.through,
            one.load.name,
            *(f"{kind} {one.each(kind):.3f}" for kind in traffic.KINDS),
            f"all {one.all:.3f} law {one.law:.3f}",
            f"{one.heartbeats:.0f}",
            one.frames,
            f"{one.seconds:.2f}",
            one.sent,
        )


if __name__ == "__main__":
    main()
