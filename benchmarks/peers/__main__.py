"""`python -m benchmarks.peers`: Tutti and its peers do the same work on this machine, in turns; figures, ratios, a JSON."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks.arguments import add_places, count, run_command
from benchmarks.figures import foreign_load
from benchmarks.kept import about
from benchmarks.load import generator
from benchmarks.peers.bare import Machine
from benchmarks.peers.jgroups import JGroups
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.nats import JetStream
from benchmarks.peers.ours import Tutti
from benchmarks.peers.side import WORK, Sides, lines, table, verdicts
from benchmarks.peers.work import System

MIB = 1024 * 1024


def main() -> int:
    """Run; 0 however the figures are, 2 for what cannot be asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="systems, by the beginnings of their names; all when left out")
    parser.add_argument("--work", nargs="+", choices=list(WORK), default=list(WORK), metavar="WORK", help=", ".join(WORK))
    parser.add_argument("--rounds", type=count, default=3, help="rounds (3); medians count")
    parser.add_argument("--volume-mb", type=int, default=1024, help="of a load, MiB (1024); at most 15 s of it")
    add_places(parser, kept="write all figures to this file too")
    arguments = parser.parse_args()
    volume = arguments.volume_mb * MIB
    systems: list[System] = [
        Tutti(volume),
        Machine(volume),
        Kafka(1, synced=False),
        Kafka(3, synced=False),
        Kafka(3, synced=True),
        JetStream(synced=False),
        JetStream(synced=True),
        JGroups("TCP"),
        JGroups("UDP"),
    ]
    asked = [one for one in systems if not arguments.names or one.name.lower().startswith(tuple(map(str.lower, arguments.names)))]
    if not asked:
        parser.error(f"no system has such a name; there are {'; '.join(one.name for one in systems)}")
    if arguments.volume_mb < 1:
        parser.error("the volume is one or more")
    print(about(), flush=True)
    sides = Sides(volume, arguments.work)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tutti-peers-", dir=arguments.directory) as scratch:
        for one in asked:
            if lacking := one.lacking():
                print(f"{one.name}: left out, {lacking} is missing", flush=True)
        if "compiled" in arguments.work and (missing := generator.lacking()):
            print(f"compiled client: left out of Tutti and of the machine, {missing} is missing", flush=True)
        able = [one for one in asked if not one.lacking()]
        for number in range(arguments.rounds):
            for one in able if number % 2 == 0 else reversed(able):
                with foreign_load(sides.foreign):
                    sides.measure(one, Path(scratch))
                print(f"round {number + 1}: {one.name}: {sides.last(one)}", flush=True)
    print(table(sides.found, [one.name for one in able]))
    print(lines(verdicts(sides.found)))
    print(f"peers: {len(able)} systems, {arguments.rounds} rounds, {time.monotonic() - begin:.0f} s, {sides.quiet()}")
    if arguments.json:
        arguments.json.write_text(json.dumps(sides.as_json(able), indent=1))
    return 0


if __name__ == "__main__":
    run_command(main)
