"""Tests of the input formats of `tutti produce`: which records each format has, independent of the chunks that arrive, and which
input is refused.
"""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tutti.errors import FormatError, TuttiError, UsageError
from tutti.limits import RECORD_BYTES_MAX
from tutti_gateway.cli.records import inputs
from tutti_gateway.cli.records.inputs import Chunk, InputHash, read_records

CSV = b'carrier,flight,note\r\nUA,1545,"two\nlines, ""quoted"""\r\n\r\nAA,1141,\r\n'


class Pieces(io.RawIOBase):
    """A pipe that returns its content in chunks of a chosen size."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = io.BytesIO(data), size

    def read1(self, _size: int) -> bytes:
        return self._data.read(self._size)


def records(data: bytes, form: str, key: str | None = None, size: int = 1 << 20) -> list[tuple[bytes | None, bytes]]:
    found: list[tuple[bytes | None, bytes]] = []
    stream: Any = Pieces(data, size)
    for chunk in read_records(stream, form, key):
        assert chunk.values
        keys: list[bytes | None] = [None] * len(chunk.values) if chunk.keys is None else chunk.keys
        found += zip(keys, chunk.values, strict=True)
    return found


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb\r\n", [b"a", b"", b"b\r"]),
        (b"\n", [b""]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
def test_a_record_of_lines_is_the_line_without_its_newline(data: bytes, expected: list[bytes]) -> None:
    assert [value for _, value in records(data, "lines")] == expected


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.integers(1, 7))
def test_the_pieces_that_lines_come_in_do_not_show(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    assert [value for _, value in records(data, "lines", size=size)] == lines


def test_json_values_stay_as_they_are_and_blank_lines_are_none() -> None:
    data = b'{"k": "x", "n": 1}\r\n\n {"k":null}\n{"n":2.5,"k":7}\n{"k":""}'
    assert records(data, "json", "k") == [
        (b"x", b'{"k": "x", "n": 1}'),
        (None, b'{"k":null}'),
        (b"7", b'{"n":2.5,"k":7}'),
        (b"", b'{"k":""}'),
    ]
    assert records(b"[1]\n3\n", "json") == [(None, b"[1]"), (None, b"3")]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_a_row_of_csv_is_a_json_object(size: int) -> None:
    assert records(CSV, "csv", "flight", size) == [
        (b"1545", b'{"carrier":"UA","flight":"1545","note":"two\\nlines, \\"quoted\\""}'),
        (b"1141", b'{"carrier":"AA","flight":"1141","note":""}'),
    ]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_byte_order_mark_is_no_part_of_the_first_record(size: int) -> None:
    for header in ("\ufeffa,b\n", '\ufeff"a",b\n'):
        assert records(f"{header}1,\ufeff2\n".encode(), "csv", size=size) == [(None, '{"a":"1","b":"\ufeff2"}'.encode())]
    assert records("\ufeff{}\n[]\n".encode(), "json", size=size) == [(None, b"{}"), (None, b"[]")]
    assert records("\ufeffa\n".encode(), "lines", size=size) == [(None, "\ufeffa".encode())]


@given(st.lists(st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?", fullmatch=True), max_size=5))
@example(["12345678901234567890123", "12345678901234567890124", "1e400", "-0", "1.10"])
def test_a_number_that_is_the_key_keeps_its_digits(numbers: list[str]) -> None:
    data = "".join(f'{{"n": {number} }}\n' for number in numbers).encode()
    expected = [(number.encode(), f'{{"n": {number} }}'.encode()) for number in numbers]
    assert records(data, "json", "n") == expected
    assert records(data, "json") == [(None, value) for _, value in expected]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=5), st.booleans())
def test_text_that_is_the_key_is_its_bytes(keys: list[str], ascii_only: bool) -> None:
    data = "".join(json.dumps({"k": key}, ensure_ascii=ascii_only) + "\n" for key in keys).encode()
    assert [key for key, _ in records(data, "json", "k")] == [key.encode() for key in keys]
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([["k"], *([key] for key in keys)])
    assert records(text.getvalue().encode(), "csv", "k") == [
        (key.encode(), json.dumps({"k": key}, ensure_ascii=False, separators=(",", ":")).encode()) for key in keys
    ]


@pytest.mark.parametrize(
    ("data", "form", "key", "kind", "message"),
    [
        (b"a\n", "lines", "k", UsageError, r"--key k names a field, but lines have no fields"),
        (b"{}\n{\n", "json", None, FormatError, r"line 2 of the input is not valid JSON \("),
        (
            b"{}\n  x\n",
            "json",
            None,
            FormatError,
            r"^line 2 of the input is not valid JSON \([\w ,]+, at column 3\): write one JSON value on each line",
        ),
        (b'{"k":1}\n\n3\n', "json", "k", FormatError, r"line 3 of the input is not a JSON object, so it has no field 'k'"),
        (
            b'{"item":1}\n',
            "json",
            "itme",
            FormatError,
            r"^line 1 of the input has no field 'itme': did you mean --key item\?$",
        ),
        (
            b'{"k":1}\n{"a":1,"b":{"k":2}}\n',
            "json",
            "k",
            FormatError,
            r"^line 2 of the input has no field 'k' \(it has a, b\): name another field",
        ),
        (b"{}\n", "json", "k", FormatError, r"^line 1 of the input has no field 'k' \(it has no fields\): name another"),
        (
            b'{"k":1}\n{"k":1,"k":2}\n',
            "json",
            "k",
            FormatError,
            r"line 2 of the input cannot be sent: .* 'k' more than once, as 1 and 2",
        ),
        (b"1\n" + b"[" * 600 + b"]" * 600, "json", None, FormatError, r"line 2 of the input cannot be sent: .* nested too deeply"),
        (b'{}\n {"a":"\xff"}\n', "json", None, FormatError, r"line 2 of the input is not UTF-8 text \(byte 8 of it\)"),
        (
            b'{"k":"\\ud800"}\n',
            "json",
            "k",
            FormatError,
            r"line 1 of the input is not valid JSON \(.* surrogate pair, at column 15\)",
        ),
        (b'{"k":NaN}\n', "json", None, FormatError, r"line 1 of the input is not valid JSON \(invalid character, at column 6\)"),
        (
            b"a,b\n1,2\n1\n",
            "csv",
            None,
            FormatError,
            r"line 3 of the input has 1 field, but the header has 2: write as many fields as in the header",
        ),
        (b"a,b\n1,2\n", "csv", "c", UsageError, r"--key c is not a field of the input: the header has a, b"),
        (b"a,a\n", "csv", None, FormatError, r"the header of the input names the field 'a' twice"),
        (b'a\n"x"y\n', "csv", None, FormatError, r"line 2 of the input is not valid CSV \("),
        (b'a\n1\n"open\n', "csv", None, FormatError, r"line 3 of the input is not valid CSV \("),
        (
            b'a\n1\n\n"open\nb\nc\n',
            "csv",
            None,
            FormatError,
            r"^the row from line 4 to line 6 of the input is not valid CSV \(",
        ),
        (
            b'a\n1\n"open\nb\n"c"\n',
            "csv",
            None,
            FormatError,
            r"^the row from line 3 to line 5 of the input is not valid CSV",
        ),
        (b'a,b\n"1\n2"\n', "csv", None, FormatError, r"line 2 of the input has 1 field, but the header has 2"),
        (b"a\n\xff\n", "csv", None, FormatError, r"line 2 of the input is not UTF-8"),
    ],
)
def test_a_refusal_names_the_line(data: bytes, form: str, key: str | None, kind: type[TuttiError], message: str) -> None:
    with pytest.raises(kind, match=message):
        records(data, form, key)


@pytest.mark.parametrize("size", [60_000, inputs.BLOCK_BYTES, RECORD_BYTES_MAX * 2])
def test_a_line_larger_than_a_record_is_refused_before_all_of_it_is_held(size: int) -> None:
    data = b"a\n" + b"x" * (RECORD_BYTES_MAX + 1) + b"\n"
    with pytest.raises(FormatError, match=r"line 2 of the input exceeds the limit of 4194304 bytes"):
        records(data, "lines", size=size)


def test_a_quote_that_is_open_over_more_than_a_record_is_named_where_it_begins() -> None:
    data = b'a\n1\n"open\n' + b"x,y\n" * (RECORD_BYTES_MAX // 3)
    with pytest.raises(FormatError, match=r"the record at line 3 of the input exceeds .*: close the open quote"):
        records(data, "csv")


HALF = b"x" * (RECORD_BYTES_MAX // 2)


@pytest.mark.parametrize(
    ("data", "form", "key"),
    [
        (b'{"k":1}\n{"k":"%s"}\n' % HALF, "json", "k"),  # it is the key too
        (b"k,n\n%s,1\n" % HALF, "csv", "k"),
        (b'k\n"%s"\n' % (b"\t" * (RECORD_BYTES_MAX // 2)), "csv", None),  # a tab takes two bytes in JSON
    ],
)
def test_a_record_that_grows_too_large_on_the_way_is_refused(data: bytes, form: str, key: str | None) -> None:
    with pytest.raises(FormatError, match="the record at line 2 of the input exceeds the limit"):
        records(data, form, key)


def test_one_field_may_fill_a_record() -> None:
    assert len(records(b"a\n%s\n" % HALF, "csv")[0][1]) == len(HALF) + len('{"a":""}')


def test_a_chunk_is_split_with_its_keys() -> None:
    first, rest = Chunk([b"a", b"b", b"c"], [b"1", None, b"3"]).split(2)
    assert first == Chunk([b"a", b"b"], [b"1", None])
    assert rest == Chunk([b"c"], [b"3"])
    assert Chunk([b"a"], None).split(1) == (Chunk([b"a"], None), Chunk([], None))


def hash_of(runs: list[list[bytes]], settings: str = "") -> tuple[int, str]:
    found = InputHash(settings)
    for run in runs:
        found.add(run)
    return found.count, found.hexdigest()


def test_the_hash_is_of_the_records_and_of_how_they_are_read() -> None:
    assert hash_of([[b"a", b"b"], [b"c"]]) == hash_of([[b"a"], [], [b"b", b"c"]])
    assert hash_of([[b"a", b"b"]]) != hash_of([[b"ab", b""]])
    assert hash_of([[b"a"]], "t json k") != hash_of([[b"a"]], "t json None")
