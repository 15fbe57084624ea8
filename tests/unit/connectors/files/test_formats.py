"""Tests of each format: values are read as they were written, over the whole range of each type, or the row is rejected."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tutti.data.frames.schema import TIME_US_MAX, TIME_US_MIN
from tutti_connect.files.config import Columns
from tutti_connect.files.formats.file_reader import text_rows
from tutti_connect.files.formats.parquet import ParquetFile, parquet_rows
from tutti_connect.files.formats.rows import BadRow, CsvRows, FieldExtractor, JsonLines, PlainLines, RowParser, Rows
from tutti_connect.files.formats.times import time_us

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - times without a zone, as Parquet has them
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def read(form: RowParser, data: bytes) -> Rows:
    [rows] = text_rows(io.BytesIO(data).read, form, 0, 0, None, complete=True) if data else [Rows([], [], [], [], [], [], 0, 0)]
    return rows


# Text


@given(st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line)))
def test_lines_are_their_bytes(lines: list[bytes]) -> None:
    assert read(PlainLines(), b"".join(line + b"\n" for line in lines)).values == lines


FIELDS = st.one_of(
    TEXTS, st.sampled_from(["007", "1e400", "12345678901234567890123", "NaN", "null", "", ' "x" ', "a\r\nb", "\0", "\ufeff"])
)


@given(st.lists(st.lists(FIELDS, min_size=2, max_size=2), max_size=5), st.sampled_from(["\n", "\r\n"]))
def test_csv_is_its_text(written: list[list[str]], end: str) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(written)
    rows = read(CsvRows(FieldExtractor(Columns(key="k")), "utf-8", ",", ["k", "v"]), text.getvalue().encode())
    assert not rows.bad
    assert [json.loads(value) for value in rows.values if value] == [{"k": key, "v": value} for key, value in written]
    assert rows.keys == [key.encode() for key, _ in written]


#: Text of JSON numbers, of any length.
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5), st.sampled_from(["\n", " \r\n"]), st.sampled_from(["utf-8", "latin-1"]))
@example([("12345678901234567890123", "12345678901234567890124")], "\n", "utf-8")
@example([("1e400", "-0")], "\n", "utf-8")
def test_numbers_of_json_are_their_bytes(written: list[tuple[str, str]], end: str, encoding: str) -> None:
    data = "".join(f'{{"k":{key},"é":{value}}}{end}' for key, value in written).encode(encoding)
    rows = read(JsonLines(FieldExtractor(Columns(key="k", value="é")), encoding), data)
    assert (rows.keys, rows.values) == ([key.encode() for key, _ in written], [value.encode() for _, value in written])
    rows = read(JsonLines(FieldExtractor(Columns()), encoding), data)
    assert rows.values == [f'{{"k":{key},"é":{value}}}'.encode() for key, value in written]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"k":1,"k":2}', "field 'k' more than once, as 1 and 2"),
        (b'{"k":"\\ud800"}', "half of a surrogate pair"),
        (b'{"k":NaN}', "not JSON"),
        (b'{"k":Infinity}', "not JSON"),
        (b'{"k":01}', "not JSON"),
        (b'{"k":1}\0', "not JSON"),
        (b'{"k":"\0"}', "not JSON"),
        (b'{"k":"\xff"}', "not text in the configured encoding"),
        (b'\xef\xbb\xbf{"k":1}', "not JSON"),  # not at the beginning of the file
        (b'{"k":' + b"[" * 600 + b"]" * 600 + b"}", "nested too deeply"),
        (b"[1]", "not a JSON object"),
    ],
)
def test_invalid_json_fields_are_bad_rows(line: bytes, told: str) -> None:
    rows = read(JsonLines(FieldExtractor(Columns(key="k")), "utf-8"), b'{"k":1}\n' + line + b'\n{"k":"\\u0000","k2":2}\n')
    assert rows.keys == [b"1", b"\0"]
    [bad] = rows.bad
    assert told in bad.reason
    assert (bad.row, bad.data) == (2, line)


# Times


@given(st.integers(TIME_US_MIN, TIME_US_MAX), st.sampled_from([("s", 6), ("ms", 3), ("us", 0)]), st.booleans())
@example(253_402_300_799_999_999, ("s", 6), True)
def test_a_number_is_its_microsecond_in_every_year(time: int, unit: tuple[str, int], quoted: bool) -> None:
    form: Any = unit[0]
    number = str(Decimal(time).scaleb(-unit[1]))
    assert time_us(number, form, "t") == time
    line = f'{{"t":{json.dumps(number) if quoted else number}}}\n'.encode()
    assert read(JsonLines(FieldExtractor(Columns(timestamp="t", time=form)), "utf-8"), line).times == [time]


@given(st.integers(TIME_US_MIN, TIME_US_MAX), st.integers(0, 999))
def test_text_is_its_microsecond_in_every_year(time: int, nanos: int) -> None:
    text = (_EPOCH + timedelta(microseconds=time)).isoformat(timespec="microseconds")
    assert time_us(f"{text}{nanos:03}Z", "iso", "t") == time


@given(st.one_of(st.text(max_size=12), st.floats(), st.decimals(), st.from_regex(r"-?[0-9]{0,9}e-?[0-9]{0,25}")))
@example("1e999999999999999999")
@example("0." + "1" * 5000)
@example("9" * 5000)
@example("2016-12-31T23:59:60Z")
def test_any_value_is_a_time_or_refused(value: object) -> None:
    forms: list[Any] = ["iso", "s", "ms", "us"]
    for form in forms:
        try:
            found = time_us(value, form, "t")
        except ValueError:
            continue
        assert TIME_US_MIN <= found <= TIME_US_MAX


# Parquet


class Kind(NamedTuple):
    """A type: the numbers (or others) that its values are made of, and their form in JSON; None for a value that has none."""

    type: Any
    values: st.SearchStrategy[Any]
    form: Callable[[Any], Any]
    storage: Any = None


def integers(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


def calendar(per_s: int) -> Callable[[int], str | None]:
    def form(number: int) -> str | None:
        time = number * 1_000_000 // per_s
        return (_EPOCH + timedelta(microseconds=time)).isoformat() if TIME_US_MIN <= time <= TIME_US_MAX else None

    return form


def near_the_calendar(per_s: int) -> st.SearchStrategy[int]:
    low, high = -62_135_596_800 * per_s, 253_402_300_800 * per_s
    return st.one_of(integers(64), st.integers(low - 2, high + 1), st.sampled_from([low - 1, low, high - 1, high]))


def nanos_text(number: int) -> str:
    seconds, part = divmod(number, 1_000_000_000)
    return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat(' ')}.{part:09}"


def in_day(per_s: int) -> Callable[[int], str | None]:
    def form(number: int) -> str | None:
        if not 0 <= number < 86_400 * per_s:
            return None
        return (_EPOCH + timedelta(microseconds=number * 1_000_000 // per_s)).time().isoformat()

    return form


def day(number: int) -> str | None:
    return date.fromordinal(number + 719_163).isoformat() if 0 < number + 719_163 <= date.max.toordinal() else None


def float_form(value: float) -> Any:
    return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")


def floats_of(width: int) -> st.SearchStrategy[float]:
    width_of: Any = width
    return st.one_of(st.floats(width=width_of), st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf]))


def same(value: Any) -> Any:
    return value


def decimals(kind: Any) -> Kind:
    digits = 10**kind.precision - 1
    made = st.integers(-digits, digits).map(lambda number: Decimal((number < 0, tuple(map(int, str(abs(number)))), -kind.scale)))
    return Kind(kind, made, "{:f}".format)


def text_or_none(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


KINDS: list[Kind] = [
    Kind(pa.null(), st.none(), same),
    Kind(pa.bool_(), st.booleans(), same),
    *(Kind(getattr(pa, f"int{bits}")(), integers(bits), same) for bits in (8, 16, 32, 64)),
    *(Kind(getattr(pa, f"uint{bits}")(), integers(bits, False), same) for bits in (8, 16, 32, 64)),
    Kind(pa.float16(), floats_of(16).map(np.float16), lambda value: float_form(float(value))),
    Kind(pa.float32(), floats_of(32), float_form),
    Kind(pa.float64(), floats_of(64), float_form),
    decimals(pa.decimal128(38, 0)),
    decimals(pa.decimal128(38, 38)),
    decimals(pa.decimal256(76, 10)),
    Kind(pa.date32(), st.one_of(integers(32), st.integers(-719_164, 2_932_898)), day, pa.int32()),
    *(
        # Parquet has milliseconds alone: Arrow writes seconds as such, of 32 bits.
        Kind(pa.time32(unit), st.one_of(integers(bits), st.integers(0, 86_400 * per_s)), in_day(per_s), pa.int32())
        for unit, per_s, bits in (("s", 1, 22), ("ms", 1000, 32))
    ),
    Kind(pa.time64("us"), st.one_of(integers(64), st.integers(0, 86_400_000_000)), in_day(1_000_000), pa.int64()),
    Kind(
        pa.time64("ns"),
        st.one_of(integers(64), st.integers(0, 86_400_000_000_000)),
        lambda number: number if 0 <= number < 86_400_000_000_000 else None,
        pa.int64(),
    ),
    *(
        Kind(pa.timestamp(unit), near_the_calendar(per_s), calendar(per_s), pa.int64())
        for unit, per_s in (("ms", 1000), ("us", 1_000_000))
    ),
    Kind(pa.timestamp("ns"), integers(64), nanos_text, pa.int64()),
    Kind(pa.timestamp("ns", "UTC"), st.integers(-(2**62), 2**62), lambda number: nanos_text(number) + "Z", pa.int64()),
    *(Kind(pa.duration(unit), integers(64), same, pa.int64()) for unit in ("s", "ms", "us", "ns")),
    Kind(pa.binary(), st.binary(max_size=9), b64),
    Kind(pa.binary(3), st.binary(min_size=3, max_size=3), b64),
    Kind(pa.string(), st.one_of(TEXTS.map(str.encode), st.binary(max_size=3)), text_or_none, pa.binary()),
    Kind(pa.large_string(), st.one_of(TEXTS.map(str.encode), st.binary(max_size=3)), text_or_none, pa.large_binary()),
]
NAMES = [str(kind.type) for kind in KINDS]


def column_of(kind: Kind, values: list[Any]) -> Any:
    """The values as a column: what Arrow would refuse, or Python has not, by way of the type that they are stored as."""
    if kind.storage is None:
        return pa.array(values, kind.type)
    stored = pa.array(values, kind.storage)
    column: Any = pa.Array.from_buffers(kind.type, len(stored), stored.buffers())
    return column


def through_a_file(table: pa.Table, extractor: FieldExtractor, **options: Any) -> tuple[list[Any], list[BadRow]]:
    """(row of the file, value) of the good rows, and the bad ones."""
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=3, **options)
    good: list[Any] = []
    bad: list[BadRow] = []
    with pa.PythonFile(file, "r"):
        for rows in ParquetFile(file, extractor).rows(0):
            good += zip(rows.numbers, rows.values, strict=True)
            bad += rows.bad
    return good, bad


def expected(kind: Kind, values: list[Any]) -> tuple[list[Any], list[int]]:
    """Return the expected rows by number: those with a value, and those without."""
    good, bad = [], []
    for number, value in enumerate(values, 1):
        form = None if value is None else kind.form(value)
        if form is None and value is not None:
            bad.append(number)
        else:
            good.append((number, form))
    return good, bad


def exactly(value: Any) -> str:
    """Return a text in which -0.0 differs from 0.0 and 1 from 1.0."""
    return repr(value)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_column_of_parquet(kind: Kind, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.one_of(st.none(), kind.values), max_size=8))
    good, bad = expected(kind, values)
    table = pa.table({"v": column_of(kind, values)})
    found, refused = through_a_file(table, FieldExtractor(Columns()))
    assert exactly([(row, json.loads(value)["v"]) for row, value in found]) == exactly(good)
    assert [one.row for one in refused] == bad
    assert all(one.reason.startswith("column 'v': ") for one in refused)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_nested_column_of_parquet_has_the_same_forms(kind: Kind, data: st.DataObject) -> None:
    """Proves it of lists, structs and maps: one bad value makes its row a bad one, and no other."""
    values = data.draw(st.lists(st.one_of(st.none(), kind.values), min_size=1, max_size=6))
    good, bad = expected(kind, values)
    column, count = column_of(kind, values), len(values)
    ends: Any = pa.array(range(count + 1), pa.int32())
    keys = pa.array(["k"] * count)
    table = pa.table(
        {
            "l": pa.ListArray.from_arrays(ends, column),
            "s": pa.StructArray.from_arrays([column], ["x"]),
            "m": pa.MapArray.from_arrays(ends, keys, column),
            "d": pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays([pa.ListArray.from_arrays(ends, column)], ["y"])),
        }
    )
    found, refused = through_a_file(table, FieldExtractor(Columns()))
    assert exactly([(row, json.loads(value)) for row, value in found]) == exactly(
        [(row, {"l": [form], "s": {"x": form}, "m": [["k", form]], "d": [{"y": [form]}]}) for row, form in good]
    )
    assert [one.row for one in refused] == bad


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.none(),
            st.integers(-(2**31), 2**31 - 1).filter(lambda day: day != -2_440_588),
            st.integers(-719_164, 2_932_898),
        ),
        max_size=8,
    ),
    st.data(),
)
def test_int96_over_its_whole_range(days: list[int | None], draw: st.DataObject) -> None:
    """Proves that no day of INT96 wraps around: 32 bits of days, and nanoseconds of the day.

    Day 0 is not among them: Arrow gives it as 1970-01-01.
    """
    nanos = [draw.draw(st.integers(0, 86_399_999_999_999)) for _ in days]
    rows = int96_rows(days, nanos, FieldExtractor(Columns(timestamp="v", time="s")))
    good: list[Any] = []
    bad = []
    for number, (one, part) in enumerate(zip(days, nanos, strict=True), 1):
        if one is None or day(one) is None:
            bad.append(number)  # a time has to be there
        else:
            whole = one * 86_400_000_000_000 + part
            good.append((number, {"v": nanos_text(whole)}, whole // 1000))
    assert [(row, json.loads(value or b""), stamp) for row, value, stamp in rows[0]] == good
    assert [one.row for one in rows[1]] == bad
    for refused in rows[1]:
        one, part = days[refused.row - 1], nanos[refused.row - 1]
        if one is not None:
            first = (one + 2_440_588) % 2**32 - 2_440_588  # INT96 counts its days from 0 on, the first one in the year -4713
            shown = Decimal(first * 86_400_000_000_000 + part).scaleb(-9)
            assert json.loads(refused.data) == {"v": f"{shown:f} s since 1970"}


def int96_rows(days: list[int | None], nanos: list[int], extractor: FieldExtractor) -> tuple[list[Any], list[BadRow]]:
    """Rows of a file with these values: Arrow writes no INT96 outside of its own range, so they are put in place of others."""
    marks = [None if one is None else 1_000_000 + number for number, one in enumerate(days)]  # microseconds
    file = io.BytesIO()
    pq.write_table(
        pa.table({"v": pa.array(marks, pa.timestamp("us"))}),
        file,
        use_deprecated_int96_timestamps=True,
        use_dictionary=False,
        compression="none",
        write_statistics=False,
    )
    data = file.getvalue()
    for mark, one, part in zip(marks, days, nanos, strict=True):
        if mark is not None and one is not None:
            written = struct.pack("<qi", mark * 1000, 2_440_588)
            assert data.count(written) == 1
            data = data.replace(written, struct.pack("<qI", part, (one + 2_440_588) % 2**32))
    good: list[Any] = []
    bad: list[BadRow] = []
    for rows in ParquetFile(io.BytesIO(data), extractor).rows(0):
        good += zip(rows.numbers, rows.values, rows.times, strict=True)
        bad += rows.bad
    return good, bad


def test_int96_is_read_on_from_any_row() -> None:
    table = pa.table({"v": pa.array(range(9000), pa.timestamp("us"))})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=5000, use_deprecated_int96_timestamps=True)
    for at in (0, 1, 4095, 4096, 4999, 5000, 8999, 9000):
        rows = list(ParquetFile(file, FieldExtractor(Columns(timestamp="v"))).rows(at))
        assert [stamp for one in rows for stamp in one.times] == list(range(at, 9000))


@pytest.mark.parametrize("zone", ["Europe/Amsterdam", "Africa/Monrovia", "America/New_York", "+14:00", "-00:30"])
@given(st.lists(near_the_calendar(1_000_000), max_size=5))
def test_a_time_in_a_zone_is_the_same_instant(zone: str, times: list[int]) -> None:
    """Proves it also where the zone was no whole minutes from UTC, as Amsterdam before 1937."""
    column = pa.array(times, pa.int64()).cast(pa.timestamp("us", zone))
    rows = parquet_rows(pa.record_batch([column], ["v"]), 0, FieldExtractor(Columns(value="v")))
    assert len(rows.values) + len(rows.bad) == len(times)
    for number, value in zip(rows.numbers, rows.values, strict=True):
        stamp = datetime.fromisoformat(json.loads(value or b""))
        assert (stamp - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) == times[number - 1]
    for one in rows.bad:
        assert not TIME_US_MIN + 86_400_000_000 <= times[one.row - 1] <= TIME_US_MAX - 86_400_000_000


@pytest.mark.parametrize("zone", ["Europe/Amsterdam", "Africa/Monrovia", "+14:00"])
@given(st.lists(integers(64), max_size=5))
def test_nanoseconds_in_a_zone_are_the_same_instant_or_a_bad_row(zone: str, times: list[int]) -> None:
    column = pa.array(times, pa.int64()).cast(pa.timestamp("ns", zone))
    rows = parquet_rows(pa.record_batch([column], ["v"]), 0, FieldExtractor(Columns(value="v", timestamp="v", time="ms")))
    assert len(rows.values) + len(rows.bad) == len(times)
    assert rows.times == [times[number - 1] // 1000 for number in rows.numbers]
    for number, value in zip(rows.numbers, rows.values, strict=True):
        assert f".{times[number - 1] % 1_000_000_000:09}" in (value or b"").decode()
    early = -1_000_000_000_000_000_000  # April 1938
    assert not [one for one in rows.bad if early < times[one.row - 1] < 2**63 - 10**14 and zone != "Africa/Monrovia"]


def test_a_day_in_milliseconds_is_a_whole_one() -> None:
    column = column_of(Kind(pa.date64(), st.none(), same, pa.int64()), [86_400_000, 86_400_001, None, -1])
    rows = parquet_rows(pa.record_batch([column, pa.array([1, 2, 3, 4])], ["d", "n"]), 0, FieldExtractor(Columns()))
    assert rows.values == [b'{"d":"1970-01-02","n":1}', b'{"d":null,"n":3}']
    assert [one.reason for one in rows.bad] == [
        "column 'd': it is not a whole day (86400001 (date64[ms]))",
        "column 'd': it is not a whole day (-1 (date64[ms]))",
    ]


def test_a_dictionary_has_the_forms_of_its_values() -> None:
    batch = pa.record_batch(
        [
            pa.array([1, 2, None, 1], pa.duration("ns")).dictionary_encode(),
            pa.array([math.nan, 1.5, None, -math.inf]).dictionary_encode(),
            pa.array(["a", "b", None, "a"]).dictionary_encode(),
        ],
        ["d", "f", "s"],
    )
    rows = parquet_rows(batch, 0, FieldExtractor(Columns(key="f")))
    assert [json.loads(value or b"") for value in rows.values] == [
        {"d": 1, "f": "NaN", "s": "a"},
        {"d": 2, "f": 1.5, "s": "b"},
        {"d": None, "f": None, "s": None},
        {"d": 1, "f": "-Infinity", "s": "a"},
    ]
    assert rows.keys == [b"NaN", b"1.5", None, b"-Infinity"]


@pytest.mark.parametrize("seconds", [1700000000.123, 253402300799.5, Decimal("253402300799.999999"), 17])
def test_a_time_of_parquet_as_a_number(seconds: Any) -> None:
    rows = parquet_rows(pa.record_batch([pa.array([seconds])], ["t"]), 0, FieldExtractor(Columns(timestamp="t", time="s")))
    assert rows.times == [int(Decimal(str(seconds)) * 1_000_000)]


def test_a_time_of_day_keeps_its_form() -> None:
    rows = parquet_rows(pa.record_batch([pa.array([time(1, 2, 3, 4)])], ["t"]), 0, FieldExtractor(Columns(value="t")))
    assert rows.values == [b'"01:02:03.000004"']
