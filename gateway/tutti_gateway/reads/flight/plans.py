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
    """A part of a planned range: offsets [start, end), with the number of rows and bytes in them; -1 if unknown."""

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
    """Splits the range of a command into parts, for the action `plan` and for `get_flight_info`."""

    def __init__(
        self,
        served_logs: ServedLogs,
        locations: Callable[[Callable[[], bool]], Sequence[str]],
        report_corruption: Callable[[str, int], bool],
    ) -> None:
        """Create the splitter.

        Args:
            served_logs: finds the log of a command.
            locations: returns the URIs of the gateways that hold the logs; its argument is `is_cancelled` of the call.
            report_corruption: as in `flight_errors.corruption_error`.
        """
        self._served_logs = served_logs
        self._locations = locations
        self._report_corruption = report_corruption

    def plan(self, command: Command, is_cancelled: Callable[[], bool]) -> Plan:
        """Answer the action `plan`."""
        served = self._served_logs.find(command.lane)
        with converting_corruption(self._report_corruption, command.lane):
            resolved = served.ranges.resolve(command, is_cancelled)
            # A range without an end is planned up to the frontier, because later records have no known size.
            end = resolved.frontier.offset if resolved.end is None else resolved.end
            parts = _parts(served, command, resolved.start, end)
        return Plan(served.reader.log, resolved.start, end, resolved.frontier.offset, parts, served.lane)

    def info(self, command: Command, descriptor: flight.FlightDescriptor, is_cancelled: Callable[[], bool]) -> flight.FlightInfo:
        """Answer `get_flight_info`."""
        served = self._served_logs.find(command.lane)
        with converting_corruption(self._report_corruption, command.lane):
            resolved = served.ranges.resolve(command, is_cancelled)
            if resolved.end is None or command.follow:
                # A followed range is not split, because the number of records after the frontier is unknown.
                parts = [Part(resolved.start, -1, -1, -1)]
            else:
                parts = _parts(served, command, resolved.start, resolved.end)
        _check_tickets(command, len(parts))
        # The totals of records and bytes are exact only without a topic filter, and with a fixed end of the range.
        complete = command.topics is None and not command.follow
        locations = self._locations(is_cancelled)
        return flight.FlightInfo(
            schema_of(check_columns(command.columns)),
            descriptor,
            [_endpoint(served, command, resolved, part, list(locations)) for part in parts],
            sum(part.rows for part in parts) if complete else -1,
            sum(part.bytes for part in parts) if complete else -1,
            # With `ordered`, a generic Flight client joins the parts in offset order.
            ordered=True,
            app_metadata=metadata(served, resolved),
        )


def _check_tickets(command: Command, parts: int) -> None:
    """Refuse a command whose answer would be too large, because each ticket in the answer repeats all topic names.

    Raises:
        ReadError: `malformed`.
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
    served: ServedLog, command: Command, resolved: ResolvedRange, part: Part, locations: list[str | flight.Location]
) -> flight.FlightEndpoint:
    ticket = Ticket(
        start=part.start,
        # The single part of a followed range has no end, so the ticket keeps the end of the requested range.
        end=resolved.end if command.follow else part.end,
        topics=command.topics,
        columns=command.columns,
        follow=command.follow,
        seen=max(command.seen, part.end),  # a lagging gateway that gets this ticket waits until its frontier covers the part
        log=served.reader.log,
        absent_ok=command.absent_ok,
        lane=served.lane,
    )
    about = b"" if command.follow else encode(part)
    return flight.FlightEndpoint(encode(ticket), locations, None, about)
