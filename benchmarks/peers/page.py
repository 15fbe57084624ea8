"""Write docs/explanation/peers.md from a result of `python -m benchmarks.peers --json FILE`: `... benchmarks.peers.page FILE`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
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

All systems did the same work on one machine in one run, in turn ({rounds} rounds, each system freshly started in each). A figure
is the median, with the smallest and the largest round in brackets. `make bench-peers ARGS="--json FILE"` repeats the measurement,
and `python -m benchmarks.peers.page FILE` writes this page. Servers, clients and all other processes share the machine's
processors and its one disk: {machine}. {foreign}

- **Tutti** {tutti}: three gateways with the timers of a local network (`preset = "local"`). Segments are preallocated with zeros
  before the measurement. The client is `send()` of the Python client, connected to the coordinator. A receipt means: {promise}.
  The compiled client is a load generator in C, which checks each receipt. Its figures show the gateways without the Python client.
- **Kafka** 4.1.0 (KRaft): one partition, because only one partition has one order. The client is confluent-kafka with `acks=all`,
  idempotent, `linger.ms` 5 for rates and 0 for latencies. *synced* means `flush.messages=1`. Kafka keeps its default timers.
- **JetStream**: NATS server 2.15.2, three servers, three replicas on file. The client is its own `nats bench`, written in Go. The
  client knows one server, which may not be the leader (0.2 ms more). For the figure with 200 records in flight, the client
  sends 200 records and waits until all 200 are acknowledged. At 1,000 records a second, the client has one record in flight.
  The compiled client is a program that uses NATS' Go client, and the Python client is nats-py. At 1,000 records a second, both
  send each record when it is due.
  *synced* means `sync_interval: always`. JetStream keeps its default timers.
- **The machine**: bare ZeroMQ from a client to one process and from there to two others, each of which syncs. For 1 KB its
  messages have 256 KiB. For 200 connections, and for the compiled client, the messages pass through bare sockets.
  The machine is a yardstick: in its row, *Tutti is better by* is the share of it that Tutti reaches.
- **JGroups** 5.5.6: protocol SEQUENCER, measured with MPerf, the benchmark of JGroups. All three members send. The figure is the
  rate that each member delivers. JGroups stores nothing, and a sender has no receipt, so the figure shows the cost of ordering
  alone. JGroups is slower in records of 100 B than of 1 KB, with 8 and with 100 threads a member; the cause is unknown.

A receipt does not mean the same in all systems, and this difference matters more than a difference in speed. A record that is
only in memory is lost when the power fails everywhere.
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
            foreign=f"Other processes used {median(foreign):.2f} of a processor meanwhile (at most {max(foreign):.2f}).",
            tutti=kept["versions"]["tutti-ingest"],
            promise=systems.get(OURS, "synced on all three"),
        ),
        receipts(systems),
        "## Targets\n\n```text\n" + lines(verdicts(found)) + "\n```",
    ]
    parts += [measured(name, of) for name, of in found.items() if of and name not in machine.MEASURES]
    if limits := the_machine(found):
        parts.append(f"## The machine\n\n{limits}")
    return "\n\n".join(parts) + "\n"


def receipts(systems: Mapping[str, str]) -> str:
    """Return a table of the meaning of a receipt in each system."""
    return table(["system", "meaning of a receipt"], [[name, promise] for name, promise in systems.items()])


def the_machine(found: Found) -> str:
    """A table of what the machine can do; empty where that was not measured."""
    there = {name: found[name][MACHINE] for name in machine.MEASURES if MACHINE in found.get(name, {})}
    rows = [[name, machine.MEASURES[name].unit, spread(rounds)] for name, rounds in there.items()]
    return table(["measure", "unit", "median (smallest to largest)"], rows) if rows else ""


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
