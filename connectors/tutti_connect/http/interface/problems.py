"""Error answers: an HTTP status, and JSON with the problem, its position in the request and the remedy."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import orjson

from tutti.errors import (
    Aborted,
    BufferFull,
    Fenced,
    NotAllowed,
    OffsetOutOfRange,
    Refused,
    TooLarge,
    TuttiError,
    Unavailable,
    Unknown,
    UsageError,
)
from tutti_connect.http import limits

_SPOOL = "spool"  # code of `Refused` if spool and log do not match, so that the outcome of spooled records is unknown


class Problem(Exception):
    """An error answer.

    Attributes:
        status: status code of the answer.
        message: text for people.
        fields: further fields of the JSON, such as `where` (record, line, column, field), `expected`, `conflict`, `committed`.
        close: close the connection after the answer, because the rest of the request is not read.
    """

    def __init__(self, status: int, message: str, *, close: bool = False, **fields: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.close, self.fields = HTTPStatus(status), message, close, fields

    def body(self) -> bytes:
        """Return the JSON body."""
        return orjson.dumps({"error": self.status.phrase, "message": self.message, **self.fields})

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer."""
        found = {"connection": "close"} if self.close else {}
        if self.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            found["retry-after"] = str(limits.RETRY_AFTER_S)
        if self.status is HTTPStatus.UNAUTHORIZED:
            found["www-authenticate"] = "Bearer"
        return found


def problem_of(error: TuttiError) -> Problem:
    """Convert an error of the client library to an error answer, whose field `committed` is "no" or "unknown"."""
    text = str(error)
    if isinstance(error, TooLarge):
        return Problem(413, text)
    if isinstance(error, BufferFull):
        return Problem(429, f"too many posts wait for the log: {text}", committed="no")
    if isinstance(error, Unknown | Fenced):
        return Problem(503, text, committed="unknown")
    if isinstance(error, Aborted):
        return Problem(503, text, committed="no")
    if isinstance(error, NotAllowed):
        return Problem(503, f"the gateways do not allow the connector to do this: {text}", committed="no")
    if isinstance(error, Unavailable):
        return Problem(503, text)
    if isinstance(error, OffsetOutOfRange):
        return Problem(416, text)
    if isinstance(error, Refused):
        return Problem(422, text, committed="unknown" if error.code == _SPOOL else "no")
    if isinstance(error, UsageError):
        return Problem(400, text)
    return Problem(500, text)
