"""`tutti trace`: one message through all gateways, from their logs at level debug."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
import orjson

from gateway.cli.options import json_option
from gateway.cli.output import print_json, print_table
from gateway.errors import TuttiError, UsageError

Line = dict[str, Any]
#: Lines that are about everything up to a position; the first of each gateway and sender that reaches the message's counts.
_UP_TO = ("vote", "durable", "confirm")
#: Lines whose messages are named; what else a gateway logs is none of a message's.
_NAMED = ("submitted", "received", "written", "decided", "aborted", "receipt")
_DETAILS = ("by", "sender", "up_to", "topic", "position", "in_view", "offset", "session")
_MS_PER_S = 1000


class Wanted(NamedTuple):
    """A record, by its producer's name and its sequence, or by its offset."""

    producer: str | None
    sequence: int | None
    offset: int | None

    def names(self, line: Line) -> bool:
        """Whether the line is about the batch that the record is in."""
        if line.get("event") not in _NAMED or "first" not in line:
            return False
        if self.offset is None:
            return bool(line["producer"] == self.producer and line["first"] <= self.sequence <= line["last"])
        first = line.get("offset", -1)
        return bool(0 <= first <= self.offset <= first + line["last"] - line["first"])


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="LOGFILE...")
@click.option("--producer", metavar="NAME", help="The record's producer, with --sequence.")
@click.option("--sequence", type=click.IntRange(min=1), metavar="N", help="The record's number within its producer.")
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="Or the record's offset.")
@json_option
def trace(files: tuple[Path, ...], producer: str | None, sequence: int | None, offset: int | None, as_json: bool) -> int:
    """Follow one message through all gateways, in their logs.

    Each LOGFILE is what a gateway wrote to standard error, as JSON lines, with `[logging] level = "debug"` or `--log-level debug`.
    Shown is, in the order of the gateways' clocks, how the message came in, was written, voted for, decided and answered.
    """
    if (producer is None) != (sequence is None) or (producer is None) == (offset is None):
        raise UsageError("a message is named by --producer and --sequence, or by --offset")
    wanted = Wanted(producer, sequence, offset)
    found = follow(lambda: _lines(files), wanted)
    if not found:
        named = f"offset {offset}" if producer is None else f"message {sequence} of producer {producer}"
        raise TuttiError(f"{named} is in none of these logs: were they written at level debug, and do they reach back so far?")
    if as_json:
        for line in found:
            print_json(line)
        return 0
    begun = _time(found[0])
    rows = [(f"{(_time(line) - begun) * _MS_PER_S:.3f}", line["gateway"], line["event"], _details(line)) for line in found]
    print(
        f"message {found[0]['producer']}:{found[0]['epoch']}:{found[0]['first']}-{found[0]['last']}, from {found[0]['timestamp']}"
    )
    print_table(("ms", "gateway", "what", "details"), rows, empty="")
    return 0


def follow(lines: Callable[[], Iterable[Line]], wanted: Wanted) -> list[Line]:
    """The lines about a message, by time. `lines` gives all lines of all logs anew each time that it is called."""
    of_it = [line for line in lines() if wanted.names(line)]
    if wanted.offset is not None and of_it:  # what was logged before it had an offset
        one = of_it[0]
        of_it = [line for line in lines() if Wanted(one["producer"], one["first"], None).names(line)]
    placed = [line for line in sorted(of_it, key=_time) if "position" in line]
    if placed:
        of_it += _reaching(lines(), placed[-1]["position"], placed[0]["timestamp"])
    return sorted(of_it, key=_time)


def _reaching(lines: Iterable[Line], position: int, begun: str) -> Iterator[Line]:
    """Of each gateway, and each sender, the first line since `begun` that says something of everything up to `position`."""
    told: set[tuple[object, ...]] = set()
    for line in lines:
        if line.get("event") not in _UP_TO or line["up_to"] < position or line["timestamp"] < begun:
            continue
        key = (line["gateway"], line["event"], line.get("sender"))
        if key not in told:
            told.add(key)
            yield line


def _lines(files: Sequence[Path]) -> Iterator[Line]:
    """What gateways logged, file by file; a line that is no JSON object of a gateway is left out."""
    for file in files:
        with file.open("rb") as lines:
            for text in lines:
                try:
                    line = orjson.loads(text)
                except orjson.JSONDecodeError:
                    continue
                if isinstance(line, dict) and line.get("level") == "debug" and "gateway" in line and "timestamp" in line:
                    yield line


def _time(line: Line) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def _details(line: Line) -> str:
    shown = {
        name: line[name] for name in ("by", "sender", "up_to", "topic", "position", "in_view", "offset", "session") if name in line
    }
    return " ".join(f"{name}={value}" for name, value in shown.items())
