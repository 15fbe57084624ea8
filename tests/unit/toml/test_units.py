"""Tests of sizes and times with a unit: each unit has its value, and any other text is rejected with the accepted units."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from tutti.errors import ConfigError
from tutti.toml.loader import load_struct
from tutti.toml.units import SIZE_UNITS, TIME_UNITS, Duration, Milliseconds, Size, parse_quantity, quantity_text, units_of


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """A size and a time with bounds, and a count."""

    size: Annotated[Size, Meta(ge=1, le=2**60)] = 1
    wait_ms: Annotated[Milliseconds, Meta(ge=0, le=3_600_000)] = 0
    count: int = 0


def loaded(tmp_path: Path, text: str) -> Limits:
    file = tmp_path / "f.toml"
    file.write_text(text)
    return load_struct(file, Limits)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0B", 0),
        ("7B", 7),
        ("1KB", 1000),
        ("128MB", 128_000_000),
        ("2GB", 2_000_000_000),
        ("3TB", 3_000_000_000_000),
        ("64KiB", 65_536),
        ("128MiB", 134_217_728),
        ("1GiB", 1_073_741_824),
        ("1TiB", 1_099_511_627_776),
        ("007KB", 7000),
        ("128 MB", 128_000_000),
        ("128   MiB", 134_217_728),
        ("128mb", 128_000_000),
        ("1kb", 1000),
        ("1kB", 1000),
        ("1 gib", 1_073_741_824),
        ("1GIB", 1_073_741_824),
        ("5b", 5),
    ],
)
def test_sizes(text: str, number: int) -> None:
    assert parse_quantity(text, SIZE_UNITS) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("200ms", 200),
        ("200 MS", 200),
        ("10s", 10_000),
        ("10 S", 10_000),
        ("5m", 300_000),
        ("36h", 129_600_000),
        ("90d", 7_776_000_000),
        ("90D", 7_776_000_000),
    ],
)
def test_times(text: str, number: int) -> None:
    assert parse_quantity(text, TIME_UNITS) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MB",
        "128",
        " 128MB",
        "128\tMB",
        "12 8MB",
        "128MB\n",
        "-1MB",
        "+1MB",
        "1.5GB",
        "1e3MB",
        "0x1KB",
        "1_000KB",
        "128Mb",
        "128Gib",
        "128M",
        "128m",
        "1PB",
        "10s",
        "1MB1MB",
        "\N{ARABIC-INDIC DIGIT ONE}MB",
        "1" * 19 + "B",
        "1MB\0",
    ],
)
def test_any_other_text_is_no_size(text: str) -> None:
    assert parse_quantity(text, SIZE_UNITS) is None


def test_a_month_is_no_time() -> None:
    assert parse_quantity("1M", TIME_UNITS) is None


@pytest.mark.parametrize(
    ("number", "units", "text"),
    [
        (0, SIZE_UNITS, "0"),
        (33_554_432, SIZE_UNITS, "32MiB"),
        (128_000_000, SIZE_UNITS, "128MB"),
        (65_507, SIZE_UNITS, "65507B"),
        (90_000, TIME_UNITS, "90s"),
    ],
)
def test_a_number_is_shown_in_its_largest_unit(number: int, units: dict[str, int], text: str) -> None:
    assert quantity_text(number, units) == text


@given(st.integers(1, 10**17))
def test_a_shown_number_is_read_as_the_same_number(number: int) -> None:
    for units in (SIZE_UNITS, TIME_UNITS):
        assert parse_quantity(quantity_text(number, units), units) == number


@given(st.integers(0, 10**18 - 1), st.sampled_from(sorted(SIZE_UNITS)))
def test_a_number_with_a_unit_is_that_many_units(number: int, unit: str) -> None:
    assert parse_quantity(f"{number}{unit}", SIZE_UNITS) == number * SIZE_UNITS[unit]


@given(st.one_of(st.text(), st.from_regex(r"[ +-]?\d{0,3}(ms|s|m|h|d)?\s?", fullmatch=True)))
def test_a_text_is_a_number_of_units_or_rejected(text: str) -> None:
    number = parse_quantity(text, TIME_UNITS)
    lower = text.lower()
    endings = [unit for unit in TIME_UNITS if lower.endswith(unit) and lower.removesuffix(unit).rstrip(" ").isdecimal()]
    assert number is None or number == int(lower.removesuffix(endings[0])) * TIME_UNITS[endings[0]]


def test_a_plain_number_keeps_its_meaning(tmp_path: Path) -> None:
    assert loaded(tmp_path, "size = 5\nwait_ms = 7\n") == Limits(5, 7)
    assert loaded(tmp_path, 'size = "5KB"\nwait_ms = "7s"\n') == Limits(5000, 7000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'size = "-5MB"',
            "size is '-5MB': it takes 1B to 1048576TiB, as a whole number with a unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB) "
            'in "quotes", or as a number of bytes',
        ),
        ('size = "0 B"', "size is '0 B': it takes 1B to 1048576TiB, as"),
        ("size = 0", "size is 0: it takes 1B to 1048576TiB, as"),
        ('size = "999999999999999999TiB"', "size is '999999999999999999TiB': it takes 1B to"),
        ('size = "5Mb"', "size is '5Mb': it takes 1B to 1048576TiB, as a whole number with a unit (B, KB, MB,"),
        ('size = "10s"', "size is '10s': it takes"),
        ("size = 1.5", "size is 1.5: it takes"),
        ("size = true", "size is True: it takes"),
        (
            'wait_ms = "61m"',
            "wait_ms is '61m': it takes 0 to 1h, as a whole number with a unit (ms, s, m, h, d) in \"quotes\", or as a number of "
            "milliseconds",
        ),
        ('wait_ms = "1MB"', "wait_ms is '1MB': it takes"),
        ('count = "1KB"', "count is '1KB': it takes"),
    ],
)
def test_a_wrong_value_is_named_with_the_accepted_units(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path}/f.toml:1: {said}")


def test_only_sizes_and_times_have_units() -> None:
    assert units_of(Size) == SIZE_UNITS
    assert units_of(Annotated[Milliseconds, Meta(ge=1)]) == TIME_UNITS
    for kind in (int, str, Duration, Annotated[int, Meta(ge=1)], Size | None):
        assert units_of(kind) == {}
