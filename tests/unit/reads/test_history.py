"""Tests of the console's history: a point is the difference of two samples, unknown values stay unknown, and the
memory is bounded.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from tutti_gateway.core import limits
from tutti_gateway.reads.admin.history import FIELDS, History, quantile

S = 1_000_000
START_US = 1_795_000_000 * S


def status(at_s: float, **more: Any) -> dict[str, Any]:
    """A gateway that commits 1000 records a second, each after 150 us."""
    base = {
        "started_us": 7,
        "state": "primary",
        "reason": "",
        "pid": 11,
        "view": {"id": 65537, "text": "1.1", "coordinator": "jfk", "members": ["jfk", "lga"]},
        "silent": [],
        "frontier": int(1000 * at_s),
        "lag": {"jfk": 0, "lga": 8},
        "committed": {"records": int(1000 * at_s)},
        "commit_us": {"bounds": [100, 200], "counts": [0, int(1000 * at_s), 0], "sum": 0},
    }
    return base | more


class House:
    """A gateway and a clock."""

    def __init__(self) -> None:
        self.told: dict[str, Any] | None = None
        self.history = History(lambda: self.told, lambda: {"records": 0, "bytes": 0})

    def look(self, at_s: float, told: dict[str, Any] | None) -> None:
        self.told = told
        self.history.sample(int(START_US + at_s * S), int(at_s * S))

    def points(self, **asked: int) -> list[dict[str, float | None]]:
        return [dict(zip(FIELDS, row, strict=True)) for row in self.plain(**asked)["points"]]

    def plain(self, **asked: int) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self.history.recent(**asked)))
        return found


def test_a_point_is_the_difference_of_two_samples() -> None:
    house = House()
    house.look(1, status(1))
    house.look(2.5, status(2.5))
    (point,) = house.points()
    assert (point["time_us"], point["span_us"]) == (START_US + 2.5 * S, 1.5 * S)
    assert (point["committed_records"], point["frontier"], point["lag_max"]) == (1000, 2500, 8)
    assert point["commit_p50_us"] == 150
    assert point["commit_p99_us"] == 199
    assert point["vote_p99_us"] is None
    assert point["disk_free_bytes"] is None


def test_unknown_values_stay_unknown() -> None:
    house = House()
    house.look(1, status(1))
    house.look(2, None)
    house.look(3, status(3))
    house.look(4, status(0.5, started_us=9))
    assert [point["committed_records"] for point in house.points()] == [None, None, None]
    assert [point["frontier"] for point in house.points()] == [None, 3000, 500]


def test_changes_after_a_time_are_returned_within_the_requested_limit() -> None:
    house = House()
    for second in range(6):
        house.look(second, status(second))
    assert [point["time_us"] for point in house.points(since_us=START_US + 3 * S)] == [START_US + 4 * S, START_US + 5 * S]
    assert len(house.points(seconds=2)) == 2
    assert house.points(seconds=0) == []
    assert len(house.plain()["changes"]) == 1
    assert house.plain(since_us=START_US)["changes"] == []


def test_changes_of_view_and_state_are_kept_and_changes_of_a_reason_are_not() -> None:
    house = House()
    house.look(1, status(1))
    house.look(2, status(2))
    house.look(3, status(3, state="minority", reason="waits for lga, 3 s"))
    house.look(4, status(4, state="minority", reason="waits for lga, 4 s"))
    house.look(5, None)
    house.look(6, status(6, view={"id": 131073, "text": "2.1", "coordinator": "jfk", "members": ["jfk"]}, silent=["lga"]))
    house.look(7, status(7, view={"id": 131073, "text": "2.1", "coordinator": "jfk", "members": ["jfk"]}, silent=["lga"], pid=12))
    changes = house.plain()["changes"]
    assert [change["state"] for change in changes] == ["primary", "minority", "unknown", "primary", "primary"]
    assert changes[1]["reason"] == "waits for lga, 3 s"
    assert (changes[3]["view_text"], changes[3]["silent"], changes[4]["pid"]) == ("2.1", ["lga"], 12)


def test_memory_is_bounded() -> None:
    house = House()
    for second in range(limits.HISTORY_SECONDS + 300):
        house.look(second, status(second, state="primary" if second % 2 else "minority", reason="x" * 1000))
    assert len(house.points()) == limits.HISTORY_SECONDS
    changes = house.plain()["changes"]
    assert len(changes) == limits.HISTORY_EVENTS_MAX
    assert len(changes[0]["reason"]) == limits.HISTORY_TEXT_CHARACTERS_MAX
    minutes = msgspec.json.decode(msgspec.json.encode(house.history.minutes()))["points"]
    assert len(minutes) == (limits.HISTORY_SECONDS + 299) // 60
    assert {round(row[FIELDS.index("committed_records")]) for row in minutes} == {1000}
    assert len(msgspec.json.encode(house.history.recent())) < 300_000


def test_points_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the oldest are dropped, and not kept for the answers."""
    monkeypatch.setattr(limits, "HISTORY_MINUTES", 3)
    monkeypatch.setattr(limits, "HISTORY_SECONDS", 4)
    house = House()
    for minute in range(10):
        house.look(60 * minute, status(60 * minute))
    minutes = msgspec.json.decode(msgspec.json.encode(house.history.minutes()))["points"]
    ends = [row[FIELDS.index("time_us")] for row in minutes]
    assert (len(ends), ends[2] - ends[0]) == (3, 120e6)
    assert len(house.history._seconds.points) == 4


def test_quantiles() -> None:
    before: dict[str, Any] = {"bounds": [10, 20, 40], "counts": [5, 5, 5, 5], "sum": 0}
    now = {**before, "counts": [5, 15, 15, 5]}
    assert quantile(before, now, 0.5) == 20
    assert quantile(before, now, 0.75) == 30
    assert quantile(before, {**before, "counts": [5, 5, 5, 9]}, 0.5) == 60
    assert math.isnan(quantile(before, before, 0.5))
    assert math.isnan(quantile(None, now, 0.5))
