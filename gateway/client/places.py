"""Places in the log, and times, as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from gateway.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"[0-9]+\Z")
_WORDS = ("earliest", "latest")
#: A range's end as users write it: an offset, earliest, latest or an aware time.
Bound = int | str | datetime


def parse_time(text: str) -> datetime:
    """An aware datetime from ISO 8601 text with a zone.

    Raises:
        UsageError: it is no such text.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time: write ISO 8601 with a zone, for example 2026-01-31T12:00:00Z") from None
    if time.tzinfo is None:
        raise UsageError(f"the time {text!r} has no zone: add Z for UTC, or an offset such as +01:00")
    return time.astimezone(UTC)


def parse_bound(text: str) -> Bound:
    """Where a range starts or ends: an offset, "earliest", "latest", or an ISO 8601 time with a zone.

    Raises:
        UsageError: it is none of these.
    """
    if _OFFSET.match(text):
        return int(text)
    if text in _WORDS:
        return text
    if text[:1].isdigit() and "-" in text:
        return parse_time(text)
    raise UsageError(
        f"{text!r} is no place in the log: write an offset (0, 1, 2, ...), earliest, latest, or an ISO 8601 time with a zone"
    )


def time_text(time_us: int | None) -> str | None:
    """Microseconds since 1970 as ISO 8601 in UTC with microseconds and Z; None for None."""
    if time_us is None:
        return None
    return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
