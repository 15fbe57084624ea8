"""Tests of the demo's producers: each sends its departures in order, and none is ahead of another by more than the skew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tutti.errors import Aborted
from tutti_gateway.cli.demo import feeder as feeding
from tutti_gateway.cli.demo.departures import AIRPORTS
from tutti_gateway.cli.demo.feeder import Feeder, Pace
from tutti_gateway.cli.demo.shared_progress import FINISHED, SharedProgress

Log = list[tuple[str, int]]


def table(minutes: list[int]) -> pa.Table:
    return pa.table(
        {"minutes": pa.array(minutes, pa.int64()), "value": pa.array([b"%d" % minute for minute in minutes], pa.binary())}
    )


def into(log: Log, airport: str, lock: threading.Lock, slow: float = 0.0) -> Callable[..., None]:
    def send(value: bytes, on_delivery: Callable[[Exception | None, object], Any]) -> None:
        time.sleep(slow)
        with lock:
            log.append((airport, int(value)))
        on_delivery(None, None)

    return send


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "SLOT_S", 0.0005)


def test_no_departure_is_older_than_another_before_it_by_more_than_the_skew(tmp_path: Path) -> None:
    log: Log = []
    lock = threading.Lock()
    year = list(range(0, 3000, 7))
    with SharedProgress(tmp_path / "board") as shared_progress:
        feeders = [Feeder(airport, table(year), shared_progress, Pace(1e6, 50)) for airport in AIRPORTS]
        slow = dict(zip(AIRPORTS, (0.0, 0.0, 0.0002), strict=True))
        threads = [
            threading.Thread(target=feeder.run, args=(into(log, airport, lock, slow[airport]), lambda: 0))
            for airport, feeder in zip(AIRPORTS, feeders, strict=True)
        ]
        for thread in threads:
            thread.start()
        assert log == []
        shared_progress.begin(time.monotonic_ns() // 1000)
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert shared_progress.committed() == FINISHED
    for airport in AIRPORTS:
        assert [minute for name, minute in log if name == airport] == year
    latest = 0
    for _, minute in log:
        assert minute > latest - 50
        latest = max(latest, minute)
    assert all((feeder.times_us[:, 1] >= feeder.times_us[:, 0]).all() and feeder.times_us.all() for feeder in feeders)


def test_the_pace_holds_departures_back(tmp_path: Path) -> None:
    log: Log = []
    with SharedProgress(tmp_path / "board") as shared_progress:
        for airport in AIRPORTS:
            shared_progress.publish(airport, FINISHED)
        feeder = Feeder("EWR", table([0, 100, 200]), shared_progress, Pace(1000.0, 50))
        begun = time.monotonic()
        shared_progress.begin(time.monotonic_ns() // 1000)
        feeder.run(into(log, "EWR", threading.Lock()), lambda: 0)
        assert time.monotonic() - begun >= 0.2
    assert log == [("EWR", 0), ("EWR", 100), ("EWR", 200)]


def test_a_departure_that_is_not_committed_ends_the_feeder(tmp_path: Path) -> None:
    def send(value: bytes, on_delivery: Callable[[Exception | None, object], Any]) -> None:
        on_delivery(Aborted("gone") if value == b"1" else None, None)

    with SharedProgress(tmp_path / "board") as shared_progress:
        shared_progress.begin(1)
        feeder = Feeder("EWR", table([0, 1, 2]), shared_progress, Pace(1e6, 50))
        with pytest.raises(Aborted, match="gone"):
            feeder.run(send, lambda: 0)


def test_the_board_is_shared_by_all_processes_that_map_it(tmp_path: Path) -> None:
    with SharedProgress(tmp_path / "board") as one, SharedProgress(tmp_path / "board") as other:
        one.publish("EWR", 7)
        one.publish("JFK", 5)
        assert (other.committed(), other.committed_elsewhere("LGA"), other.committed_elsewhere("EWR")) == (0, 5, 0)
        other.begin(11)
        assert one.started_us == 11
