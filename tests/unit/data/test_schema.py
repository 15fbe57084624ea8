"""Tests of the schema check of batches: each fault is refused before it can do harm, and the error names it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tutti.data.frames.columns import check_columns
from tutti.data.frames.frame import Frame, Kind
from tutti.data.frames.plain_body import raw_length_of
from tutti.data.frames.schema import BATCH_SCHEMA, compression_flags, encode_batch, validate_body
from tutti.data.names import check_name, check_producer
from tutti.errors import FormatError, UsageError


def a_batch(values: list[bytes | None], times: list[int | None] | None = None) -> pa.RecordBatch:
    columns = [
        pa.nulls(len(values), pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(times or [5] * len(values), BATCH_SCHEMA.field("timestamp").type),
        pa.nulls(len(values), BATCH_SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=BATCH_SCHEMA)


def a_frame(body: bytes, count: int = 2, flags: int = 0, low: int = 5, high: int = 5, raw_length: int | None = None) -> Frame:
    if raw_length is None:
        try:
            raw_length = min(raw_length_of(body, count), 2**32 - 1)
        except FormatError:
            raw_length = 0
    return Frame(Kind.BATCH, body, count=count, flags=flags, min_timestamp=low, max_timestamp=high, raw_length=raw_length)


GOOD = encode_batch(a_batch([b"a", b"b"])).to_pybytes()


def other_schema(schema: pa.Schema, columns: list[Any]) -> bytes:
    return pa.RecordBatch.from_arrays(columns, schema=schema).serialize().to_pybytes()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (a_frame(GOOD, count=3), "2 records, but the header has 3"),
        (a_frame(GOOD, low=4), "timestamps range from 5 to 5 us, but the header has 4 to 5"),
        (a_frame(GOOD, raw_length=1), "decompresses to 80 bytes, but the header has 1"),
        (a_frame(GOOD, flags=1), "has compression None, but the header.s flags lz4"),
        (a_frame(GOOD[:-8]), "declares"),
        (a_frame(GOOD + bytes(8)), "declares"),
        (a_frame(b""), "too few"),
        (a_frame(b"x" * 64), "does not begin with"),
        (a_frame(BATCH_SCHEMA.serialize().to_pybytes()), "not a RecordBatch"),
        (a_frame(encode_batch(a_batch([b"a", b"b"], [5, None])).to_pybytes()), "no timestamp"),
        (
            a_frame(other_schema(pa.schema([("key", pa.binary())]), [pa.array([b"a", b"b"])])),
            "does not match a batch of 4 columns",
        ),
    ],
)
def test_a_wrong_body_is_refused_with_its_fault(frame: Frame, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        validate_body(frame, 1 << 20)


def test_text_that_is_not_utf8_in_a_header_name_is_refused() -> None:
    batch = a_batch([b"a"])
    headers = pa.array([[{"key": "name", "value": b"v"}]], BATCH_SCHEMA.field("headers").type)
    body = encode_batch(batch.set_column(3, BATCH_SCHEMA.field("headers"), headers)).to_pybytes()
    assert validate_body(a_frame(body, count=1), 1 << 20).num_rows == 1
    with pytest.raises(FormatError, match="not a valid Arrow"):
        validate_body(a_frame(body.replace(b"name", b"\xff\xfe\xfd\xfc"), count=1), 1 << 20)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_bomb_is_refused_before_it_is_decompressed(compression: str) -> None:
    body = encode_batch(a_batch([bytes(50_000_000)]), compression).to_pybytes()  # type: ignore[arg-type]  # drawn from the literals
    assert len(body) < 1_000_000
    with pytest.raises(FormatError, match="decompresses to 500000"):
        validate_body(a_frame(body, count=1, flags=compression_flags(compression)), 32 << 20)


def test_a_compressed_buffer_with_a_wrong_size_is_refused() -> None:
    body = bytearray(encode_batch(a_batch([b"z" * 4000] * 2), "zstd").to_pybytes())
    at = bytes(body).index((8000).to_bytes(8, "little"))
    for size in (7999, 1 << 40, -7):
        body[at : at + 8] = size.to_bytes(8, "little", signed=True)
        with pytest.raises(FormatError):
            validate_body(a_frame(bytes(body), flags=compression_flags("zstd")), 32 << 20)


def test_compression_names() -> None:
    with pytest.raises(UsageError, match=r"'gzip' is not supported: use None, 'lz4' or 'zstd'"):
        compression_flags("gzip")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["vlaue"], r"'vlaue' is not known: did you mean 'value'\? The columns are offset, "),
        ([], "columns is empty"),
        (["key", "key"], "twice"),
        (["x y z"], r"'x y z' is not known: the columns are offset, "),
        ("value", r"not a text: use \['value'\]$"),
    ],
)
def test_wrong_columns_are_named(columns: list[str] | str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_columns(columns)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249])
def test_good_names(name: str) -> None:
    assert check_name("topic", name) == name
    assert check_producer("~" + name) == "~" + name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ü", "a/b", "~a", "x" * 250, "a\n", None, 7])
def test_bad_names_are_refused_with_the_kind_and_the_value(name: object) -> None:
    with pytest.raises(UsageError, match="topic name"):
        check_name("topic", name)
