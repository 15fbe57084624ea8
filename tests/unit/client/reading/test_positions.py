"""Tests of positions and times: every time of a user is parsed correctly, over the whole calendar and in any zone, or refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tutti.data.frames.schema import TIME_US_MAX, TIME_US_MIN
from tutti.errors import UsageError
from tutti.reading.range_bounds import parse_bound, parse_time, time_text
from tutti.sources.source import time_us_of

ZONES = st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59)).map(timezone)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.datetimes(timezones=ZONES))
@example(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))))
@example(datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=-12))))
def test_a_time_of_any_zone_is_read(time: datetime) -> None:
    """It was a defect where the calendar has no such time in UTC."""
    expected = (time - EPOCH) // timedelta(microseconds=1)
    found = parse_bound(time.isoformat())
    assert isinstance(found, datetime)
    assert time_us_of(found) == expected == time_us_of(parse_time(time.isoformat()))


@given(st.datetimes(timezones=st.just(UTC)), st.text("0123456789", min_size=1, max_size=9))
@example(datetime(2026, 1, 31, 12, 0, 0, 123456, UTC), "000")
@example(datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), "0001")
def test_a_time_between_two_microseconds_is_the_next_one(time: datetime, more: str) -> None:
    """Proves it for bounds: no record has a time between them, and one at the first is before the bound."""
    text = f"{time.replace(tzinfo=None).isoformat(timespec='microseconds')}{more}Z"
    later = (time - EPOCH) // timedelta(microseconds=1) + bool(more.strip("0"))
    if later > TIME_US_MAX:
        with pytest.raises(UsageError, match="is after the year 9999"):
            parse_time(text)
    else:
        assert time_us_of(parse_time(text)) == later


def test_a_plus_that_a_url_turned_into_a_space_is_reported() -> None:
    for text, hinted in (
        ("2026-11-26T10:00:00 01:00", True),
        ("2026-11-26 10:00 0100", True),
        ("2026-11-26T10:00:00 +1", False),
        ("2026-13-26 10:00", False),
    ):
        with pytest.raises(UsageError, match="is not a time") as error:
            parse_bound(text)
        assert ("%2B" in str(error.value)) == hinted, text


@given(st.one_of(st.text(max_size=20), st.from_regex(r"[0-9]{1,5}-[0-9]{2}-[0-9]{2}T[0-9:.+Z-]{0,30}"), st.integers(0).map(str)))
@example("2016-12-31T23:59:60Z")
@example("9" * 5000)
@example("0" * 5000 + "7")
@example("2026-01-31T12:00:00." + "1" * 5000 + "Z")
def test_any_text_is_a_position_or_refused(text: str) -> None:
    try:
        found = parse_bound(text)
    except UsageError as error:
        message = str(error)
        assert len(message) < 1000  # 80 characters of it are shown, each in up to 10
        return
    if isinstance(found, datetime):
        time_us_of(found)
    elif isinstance(found, int):
        assert str(found) == (text.lstrip("0") or "0")


@given(st.integers(TIME_US_MIN, TIME_US_MAX))
@example(TIME_US_MIN)
@example(TIME_US_MAX)
def test_a_time_that_is_written_is_read_again(time_us: int) -> None:
    """The years before 1000 had fewer than four digits."""
    text = time_text(time_us)
    assert text is not None
    assert len(text) == len("2026-01-31T12:00:00.000000Z")
    assert time_us_of(parse_time(text)) == time_us
