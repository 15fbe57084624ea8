"""Errors of the reads protocol: the Flight error class, a clear message, and JSON for programs (docs/reference/reads.md).

Three properties of the Flight library, found by running it, determine this module:

1. Only a `FlightError` carries `extra_info`; the library sends any other exception with its traceback.
2. From `get_schema`, the library sends even a `FlightError` with its traceback.
3. An error whose message and JSON exceed gRPC's 8 KiB of headers arrives as an internal error. In these headers, a non-ASCII letter
   takes six bytes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import msgspec
from pyarrow import flight

from tutti.errors import (
    Behind,
    Damaged,
    DirectoryRefused,
    FormatError,
    NotAllowed,
    OffsetOutOfRange,
    Refused,
    TuttiError,
    Unavailable,
    UsageError,
)
from tutti_gateway.core import limits

LOG = logging.getLogger("tutti.reads")

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

_ERRORS: dict[str, type[flight.FlightError]] = {
    "behind": flight.FlightUnavailableError,
    "busy": flight.FlightUnavailableError,
    "stopping": flight.FlightUnavailableError,
    "unavailable": flight.FlightUnavailableError,
    "not_allowed": flight.FlightUnauthorizedError,
    "damaged": flight.FlightInternalError,
    "internal": flight.FlightInternalError,
}
# The first match counts, so each subclass stands before its base class (`Behind` before `Unavailable`).
_CODES: tuple[tuple[type[TuttiError], str], ...] = (
    (Behind, "behind"),
    (OffsetOutOfRange, "out_of_range"),
    (Unavailable, "unavailable"),
    (Damaged, "damaged"),
    (FormatError, "damaged"),
    (DirectoryRefused, "internal"),
    (NotAllowed, "not_allowed"),
    (Refused, "refused"),
    (UsageError, "malformed"),
)


class ReadError(TuttiError):
    """A request that cannot be served.

    Attributes:
        code: machine-readable reason.
        fields: further fields of the error's JSON.
        hint: last part of the message, with names of topics or gateways, only for callers that may read everything.
    """

    def __init__(self, code: str, message: str, hint: str = "", /, **fields: object) -> None:
        super().__init__(f"{message}: {hint}" if hint else message)
        self.code = code
        self.fields = fields
        self.hint = hint
        self._message = message

    def without_hint(self) -> ReadError:
        """Return the error without its hint, for a caller without the right to read everything."""
        return ReadError(self.code, self._message, **self.fields)


def corruption_error(error: Damaged, report_corruption: Callable[[str, int], bool], lane: str, **fields: object) -> ReadError:
    """Return the error for a corrupt frame: `unavailable` if other gateways hold the frame, else `damaged`.

    Args:
        error: the corruption.
        report_corruption: reports lane (empty for the ordered log) and position to the gateway, and returns True if other gateways
            hold the frame.
        lane: the lane, or empty text.
        fields: further fields of the error's JSON.
    """
    if report_corruption(lane, error.position):
        return ReadError("unavailable", f"{error}; this gateway fetches it from another one: read there meanwhile", **fields)
    return ReadError("damaged", str(error), **fields)


@contextlib.contextmanager
def converting_corruption(report_corruption: Callable[[str, int], bool], lane: str) -> Iterator[None]:
    """Convert a corruption error that is raised within this context, as `corruption_error` does.

    Raises:
        ReadError: the converted error.
    """
    try:
        yield
    except Damaged as error:
        raise corruption_error(error, report_corruption, lane) from error


def flight_error(error: BaseException) -> flight.FlightError:
    """Return the Flight error for an exception. Unexpected exceptions are logged, and sent without their details."""
    if isinstance(error, flight.FlightError):
        return error
    fields: dict[str, object] = {}
    if isinstance(error, ReadError):
        code, message, fields = error.code, str(error), error.fields
    elif isinstance(error, TuttiError):
        code = next((code for kind, code in _CODES if isinstance(error, kind)), "internal")
        message = str(error)
        if isinstance(error, Refused):
            fields = {"reason": error.code}
    else:
        code, message = "internal", f"the reads process failed ({type(error).__name__}); its log has the details"
        LOG.error("a call failed", exc_info=error)
    # Refused requests are not logged, because any client could fill the log with them.
    if code == "damaged" or (code == "internal" and isinstance(error, TuttiError)):
        LOG.error("a read failed", extra={"fields": {"code": code, "error": message, **fields}})
    # The limit counts bytes and may cut a character in two, whose first part `errors="ignore"` drops.
    message = message.encode()[: limits.ERROR_TEXT_BYTES_MAX].decode(errors="ignore")
    info = msgspec.json.encode({"code": code, "message": message, **fields})
    made = _ERRORS.get(code, flight.FlightServerError)(message)
    made.extra_info = info
    return made


class SchemaError(Exception):
    """The error of a `get_schema` call: the client gets its text and no traceback.

    The library sends an exception of `get_schema` as `traceback.format_exception` prints it, with local file paths. If
    `format_exception` fails, the library sends only the text and the type name. Therefore `__suppress_context__`, which
    `format_exception` reads, raises an error here.
    """

    @property
    def __suppress_context__(self) -> bool:  # type: ignore[override]  # a plain attribute in the base class
        """Raise an error when read."""
        raise TypeError("a SchemaError has no printable traceback")


def raises_schema_errors(call: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Wrap `get_schema` so that it raises only `SchemaError`, because the library cannot send its Flight errors."""

    @functools.wraps(call)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            return call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - as in `raises_flight_errors`
            message = _message_of(flight_error(error))
        # The error is raised after the handler, because inside the handler Python would attach the original exception to it.
        raise SchemaError(message)

    return guarded


def _message_of(error: flight.FlightError) -> str:
    """Return the original message of an error made by `flight_error`, without the text that the library adds."""
    return str(msgspec.json.decode(error.extra_info)["message"]) if error.extra_info else str(error)


def raises_flight_errors(call: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Wrap a method of the server so that it raises only Flight errors."""

    @functools.wraps(call)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            return call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - any other exception would reach the client with its traceback
            raise flight_error(error) from None  # `from None`, because the library would send a cause with its traceback

    return guarded
