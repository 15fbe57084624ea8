"""`tutti trace`: follows one message through all gateways, in their debug logs."""

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
#: Events that apply to all positions up to a given one. Only the first that covers the message is shown, by gateway and sender.
_UP_TO = ("vote", "durable", "confirm")
#: Events whose log line identifies the message by producer, epoch and sequences.
_NAMED = ("submitted", "received", "written", "decided", "aborted", "receipt")
#: Events of an unordered message that only the gateway that received the message logs.
_AT_ORIGIN = ("submitted", "receipt")
_DETAILS = ("by", "sender", "up_to", "topic", "position", "in_view", "attempt", "offset", "session", "reason")
_MS_PER_S = 1000
#: Maximum number of names that an error message lists.
_LISTED_MAX = 16
_LINE_BYTES_MAX = 1 * limits.MIB


class Message(NamedTuple):
    """Identity of a record. It includes the epoch, because after an abort the next epoch reuses the sequences.

    Attributes:
        lane: name of the lane; "" for an ordered record. In a lane, number, epoch and sequence count within the lane.
        number: number of the producer.
        epoch: epoch of the producer.
        sequence: number of the record in the producer's stream.
    """

    lane: str
    number: int
    epoch: int
    sequence: int

    def in_batch(self, line: Line) -> bool:
        """True if the log line is about the batch that contains the record."""
        return bool(
            _is_named(line)
            and (_lane(line), line["number"], line["epoch"]) == (self.lane, self.number, self.epoch)
            and line["first"] <= self.sequence <= line["last"]
        )


class RecordQuery(NamedTuple):
    """The record to trace: either its producer, its sequence and optionally its epoch, or its offset.

    For an unordered record, `lane` is the full name of the record's lane, or the name of the gateway that received the record.
    """

    producer: str | None
    sequence: int | None
    offset: int | None
    epoch: int | None = None
    lane: str = ""

    def _in_lane(self, line: Line) -> bool:
        """True if the log line is about the requested lane. If no lane is requested, True if it is about the ordered log."""
        lane = _lane(line)
        if not self.lane or LaneName.parse(self.lane) is not None:
            return lane == self.lane
        return bool(lane) and line["gateway"] == self.lane and line["event"] in _AT_ORIGIN

    def names(self, line: Line) -> Message | None:
        """Return the identity of the requested record if the log line is about this record, otherwise None."""
        if not (_is_named(line) and self._in_lane(line)):
            return None
        if self.sequence is not None:
            query = line["producer"] == self.producer and line["first"] <= self.sequence <= line["last"]
            query = query and self.epoch in (None, line["epoch"])
            return Message(_lane(line), line["number"], line["epoch"], self.sequence) if query else None
        index = (self.offset or 0) - line.get("offset", -1)
        if line.get("offset", -1) < 0 or not 0 <= index <= line["last"] - line["first"]:
            return None
        return Message(_lane(line), line["number"], line["epoch"], line["first"] + index)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="LOGFILE...")
@click.option("--producer", metavar="NAME", help="The record's producer, with --sequence.")
@click.option("--sequence", type=click.IntRange(min=1), metavar="N", help="The record's sequence at its producer.")
@click.option("--epoch", type=click.IntRange(min=1), metavar="N", help="The producer's epoch, if several epochs have the sequence.")
@click.option(
    "--offset", type=click.IntRange(min=0), metavar="N", help="The record's offset, instead of --producer and --sequence."
)
@click.option("--lane", default="", metavar="LANE", help="For an unordered record: its lane, or the gateway of its lane.")
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
    """Follow one record through the logs of all gateways.

    Each LOGFILE holds the standard error output of one gateway with log level debug (`[logging] level = "debug"` or `--log-level
    debug`). A LOGFILE must be a regular file, because the command reads it more than once. The output shows when each gateway
    received, wrote, voted for, decided and answered the message, in the order of the gateways' clocks.

    For an unordered record, --sequence and --offset count within a lane, and `--lane` is required. LANE is the lane's name from the
    record's receipt, or the name of the gateway that received the record. With a gateway's name, that gateway's log must be among
    the LOGFILEs, because only that log identifies the record.

    After an abort, the next epoch of a producer reuses sequences. Therefore the command shows every message with the sequence N,
    unless --epoch selects one message.
    """
    if (producer is None) != (sequence is None) or (producer is None) == (offset is None):
        raise UsageError("the record to trace is not clear: give either --producer and --sequence, or --offset")
    if epoch is not None and producer is None:
        raise UsageError("--epoch needs --producer and --sequence")
    for file in files:
        if file.exists() and not file.is_file():
            raise UsageError(f"{file} is not a regular file, but each LOGFILE is read more than once: save the log to a file first")
    found = follow(lambda: _lines(files), RecordQuery(producer, sequence, offset, epoch, lane))
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
    """Return the error text for a record that no log contains, with advice that depends on the content of the logs."""
    advice = "is in none of these logs: check that they were written at level debug, and that they cover the time of the record."
    if not lane:
        return f"{named} {advice} For an unordered record, give --lane"
    gateways: set[str] = set()
    lanes: set[str] = set()
    for line in lines:
        gateways.add(line["gateway"])
        lanes.add(_lane(line))
    lanes.discard("")
    known_lanes = f"these logs name the lanes {_listed(lanes)}" if lanes else "these logs name no lane"
    if LaneName.parse(lane) is not None:
        return f"{named} in lane {lane} {advice}" + ("" if lane in lanes else f" No line belongs to that lane: {known_lanes}")
    needs_own_log = "a lane given by its gateway needs that gateway's own log"
    add = f"add {lane}'s log of that time, or give the full name of the lane; {known_lanes}"
    if lane in gateways:
        return f"{named} in lane {lane} {advice} {needs_own_log.capitalize()}: {add}"
    of = f"these are logs of {_listed(gateways)}" if gateways else "no line here is a debug line of a gateway"
    return f"{named} was not searched: {needs_own_log}, and {of}: {add}"


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


def follow(lines: Callable[[], Iterable[Line]], query: RecordQuery) -> dict[Message, list[Line]]:
    """Return the log lines about each message that matches `query`, ordered by time. Each call of `lines()` must read all logs."""
    messages = sorted({message for line in lines() if (message := query.names(line))})
    if not messages:
        return {}
    found: dict[Message, list[Line]] = {message: [] for message in messages}
    for line in lines():
        for message in messages:
            if message.in_batch(line):
                found[message].append(line)
    for message_lines in found.values():
        message_lines.sort(key=_time)
        with_position = [line for line in message_lines if "position" in line]
        if with_position:
            message_lines += _lines_covering(lines(), with_position[-1], with_position[0]["timestamp"])
            message_lines.sort(key=_time)
    return found


def _lines_covering(lines: Iterable[Line], with_position: Line, begun: str) -> Iterator[Line]:
    """Find the lines that are about a message but contain only a position, add the message's identity, and yield them.

    These lines are all NO votes against the message, and for each gateway and sender, the first line about a range of positions
    that includes the message. Lines before the time `begun` are skipped. In a lane, lines of another attempt are skipped, because
    attempts reuse positions.
    """
    at = _lane(with_position), with_position.get("attempt")
    name = {field: with_position[field] for field in ("producer", "number", "epoch", "first", "last")}
    seen: set[tuple[object, ...]] = set()
    for line in lines:
        event = line.get("event")
        refused = event == "no" and line["position"] == with_position["position"]
        reaches = event in _UP_TO and line["up_to"] >= with_position["position"]
        if line["timestamp"] < begun or not (refused or reaches) or (_lane(line), line.get("attempt")) != at:
            continue
        key = (line["gateway"], event, line.get("sender"))
        if refused or key not in seen:
            seen.add(key)
            yield {**line, **name}


def _lane(line: Line) -> str:
    """Return the name of the lane that a log line is about, or "" for the ordered log."""
    lane: str = line.get("lane", "")
    return lane


def _is_named(line: Line) -> bool:
    return line.get("event") in _NAMED and "first" in line


def _lines(files: Sequence[Path]) -> Iterator[Line]:
    """Yield the lines of all files that a gateway wrote at level debug, and skip all other lines."""
    for file in files:
        with file.open("rb") as lines:
            # A line above the limit is read in parts, which are skipped because they are not valid JSON.
            while text := lines.readline(_LINE_BYTES_MAX):
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
