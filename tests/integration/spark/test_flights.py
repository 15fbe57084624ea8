"""Tests of the departures job: its live result, over several runs, equals the result of a replay of the log files byte for byte."""

from __future__ import annotations

import json
import random
from argparse import Namespace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.gateway_process import GatewayProcess
from tutti import Producer
from tutti_spark.jobs import flights
from tutti_spark.jobs.departures import CLOSING_RECORD, TOPIC

pytestmark = pytest.mark.spark
HOURS = 30
WEATHER = "origin STRING, time_hour TIMESTAMP, rain BOOLEAN, murky BOOLEAN"
AIRPORTS = ("EWR", "JFK", "LGA")


def hour(number: int) -> str:
    return f"2013-01-{1 + number // 24:02}T{number % 24:02}:00:00Z"


def departures(chance: random.Random) -> list[list[bytes]]:
    """A few departures of each airport in each hour."""
    found: list[list[bytes]] = []
    for number in range(HOURS):
        for airport in AIRPORTS:
            minutes = sorted(chance.randrange(60) for _ in range(chance.randrange(5)))
            found.append(
                [
                    json.dumps(
                        {
                            "year": 2013,
                            "month": 1,
                            "day": 1 + number // 24,
                            "carrier": "UA",
                            "flight": chance.randrange(1000),
                            "origin": airport,
                            "time_hour": hour(number),
                            "minute": minute,
                            "dep_delay": chance.choice([None, -5, 0, 14, 15, 200]),
                            "dest": "not asked for",
                        }
                    ).encode()
                    for minute in minutes
                ]
            )
    return found


def write_weather(path: Path, chance: random.Random) -> None:
    columns = "origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour"
    lines = [
        f"{airport},2013,1,1,0,30.0,20.0,50.0,NA,5.0,,{chance.choice([0, 0.01])},1000.0,{chance.choice([1.5, 10])},{hour(number)}"
        for number in range(HOURS)
        for airport in AIRPORTS
        if chance.random() < 0.9
    ]
    path.write_text("\n".join([columns, *lines]) + "\n")


def send(url: str, batches: list[list[bytes]]) -> None:
    with Producer(url) as producer:
        for batch in batches:
            for value in batch:
                producer.send(TOPIC, value)


@pytest.mark.soak  # the demo's test holds live and replay against each other, too
def test_live_in_several_runs_equals_the_replay(spark: SparkSession, own_gateway: GatewayProcess, tmp_path: Path) -> None:
    chance = random.Random(11)
    batches = departures(chance)
    total = sum(len(batch) for batch in batches)
    for at in range(0, len(batches) - 12, 12):  # airports fall behind each other by some hours, as producers do
        part = batches[at : at + 12]
        chance.shuffle(part)
        batches[at : at + 12] = part
    write_weather(tmp_path / "weather.csv", chance)
    live = Namespace(
        gateways=own_gateway.url,
        topic=TOPIC,
        weather=str(tmp_path / "weather.csv"),
        out=str(tmp_path / "live"),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger=None,
        available_now=True,
        until_closed=False,
        max_records=100,
    )
    middle = len(batches) // 2
    send(own_gateway.url, batches[:middle])
    assert flights.live(spark, live) == {"mode": "live", "closed": False}
    send(own_gateway.url, batches[middle:])
    assert flights.live(spark, live) == {"mode": "live", "closed": False}
    held_back = sum(json.loads(line)["departures"] for line in flights.sorted_rows(spark, live.out))
    assert held_back < total
    send(own_gateway.url, [[CLOSING_RECORD]])
    live.available_now, live.until_closed = False, True
    assert flights.live(spark, live) == {"mode": "live", "closed": True}
    assert flights.live(spark, live) == {"mode": "live", "closed": True}  # nothing left, and it knows

    own_gateway.kill()
    replay = Namespace(
        path=str(own_gateway.data),
        topic=TOPIC,
        weather=live.weather,
        out=str(tmp_path / "replay"),
        end=None,
        compare=live.out,
    )
    report = flights.replay(spark, replay)
    assert report["equal"]
    assert report["live_departures"] == report["replay_departures"] == total
    assert (tmp_path / "live.jsonl").read_bytes() == (tmp_path / "replay.jsonl").read_bytes()
    check_figures(tmp_path / "replay.jsonl", [json.loads(value) for batch in batches for value in batch])

    replay.end = total // 2
    replay.out = str(tmp_path / "half")
    assert not flights.replay(spark, replay)["equal"]


def check_figures(rows: Path, sent: list[dict[str, object]]) -> None:
    """Against the plainest way to count."""
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        mine = [one for one in sent if one["origin"] == row["origin"] and row["hour"][:13] == str(one["time_hour"])[:13]]
        delays = [int(str(one["dep_delay"])) for one in mine if one["dep_delay"] is not None]
        assert row["departures"] == len(mine)
        assert row["cancelled"] == len(mine) - len(delays)
        assert row["late"] == sum(delay >= 15 for delay in delays)
        assert row["delay_minutes"] == (sum(delays) if delays else None)
        assert row["delay_minutes_max"] == (max(delays) if delays else None)
        assert row["weather_known"] in (0, len(mine))


@pytest.mark.parametrize(
    "value",
    [
        b"no json",
        b"[]",
        b"null",
        b'{"minute":1}',
        b'{"time_hour":"2013-01-01T05:00:00Z","minute":0,"dep_delay":1.5}',
        b'{"time_hour":"2013-01-01T05:00:00Z","minute":0,"day":"first"}',
    ],
)
def test_a_record_that_is_not_a_departure_stops_the_job(spark: SparkSession, value: bytes) -> None:
    records = spark.createDataFrame([(5, bytearray(value))], "offset long, value binary")
    with pytest.raises(PySparkException) as error:
        flights.statistics(flights.departures(records), spark.createDataFrame([], WEATHER)).collect()
    assert f"the record at offset 5 is not a departure: {value.decode()}" in str(error.value)
