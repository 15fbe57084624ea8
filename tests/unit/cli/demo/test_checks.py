"""Tests of the demo's checks and report page: every kind of mismatch is found, and the page shows the given values."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest

from tutti.log.read.reader import DecidedEnd
from tutti_gateway.cli.demo.checks import Check, check_logs, check_records, check_results, check_same, load_times, speed
from tutti_gateway.cli.demo.departures import Departures
from tutti_gateway.cli.demo.report_page import Kill, mean_delays, write_picture
from tutti_gateway.log.tools.verify import Finding, Verified

CLOSING = b"closing"
Record = tuple[bytes | None, bytes]


def value(airport: str, flight: int) -> bytes:
    return orjson.dumps({"year": 2013, "month": 1, "day": 1, "carrier": "UA", "flight": flight, "origin": airport})


def of(airport: str, flights: list[int]) -> Departures:
    values = pa.array([value(airport, flight) for flight in flights], pa.binary())
    return Departures(airport, pa.array(range(len(flights)), pa.int64()), values)


EXPECTED = [of("EWR", [1, 2, 3]), of("JFK", [1, 2])]
GOOD: list[Record] = [
    (b"JFK", value("JFK", 1)),
    (b"EWR", value("EWR", 1)),
    (b"EWR", value("EWR", 2)),
    (b"JFK", value("JFK", 2)),
    (b"EWR", value("EWR", 3)),
    (None, CLOSING),
]


def batches(records: list[Record]) -> list[pa.RecordBatch]:
    columns = [pa.array([record[number] for record in records], pa.binary()) for number in (0, 1)]
    whole = pa.record_batch(columns, names=["key", "value"])
    return [whole.slice(at, 2) for at in range(0, len(records), 2)]


def checked(records: list[Record]) -> list[Check]:
    return check_records(batches(records), EXPECTED, CLOSING)


def test_the_right_records_hold() -> None:
    once, order = checked(GOOD)
    assert (once.held, once.counted) == (True, "5 of 5 ids, 0 twice, 0 missing, 0 unknown")
    assert (order.held, order.counted) == (True, "EWR, JFK of EWR, JFK")


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (lambda records: [*records, records[0]], "5 of 5 ids, 1 twice, 0 missing, 0 unknown"),
        (lambda records: records[1:], "4 of 5 ids, 0 twice, 1 missing, 0 unknown"),
        (lambda records: [*records, (b"EWR", value("EWR", 9))], "6 of 5 ids, 0 twice, 0 missing, 1 unknown"),
        (lambda records: [*records, (b"LGA", value("LGA", 1))], "5 of 5 ids, 0 twice, 0 missing, 1 unknown"),
        (lambda records: [*records, (None, value("EWR", 1))], "5 of 5 ids, 0 twice, 0 missing, 1 unknown"),
        (lambda records: [*records, (None, CLOSING)], "5 of 5 ids, 0 twice, 0 missing, 1 unknown"),
        (lambda records: records[:-1], "5 of 5 ids, 0 twice, 0 missing, 1 unknown"),
    ],
)
def test_duplicate_missing_and_unknown_records_are_counted(change: Callable[[list[Record]], list[Record]], counted: str) -> None:
    once, _ = checked(change(GOOD))
    assert (once.held, once.counted) == (False, counted)


def test_a_changed_order_is_seen() -> None:
    swapped = [GOOD[0], GOOD[2], GOOD[1], *GOOD[3:]]
    once, order = checked(swapped)
    assert once.held
    assert (order.held, order.counted) == (False, "JFK of EWR, JFK")


def test_logs_that_differ_in_a_record_or_in_length_are_seen() -> None:
    assert check_same({"jfk": (5, "a" * 64)}) == []
    (same,) = check_same({"jfk": (5, "a" * 64), "lga": (5, "a" * 64)})
    assert same == Check("the same log on every gateway", True, f"jfk {'a' * 12} of 5 records, lga {'a' * 12} of 5 records")
    assert not check_same({"jfk": (5, "a" * 64), "lga": (5, "b" * 64)})[0].held
    assert not check_same({"jfk": (5, "a" * 64), "lga": (4, "a" * 64), "ewr": (5, "a" * 64)})[0].held


def test_damage_in_any_log_is_seen() -> None:
    frontier = DecidedEnd(7, 5, 0, 0, live=False)
    good = Verified("l", "jfk", frontier, 0, 0, frames=3)
    bad = Verified("l", "lga", frontier, 0, 0, frames=3, damage=[Finding(7, 3, "log/1.seg", 64, "frame 7 is damaged")])
    assert check_logs({"jfk": good, "lga": good}).held
    found = check_logs({"jfk": good, "lga": bad})
    assert (found.held, found.counted) == (False, "jfk 3 frames, 0 corrupt, lga 3 frames, 1 corrupt")


def rows(*departures: int) -> bytes:
    return b"".join(orjson.dumps({"departures": count}) + b"\n" for count in departures)


@pytest.mark.parametrize(
    ("live", "replay", "held"),
    [
        (rows(3, 4), rows(3, 4), [True, True]),
        (rows(3, 4), rows(4, 3), [False, True]),
        (rows(3, 3), rows(3, 3), [True, False]),
        (b"", b"", [False, False]),
    ],
)
def test_results_are_compared_by_their_bytes(tmp_path: Path, live: bytes, replay: bytes, held: list[bool]) -> None:
    (tmp_path / "live").write_bytes(live)
    (tmp_path / "replay").write_bytes(replay)
    assert [check.held for check in check_results(tmp_path / "live", tmp_path / "replay", 7)] == held


def test_speed_is_of_all_producers_together(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[2_000_000, 2_001_000], [1_000_000, 1_002_000]]))
    np.save(tmp_path / "b.npy", np.array([[1_500_000, 3_000_000]]))
    times = load_times(tmp_path)
    assert times[:, 0].tolist() == [1_000_000, 1_500_000, 2_000_000]
    found = speed(times)
    assert (found.records, found.seconds, found.p50_ms, found.max_ms) == (3, 2.0, 2.0, 1500.0)
    assert found.records_a_second == 1.5


def test_the_picture_shows_checks_delays_and_kills(tmp_path: Path) -> None:
    hour = {"departures": 4, "cancelled": 2, "delay_minutes": 30}
    summer = {"hour": "2013-07-01T10:00:00.000Z", **hour}
    winter = {"hour": "2013-01-01T11:00:00.000Z", **hour}
    gone = {"hour": "2013-01-01T12:00:00.000Z", "departures": 1, "cancelled": 1, "delay_minutes": None}
    assert mean_delays([summer, winter, gone]) == {6: 15.0}
    times = np.array([[1_000_000 * second, 1_000_000 * second + 800] for second in range(1, 30)])
    checks = [Check("good <thing>", True, "7 & more"), Check("bad thing", False, "3")]
    page = tmp_path / "demo.html"
    write_picture(page, "A title", checks, [summer, winter, gone], times, speed(times), [Kill("the gateway", 5_000_000)])
    text = page.read_text()
    assert "good &lt;thing&gt;" in text
    assert ">NOT HELD<" in text
    assert text.count("<svg") == 3
    assert "the gateway</text>" in text
    assert "p50 0.80 ms" in text
    assert not re.search(r"\b(src|href)=", text)
