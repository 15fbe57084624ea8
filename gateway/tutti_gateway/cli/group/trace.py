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
#: Events that cover everything up to a position; the first one of each gateway and sender that covers the message is shown.
_UP_TO = ("vote", "durable", "confirm")
#: Events that name their message; other events do not belong to a message.
_NAMED = ("submitted", "received", "written", "decided", "aborted", "receipt")
#: The events that, for an unordered message, only its origin gateway logs.
_AT_ORIGIN = ("submitted", "receipt")
_DETAILS = ("by", "sender", "up_to", "topic", "position", "in_view", "attempt", "offset", "session", "reason")
_MS_PER_S = 1000
#: Maximum number of gateway or lane names in an error.
_LISTED_MAX = 16
_LINE_BYTES_MAX = 1 * limits.MIB


class Message(NamedTuple):
    """Identity of a record: number, epoch and sequence of its producer. After an abort, the next epoch reuses the sequence.

    For an unordered record, the three values belong to its lane; `lane` is empty for ordered records.
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
    """The requested record: by producer, sequence and optional epoch, or by offset.

    An unordered record also has a lane, given by its own name or by its gateway's name.
    """

    producer: str | None
    sequence: int | None
    offset: int | None
    epoch: int | None = None
    lane: str = ""

    def _in_lane(self, line: Line) -> bool:
        """True if the log line is about the requested lane, or about the log if no lane is requested."""
        lane = _lane(line)
        if not self.lane or LaneName.parse(self.lane) is not None:
            return lane == self.lane
        return bool(lane) and line["gateway"] == self.lane and line["event"] in _AT_ORIGIN

    def names(self, line: Line) -> Message | None:
        """Return the message if the log line names the requested record, None if not."""
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
@click.option("--epoch", type=click.IntRange(min=1), metavar="N", help="Only the record of this epoch of the producer.")
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

    Each LOGFILE is the standard error output of a gateway, as JSON lines, with `[logging] level = "debug"` or `--log-level debug`.
    A LOGFILE must be a regular file, because the command reads it more than once. The output shows, ordered by the gateways'
    clocks, how the message was received, written, voted for, decided and answered.

    An unordered record has its sequence and offset in a lane. `--lane` takes the lane's name from the record's receipt, or the name
    of its gateway. With a gateway's name, only that gateway's own log identifies the record, so that log must be among the
    LOGFILEs.

    After an abort, the producer's next epoch reuses the sequence: each is a separate message, and all are shown.
    """
    if (producer is None) != (sequence is None) or (producer is None) == (offset is None):
        raise UsageError("name the message: give --producer and --sequence, or --offset")
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
    """Return the error text for a record that is not found, with the next step for the given lane."""
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
    """Return the lines about each requested message, ordered by time. Each call of `lines` must return all lines of all logs."""
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
    """Yield the lines since `begun` that reach the message's position, with the message's identity added.

    These are each NO to the message and, for each gateway and sender, the first line that covers its position. In a lane,
    only lines of the same attempt count.
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
    """Return the lane of a line; empty for the log."""
    lane: str = line.get("lane", "")
    return lane


def _is_named(line: Line) -> bool:
    return line.get("event") in _NAMED and "first" in line


def _lines(files: Sequence[Path]) -> Iterator[Line]:
    """Yield the debug lines of gateways, file by file; other lines are skipped."""
    for file in files:
        with file.open("rb") as lines:
            while text := lines.readline(_LINE_BYTES_MAX):  # a longer line arrives in parts, and no part is valid JSON
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
