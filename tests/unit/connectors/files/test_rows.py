"""Tests of rows and their records: which bytes are a row, independent of the blocks in which the file is read."""

from __future__ import annotations

import io
import itertools
import math
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutti.batching.encoder import TIME_US_MAX, TIME_US_MIN
from tutti_connect.files import limits
from tutti_connect.files.config import Columns
from tutti_connect.files.formats.file_reader import text_rows
from tutti_connect.files.formats.parquet import parquet_rows
from tutti_connect.files.formats.rows import BadRow, CsvRows, FieldExtractor, JsonLines, PlainLines, RowParser, Unreadable, header
from tutti_connect.files.formats.times import time_us

FORMS: list[RowParser] = [
    PlainLines(),
    JsonLines(FieldExtractor(Columns()), "utf-8"),
    CsvRows(FieldExtractor(Columns(key="a")), "utf-8", ",", ["a", "b"]),
]


def read(form: RowParser, data: bytes, block: int = 0, *, complete: bool = True) -> tuple[list[Any], list[BadRow], int, int]:
    """All records as (key, value, end, number), all bad rows, and where it ended."""
    stream = io.BytesIO(data)
    records: list[Any] = []
    bad: list[BadRow] = []
    at = row = 0
    size = block or len(data) + 1
    for rows in text_rows(lambda _: stream.read(size), form, 0, 0, None, complete=complete):
        records += zip(rows.keys, rows.values, rows.ends, rows.numbers, strict=True)
        bad += rows.bad
        at, row = rows.at, rows.row
    return records, bad, at, row


TEXTS = st.lists(
    st.sampled_from([b"a", b",", b'"', b"\n", b"\r\n", b'""', b'{"a":1}', b"1,2\n", b'"x\ny",z\n', b"\xff", b"\xc3\xbc", b" "])
).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(1, 7), st.sampled_from(FORMS))
def test_blocks_change_nothing(data: bytes, block: int, form: RowParser) -> None:
    """Proves that the same bytes give the same rows at the same places, in whatever pieces they are read."""
    assert read(form, data, block) == read(form, data)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.data(), st.sampled_from(FORMS))
def test_it_continues_after_any_record(data: bytes, draw: Any, form: RowParser) -> None:
    """Proves that reading from the position of any record returns what follows it, and nothing else."""
    records, bad, _, _ = read(form, data)
    if not records:
        return
    index = draw.draw(st.integers(0, len(records) - 1))
    _, _, at, row = records[index]
    rest: list[Any] = []
    others: list[BadRow] = []
    for rows in text_rows(io.BytesIO(data[at:]).read, form, at, row, None, complete=True):
        rest += zip(rows.keys, rows.values, rows.ends, rows.numbers, strict=True)
        others += rows.bad
    assert rest == records[index + 1 :]
    assert others == [one for one in bad if one.at >= at]


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.sampled_from(FORMS))
def test_each_byte_is_in_one_row(data: bytes, form: RowParser) -> None:
    """Proves that nothing is skipped silently: bytes in no record and no bad row are blank."""
    records, bad, at, _ = read(form, data)
    assert at == len(data)
    spans = sorted([(one.at, one.at + len(one.data)) for one in bad])
    for (_, end), (begin, _) in itertools.pairwise(spans):
        assert end <= begin
    if isinstance(form, PlainLines):
        assert b"\n".join(value for _, value, _, _ in records) == data.removesuffix(b"\n")


def test_a_line_without_its_newline_waits_where_files_grow() -> None:
    for form in FORMS:
        assert read(form, b"1,2\n3,", complete=False)[2] in (0, 4)
        assert read(form, b"1,2\n3,")[2] == 6


def test_csv_as_it_is_written() -> None:
    """Proves quotes, newlines in them, both ends of lines, and an empty row between."""
    data = b'1,"a ""b"""\r\n\r\n2,"two\r\nlines"\n3,'
    records, bad, _, lines = read(FORMS[2], data)
    assert [orjson.loads(value) for _, value, _, _ in records] == [
        {"a": "1", "b": 'a "b"'}, {"a": "2", "b": "two\r\nlines"}, {"a": "3", "b": ""},
    ]  # fmt: skip
    assert ([number for *_, number in records], lines, bad) == ([1, 4, 5], 5, [])


def test_a_quote_that_is_not_closed_costs_one_line() -> None:
    records, bad, _, _ = read(FORMS[2], b'1,x\n2,"open\n3,y\n4,z\n', 3)
    assert [key for key, *_ in records] == [b"1", b"3", b"4"]
    assert [(one.row, one.at, one.data) for one in bad] == [(2, 4, b'2,"open')]
    assert "check for an unclosed quote" in bad[0].reason


def test_bad_rows_are_named_with_line_and_reason() -> None:
    _, bad, _, _ = read(FORMS[2], b'1,2,3\n"\xff",2\n"a"b,c\n1,2\n')
    assert [(one.row, one.reason.split(":")[0]) for one in bad] == [
        (1, "it has 3 fields, but there are 2 columns"),
        (2, "it is not text in the configured encoding"),
        (3, "it is not valid CSV (',' expected after '\"')"),
    ]
    _, bad, _, _ = read(FORMS[1], b'{"a":1}\nno\n\n{"a":\xff}\n')
    assert [(one.row, one.at) for one in bad] == [(2, 8), (4, 12)]
    assert bad[0].reason.startswith("it is not JSON: ")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block", [0, 100])
def test_a_row_that_does_not_end_is_passed_with_bounded_memory(
    form: RowParser, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that a row which is longer than any may be is one bad row, and what follows is read."""
    monkeypatch.setattr(limits, "ROW_BYTES_MAX", 1000)
    monkeypatch.setattr(limits, "RECORD_BYTES_MAX", 500)
    monkeypatch.setattr(limits, "KEPT_BYTES_MAX", 10)
    records, bad, at, row = read(form, b'"' + b"x" * 5000 + b"\n1,2\n", block or 700)
    assert at == 5006
    assert (row, next(one.row for one in bad)) == (2, 1)
    assert len(records) + len(bad) == 2


def test_json_fields_become_the_configured_parts() -> None:
    extractor = FieldExtractor(Columns(key="k", value="v", timestamp="t", time="ms"))
    good = b'{"k":1,"v":{"x":[1]},"t":1700000000123}\n{"k":null,"v":null,"t":"5"}\n'
    data = good + b'{"k":"a","t":1}\n{"k":"a","v":"x"}\n{"v":"x","t":1}\n[]\n'
    form = JsonLines(extractor, "utf-8")
    rows = form.parse(data, 0, 0, final=True)
    assert (rows.keys, rows.values, rows.times) == ([b"1", None], [b'{"x":[1]}', None], [1_700_000_000_123_000, 5000])
    words = ("no field 'v'", "no field 't'", "no field 'k', which record.key names", "not a JSON object")
    assert [word in bad.reason for word, bad in zip(words, rows.bad, strict=True)] == [True] * len(words)


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        ("1970-01-01T00:00:01Z", "iso", 1_000_000),
        ("1970-01-01T01:00:00+01:00", "iso", 0),
        ("1970-01-01 00:00:00.000001", "iso", 1),
        ("1.5", "s", 1_500_000),
        (1700000000.123456, "s", 1_700_000_000_123_456),
        (" 7", "ms", 7000),
        (9, "us", 9),
        (-1, "us", -1),
        ("0001-01-01", "iso", TIME_US_MIN),
        ("9999-12-31T23:59:59.999999Z", "iso", TIME_US_MAX),
    ],
)
def test_times(value: object, form: Any, expected: int) -> None:
    assert time_us(value, form, "t") == expected


@pytest.mark.parametrize(
    ("value", "form", "told"),
    [
        ("yesterday", "iso", "not a time"),
        (None, "iso", "t is null, but must be a time .ISO 8601"),
        (None, "ms", "t is null, but must be a time .milliseconds"),
        (5, "iso", "ISO 8601"),
        ("", "s", "seconds since 1970"),
        (True, "s", "not a time"),
        ("-62135596801", "s", "years 1 to 9999"),
        ("nan", "s", "not a time"),
        (10**30, "us", "years 1 to 9999"),
    ],
)
def test_an_invalid_time_is_reported(value: object, form: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        time_us(value, form, "t")


def test_a_json_line_without_a_time_differs_from_one_with_null() -> None:
    data = b'{"t":null}\n{"u":1}\n{"t":""}\n{"t":"2026-01-31"}\n'
    rows = JsonLines(FieldExtractor(Columns(timestamp="t")), "utf-8").parse(data, 0, 0, final=True)
    assert [bad.reason.partition(" (")[0] for bad in rows.bad] == [
        "t is null, but must be a time",
        "it has no field 't', which record.timestamp names",
        "t is '', which is not a time",
    ]
    assert len(rows.values) == 1


def test_headers() -> None:
    assert header(b'\n"a\nb",c\r\n1,2\n', "utf-8", ",") == (["a\nb", "c"], 10, 3)
    assert header(b"a,b", "utf-8", ",") is None
    assert header(b'"a,b\n', "utf-8", ",") is None
    wrong = {b"a,a\n": "'a' twice", b'"a"b\n': "not valid CSV", b"\xff\n": "encoding", b"," * 5000 + b"\n": "5001 columns"}
    for data, told in wrong.items():
        with pytest.raises(Unreadable, match=told):
            header(data, "utf-8", ",")


def test_a_field_that_is_nested_too_deeply_is_a_bad_row() -> None:
    """It ended the connector, at each start again: what is read may be nested deeper than what is written."""
    deep = b'{"v":' + b"[" * 600 + b"]" * 600 + b"}"
    fits = b"[" * 300 + b"]" * 300
    data = b'{"v":1}\n' + deep + b'\n{"v":%s}\n' % fits
    rows = JsonLines(FieldExtractor(Columns(value="v")), "utf-8").parse(data, 0, 0, final=True)
    assert rows.values == [b"1", fits]
    [bad] = rows.bad
    assert (bad.row, bad.data) == (2, deep)
    assert "nested too deeply" in bad.reason


#: Not text, then text.
_TEXTS: Any = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"\xff\xfeb"))


_DAYS: Any = pa.array([2_932_897, 1], pa.date32())  # 10000-01-01, then a day of the calendar
_ENDS: Any = pa.array([0, 1, 2], pa.int32())
_LATE_DAY = "it is outside the years 1 to 9999 (2932897 (date32[day]))"


@pytest.mark.parametrize(
    ("column", "reason", "shown"),
    [
        (
            pa.array([2**62, 0], pa.timestamp("us")),
            f"it is outside the years 1 to 9999 ({2**62} (timestamp[us]))",
            b"4611686018427387904",
        ),
        (_DAYS, _LATE_DAY, b"2932897"),
        (_TEXTS, "it is not UTF-8 (//4= in base64)", b'"//4="'),
        (_TEXTS.cast(pa.large_binary()).view(pa.large_string()), "it is not UTF-8 (//4= in base64)", b'"//4="'),
        (pa.ListArray.from_arrays(_ENDS, _TEXTS), "it is not UTF-8 (//4= in base64)", b'["//4="]'),
        (pa.ListArray.from_arrays([0, 3, 4], pa.concat_arrays([_DAYS, _DAYS])), _LATE_DAY, b'[2932897,"1970-01-02",2932897]'),
        (
            pa.FixedSizeListArray.from_arrays(pa.concat_arrays([_DAYS, _DAYS.slice(1), _DAYS.slice(1)]), 2),
            _LATE_DAY,
            b'[2932897,"1970-01-02"]',
        ),
        (pa.StructArray.from_arrays([pa.array([math.inf, 1.0]), _DAYS], ["x", "y"]), _LATE_DAY, b'{"x":"Infinity","y":2932897}'),
        (pa.MapArray.from_arrays(_ENDS, pa.array(["k", "l"]), _DAYS), _LATE_DAY, b'[["k",2932897]]'),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1]), _DAYS), _LATE_DAY, b"2932897"),
        (
            pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([-1, 5], pa.int32()).cast(pa.time32("s"))),
            "it is not a time of day (-1 (time32[s]))",
            b"-1",
        ),
    ],
)
def test_a_row_of_parquet_with_a_value_without_a_form_is_in_quarantine_as_json(column: Any, reason: str, shown: bytes) -> None:
    batch = pa.record_batch([column, pa.array([1, 2])], names=["a", "b"])
    rows = parquet_rows(batch, 10, FieldExtractor(Columns(value="b")))
    assert (rows.values, rows.ends, rows.at) == ([b"2"], [12], 12)
    data = b'{"a":%s,"b":1}' % shown
    assert rows.bad == [BadRow(11, 10, data, f"column 'a': {reason}", len(data))]


def test_a_row_of_parquet_without_a_time_is_in_quarantine_as_json() -> None:
    batch = pa.record_batch([pa.array([None], pa.timestamp("us")), pa.array([b"\xff"])], names=["t", "b"])
    [bad] = parquet_rows(batch, 0, FieldExtractor(Columns(timestamp="t"))).bad
    assert bad.data == b'{"t":null,"b":"/w=="}'
    assert bad.reason.startswith("t is null")


def test_decimals_have_all_their_digits() -> None:
    """Python writes seven digits after the point as 1E-7."""
    amounts = [Decimal("0.0000001"), Decimal("0.0000000"), Decimal("-123.4560000"), None]
    rows = parquet_rows(pa.record_batch({"v": pa.array(amounts, pa.decimal128(10, 7))}), 0, FieldExtractor(Columns(key="v")))
    assert rows.keys == [b'"0.0000001"', b'"0.0000000"', b'"-123.4560000"', None]
    assert rows.values[0] == b'{"v":"0.0000001"}'
