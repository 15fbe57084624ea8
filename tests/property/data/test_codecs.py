"""Properties of the codecs of the data model: each decodes what it encodes, and refuses mutated bytes with FormatError alone."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.data.client_protocol import (
    SUBMIT,
    SUBMIT_UNORDERED,
    Committed,
    Denied,
    Expected,
    Hello,
    OpenProducer,
    decode_from_gateway,
    decode_receipts,
    decode_request,
    decode_submit,
    encode_control,
    encode_receipts,
    encode_submit,
)
from tutti.data.frames.arrow_ipc import body_sizes
from tutti.data.frames.bodies import AbortBody, EpochBody, RosterBody, Voter, decode_body, encode_body
from tutti.data.frames.frame import HEADER_DTYPE, Frame, Kind, chained, check_payload, decode_frame, decode_header, header_chain
from tutti.data.frames.plain_body import raw_length_of
from tutti.data.frames.schema import BATCH_SCHEMA, compression_flags, decode_batch, encode_batch, timestamp_range, validate_body
from tutti.errors import Damaged, FormatError

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def frames(draw: st.DrawFn, body_bytes_max: int = 300) -> Frame:
    return Frame(
        draw(st.sampled_from(list(Kind))),
        draw(st.binary(max_size=body_bytes_max)),
        progress=draw(st.binary(max_size=256)),
        flags=draw(st.integers(0, 3)),
        producer=draw(U64),
        epoch=draw(U32),
        first_sequence=draw(U64),
        count=draw(U32),
        topic=draw(U32),
        origin=draw(st.integers(0, 65535)),
        min_timestamp=draw(I64),
        max_timestamp=draw(I64),
        raw_length=draw(U32),
    )


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(1, 20))
    optional = st.none() | st.binary(max_size=40)
    header = st.tuples(st.text(max_size=8), optional).map(lambda pair: {"key": pair[0], "value": pair[1]})
    fields: list[Any] = list(BATCH_SCHEMA)
    columns: list[Any] = [
        draw(st.lists(optional, min_size=rows, max_size=rows)),
        draw(st.lists(optional, min_size=rows, max_size=rows)),
        draw(st.lists(st.integers(0, 2**52), min_size=rows, max_size=rows)),
        draw(st.lists(st.none() | st.lists(header, max_size=3), min_size=rows, max_size=rows)),
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, type=field.type) for values, field in zip(columns, fields, strict=True)], schema=BATCH_SCHEMA
    )


def batch_frame(batch: pa.RecordBatch, compression: str | None) -> Frame:
    low, high = timestamp_range(batch.column(2))
    body = memoryview(encode_batch(batch, compression))  # type: ignore[arg-type]  # the strategy draws the literals
    return Frame(
        Kind.BATCH,
        body,
        flags=compression_flags(compression),
        count=batch.num_rows,
        min_timestamp=low,
        max_timestamp=high,
        raw_length=raw_length_of(body, batch.num_rows),
    )


@given(frames(), U64, st.integers(1, 2**64 - 1), U32)
def test_a_frame_round_trips_and_chains(frame: Frame, view: int, position: int, chain: int) -> None:
    frame.stamp(view, position, chain)
    data = frame.to_bytes()
    assert len(data) == frame.size
    assert len(data) % 8 == 0
    assert b"".join(bytes(extent) for extent in frame.extents()) == data
    back = decode_frame(data)
    assert back == frame
    check_payload(back)
    assert chained(back, chain)
    assert not chained(back, chain ^ 1)
    assert header_chain(back.header, chain) == frame.header_crc


@given(frames(), st.data())
def test_a_flipped_bit_is_reported(frame: Frame, data: st.DataObject) -> None:
    frame.stamp(1 << 16 | 1, 7, 99)
    good = frame.to_bytes()
    content = 96 + len(frame.progress)
    body_at = 96 + (len(frame.progress) + 7 & ~7)
    places = [*range(content), *range(body_at, body_at + frame.body_length)]  # padding carries nothing
    place = data.draw(st.sampled_from(places))
    bad = bytearray(good)
    bad[place] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(FormatError):
        back = decode_frame(bytes(bad))
        if chained(back, 99):
            with pytest.raises(Damaged):
                check_payload(back)


@given(st.lists(frames(), min_size=1, max_size=5))
def test_a_run_of_headers_reads_as_an_array(run: list[Frame]) -> None:
    for position, frame in enumerate(run, 1):
        frame.stamp(65537, position, 0)
    array = np.frombuffer(b"".join(frame.header for frame in run), dtype=HEADER_DTYPE)
    for row, frame in zip(array, run, strict=True):
        assert int(row["producer"]) == frame.producer
        assert int(row["min_timestamp"]) == frame.min_timestamp
        assert int(row["progress_length"]) == len(frame.progress)
        assert int(row["header_crc"]) == frame.header_crc


@given(batches(), st.sampled_from([None, "lz4", "zstd"]))
def test_a_batch_round_trips_and_validates(batch: pa.RecordBatch, compression: str | None) -> None:
    frame = batch_frame(batch, compression)
    assert validate_body(frame, 1 << 20).equals(batch)
    assert decode_batch(frame.body).equals(batch)
    assert body_sizes(frame.body, 4).rows == batch.num_rows
    with pytest.raises(FormatError, match="above the limit of 1"):
        validate_body(frame, 1)


@given(batches(), st.sampled_from([None, "lz4", "zstd"]), st.data())
def test_mutated_bodies_are_refused_or_valid_and_never_anything_else(
    batch: pa.RecordBatch, compression: str | None, data: st.DataObject
) -> None:
    frame = batch_frame(batch, compression)
    body = bytearray(frame.body)
    for _ in range(data.draw(st.integers(1, 8))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    frame.body = bytes(body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body)
    with suppress(FormatError):
        validate_body(frame, 1 << 20).to_pylist()


@given(st.binary(max_size=400))
def test_no_bytes_break_the_codecs(data: bytes) -> None:
    for decode in (
        decode_header,
        decode_frame,
        decode_request,
        decode_from_gateway,
        lambda d: list(decode_receipts(d)),
        lambda d: decode_submit([b"S\x00\x01\x00\x00\x00\x00\x00" + d]),
        lambda d: decode_submit([d, d]),
        lambda d: body_sizes(d, 4),
        lambda d: decode_body(EpochBody, d),
    ):
        with suppress(FormatError):
            decode(data)


@given(st.lists(frames(body_bytes_max=20_000), min_size=1, max_size=6), st.booleans())
def test_submitted_frames_round_trip(run: list[Frame], unordered: bool) -> None:
    for frame in run:
        frame.kind = Kind.BATCH
        frame.origin = 0
    parts = encode_submit(run, unordered)
    assert bytes(parts[0][:1]) == (SUBMIT_UNORDERED if unordered else SUBMIT)
    assert len(parts) in (1, 1 + len(run))
    assert decode_submit(parts) == run
    with pytest.raises(FormatError):
        decode_submit([*parts, b""])
    with pytest.raises(FormatError):
        decode_submit([bytes(parts[0]) + b"12345678", *parts[1:]])


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1a", b"\x81\xa4type"])
def test_messages_nested_without_end_are_malformed(nest: bytes) -> None:
    head = encode_control(Hello(1, "test", bytes(16)))
    for data in (b"C" + nest * 200_000, head[:1] + b"\x85" + head[2:] + b"\xa1x" + nest * 200_000):
        for decode in (decode_request, decode_from_gateway, lambda d: decode_body(EpochBody, d)):
            with pytest.raises(FormatError):
                decode(data)


def test_receipts_and_control_messages_round_trip() -> None:
    rows = [Committed(1, 2, 3, 4, 5), Committed(2**64 - 1, 2**32 - 1, 9, 1, -1)]
    assert [Committed(p, e, f, n, o) for p, f, o, e, n in decode_receipts(encode_receipts(rows))] == rows
    for request in (Hello(1, "test", bytes(16)), OpenProducer(7, "jfk", bytes(16), 3)):
        assert decode_request(encode_control(request)) == request
    for answer in (Expected(1, 2, 3), Denied(0, "hello", "say Hello first")):
        assert decode_from_gateway(encode_control(answer)) == answer


def test_bodies_round_trip_and_are_canonical() -> None:
    voter = Voter(1, "jfk", bytes(range(16)), "127.0.0.1:7400")
    roster = RosterBody("ingest", bytes(16), (voter,))
    assert decode_body(RosterBody, encode_body(roster)) == roster
    assert encode_body(roster) == encode_body(RosterBody("ingest", bytes(16), (voter,)))
    with pytest.raises(FormatError, match="AbortBody"):
        decode_body(AbortBody, encode_body(roster))
