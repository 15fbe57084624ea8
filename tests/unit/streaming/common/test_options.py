"""Tests of the options of the data source: valid ones become typed values, and others are refused with option, value and valid
values.
"""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from tutti.errors import UsageError
from tutti_spark.common.options import ALIASES, TAKES, Kind, ReadOptions, parse

GATEWAYS = {"gateways": "tutti://127.0.0.1:7400"}


def test_all_options_of_a_stream() -> None:
    options = parse(
        {
            "gateways": "tutti://a:1,b:2",
            "topics": "flights, weather",
            "startingoffset": "12",
            "columns": "offset,value",
            "maxrecordspertrigger": "500",
            "minrecordspertrigger": "20",
            "maxtriggerdelay": "90s",
            "maxbytespertrigger": "1000000",
            "minpartitions": "3",
            "cut": "tick:5",
            "failondataloss": "FALSE",
        },
        "stream",
    )
    assert options == ReadOptions(
        gateways="tutti://a:1,b:2",
        topics=("flights", "weather"),
        start=12,
        columns=("offset", "value"),
        records_max=500,
        records_min=20,
        delay_ms=90_000,
        bytes_max=1_000_000,
        partitions_min=3,
        cut_ticks=5,
        fail_on_data_loss=False,
    )


def test_a_stream_starts_at_latest_and_a_batch_at_earliest() -> None:
    assert parse(GATEWAYS, "stream").start == "latest"
    assert parse(GATEWAYS, "batch").start == "earliest"
    assert parse(GATEWAYS, "batch").end == "latest"
    assert parse(GATEWAYS).fail_on_data_loss


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"subscribe": "a,b"}, {"topics": ("a", "b")}),
        ({"subscribePattern": "a.*"}, {"topics_pattern": "a.*"}),
        ({"startingOffsets": "earliest"}, {"start": "earliest"}),
        ({"endingOffsets": "latest"}, {"end": "latest"}),
    ],
)
def test_kafkas_names_mean_the_same(options: dict[str, str], value: dict[str, object]) -> None:
    parsed = parse(GATEWAYS | options, "batch")
    assert {name: getattr(parsed, name) for name in value} == value


def test_a_name_for_streams_that_move_together_fits_a_stream_without_a_limit_of_bytes() -> None:
    assert parse(GATEWAYS | {"lockstep": " pair "}, "stream").lockstep == "pair"
    assert parse(GATEWAYS, "stream").lockstep is None
    with pytest.raises(UsageError, match=r"'lockstep' \('pair'\) does not apply"):
        parse(GATEWAYS | {"lockstep": "pair"}, "batch")
    with pytest.raises(UsageError, match=r"'maxBytesPerTrigger' \('9'\) does not apply.*other topics"):
        parse(GATEWAYS | {"lockstep": "pair", "maxBytesPerTrigger": "9"}, "stream")


def test_kafkas_limits_of_a_trigger() -> None:
    options = parse(GATEWAYS | {"maxOffsetsPerTrigger": "7", "minOffsetsPerTrigger": "7"}, "stream")
    assert (options.records_max, options.records_min) == (7, 7)
    assert options.delay_ms == 15 * 60_000, "as with Kafka's source"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("15m", 900_000),
        ("2 min", 120_000),
        ("90S", 90_000),
        ("500ms", 500),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        ("250", 250),
        ("0", 0),
    ],
)
def test_times_for_which_a_trigger_is_held_back(text: str, milliseconds: int) -> None:
    assert parse(GATEWAYS | {"maxTriggerDelay": text, "minRecordsPerTrigger": "1"}, "stream").delay_ms == milliseconds


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2013-01-01T05:00:00Z", datetime(2013, 1, 1, 5, tzinfo=UTC)),
        ("2013-01-01T05:00:00.000001+01:00", datetime(2013, 1, 1, 5, 0, 0, 1, timezone(timedelta(hours=1)))),
        ("1357016400000", datetime(2013, 1, 1, 5, tzinfo=UTC)),
        ("-1", datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
        ("0001-01-01T00:00:00+14:00", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))),
        ("9999-12-31T23:59:59.999999-12:00", datetime(9999, 12, 31, 23, 59, 59, 999999, timezone(timedelta(hours=-12)))),
        ("2013-01-01T05:00:00.0000001Z", datetime(2013, 1, 1, 5, 0, 0, 1, UTC)),
        ("-62135596800000", datetime(1, 1, 1, tzinfo=UTC)),
        ("253402300799999", datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)),
    ],
)
def test_times_have_a_zone_or_are_milliseconds(text: str, time: datetime) -> None:
    assert parse(GATEWAYS | {"startingTimestamp": text}).start == time
    assert parse(GATEWAYS | {"endingTimestamp": text}).end == time


def test_directories_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse({"path": "data/jfk, data/lga"}).paths == (f"{tmp_path}/data/jfk", f"{tmp_path}/data/lga")
    assert parse({"paths": '["/data/a,b", "c"]'}).paths == ("/data/a,b", f"{tmp_path}/c")
    assert parse({"path": "file:///data/jfk"}).paths == ("/data/jfk",)
    assert parse({"path": "file:/data/jfk"}).origin == "/data/jfk"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("gateways", "http://127.0.0.1:7403"),
        ("gateways", "127.0.0.1"),
        ("path", "hdfs://host/data"),
        ("path", "a,,b"),
        ("topics", ""),
        ("topics", "a,a"),
        ("topics", "sp ace"),
        ("topics", "a,é"),
        ("topics", "['a', 'b']"),
        ("topicsPattern", "("),
        ("startingOffset", "-1"),
        ("startingOffset", "1.5"),
        ("startingOffset", "first"),
        ("startingOffset", str(1 << 63)),
        ("endingOffset", '{"topic":{"0":1}}'),
        ("startingOffsets", '{"letters":{"0":1}}'),
        ("subscribe", "sp ace"),
        ("subscribe", "a,"),
        ("subscribePattern", "("),
        ("maxOffsetsPerTrigger", "0"),
        ("minOffsetsPerTrigger", "many"),
        ("minRecordsPerTrigger", "0"),
        ("maxBytesPerTrigger", "64MB"),
        ("maxTriggerDelay", "soon"),
        ("maxTriggerDelay", "-1s"),
        ("maxTriggerDelay", "5 weeks"),
        ("maxTriggerDelay", "1.5h"),
        ("maxTriggerDelay", "999999999999999999d"),
        ("startingTimestamp", "2013-01-01T05:00:00"),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "253402300800000"),
        ("startingTimestamp", "9" * 5000),
        ("startingTimestamp", "9999-12-31T23:59:59.9999999Z"),
        ("startingOffset", "9" * 5000),
        ("maxRecordsPerTrigger", "9" * 5000),
        ("endingTimestamp", "9" * 30),
        ("columns", "offset,"),
        ("maxRecordsPerTrigger", "0"),
        ("maxRecordsPerTrigger", "many"),
        ("minPartitions", "10001"),
        ("cut", "5"),
        ("cut", "tick:0"),
        ("cut", "tick:x"),
        ("lockstep", " "),
        ("failOnDataLoss", "yes"),
        ("shortCircuit", "no"),
    ],
)
def test_a_wrong_value_is_refused_with_option_value_and_valid_values(option: str, value: str) -> None:
    origin = {} if option in ("gateways", "path") else GATEWAYS
    with pytest.raises(UsageError) as refusal:
        parse(origin | {option.lower(): value})
    message = str(refusal.value)
    assert f"option {option!r} is" in message  # by the name that was given
    assert TAKES[ALIASES.get(option, option)] in message
    assert value.rpartition(":")[2] in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["'gateways'", "'path'", "tutti://HOST:PORT"]),
        (GATEWAYS | {"path": "d"}, ["'gateways'", "'path'", "exclude"]),
        (GATEWAYS | {"paths": '["d"]'}, ["'gateways'", "'path'", "exclude"]),
        (GATEWAYS | {"topcis": "a"}, ["'topcis'", "'a'", "did you mean 'topics'", "failOnDataLoss"]),
        (GATEWAYS | {"zzz": "red"}, ["'zzz'", "'red'", "unknown"]),
        (GATEWAYS | {"includeheaders": "true"}, ["'includeheaders'", "columns"]),
        (GATEWAYS | {"kafka.bootstrap.servers": "h:1"}, ["kafka.bootstrap.servers", "gateways"]),
        (GATEWAYS | {"topics": "a", "topicspattern": "b"}, ["'topics'", "'topicsPattern'", "exclude"]),
        (GATEWAYS | {"topics": "a", "subscribe": "b"}, ["'topics'", "'subscribe'", "same"]),
        (GATEWAYS | {"startingoffset": "1", "startingtimestamp": "2"}, ["'startingOffset'", "'startingTimestamp'"]),
        (GATEWAYS | {"startingoffsets": "1", "startingtimestamp": "2"}, ["'startingOffsets'", "'startingTimestamp'"]),
        (GATEWAYS | {"subscribe": "a", "subscribepattern": "b"}, ["'subscribe'", "'subscribePattern'", "exclude"]),
        (
            GATEWAYS | {"minoffsetspertrigger": "8", "maxrecordspertrigger": "7"},
            ["'minOffsetsPerTrigger' is 8", "more than 'maxRecordsPerTrigger' (7)"],
        ),
        (GATEWAYS | {"maxtriggerdelay": "5s"}, ["'maxTriggerDelay' ('5s')", "'minRecordsPerTrigger'", "as well"]),
    ],
)
def test_options_that_do_not_fit_together(options: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UsageError) as refusal:
        parse(options)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        ("batch", "maxRecordsPerTrigger", "5"),
        ("batch", "minRecordsPerTrigger", "5"),
        ("batch", "maxBytesPerTrigger", "5"),
        ("batch", "cut", "tick:1"),
        ("stream", "endingOffset", "5"),
        ("stream", "endingTimestamp", "5"),
    ],
)
def test_options_of_the_other_kind_of_read(kind: Kind, option: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"'{option}' .'{value}'. does not apply"):
        parse(GATEWAYS | {option: value}, kind)


def test_every_name_of_kafkas_leads_to_one_of_ours() -> None:
    assert set(ALIASES.values()) <= set(TAKES)


def test_a_time_after_the_last_microsecond_is_reported() -> None:
    with pytest.raises(UsageError, match="after the year 9999"):
        parse(GATEWAYS | {"startingtimestamp": "9999-12-31T23:59:59.9999999Z"})
