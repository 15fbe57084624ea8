"""Errors as a Flight client sees them: the fitting error class, a clear sentence, and JSON for programs (docs/reference/reads.md).

Three facts of the library rule this file (checked by running it): only its own `FlightError`s carry `extra_info`, every other
exception is sent with its traceback; `get_schema` sends even those with their traceback; and an error whose message and JSON take
more than gRPC's 8 KiB of headers (other letters than ASCII take six bytes there) arrives as an internal one.
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


class Fault(TuttiError):
    """A request that cannot be served: `code` is the machine-readable reason, `fields` go with it into the error's JSON. `hint` is
    told behind the message to those who may read everything: it has names in it.
    """

    def __init__(self, code: str, message: str, hint: str = "", /, **fields: object) -> None:
        super().__init__(f"{message}: {hint}" if hint else message)
        self.code = code
        self.fields = fields
        self.hint = hint
        self._message = message

    def without_hint(self) -> Fault:
        """The same, told to somebody who may not read everything."""
        return Fault(self.code, self._message, **self.fields)


def of_damage(error: Damaged, elsewhere: Callable[[str, int], bool], lane: str, **fields: object) -> Fault:
    """What is told to who met damage: to read at another gateway while this one mends it (`unavailable`), or that it is `damaged`
    where there is nobody else. `elsewhere` is told of the lane (empty: the log) and the position, and says whether others hold it.
    """
    if elsewhere(lane, error.position):
        return Fault("unavailable", f"{error}; another gateway is asked for it: read there meanwhile", **fields)
    return Fault("damaged", str(error), **fields)


@contextlib.contextmanager
def sent_on(elsewhere: Callable[[str, int], bool], lane: str) -> Iterator[None]:
    """Raise damage that is met within as `of_damage` tells it.

    Raises:
        Fault: it.
    """
    try:
        yield
    except Damaged as error:
        raise of_damage(error, elsewhere, lane) from error


def flight_error(error: BaseException) -> flight.FlightError:
    """The Flight error that tells a caller of `error`. What nobody foresaw is logged here and told without its inside."""
    if isinstance(error, flight.FlightError):
        return error
    fields: dict[str, object] = {}
    if isinstance(error, Fault):
        code, message, fields = error.code, str(error), error.fields
    elif isinstance(error, TuttiError):
        code = next((code for kind, code in _CODES if isinstance(error, kind)), "internal")
        message = str(error)
        if isinstance(error, Refused):
            fields = {"reason": error.code}
    else:
        code, message = "internal", f"the reads process failed ({type(error).__name__}); its log says more"
        LOG.error("a call failed", exc_info=error)
    if code == "damaged" or (code == "internal" and isinstance(error, TuttiError)):
        LOG.error("a read failed", extra={"fields": {"code": code, "error": message, **fields}})
    message = message.encode()[: limits.ERROR_TEXT_BYTES_MAX].decode(errors="ignore")
    info = msgspec.json.encode({"code": code, "message": message, **fields})
    made = _ERRORS.get(code, flight.FlightServerError)(message)
    made.extra_info = info
    return made


class SchemaError(Exception):
    """The error of a `get_schema` call: the client gets its text and no traceback.

    The library sends the exceptions of this method as `traceback.format_exception` prints them, with the paths of this machine.
    Where that function fails, the library sends the text and the name of the type alone. So reading an attribute that the function
    needs fails here.
    """

    @property
    def __suppress_context__(self) -> bool:  # type: ignore[override]  # an attribute of every other exception
        """Not readable."""
        raise TypeError("a SchemaError is not printed with its traceback")


def schema_told(call: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """As `told`, for `get_schema`, which cannot send Flight errors."""

    @functools.wraps(call)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            return call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - as in `told`
            message = _message_of(flight_error(error))
        raise SchemaError(message)

    return guarded


def _message_of(error: flight.FlightError) -> str:
    """The sentence of an error that `flight_error` made, without what the library adds to it."""
    return str(msgspec.json.decode(error.extra_info)["message"]) if error.extra_info else str(error)


def told(call: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Let nothing but Flight errors out of a method of the server."""

    @functools.wraps(call)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            return call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the last stop before the library, which would send a traceback
            raise flight_error(error) from None  # some methods of the library would send the cause, with its traceback

    return guarded
