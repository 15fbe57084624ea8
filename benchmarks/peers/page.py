"""Write docs/explanation/peers.md from a result of `python -m benchmarks.peers --json FILE`: `... benchmarks.peers.page FILE`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.figures import number
from benchmarks.pages import Found, Rounds, medians, plot, spread, table
from benchmarks.peers.side import MACHINE, MEASURES, OURS, lines, verdicts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "peers.md"
_HEAD = """# Beside Kafka, JetStream and JGroups, measured

<!-- Made by `python -m benchmarks.peers.page FILE`; do not edit. -->

The same work on one machine in one run, the systems in turns ({rounds} rounds, each system freshly started in each;
medians, in brackets the smallest and the largest). `make bench-peers ARGS="--json FILE"` measures it again, `python -m
benchmarks.peers.page FILE` makes this page. {machine}; servers, clients and everything else share its processors and its
one disk. {foreign}

- **Tutti** {tutti}: three gateways with the timers of a local network (`preset = "local"`), segments of zeros written before
  it is timed; `send()` of its Python client, which is led to the coordinator. A receipt says: {promise}.
- **Kafka** 4.1.0 (KRaft), one partition, because that is what has one order; confluent-kafka with `acks=all`, idempotent,
  `linger.ms` 5 for rates and 0 for latencies. *synced* is `flush.messages=1`.
- **JetStream**: NATS server 2.15.2, three servers, three replicas on file, its own `nats bench` as the client, written in
  Go, told of one server, which may not be the leader (0.2 ms more). It sends the next 200 when all of the 200 under way
  are told, and paces with one under way. *synced* is `sync_interval: always`. Kafka and JetStream keep their timers.
- **The machine**: bare ZeroMQ from a client to one process, from there to two others, each of which syncs; in messages of 256 KiB
  for 1 KB. A yardstick beside which *Tutti is better by* is the share of it that Tutti reaches.
- **JGroups** 5.5.6: SEQUENCER, its own MPerf with all three members sending; what each member delivers. It keeps nothing,
  and a sender has no receipt: a limit of what ordering alone costs, not the same promise. That it
  is slower in records of 100 B than of 1 KB was seen with 8 and 100 threads a member, and is not explained.

What a receipt promises is not the same, and matters more than a factor: a record that only memory has is gone when the
power fails everywhere.
"""


def page(kept: dict[str, Any]) -> str:
    """The page, Markdown."""
    found: Found = kept["rounds"]
    systems: dict[str, str] = kept["systems"]
    foreign: list[float] = kept["foreign_cpu"]
    rounds = max((len(values) for of in found.values() for values in of.values()), default=0)
    parts = [
        _HEAD.format(
            rounds=rounds,
            machine=kept["machine"],
            foreign=f"Others used {median(foreign):.2f} of a processor meanwhile (at most {max(foreign):.2f}).",
            tutti=kept["versions"]["tutti-ingest"],
            promise=systems.get(OURS, "synced on all three"),
        ),
        "| | a receipt says |\n|---|---|\n" + "\n".join(f"| {name} | {promise} |" for name, promise in systems.items()),
        "## What Tutti is held to\n\n```text\n" + lines(verdicts(found)) + "\n```",
    ]
    parts += [measured(name, of) for name, of in found.items() if of and name not in machine.MEASURES]
    if limits := the_machine(found):
        parts.append(f"## The machine\n\n{limits}")
    return "\n\n".join(parts) + "\n"


def the_machine(found: Found) -> str:
    """A table of what the machine can do; empty where that was not measured."""
    there = {name: found[name][MACHINE] for name in machine.MEASURES if MACHINE in found.get(name, {})}
    rows = [[name, machine.MEASURES[name].unit, spread(rounds)] for name, rounds in there.items()]
    return table(["", "", "median (smallest to largest)"], rows) if rows else ""


def measured(name: str, of: Rounds) -> str:
    """The section of one measure: all systems as bars, and as a table with what Tutti is better by."""
    unit, better = MEASURES[name]
    middle = medians(of)
    ours = middle.get(OURS)
    rows = []
    for system, value in middle.items():
        ratio = "" if ours is None or system == OURS else number(ours / value if better == "more" else value / ours)
        rows.append([system, spread(of[system]), ratio])
    head = [f"{unit}, {better} is better", "", "Tutti is better by"]
    return f"## {name}\n\n{plot(middle, unit, OURS)}\n\n{table(head, rows)}"


def main() -> int:
    """Write the page; 2 for a file that is none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.page", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", metavar="FILE", help="what python -m benchmarks.peers --json FILE wrote")
    file = parser.parse_args().file
    try:
        kept = json.loads(Path(file).read_bytes())
        text = page(kept)
    except (OSError, ValueError, KeyError) as error:
        why = (
            error.strerror if isinstance(error, OSError) else f"{error} is not in it" if isinstance(error, KeyError) else str(error)
        )
        print(f"page: {file} has no figures of python -m benchmarks.peers --json: {why}", file=sys.stderr)
        return 2
    PAGE.write_text(text)
    print(f"page: {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
