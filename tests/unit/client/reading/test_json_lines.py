"""Tests of records as JSON lines: the exact fields in order, bytes that are not UTF-8, and times to the microsecond."""

from __future__ import annotations

from base64 import b64decode
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from tutti.data.frames.columns import COLUMNS, SCHEMA
from tutti.data.frames.schema import HEADERS, TIME_US_MAX, TIME_US_MIN, TIMESTAMP
from tutti.reading.json_lines import json_lines, truncated_json_lines, values, with_key


def a_batch() -> pa.RecordBatch:
    rows = [
        {"offset": 7, "topic": "flights", "key": b"EWR", "value": b'{"a":"\xc3\xa4"}', "headers": None, "sequence": 1},
        {"offset": 8, "topic": "flights", "key": b"\xff", "value": None, "headers": [{"key": "h", "value": b"x"}], "sequence": 2},
        {
            "offset": 9,
            "topic": "flights",
            "key": None,
            "value": b"\x80",
            "headers": [{"key": "h", "value": b"\xfe"}],
            "sequence": 3,
        },
    ]
    times = [
        datetime(2013, 1, 1, 5, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ]
    same = {"gateway": "g1", "producer": "p", "view": 65537, "tick": 3}
    full = [row | same | {"timestamp": time} for row, time in zip(rows, times, strict=True)]
    return pa.RecordBatch.from_pylist(full, schema=SCHEMA)


def test_a_line_has_every_field_in_order() -> None:
    first, second, third = json_lines(a_batch())
    assert first == (
        b'{"offset":7,"topic":"flights","key":"EWR","value":"{\\"a\\":\\"\xc3\xa4\\"}","timestamp":"2013-01-01T05:00:00.000000Z",'
        b'"headers":[],"gateway":"g1","producer":"p","sequence":1,"view":65537,"tick":3}'
    )
    assert list(orjson.loads(first)) == list(COLUMNS)
    assert orjson.loads(second)["timestamp"] == "1969-12-31T23:59:59.999999Z"
    assert orjson.loads(third)["timestamp"] == "9999-12-31T23:59:59.999999Z"


def test_bytes_that_are_no_text_come_as_base64_under_a_name_of_their_own() -> None:
    _, second, third = json_lines(a_batch())
    assert list(orjson.loads(second)) == ["offset", "topic", "key_base64", *COLUMNS[3:]]
    assert orjson.loads(second)["key_base64"] == "/w=="
    assert orjson.loads(second)["value"] is None
    assert orjson.loads(second)["headers"] == [{"key": "h", "value": "x"}]
    assert orjson.loads(third)["value_base64"] == "gA=="
    assert orjson.loads(third)["headers"] == [{"key": "h", "value_base64": "/g=="}]


_TEXTS = st.one_of(st.none(), st.binary(max_size=6), st.text(st.characters(exclude_categories=["Cs"]), max_size=4).map(str.encode))


@given(_TEXTS, _TEXTS, _TEXTS, st.integers(TIME_US_MIN, TIME_US_MAX))
@example(b"\0", b"12345678901234567890123", b"\\xff", TIME_US_MIN)
def test_a_line_has_the_values_of_the_record(key: bytes | None, value: bytes | None, header: bytes | None, time_us: int) -> None:
    """Proves that no two records have the same line: it is parsed by name, and base64 if the name says so."""

    def back(shown: dict[str, Any], name: str) -> bytes | None:
        coded: str | None = shown.get(f"{name}_base64")
        text: str | None = shown.get(name)
        return b64decode(coded) if coded is not None else None if text is None else text.encode()

    columns: dict[str, Any] = {
        "key": pa.array([key], pa.binary()),
        "value": pa.array([value], pa.binary()),
        "timestamp": pa.array([time_us]).cast(TIMESTAMP),
        "headers": pa.array([[{"key": "h", "value": header}]], HEADERS),
    }
    [line] = json_lines(pa.record_batch(columns))
    shown = orjson.loads(line)
    assert (back(shown, "key"), back(shown, "value"), back(shown["headers"][0], "value")) == (key, value, header)
    assert (datetime.fromisoformat(shown["timestamp"]) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) == time_us


def test_only_the_columns_that_are_there_are_shown() -> None:
    batch = a_batch().select(["value", "offset"])
    assert next(iter(json_lines(batch))) == b'{"value":"{\\"a\\":\\"\xc3\xa4\\"}","offset":7}'


def test_records_are_chosen_by_key() -> None:
    assert with_key(a_batch(), b"EWR").column("offset").to_pylist() == [7]
    assert with_key(a_batch(), b"").num_rows == 0
    assert with_key(a_batch(), None).num_rows == 3
    assert values(with_key(a_batch(), b"\xff")) == [None]


def test_long_text_is_truncated_between_characters_and_its_length_shown() -> None:
    rows = [
        {"offset": 1, "topic": "t", "key": b"k" * 9, "value": "aä".encode() * 3, "headers": [{"key": "h", "value": b"x" * 9}]},
        {"offset": 2, "topic": "t", "key": b"\xff" * 9, "value": b"short", "headers": None},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([SCHEMA.field(name) for name in rows[0]]))
    first, second = (orjson.loads(line) for line in truncated_json_lines(batch, 5))
    assert (first["key"], first["key_bytes"]) == ("kkkkk", 9)
    assert (first["value"], first["value_bytes"]) == ("aäa", 9)
    assert first["headers"] == [{"key": "h", "value": "xxxxx", "value_bytes": 9}]
    assert (second["key_base64"], second["key_bytes"], second["value"]) == ("//////8=", 9, "short")
    assert "value_bytes" not in second
