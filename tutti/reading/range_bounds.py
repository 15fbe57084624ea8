"""Parses positions and times that users write, and formats times."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tutti.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"[0-9]+\Z")
_OFFSET_DIGITS = 19  # digits of the largest offset, 2**63 - 1
_FINER = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")  # digits below a microsecond
_SPACE_FOR_PLUS = re.compile(r" [0-9]{2}:?[0-9]{2}\Z")  # URL decoding turns a raw + into a space
#: Error text for a time within the last microsecond of the year 9999, which rounds up to the year 10000.
AFTER_9999 = "after the year 9999 when it is rounded up to a microsecond: the last time is 9999-12-31T23:59:59.999999"
_WORDS = ("earliest", "latest")
#: A bound of a range: an offset, "earliest", "latest" or an aware time.
Bound = int | str | datetime


def read_time(text: str) -> datetime:
    """Parse ISO 8601 text; the time has a zone only if the text has one.

    A time finer than a microsecond is rounded up. Record times are whole microseconds, so the first record at or after the given
    time is also the first one at or after the rounded time.

    Raises:
        ValueError: the text is not ISO 8601.
        OverflowError: the rounded time is after the year 9999.
    """
    time = datetime.fromisoformat(text)
    return time + timedelta(microseconds=1) if _FINER.search(text) else time


def parse_time(text: str) -> datetime:
    """Parse ISO 8601 text with a zone into an aware datetime in UTC (in the given zone if the UTC time is before the year 1).

    Raises:
        UsageError: the text is not a time, or the time is after the year 9999.
    """
    try:
        time = read_time(text)
    except ValueError:
        hint = "; in a URL, write %2B for +" if _SPACE_FOR_PLUS.search(text, len("2026-01-31T")) else ""
        raise UsageError(f"{text[:80]!r} is not a time: write ISO 8601 with a zone, such as 2026-01-31T12:00:00Z{hint}") from None
    except OverflowError:
        raise UsageError(f"the time {text[:80]!r} is {AFTER_9999}") from None
    if time.tzinfo is None:
        raise UsageError(f"the time {text!r} has no zone: add Z for UTC, or an offset such as +01:00")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        return time  # before the year 1 in UTC, such as 0001-01-01T00:00:00+14:00, and so before every record


def parse_bound(text: str) -> Bound:
    """Parse the bound of a range: an offset, "earliest", "latest", or an ISO 8601 time with a zone.

    Raises:
        UsageError: the text has none of these forms.
    """
    if _OFFSET.match(text):
        if len(text.lstrip("0")) > _OFFSET_DIGITS:
            raise UsageError(f"{text[:40]} is not an offset: the largest offset is {2**63 - 1}")
        return int(text[-_OFFSET_DIGITS:])
    if text in _WORDS:
        return text
    if text[:1].isdigit() and "-" in text:
        return parse_time(text)
    raise UsageError(
        f"{text[:80]!r} is not a position: write an offset (0, 1, 2, ...), earliest, latest, or an ISO 8601 time with a zone"
    )


def time_text(time_us: int | None) -> str | None:
    """Format microseconds since 1970 as ISO 8601 in UTC with microseconds and Z. Return None for None."""
    if time_us is None:
        return None
    # Use `isoformat`, because `strftime` writes years before 1000 with fewer than four digits.
    time = (_EPOCH + timedelta(microseconds=time_us)).replace(tzinfo=None)
    return f"{time.isoformat(timespec='microseconds')}Z"
