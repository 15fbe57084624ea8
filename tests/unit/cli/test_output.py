"""Tests of command output: tables and lines, times and sizes."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime

import pytest

from tutti.errors import UsageError
from tutti.reading.range_bounds import parse_bound, parse_time, time_text
from tutti_gateway.cli.common import output


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (1_356_998_400_000_001, "2013-01-01T00:00:00.000001Z"),
        (None, None),
    ],
)
def test_times_have_microseconds_and_z(time_us: int | None, text: str | None) -> None:
    assert time_text(time_us) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (1 << 60, "1048576.0 TiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert output.bytes_text(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), ("", "-"), (True, "yes"), (False, "no"), (7, "7"), ("x", "x"), ({"a": 1}, '{"a":1}'), ([1, 2], "[1,2]")],
)
def test_cells(value: object, text: str) -> None:
    assert output.cell_text(value) == text


def test_tables_are_lines_with_tabs_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "count"), iter([("a", 1), ("b", None)]), empty="none")
    assert capsys.readouterr().out == "name\tcount\na\t1\nb\t-\n"
    output.print_table(("name",), [], empty="no topics")
    assert capsys.readouterr().out == "no topics\n"


def test_tables_are_drawn_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_table(("name", "count"), [("[a]", 1), ("bb", 22)], empty="none")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    lines = [line.rstrip() for line in shown.splitlines()]
    assert lines == ["name  count", "[a]       1", "bb       22"]
    output.print_fields({"state": "primary", "a": 1})
    assert capsys.readouterr().out == "state  primary\na      1\n"


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("work", 10) as meter:
        meter.advance(3)
        meter.reach(5, 10)
    assert capsys.readouterr() == ("", "")


def test_progress_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for unit in ("records", "bytes"):
        with output.progress("work", None, unit=unit) as meter:
            meter.reach(5, 10)
            meter.advance(3)
    assert "work" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("0", 0),
        ("17", 17),
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_places_in_the_log(text: str, bound: object) -> None:
    assert parse_bound(text) == bound


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e3", "newest", "١", "2026-01-31T12:00:00", "2026-13-01T00:00:00Z"])
def test_an_invalid_position(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bound(text)


def test_a_time_needs_a_zone() -> None:
    with pytest.raises(UsageError, match="has no zone: add Z for UTC"):
        parse_time("2026-01-31")


@pytest.mark.parametrize(("count", "text"), [(0, "0 batches"), (1, "1 batch"), (2, "2 batches"), (12_000, "12,000 batches")])
def test_singular_and_plural(count: int, text: str) -> None:
    assert output.count_text(count, "batch", "batches") == text
    assert output.count_text(count, "frame") == text.replace("batches", "frames").replace("batch", "frame")
