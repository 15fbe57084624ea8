"""`python -m benchmarks.guard`: whether something got slower: ratios to this machine's limits beside the last recorded ones.

Some short rounds, in each of which the limits and a group of three take turns, so that both see the same of what else the machine
does. A ratio has moved when its median differs from the recorded one by more than the spread of the rounds lets a median differ,
and got worse when it does so by a fifth more. The exit code is 1 then, and 3 where a ratio is too noisy to tell. `--record` keeps
what was measured as what the next run is compared with, unless it is that noisy itself.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.arguments import add_places, run_command
from benchmarks.fanout import FanOut, fan_out
from benchmarks.figures import descendants, foreign_load, number, percentile
from benchmarks.fleet import Measured, coordinator_of, gateways
from benchmarks.ingest import _one_at_a_time, _send
from benchmarks.kept import about, header, refuse_without_room
from benchmarks.machine import KIB, MIB, SEGMENT, loop_ns, round_trip_us, sync_us
from benchmarks.pages import Measure, spread
from benchmarks.path.served import spent
from benchmarks.peers.ours import _in_flight
from benchmarks.peers.work import FLIGHT
from tutti import Producer

RECORDED = Path(__file__).resolve().parent / "recorded.json"
ROUNDS = 24
WORSE = 0.2
_NOISY = "too noisy to tell"
FOREIGN_MAX = 0.1  # load of other programs, in processors, above which recorded ratios are too inaccurate
_MEMBERS = 3
_LARGE_BYTES, _SMALL_COUNT, _UNDER_WAY, _SINGLE = 64 * MIB, 200_000, 10_000, 300
_PATH_TURNS = 50_000  # turns of a loop that take about as long as the Python code for one record that is sent alone
_A_ROUND_BYTES = _LARGE_BYTES + 2 * 100 * _SMALL_COUNT
_SEGMENTS = ROUNDS * _A_ROUND_BYTES // SEGMENT + 3

RATIOS = {
    "1 KB, share of the bare fan-out": Measure("", "more"),
    "100 B, records in 1,000 turns of a loop": Measure("", "more"),
    "200 under way, records in 1,000 turns": Measure("", "more"),
    "one at a time p50, times sync, round trips and turns": Measure("", "less"),
    "CPU of a record one at a time, 1,000 turns": Measure("", "less"),
}


class Moved(NamedTuple):
    """A ratio beside the recorded one.

    Attributes:
        name: of it.
        change: by how much it is worse (0.25: a quarter), below zero when better.
        noise: by how much it may change for nothing: two standard errors of a median, as the quartiles tell them, then or now.
    """

    name: str
    change: float
    noise: float

    @property
    def verdict(self) -> str:
        """What it did."""
        if self.change > WORSE + self.noise:
            return "WORSE"
        if self.noise > WORSE:
            return _NOISY
        if abs(self.change) <= self.noise:
            return "as before"
        return "a little worse" if self.change > 0 else "better"


def compare(recorded: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]]) -> list[Moved]:
    """All ratios that both have."""
    found = []
    for name, (_, better) in RATIOS.items():
        if name in recorded and name in now:
            before, after = median(recorded[name]), median(now[name])
            change = after / before - 1 if better == "less" else before / after - 1
            found.append(Moved(name, change, max(_noise(recorded[name]), _noise(now[name]))))
    return found


def _noise(rounds: Sequence[float]) -> float:
    ordered = sorted(rounds)
    quartiles = percentile(ordered, 0.75) - percentile(ordered, 0.25)
    return 2 * 0.93 * quartiles / median(ordered) / sqrt(len(ordered))


def measured(directory: Path, rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The ratios of all rounds, and what they are made of."""
    ratios: dict[str, list[float]] = {name: [] for name in RATIOS}
    plain: dict[str, list[float]] = {}
    with fan_out(directory, _MEMBERS, _LARGE_BYTES + 4 * MIB) as bare, gateways(_MEMBERS, directory, _SEGMENTS) as running:
        for one in running:
            one.wait_prepared(_SEGMENTS)
        for turn in range(rounds + 1):
            of = _round(directory, bare, running)
            if turn == 0:
                continue  # caches and allocators are warm after it
            for name, value in of.items():
                plain.setdefault(name, []).append(value)
            turns = of["a turn of a loop, ns"] * 1e-6  # of 1,000, s
            # A record waits for a sync, for two round trips, and for the Python code on its path. Syncs differ by a factor of three
            # within one run: without the turns, this ratio would measure the disk alone.
            wait_us = of["sync, us"] + 2 * of["round trip, us"] + _PATH_TURNS * of["a turn of a loop, ns"] / 1e3
            values = (
                of["1 KB, MB/s"] / of["bare fan-out, MB/s"],
                of["100 B, k/s"] * 1e3 * turns,
                of["200 under way, k/s"] * 1e3 * turns,
                of["one at a time p50, us"] / wait_us,
                of["CPU of a record, us"] * 1e-6 / turns,
            )
            for name, value in zip(RATIOS, values, strict=True):
                ratios[name].append(value)
    return ratios, plain


def _round(directory: Path, bare: FanOut, running: Sequence[Measured]) -> dict[str, float]:
    """Limits and group in turns: a record alone between two looks at what it is measured by, which changes by the second."""
    found: dict[str, float] = {}
    with Producer(coordinator_of(running).url) as producer:
        producer.send("bench", b"up").result(30)
        found["bare fan-out, MB/s"] = bare.mbs(256 * KIB, _LARGE_BYTES)
        found["1 KB, MB/s"] = _send(producer, os.urandom(1000), _LARGE_BYTES // 1024)
        found["100 B, k/s"] = _send(producer, bytes(100), _SMALL_COUNT) * 10
        found["200 under way, k/s"] = _in_flight([producer], FLIGHT, _UNDER_WAY) / 1e3
        roles = {os.getpid(): "client"}
        for one in running:
            roles |= dict.fromkeys([one.process.pid, *descendants(one.process.pid)], "gateways")
        earlier = _yardsticks(directory)
        before = spent(roles)
        times = sorted(_one_at_a_time(producer, _SINGLE))
        after = spent(roles)
        later = _yardsticks(directory)
    found |= {name: (value + later[name]) / 2 for name, value in earlier.items()}
    cpu_us = sum(us - before.get(kind, (0.0, 0.0))[0] for kind, (us, _) in after.items())
    found["one at a time p50, us"] = percentile(times, 0.5) * 1e3
    found["CPU of a record, us"] = cpu_us / (_SINGLE + 100)  # with those that warm it up
    return found


def _yardsticks(directory: Path) -> dict[str, float]:
    """What a record alone is measured by."""
    return {
        "a turn of a loop, ns": min(loop_ns(300_000) for _ in range(3)),
        "sync, us": sync_us(directory, 200, 150),
        "round trip, us": round_trip_us(600),
    }


def report(recorded: Mapping[str, Any] | None, ratios: Mapping[str, Sequence[float]]) -> tuple[str, int]:
    """A line for each ratio, and the exit code."""
    moved = {one.name: one for one in compare(recorded["ratios"], ratios)} if recorded else {}
    lines = [f"{'':<54}{'this run':<26}{'recorded':<26}worse by" if moved else f"{'':<54}this run"]
    for name, rounds in ratios.items():
        said = f"{name:<54}{spread(rounds):<26}"
        if recorded and name in moved:
            one = moved[name]
            said += f"{spread(recorded['ratios'][name]):<26}{one.change:+.0%} (noise {one.noise:.0%})  {one.verdict}"
        lines.append(said.rstrip())
    lines += [f"{name:<54}{'':<26}{spread(rounds):<26}not measured any more" for name, rounds in _gone(recorded, ratios)]
    verdicts = {one.verdict for one in moved.values()}
    return "\n".join(lines), 1 if "WORSE" in verdicts else 3 if _NOISY in verdicts or _gone(recorded, ratios) else 0


def _gone(recorded: Mapping[str, Any] | None, ratios: Mapping[str, Sequence[float]]) -> list[tuple[str, Sequence[float]]]:
    """Ratios that were recorded and are not there now."""
    return [(name, rounds) for name, rounds in (recorded["ratios"] if recorded else {}).items() if name not in ratios]


def too_noisy(ratios: Mapping[str, Sequence[float]]) -> list[str]:
    """Ratios whose rounds differ so much that nothing is worse than they are."""
    return [f"{name} (noise {_noise(rounds):.0%})" for name, rounds in ratios.items() if _noise(rounds) > WORSE]


def main() -> int:
    """0 when nothing got worse; 1 when something did, 2 when there is nothing to compare with, 3 when it cannot be told."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"keep what is measured in {RECORDED.parent.name}/{RECORDED.name}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, choices=range(3, ROUNDS + 1), metavar=f"3..{ROUNDS}")
    add_places(parser)
    arguments = parser.parse_args()
    recorded = json.loads(RECORDED.read_bytes()) if RECORDED.exists() and not arguments.record else None
    print(about(), flush=True)
    if recorded and recorded["machine"] != about():
        print(f"recorded on another one: {recorded['machine']}; a change may be the machine's", flush=True)
    if recorded and max(recorded["foreign_cpu"]) > FOREIGN_MAX:
        print(f"recorded while others used {max(recorded['foreign_cpu']):.2f} of a processor: record again when it is quiet")
    if recorded and (noisy := too_noisy(recorded["ratios"])):
        print(f"recorded when little could be told of {'; '.join(noisy)}: record again when it is quiet")
    foreign: list[float] = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tutti-guard-", dir=arguments.directory) as scratch, foreign_load(foreign):
        refuse_without_room(Path(scratch), _MEMBERS * _SEGMENTS * SEGMENT, "guard")
        ratios, plain = measured(Path(scratch), arguments.rounds)
    text, code = report(recorded, ratios)
    print(text)
    print("; ".join(f"{name.rpartition(', ')[0]} {number(median(of))} {name.rpartition(', ')[2]}" for name, of in plain.items()))
    print(f"guard: {arguments.rounds} rounds in {time.monotonic() - begin:.0f} s, foreign CPU {foreign[0]:.2f}")
    if foreign[0] > FOREIGN_MAX:
        print(f"others used {foreign[0]:.2f} of a processor meanwhile: what moved may be theirs; run again when it is quiet")
    if arguments.record and (noisy := too_noisy(ratios)):
        print(f"not kept, as nothing could be told from it: {'; '.join(noisy)}. Record when the machine is quiet", file=sys.stderr)
        return 3
    if arguments.record and foreign[0] > FOREIGN_MAX:
        print(f"not kept, because others used {foreign[0]:.2f} of a processor. Record when the machine is quiet", file=sys.stderr)
        return 3
    if arguments.record:
        kept = {"kind": "guard", **header("benchmarks.guard", foreign), "ratios": {name: _short(of) for name, of in ratios.items()}}
        RECORDED.write_text(json.dumps(kept, indent=1) + "\n")
        return 0
    if recorded is None:
        print(f"there is no {RECORDED}: write it with --record", file=sys.stderr)
        return 2
    return code


def _short(rounds: Sequence[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in rounds]


if __name__ == "__main__":
    run_command(main)
