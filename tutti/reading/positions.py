"""Places in the log, and times, as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tutti.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"[0-9]+\Z")
_OFFSET_DIGITS = 19  # of the largest offset, 2**63 - 1
_FINER = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")  # digits below a microsecond
_SPACE_FOR_PLUS = re.compile(r" [0-9]{2}:?[0-9]{2}\Z")  # a + that stands in a URL as it is means a space
#: Why the text of a time between the last microsecond and the year 10000 is refused.
AFTER_9999 = "after the year 9999 when it is rounded up to a microsecond: the last time is 9999-12-31T23:59:59.999999"
_WORDS = ("earliest", "latest")
#: A range's end as users write it: an offset, earliest, latest or an aware time.
Bound = int | str | datetime


def read_time(text: str) -> datetime:
    """The time that ISO 8601 text names, with the zone that it has, if any.

    Records count in microseconds. The first record at or after a time with finer digits is the first one at or after the next
    microsecond, so such a time is rounded up.

    Raises:
        ValueError: it is no such text.
        OverflowError: its next microsecond is after the year 9999.
    """
    time = datetime.fromisoformat(text)
    return time + timedelta(microseconds=1) if _FINER.search(text) else time


def parse_time(text: str) -> datetime:
    """An aware datetime from ISO 8601 text with a zone; in UTC, unless the calendar has no such time in UTC.

    Raises:
        UsageError: the text is not a time, or the time is after the year 9999.
    """
    try:
        time = read_time(text)
    except ValueError:
        hint = "; in a URL, write %2B for +" if _SPACE_FOR_PLUS.search(text, len("2026-01-31T")) else ""
        raise UsageError(f"{text[:80]!r} is no time: write ISO 8601 with a zone, for example 2026-01-31T12:00:00Z{hint}") from None
    except OverflowError:
        raise UsageError(f"the time {text[:80]!r} is {AFTER_9999}") from None
    if time.tzinfo is None:
        raise UsageError(f"the time {text!r} has no zone: add Z for UTC, or an offset such as +01:00")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        return time  # as 0001-01-01T00:00:00+14:00: before all records, and counted in microseconds like any other


def parse_bound(text: str) -> Bound:
    """Where a range starts or ends: an offset, "earliest", "latest", or an ISO 8601 time with a zone.

    Raises:
        UsageError: it is none of these.
    """
    if _OFFSET.match(text):
        if len(text.lstrip("0")) > _OFFSET_DIGITS:
            raise UsageError(f"{text[:40]} is no offset: the largest one is {2**63 - 1}")
        return int(text[-_OFFSET_DIGITS:])
    if text in _WORDS:
        return text
    if text[:1].isdigit() and "-" in text:
        return parse_time(text)
    raise UsageError(
        f"{text[:80]!r} is no place in the log: write an offset (0, 1, 2, ...), earliest, latest, or an ISO 8601 time with a zone"
    )


def time_text(time_us: int | None) -> str | None:
    """Microseconds since 1970 as ISO 8601 in UTC with microseconds and Z; None for None."""
    if time_us is None:
        return None
    # Not strftime: its years before 1000 have fewer than four digits.
    time = (_EPOCH + timedelta(microseconds=time_us)).replace(tzinfo=None)
    return f"{time.isoformat(timespec='microseconds')}Z"
