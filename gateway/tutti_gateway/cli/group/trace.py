"""`tutti trace`: one message through all gateways, from their logs at level debug."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
import orjson

from tutti import limits
from tutti.data.lane_name import LaneName
from tutti.errors import TuttiError, UsageError
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import print_json, print_table

Line = dict[str, Any]
#: Lines that are about everything up to a position; the first of each gateway and sender that reaches the message's counts.
_UP_TO = ("vote", "durable", "confirm")
#: Lines whose messages are named; what else a gateway logs is none of a message's.
_NAMED = ("submitted", "received", "written", "decided", "aborted", "receipt")
#: Of these about an unordered message, those that its origin alone logs of it.
_AT_ORIGIN = ("submitted", "receipt")
_DETAILS = ("by", "sender", "up_to", "topic", "position", "in_view", "attempt", "offset", "session", "reason")
_MS_PER_S = 1000
#: Names of gateways or lanes that an error lists.
_LISTED_MAX = 16
_LINE_BYTES_MAX = 1 * limits.MIB


class Message(NamedTuple):
    """A record as the group knows it: its producer's number, epoch and sequence. After an abort the next epoch has it again.

    Of an unordered one these are the lane's, which is empty for ordered ones.
    """

    lane: str
    number: int
    epoch: int
    sequence: int

    def in_batch(self, line: Line) -> bool:
        """Whether the line is about the batch that the record is in."""
        return bool(
            _is_named(line)
            and (_lane(line), line["number"], line["epoch"]) == (self.lane, self.number, self.epoch)
            and line["first"] <= self.sequence <= line["last"]
        )


class Wanted(NamedTuple):
    """A record, by its producer's name, its sequence and perhaps its epoch, or by its offset; an unordered one in a lane, which is
    named itself or by its gateway.
    """

    producer: str | None
    sequence: int | None
    offset: int | None
    epoch: int | None = None
    lane: str = ""

    def _in_lane(self, line: Line) -> bool:
        """Whether the line is about the lane that is meant, or about the log if none is."""
        lane = _lane(line)
        if not self.lane or LaneName.parse(self.lane) is not None:
            return lane == self.lane
        return bool(lane) and line["gateway"] == self.lane and line["event"] in _AT_ORIGIN

    def names(self, line: Line) -> Message | None:
        """The message, if it is the record that is wanted and the line tells so."""
        if not (_is_named(line) and self._in_lane(line)):
            return None
        if self.sequence is not None:
            wanted = line["producer"] == self.producer and line["first"] <= self.sequence <= line["last"]
            wanted = wanted and self.epoch in (None, line["epoch"])
            return Message(_lane(line), line["number"], line["epoch"], self.sequence) if wanted else None
        place = (self.offset or 0) - line.get("offset", -1)
        if line.get("offset", -1) < 0 or not 0 <= place <= line["last"] - line["first"]:
            return None
        return Message(_lane(line), line["number"], line["epoch"], line["first"] + place)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="LOGFILE...")
@click.option("--producer", metavar="NAME", help="The record's producer, with --sequence.")
@click.option("--sequence", type=click.IntRange(min=1), metavar="N", help="The record's number within its producer.")
@click.option("--epoch", type=click.IntRange(min=1), metavar="N", help="Of these only the record of this epoch of the producer.")
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="Or the record's offset.")
@click.option("--lane", default="", metavar="LANE", help="It is an unordered record, in that lane or the lane of that gateway.")
@json_option
def trace(
    files: tuple[Path, ...],
    producer: str | None,
    sequence: int | None,
    epoch: int | None,
    offset: int | None,
    lane: str,
    as_json: bool,
) -> int:
    """Follow one message through all gateways, in their logs.

    Each LOGFILE is what a gateway wrote to standard error, as JSON lines, with `[logging] level = "debug"` or `--log-level debug`.
    It is a regular file, because it is read more than once.
    Shown is, in the order of the gateways' clocks, how the message came in, was written, voted for, decided and answered.

    An unordered record has its sequence and offset in a lane: `--lane` names it, as the record's receipt does, or its gateway. By
    the gateway's name it is found in that gateway's own log alone, which must be one of the LOGFILEs and reach back so far.

    A sequence that was aborted is given again in the producer's next epoch: each is a message of its own, shown one after another.
    """
    if (producer is None) != (sequence is None) or (producer is None) == (offset is None):
        raise UsageError("a message is named by --producer and --sequence, or by --offset")
    if epoch is not None and producer is None:
        raise UsageError("--epoch is the producer's: it goes with --producer and --sequence")
    for file in files:
        if file.exists() and not file.is_file():
            raise UsageError(f"{file} is not a regular file, and each LOGFILE is read more than once: save the log to a file first")
    found = follow(lambda: _lines(files), Wanted(producer, sequence, offset, epoch, lane))
    if not found:
        within = f" in epoch {epoch}" if epoch is not None else ""
        named = f"offset {offset}" if producer is None else f"message {sequence} of producer {producer}{within}"
        raise TuttiError(_not_found(named, lane, _lines(files)))
    for lines in found.values():
        if as_json:
            for line in lines:
                print_json(line)
        else:
            _print(lines)
    return 0


def _not_found(named: str, lane: str, lines: Iterable[Line]) -> str:
    """That the record is not found, and what to do; its lane may be named in full, by its gateway or not at all."""
    nowhere = "is in none of these logs: were they written at level debug, and do they reach back so far?"
    if not lane:
        return f"{named} {nowhere} An unordered record is found with --lane"
    gateways: set[str] = set()
    lanes: set[str] = set()
    for line in lines:
        gateways.add(line["gateway"])
        lanes.add(_lane(line))
    lanes.discard("")
    there = f"the lanes that these logs name are {_listed(lanes)}" if lanes else "these logs name no lane"
    if LaneName.parse(lane) is not None:
        return f"{named} in lane {lane} {nowhere}" + ("" if lane in lanes else f" No line is of that lane: {there}")
    alone = "by its gateway a record is found in that gateway's own log alone"
    add = f"add {lane}'s log of that time, or name the lane in full; {there}"
    if lane in gateways:
        return f"{named} in lane {lane} {nowhere} {alone.capitalize()}: {add}"
    of = f"these are logs of {_listed(gateways)}" if gateways else "no line here is a gateway's at level debug"
    return f"{named} was not looked for: {alone}, and {of}: {add}"


def _listed(names: set[str]) -> str:
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return ", ".join(sorted(names)[:_LISTED_MAX]) + more


def _print(lines: Sequence[Line]) -> None:
    begun = _time(lines[0])
    rows = [(f"{(_time(line) - begun) * _MS_PER_S:.3f}", line["gateway"], line["event"], _details(line)) for line in lines]
    named = next((line for line in lines if line["producer"]), lines[0])
    lane = f"in lane {_lane(named)}, " if _lane(named) else ""
    first, last = named["first"], named["last"]
    sequences = f"sequence {first}" if first == last else f"sequences {first} to {last}"
    print(f"message {named['producer']}, epoch {named['epoch']}, {sequences}, {lane}from {lines[0]['timestamp']}")
    print_table(("ms", "gateway", "what", "details"), rows, empty="")


def follow(lines: Callable[[], Iterable[Line]], wanted: Wanted) -> dict[Message, list[Line]]:
    """The lines about each message that is meant, by time. `lines` gives all lines of all logs anew each time that it is called."""
    messages = sorted({message for line in lines() if (message := wanted.names(line))})
    if not messages:
        return {}
    found: dict[Message, list[Line]] = {message: [] for message in messages}
    for line in lines():
        for message in messages:
            if message.in_batch(line):
                found[message].append(line)
    for of_it in found.values():
        of_it.sort(key=_time)
        placed = [line for line in of_it if "position" in line]
        if placed:
            of_it += _reaching(lines(), placed[-1], placed[0]["timestamp"])
            of_it.sort(key=_time)
    return found


def _reaching(lines: Iterable[Line], placed: Line, begun: str) -> Iterator[Line]:
    """What was said since `begun` of the place of the message that `placed` is about, under the message's name.

    That is each NO to it, and of each gateway and each sender the first line about everything up to there. In a lane a position is
    that of one attempt.
    """
    at = _lane(placed), placed.get("attempt")
    name = {field: placed[field] for field in ("producer", "number", "epoch", "first", "last")}
    told: set[tuple[object, ...]] = set()
    for line in lines:
        event = line.get("event")
        refused = event == "no" and line["position"] == placed["position"]
        reaches = event in _UP_TO and line["up_to"] >= placed["position"]
        if line["timestamp"] < begun or not (refused or reaches) or (_lane(line), line.get("attempt")) != at:
            continue
        key = (line["gateway"], event, line.get("sender"))
        if refused or key not in told:
            told.add(key)
            yield {**line, **name}


def _lane(line: Line) -> str:
    """The lane that a line is about; empty for the log."""
    lane: str = line.get("lane", "")
    return lane


def _is_named(line: Line) -> bool:
    return line.get("event") in _NAMED and "first" in line


def _lines(files: Sequence[Path]) -> Iterator[Line]:
    """What gateways logged, file by file; a line that is no JSON object of a gateway is left out."""
    for file in files:
        with file.open("rb") as lines:
            while text := lines.readline(_LINE_BYTES_MAX):  # what is longer comes in parts, none of which is an object
                try:
                    line = orjson.loads(text)
                except orjson.JSONDecodeError:
                    continue
                if isinstance(line, dict) and line.get("level") == "debug" and "gateway" in line and "timestamp" in line:
                    yield line


def _time(line: Line) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def _details(line: Line) -> str:
    return " ".join(f"{name}={line[name]}" for name in _DETAILS if name in line)
