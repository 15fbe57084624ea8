"""Splits a range into parts that can be read in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from pyarrow import flight

from tutti import limits as common_limits
from tutti.data.frames.columns import check_columns, schema_of
from tutti_gateway.core import limits
from tutti_gateway.reads.flight.streams import metadata
from tutti_gateway.reads.logs.ranges import ResolvedRange
from tutti_gateway.reads.logs.served_logs import ServedLog, ServedLogs
from tutti_gateway.reads.protocol.flight_errors import ReadError, converting_corruption
from tutti_gateway.reads.protocol.tickets import Command, Ticket, encode


class Part(msgspec.Struct, frozen=True):
    """Offsets [start, end) with their number of rows and bytes."""

    start: int
    end: int
    rows: int
    bytes: int


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of the action `plan`; `lane` is empty for the ordered log."""

    log: str
    start: int
    end: int
    frontier: int
    ranges: list[Part]
    lane: str = ""


class RangeSplitter:
    """Splits ranges."""

    def __init__(
        self,
        shelf: ServedLogs,
        locations: Callable[[Callable[[], bool]], Sequence[str]],
        elsewhere: Callable[[str, int], bool],
    ) -> None:
        """Create the splitter.

        Args:
            shelf: the served logs.
            locations: returns the URIs of the gateways that hold the logs; its argument returns True if the caller is gone.
            elsewhere: as in `sent_on`.
        """
        self._shelf = shelf
        self._locations = locations
        self._elsewhere = elsewhere

    def plan(self, command: Command, given_up: Callable[[], bool]) -> Plan:
        """Answer the action `plan`."""
        served = self._shelf.of(command.lane)
        with converting_corruption(self._elsewhere, command.lane):
            wanted = served.ranges.of(command, given_up)
            end = wanted.frontier.offset if wanted.end is None else wanted.end
            parts = _parts(served, command, wanted.start, end)
        return Plan(served.reader.log, wanted.start, end, wanted.frontier.offset, parts, served.lane)

    def info(self, command: Command, descriptor: flight.FlightDescriptor, given_up: Callable[[], bool]) -> flight.FlightInfo:
        """Answer `get_flight_info`."""
        served = self._shelf.of(command.lane)
        with converting_corruption(self._elsewhere, command.lane):
            wanted = served.ranges.of(command, given_up)
            if wanted.end is None or command.follow:
                parts = [Part(wanted.start, -1, -1, -1)]
            else:
                parts = _parts(served, command, wanted.start, wanted.end)
        _check_tickets(command, len(parts))
        whole = command.topics is None and not command.follow
        locations = self._locations(given_up)
        return flight.FlightInfo(
            schema_of(check_columns(command.columns)),
            descriptor,
            [_endpoint(served, command, wanted, part, list(locations)) for part in parts],
            sum(part.rows for part in parts) if whole else -1,
            sum(part.bytes for part in parts) if whole else -1,
            ordered=True,
            app_metadata=metadata(served, wanted),
        )


def _check_tickets(command: Command, parts: int) -> None:
    """Refuse an answer that would be too large, because each of its tickets repeats all topic names.

    Raises:
        Fault: `malformed`.
    """
    size = parts * len(encode(command.topics))
    if size > limits.TICKETS_BYTES_MAX:
        raise ReadError(
            "malformed",
            f"the range has {parts} parts, whose tickets with {len(command.topics or ())} topics each need {size} bytes; "
            f"at most {limits.TICKETS_BYTES_MAX} are permitted: ask for fewer `splits`, or use the action `plan`",
        )


def _parts(served: ServedLog, command: Command, start: int, end: int) -> list[Part]:
    split_bytes = command.split_bytes
    if command.splits is None and split_bytes is None:
        split_bytes = common_limits.SPLIT_BYTES
    found = served.reader.plan(start, end, topics=command.topics, splits=command.splits, split_bytes=split_bytes)
    return [Part(part.start, part.end, part.rows, part.bytes) for part in found]


def _endpoint(
    served: ServedLog, command: Command, wanted: ResolvedRange, part: Part, locations: list[str | flight.Location]
) -> flight.FlightEndpoint:
    ticket = Ticket(
        start=part.start,
        end=wanted.end if command.follow else part.end,
        topics=command.topics,
        columns=command.columns,
        follow=command.follow,
        seen=max(command.seen, part.end),  # a gateway that lags this one waits until its frontier reaches the part
        log=served.reader.log,
        absent_ok=command.absent_ok,
        lane=served.lane,
    )
    about = b"" if command.follow else encode(part)
    return flight.FlightEndpoint(encode(ticket), locations, None, about)
