"""Figures of the group, as Markdown: `python -m tests.sim.figures [--quick] [--only traffic|pauses|steps] [--against CHECKOUT]`.

Messages per decided frame, pauses of ordering at every change of the group, and what a step costs. The first two are virtual and
the same on every machine; the last is measured here, and compared with another checkout's if one is named. The last line sums up.
Five minutes of CPU, half a minute with --quick.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from tests.sim import pauses, steps, traffic
from tests.sim.load import LAN_US, SYNC_US, WAN_US
from tests.sim.schedule import MS, SECOND
from tutti_gateway.core.limits import HEARTBEAT_US

SIZES, SIZES_QUICK = (1, 3, 5, 7, 25), (1, 3, 5)
FRAMES, FRAMES_QUICK = 2000, 300  # of each load
RUNS, RUNS_QUICK = 20, 3  # of each change of the group
LEARNED, LEARNED_QUICK = 50_000, 5_000
ROUNDS, PAIRS, STEP_FRAMES = 60, 7, 640  # short rounds: one of them is left alone by the rest of the machine
NAMES = {LAN_US: "LAN", WAN_US: "WAN"}


def main() -> int:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.figures", description="Figures of the group, as Markdown tables.")
    parser.add_argument("--quick", action="store_true", help="few runs, small groups, a short log to learn")
    parser.add_argument("--only", choices=("traffic", "pauses", "steps"), help="this part alone")
    parser.add_argument("--against", type=Path, help="another checkout, whose group of one is measured too")
    arguments = parser.parse_args()
    quick, sums = arguments.quick, []
    if arguments.only in (None, "traffic"):
        sums.append(_traffic(SIZES_QUICK if quick else SIZES, FRAMES_QUICK if quick else FRAMES))
    if arguments.only in (None, "pauses"):
        sums.append(_pauses(RUNS_QUICK if quick else RUNS, LEARNED_QUICK if quick else LEARNED))
    if arguments.only in (None, "steps"):
        sums.append(_steps(9 if quick else ROUNDS, 2 if quick else PAIRS, arguments.against))
    print(f"figures: {'; '.join(sums)}")
    return 0


def _traffic(sizes: Sequence[int], frames: int) -> str:
    """Messages for each decided frame."""
    print("### Messages between members for each decided frame\n")
    print(
        f"A steady load on {LAN_US / MS:g} ms links, syncs of about {SYNC_US / MS:g} ms. The law: for each submit n - 1 ORDER or"
        " ECHO, n - 1 YES, n - 1 CONFIRM, and a FORWARD from another member; what is in flight together shares YES and CONFIRM.\n"
    )
    _head("members", "load", "through", "FORWARD", "ORDER", "ECHO", "YES", "CONFIRM", "all", "law")
    alone: dict[int, list[str]] = {}
    for one in traffic.table(sizes, frames):
        _row(
            one.members,
            one.load.name,
            one.through,
            *(f"{one.each(kind):.2f}" for kind in traffic.KINDS),
            f"{one.all:.2f}",
            f"{one.law:.2f}" if one.load.flight == 1 else f"> {one.floor:.2f}",
        )
        if one.load is traffic.LOADS[0]:
            alone.setdefault(one.members, []).append(f"{one.all:.1f}")
    print("\nHeartbeats of all members together, without any load:\n")
    _head("members", "a second")
    for members in sizes:
        _row(members, f"{traffic.heartbeats(members):.0f}")
    print()
    told = ", ".join(f"{members}: {' / '.join(counts)}" for members, counts in alone.items())
    return f"messages a frame, one at a time, at the coordinator / at another member, with {told}"


def _pauses(runs: int, learned: int) -> str:
    """Pauses of ordering."""
    print("### Pauses of ordering\n")
    print(
        f"The longest time between two outcomes of a producer that sends a frame every {pauses.INTERVAL_US / MS:g} ms at a member"
        f" that stays; {runs} runs each, at moments drawn over two heartbeats ({HEARTBEAT_US / MS:g} ms, the unit hb). LAN:"
        f" {LAN_US / MS:g} ms one way, WAN: {WAN_US / MS:g} ms. `change` is from what happens until all who are to be there"
        f" are in one view that decides. All members are down for {pauses.DOWN_US / MS:g} ms when all restart.\n"
    )
    _head("what happens", "members", "links", "median hb", "worst hb", "median ms", "worst ms", "change s", "refusals")
    worst: dict[str, float] = {}
    count = 0
    for figure in pauses.table(runs, learned):
        middle, most = figure.pause(median), figure.pause(max)
        times = [f"{us / HEARTBEAT_US:.1f}" for us in (middle, most)] + [f"{us / MS:.0f}" for us in (middle, most)]
        took = f"{figure.took_us / SECOND:.1f}"
        name = NAMES[figure.latency_us]
        _row(figure.scenario, figure.members, name, *times, took, figure.refused)
        worst[name] = max(worst.get(name, 0.0), most / HEARTBEAT_US)
        count += len(figure.runs)
    print()
    return f"{count} changes, longest pause " + ", ".join(f"{name} {beats:.1f} heartbeats" for name, beats in worst.items())


def _steps(rounds: int, pairs: int, checkout: Path | None) -> str:
    """What a step costs."""
    print("### Cost of a step\n")
    print(
        f"Microseconds in `Stack.step` for each frame of {len(steps.BODY)} bytes, on each member; the best of {rounds} rounds of"
        f" {STEP_FRAMES} frames. The producer is at a member that does not coordinate.\n"
    )
    _head("members", "frames a submit", "coordinator", "origin", "member")
    told = []
    for members in (1, 3):
        for run, roles in steps.measure(members, rounds, STEP_FRAMES).items():
            cells = [f"{roles[role]:.1f}" if role in roles else "" for role in ("coordinator", "origin", "member")]
            _row(members, run, *cells)
            told.append(f"{members} x {run}: {max(roles.values()):.1f}")
    print()
    if checkout is not None:
        print(f"A group of one against another checkout, {pairs} pairs of processes in turns, the best of each:\n")
        _head("frames a submit", "here", "there", "ratio")
        for run, (ours, theirs) in steps.against(checkout, pairs, rounds, STEP_FRAMES).items():
            _row(run, f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.2f}")
            told.append(f"{ours / theirs:.2f} of the other checkout with runs of {run}")
        print()
    return "us a frame on the busiest member (members x frames a submit) " + ", ".join(told)


def _head(*names: str) -> None:
    _row(*names)
    _row(*["---"] * len(names))


def _row(*cells: object) -> None:
    print("|", " | ".join(_cells(cells)), "|", flush=True)


def _cells(cells: Iterable[object]) -> list[str]:
    return [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells]


if __name__ == "__main__":
    sys.exit(main())
