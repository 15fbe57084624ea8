"""Tests of the range bounds of `tutti backfill`."""

from __future__ import annotations

from datetime import datetime

import pytest

from tutti.errors import ConfigError
from tutti_spark.backfill.ranges import Tick, parse_position


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("7", 7),
        ("tick:7", Tick(7)),
        ("latest", "latest"),
        ("0001-01-01T00:00:00+14:00", datetime.fromisoformat("0001-01-01T00:00:00+14:00")),
        ("9999-12-31T23:59:59-12:00", datetime.fromisoformat("9999-12-31T23:59:59-12:00")),
        ("2026-01-31T12:00:00.0000001Z", datetime.fromisoformat("2026-01-31T12:00:00.000001Z")),
    ],
)
def test_a_place_is_read(text: str, place: object) -> None:
    assert parse_position("--start", text) == place


@pytest.mark.parametrize("text", ["9" * 5000, "tick:" + "9" * 5000, "2026-01-31T12:00:00", "x"])
def test_an_invalid_position_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="it takes an offset"):
        parse_position("--start", text)


def test_a_time_after_the_last_microsecond_is_reported() -> None:
    with pytest.raises(ConfigError, match="is after the year 9999"):
        parse_position("--start", "9999-12-31T23:59:59.9999999Z")
