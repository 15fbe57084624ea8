"""Tests of post bodies: they become the right records, and errors name record, line, column and field."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.reading.json_lines import json_lines
from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem
from tutti_connect.http.produce.bodies import ARROW, JSON, NDJSON, parse


def rows(content_type: str, body: bytes, plain: bool = False) -> list[dict[str, Any]]:
    return parse("t", content_type, body, plain).batch.to_pylist()


def refused(content_type: str, body: bytes, plain: bool = False) -> Problem:
    with pytest.raises(Problem) as caught:
        parse("t", content_type, body, plain)
    return caught.value


def stream(*batches: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


VALUES = pa.record_batch({"value": pa.array([b"1", None, b"3"], pa.binary())})


def test_one_record_and_several() -> None:
    (one,) = rows(JSON, b'{"key":"k","value":"v\\u00e4","headers":[{"key":"h","value":"x"},{"key":"n"}]}')
    assert (one["key"], one["value"].decode()) == (b"k", "vä")
    assert one["headers"] == [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]
    first, second = rows(JSON, b' [ {"value":null,"key_base64":"/w=="} ,\n{"value_base64":"/wA="}]')
    assert (first["key"], first["value"], second["key"], second["value"]) == (b"\xff", None, None, b"\xff\x00")
    assert first["timestamp"] == second["timestamp"]


def test_lines_of_records() -> None:
    given = b'{"value":"a","timestamp":"2026-01-31T12:00:00+02:00"}\r\n\n  {"value":"b"}  \n{"value":"c"}'
    found = rows(NDJSON, given)
    assert [row["value"] for row in found] == [b"a", b"b", b"c"]
    assert found[0]["timestamp"] == datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert found[1]["timestamp"].year >= 2026


def test_plain_lines_are_values_byte_for_byte() -> None:
    given = b'{"b": 1,  "a":[1.0]}\n"x"\r\n\n-0.50\nnull\n'
    assert [row["value"] for row in rows(NDJSON, given, plain=True)] == [b'{"b": 1,  "a":[1.0]}', b'"x"', b"-0.50", b"null"]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_streams(compression: str | None) -> None:
    assert [row["value"] for row in rows(ARROW, stream(VALUES, VALUES, compression=compression))] == [b"1", None, b"3"] * 2
    empty = VALUES.slice(0, 0)
    assert len(rows(ARROW, stream(empty, VALUES))) == 3


@pytest.mark.parametrize(
    ("body", "where", "told"),
    [
        (b'{"value":"a"}\n{"valu":"b"}\n', {"record": 2, "line": 2, "field": "valu"}, "unknown field `valu`"),
        (b'{"value":"a"}\n\n{"value":1}', {"record": 2, "line": 3, "field": "value"}, "expected `str | null`, got `int`"),
        (b'{"value":"a"}\n{"value":', {"record": 2, "line": 2, "column": 10}, "truncated"),
        (b'{"value":"a"}\n{"value";1}', {"record": 2, "line": 2, "column": 9}, "malformed"),
        (b'{"value":"a"} {"value":"b"}', {"record": 1, "line": 1, "column": 15}, "trailing characters"),
        (b'{"value":\n"b"}', {"record": 1, "line": 1, "column": 10}, "truncated"),
        (b'{"value":"a\xff"}', {"record": 1, "line": 1, "column": 12}, "not UTF-8"),
        (b'{"value_base64":"###"}', {"record": 1, "line": 1, "field": "value_base64"}, "base64"),
        (b'{"value":"a"}\n[]', {"record": 2, "line": 2}, "expected `object`, got `array`"),
        (b'{"key":"a"}', {"record": 1, "field": "value"}, "no value: give value or value_base64, null for none"),
        (b'{"value":"a","value_base64":""}', {"record": 1, "field": "value_base64"}, "give one of them"),
        (b'{"value":null,"value_base64":"YQ=="}', {"record": 1, "field": "value_base64"}, "give one of them"),
        (b'{"value":"a","value_base64":"YQ=="}', {"record": 1, "field": "value_base64"}, "give one of them"),
        (b'{"value":"","key":"a","key_base64":""}', {"record": 1, "field": "key_base64"}, "give one of them"),
        (b'{"value":"","timestamp":"2026-01-31T12:00:00"}', {"record": 1, "line": 1, "field": "timestamp"}, "timezone"),
        (b'{"value":"","headers":[{"key":"h","x":1}]}', {"record": 1, "line": 1, "field": "headers[0].x"}, "unknown field"),
        (b'{"value":"","headers":[{"key":"h","value":"","value_base64":""}]}', {"record": 1, "field": "headers"}, "header 'h'"),
    ],
)
def test_mistakes_in_lines_are_named(body: bytes, where: dict[str, Any], told: str) -> None:
    problem = refused(NDJSON, body)
    assert (problem.status, problem.fields["where"]) == (400, where)
    assert told in problem.message
    assert problem.message.startswith("record ")


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b'[{"value":"a"},\n {"value":1}]', {"record": 2, "field": "value"}),
        (b'[{"value":"a"},\n {"value";1}]', {"line": 2, "column": 10}),
        (b'[{"value":"a"}\n', {"line": 2, "column": 1}),
        (b'[{"value":"a"}] x', {"line": 1, "column": 17}),
        (b"", {"line": 1, "column": 1}),
        (b'"a"', {}),
        (b'[{"value":"\xff"}]', {"line": 1, "column": 12}),
    ],
)
def test_mistakes_in_json_are_named(body: bytes, where: dict[str, Any]) -> None:
    assert refused(JSON, body).fields["where"] == where


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"{}\nnul\n", {"record": 2, "line": 2, "column": 4}),
        (b"1 2\n", {"record": 1, "line": 1, "column": 3}),
        (b'"ok"\n"\xc3"\n', {"line": 2, "column": 2}),
        (b"1\n" + b"[" * 200_000, {"record": 2, "line": 2}),
    ],
)
def test_plain_lines_are_json_all_the_same(body: bytes, where: dict[str, Any]) -> None:
    found = refused(NDJSON, body, plain=True).fields["where"]
    assert {name: found[name] for name in where} == where


@pytest.mark.parametrize(
    ("content_type", "body"), [(JSON, b"[]"), (NDJSON, b"\n\n"), (NDJSON, b""), (ARROW, stream(VALUES.slice(0, 0)))]
)
def test_a_post_without_records_is_none(content_type: str, body: bytes) -> None:
    assert "no records" in refused(content_type, body).message


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not an Arrow IPC stream"),
        (b"GET / HTTP/1.1", "not an Arrow IPC stream"),
        (stream(VALUES)[:-60], "batch 1 of the stream"),
        (stream(pa.record_batch({"v": pa.array([b"1"])})), "column 'v' is unknown"),
        (stream(pa.record_batch({"value": pa.array(["1"])})), "must be binary"),
        (stream(pa.record_batch({"value": pa.array([b"1"]).dictionary_encode()})), "dictionary"),
        (stream(VALUES.append_column("timestamp", pa.nulls(3, pa.timestamp("us", "UTC")))), "timestamp"),
    ],
)
def test_mistakes_in_an_arrow_stream_are_named(body: bytes, told: str) -> None:
    problem = refused(ARROW, body)
    assert problem.status == 400
    assert told in problem.message


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORDS_A_POST_MAX", 3)
    monkeypatch.setattr(limits, "RAW_BYTES_MAX", 1 << 20)
    assert "4 lines" in refused(NDJSON, b"\n" * 4).message
    assert "4 records" in refused(JSON, json.dumps([{"value": ""}] * 4).encode()).message
    large = pa.record_batch({"value": pa.array([bytes(4 << 20)], pa.binary())})
    small = stream(large, compression="zstd")
    assert len(small) < 10_000
    problem = refused(ARROW, small)
    assert problem.status == 413
    assert "the limit of 1048576" in problem.message


def test_a_repeat_has_the_same_digest_however_it_is_written() -> None:
    """JSON, lines and Arrow of the same records, sliced or not, with and without a time; and every change shows."""
    lines = b'{"key":"k","value":"v"}\n{"value_base64":"/w=="}\n{"value":null}\n'
    columns: dict[str, pa.Array[Any]] = {
        "key": pa.array([b"x", b"k", None, None], pa.binary()),
        "value": pa.array([b"", b"v", b"\xff", None], pa.binary()),
    }
    arrow = pa.RecordBatch.from_pydict(columns).slice(1)
    same = [
        parse("t", NDJSON, lines, False),
        parse(
            "t", JSON, b'[{"value":"v","key":"k","timestamp":"2026-01-31T12:00:00Z"},{"value_base64":"/w=="},{"value":null}]', False
        ),
        parse("t", ARROW, stream(arrow), False),
    ]
    assert len({records.digest() for records in same}) == 1
    others = [
        lines.replace(b'"v"', b'"w"'),
        lines.replace(b"null", b'""'),
        lines.replace(b'"k"', b"null"),
        lines.replace(b'"v"', b'"v","headers":[{"key":"h"}]'),
        lines.replace(b'"v"', b'"v","headers":[{"key":"h","value":""}]'),
    ]
    made = {parse("t", NDJSON, other, False).digest() for other in others} | {
        same[0].digest(),
        parse("u", NDJSON, lines, False).digest(),
    }
    assert len(made) == len(others) + 2


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=20),
            st.none() | st.binary(max_size=20),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_any_printed_records_can_be_posted(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    """Proves that a post accepts the output of `tutti tail`: fields, text and base64, headers."""
    columns: dict[str, pa.Array[Any]] = {
        "key": pa.array([key for key, _, _ in records], pa.binary()),
        "value": pa.array([value for _, value, _ in records], pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": value} for name, value in headers] for _, _, headers in records],
            pa.list_(pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary())])),
        ),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    found = rows(NDJSON, b"\n".join(json_lines(batch)))
    assert [(row["key"], row["value"]) for row in found] == [(key, value) for key, value, _ in records]
    assert [[(one["key"], one["value"]) for one in row["headers"] or ()] for row in found] == [headers for _, _, headers in records]
    coded = [{"value_base64": base64.b64encode(value or b"").decode()} for _, value, _ in records]
    assert [row["value"] for row in rows(JSON, json.dumps(coded).encode())] == [value or b"" for _, value, _ in records]
