"""Requests of the reads protocol: tickets and the bodies of actions, decoded strictly (docs/reference/reads.md).

A request is a JSON object. Unknown fields, wrong types and oversize requests are refused with a clear message, so a misspelt field
is never ignored silently.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

from tutti import limits as common_limits
from tutti.data.frames.columns import check_columns
from tutti.data.names import NAME_BYTES_MAX, check_name
from tutti.errors import UsageError
from tutti_gateway.core import limits
from tutti_gateway.reads.protocol.flight_errors import ReadError

INT64_MAX = 2**63 - 1
# Offsets are int64 in Arrow, so a larger number cannot name a record.
Natural = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
# Timestamps before 1970 are negative.
Time = Annotated[int, msgspec.Meta(ge=-INT64_MAX, le=INT64_MAX)]


class AtTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position in the log: the first record at or after a time (us since 1970, UTC)."""

    time_us: Time


Position = Natural | Literal["earliest", "latest"] | AtTime


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Fields of every request.

    Attributes:
        seen: highest frontier that the caller has received.
        log: uuid of the log that the caller reads, hex.
        linearizable: whether the gateway must first confirm its frontier with a majority of the group.
    """

    seen: Natural = 0
    log: Annotated[str, msgspec.Meta(max_length=limits.LOG_NAME_CHARACTERS_MAX)] = ""
    linearizable: bool = False


class LaneRequest(Request, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A request to the ordered log, or to a lane.

    A gateway's name selects the gateway's newest lane; NUMBER-INCARNATIONHEX selects exactly one lane.
    """

    lane: Annotated[str, msgspec.Meta(max_length=NAME_BYTES_MAX)] = ""


class Ticket(LaneRequest, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The ticket of `do_get`: a range, with topics and columns."""

    start: Position = "earliest"
    end: Position | None = None
    topics: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    follow: bool = False
    absent_ok: bool = False


class Command(Ticket, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The command of `get_flight_info` and the action `plan`: a ticket, and how to split its range."""

    splits: Annotated[int, msgspec.Meta(ge=1, le=common_limits.SPLITS_MAX)] | None = None
    split_bytes: Annotated[int, msgspec.Meta(ge=1, le=INT64_MAX)] | None = None


class FrontierRequest(LaneRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of the action `frontier`; with `beyond` the action waits."""

    # With -1 the action never waits, because the frontier of an empty log is 0.
    beyond: Annotated[int, msgspec.Meta(ge=-1, le=INT64_MAX)] | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=0, le=common_limits.LONG_POLL_US_MAX // 1000)] = 0


class OffsetForTimeRequest(LaneRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of the action `offset_for_time`."""

    time_us: Time


class TicksRequest(Request, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of the action `ticks`."""

    start: Position = "earliest"
    end: Position | None = None
    from_tick: Natural = 0


class TickEndRequest(Request, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of the action `tick_end`."""

    start: Natural
    limit: Natural
    end: Natural
    every: Annotated[int, msgspec.Meta(ge=1, le=INT64_MAX)] = 1


class BytesEndRequest(Request, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of the action `bytes_end`."""

    start: Natural
    end: Natural
    bytes: Annotated[int, msgspec.Meta(ge=1, le=INT64_MAX)]
    topics: tuple[str, ...] | None = None


class SaveOffsetRequest(Request, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of the action `save_offset`."""

    reader: str
    offset: Natural
    back: bool = False


class PassedRequest(Request, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of the action `passed`, which waits for the offset of a named reader."""

    reader: str
    offset: Natural
    timeout_ms: Annotated[int, msgspec.Meta(ge=0, le=common_limits.LONG_POLL_US_MAX // 1000)] = 0


class ReportRequest(Request, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of the action `report`: the progress of one run of a query.

    Attributes:
        run: random name of the run.
        name: name under which the log stores the position; empty for none.
        label: text for operators.
        topics: topics that the query reads, or None for all topics.
        offset: offset below which the query has processed all records.
        lag_ms: how long the first unprocessed record has waited.
        back: whether the offset may be lower than the committed one, as at the start of a run.
    """

    run: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.LOG_NAME_CHARACTERS_MAX)]
    name: str = ""
    label: Annotated[str, msgspec.Meta(max_length=NAME_BYTES_MAX)] = ""
    topics: Annotated[tuple[str, ...], msgspec.Meta(max_length=common_limits.TOPICS_A_REPORT_MAX)] | None = None
    offset: Natural
    lag_ms: Natural = 0
    back: bool = False


class EmptyRequest(Request, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of an action that has only the fields of every `Request`."""


AnyRequest = TypeVar(
    "AnyRequest",
    Ticket,
    Command,
    FrontierRequest,
    OffsetForTimeRequest,
    TicksRequest,
    TickEndRequest,
    BytesEndRequest,
    SaveOffsetRequest,
    PassedRequest,
    ReportRequest,
    EmptyRequest,
)

_DECODERS: dict[type, msgspec.json.Decoder[object]] = {kind: msgspec.json.Decoder(kind) for kind in AnyRequest.__constraints__}
_ENCODER = msgspec.json.Encoder()


def decode(kind: type[AnyRequest], data: bytes, what: str) -> AnyRequest:
    """Decode a request; empty data gives all defaults.

    Args:
        kind: type of the request.
        data: the request as JSON.
        what: name of the request in error messages, such as "the ticket".

    Raises:
        ReadError: `malformed`, `unknown_column`.
    """
    # The size is checked before decoding, because the decoder allocates objects for the whole request.
    if len(data) > common_limits.TICKET_BYTES_MAX:
        raise ReadError("malformed", f"{what} has {len(data)} bytes; at most {common_limits.TICKET_BYTES_MAX} are permitted")
    try:
        # msgspec raises RecursionError for deep nesting and UnicodeDecodeError for invalid UTF-8, not its own errors.
        request = _DECODERS[kind].decode(data or b"{}")
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        fields = ", ".join(kind.__struct_fields__)
        raise ReadError(
            "malformed", f"{what} cannot be decoded: {error}. It must be a JSON object with the fields: {fields}"
        ) from error
    if not isinstance(request, kind):  # pragma: no cover - the decoder is typed
        raise ReadError("malformed", f"{what} is a {type(request).__name__}")
    if isinstance(request, Ticket):
        _check_ticket(request, what)
    if isinstance(request, SaveOffsetRequest | PassedRequest):
        _check_name("reader", request.reader, what)
    if isinstance(request, ReportRequest):
        _check_query(request, what)
    return request


def _check_ticket(ticket: Ticket, what: str) -> None:
    if ticket.topics is not None:
        if not ticket.topics:
            raise ReadError("malformed", f"{what} has an empty list of topics: name some topics, or omit `topics` for all")
        if len(ticket.topics) > limits.TOPICS_A_READ_MAX:
            raise ReadError("malformed", f"{what} names {len(ticket.topics)} topics; at most {limits.TOPICS_A_READ_MAX}")
        for name in ticket.topics:
            _check_name("topic", name, what)
    try:
        check_columns(ticket.columns)
    except UsageError as error:
        raise ReadError("unknown_column", f"{what}: {error}") from error
    if isinstance(ticket, Command) and ticket.splits is not None and ticket.split_bytes is not None:
        raise ReadError("malformed", f"{what} has both `splits` and `split_bytes`: give one of them")


def _check_query(report: ReportRequest, what: str) -> None:
    if report.name:
        _check_name("query", report.name, what)


def _check_name(kind: str, name: str, what: str) -> None:
    try:
        check_name(kind, name)
    except UsageError as error:
        raise ReadError("malformed", f"{what}: {error}") from error


def encode(answer: object) -> bytes:
    """Return the JSON of an answer or of a ticket."""
    return _ENCODER.encode(answer)
