"""How a range is cut into parts that can be read side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from pyarrow import flight

from tutti import limits as common_limits
from tutti.data.frames.columns import check_columns, schema_of
from tutti_gateway.core import limits
from tutti_gateway.reads.flight.streams import metadata
from tutti_gateway.reads.logs.ranges import Range
from tutti_gateway.reads.logs.served_logs import Served, Shelf
from tutti_gateway.reads.protocol.flight_errors import Fault, sent_on
from tutti_gateway.reads.protocol.tickets import Command, Ticket, encode


class Part(msgspec.Struct, frozen=True):
    """Offsets [start, end) with the rows and bytes in them."""

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


class Plans:
    """Cuts ranges."""

    def __init__(
        self,
        shelf: Shelf,
        locations: Callable[[Callable[[], bool]], Sequence[str]],
        elsewhere: Callable[[str, int], bool],
    ) -> None:
        """Cut ranges of the logs of `shelf`, which gateways at `locations` hold: URIs, given whether who asks has gone away;
        `elsewhere` as in `sent_on`.
        """
        self._shelf = shelf
        self._locations = locations
        self._elsewhere = elsewhere

    def plan(self, command: Command, given_up: Callable[[], bool]) -> Plan:
        """The action `plan`."""
        served = self._shelf.of(command.lane)
        with sent_on(self._elsewhere, command.lane):
            wanted = served.ranges.of(command, given_up)
            end = wanted.frontier.offset if wanted.end is None else wanted.end
            parts = _parts(served, command, wanted.start, end)
        return Plan(served.reader.log, wanted.start, end, wanted.frontier.offset, parts, served.lane)

    def info(self, command: Command, descriptor: flight.FlightDescriptor, given_up: Callable[[], bool]) -> flight.FlightInfo:
        """The answer of `get_flight_info`."""
        served = self._shelf.of(command.lane)
        with sent_on(self._elsewhere, command.lane):
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
    """Refuse an answer that grows out of bounds, as each of its tickets has all names of topics in it.

    Raises:
        Fault: `malformed`.
    """
    size = parts * len(encode(command.topics))
    if size > limits.TICKETS_BYTES_MAX:
        raise Fault(
            "malformed",
            f"the range has {parts} parts, and {len(command.topics or ())} topics in the ticket of each would make {size} bytes; "
            f"at most {limits.TICKETS_BYTES_MAX} are given: ask for fewer `splits`, or use the action `plan`",
        )


def _parts(served: Served, command: Command, start: int, end: int) -> list[Part]:
    split_bytes = command.split_bytes
    if command.splits is None and split_bytes is None:
        split_bytes = common_limits.SPLIT_BYTES
    found = served.reader.plan(start, end, topics=command.topics, splits=command.splits, split_bytes=split_bytes)
    return [Part(part.start, part.end, part.rows, part.bytes) for part in found]


def _endpoint(
    served: Served, command: Command, wanted: Range, part: Part, locations: list[str | flight.Location]
) -> flight.FlightEndpoint:
    ticket = Ticket(
        start=part.start,
        end=wanted.end if command.follow else part.end,
        topics=command.topics,
        columns=command.columns,
        follow=command.follow,
        seen=max(command.seen, part.end),  # a gateway that is a moment behind this one waits
        log=served.reader.log,
        absent_ok=command.absent_ok,
        lane=served.lane,
    )
    about = b"" if command.follow else encode(part)
    return flight.FlightEndpoint(encode(ticket), locations, None, about)
