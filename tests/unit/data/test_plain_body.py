"""Tests of plain bodies: they equal Arrow's output, all of Arrow's are accepted, and nothing passes that Arrow refuses."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tutti import limits
from tutti.data.frames.arrow_ipc import body_sizes
from tutti.data.frames.frame import Frame, Kind
from tutti.data.frames.plain_body import check_plain, encode_plain, encode_plain_batch, encode_plain_record, raw_length_of
from tutti.data.frames.schema import (
    BATCH_SCHEMA,
    HEADERS,
    TIMESTAMP,
    decode_batch,
    encode_batch,
    no_headers,
    timestamp_range,
    validate_body,
)
from tutti.errors import FormatError

START_US = 1_700_000_000_000_000
Values = Sequence[bytes | None]


def batch_of(keys: Values, values: Values, times: Sequence[int] | None = None, headers: Any = None) -> pa.RecordBatch:
    count = len(values)
    columns: list[pa.Array[Any]] = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(times or range(START_US, START_US + count), TIMESTAMP),
        pa.array(headers, HEADERS) if headers else no_headers(count),
    ]
    return pa.record_batch(columns, schema=BATCH_SCHEMA)


def frame_of(batch: pa.RecordBatch, compression: Any = None) -> Frame:
    low, high = timestamp_range(batch.column(2))
    body = bytes(encode_batch(batch, compression))
    raw_length = body_sizes(body, 4).raw_bytes
    return Frame(Kind.BATCH, body, count=batch.num_rows, min_timestamp=low, max_timestamp=high, raw_length=raw_length)


def plain_frame(body: bytes, raw_length: int, count: int, first_us: int = START_US) -> Frame:
    last_us = first_us + count - 1
    return Frame(Kind.BATCH, body, count=count, min_timestamp=first_us, max_timestamp=last_us, raw_length=raw_length)


@pytest.mark.parametrize("count", [1, 3, 9, 32, 33, 300])
def test_bodies_of_arrow_for_plain_batches_pass(count: int) -> None:
    chance = random.Random(count)
    for _ in range(20):
        values = [chance.randbytes(chance.randrange(9)) for _ in range(count)]
        keys = [chance.choice([None, b"", b"key"]) for _ in range(count)]
        frame = frame_of(batch_of(keys, values, [chance.randrange(2**50) for _ in range(count)]))
        assert check_plain(frame)
        assert raw_length_of(frame.body, count) == frame.raw_length


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        (None, [b"x"]),
        (None, [b"x", b""] * 40),
        ([None, b"ab", b"c"], [b"x", b"yz", None]),
        ([b""], [None]),
        ([b"k"] * 33, [None] * 33),
    ],
)
def test_a_written_body_is_arrows_own(keys: Values | None, values: Values) -> None:
    batch = batch_of(keys or [None] * len(values), values)
    times = np.arange(START_US, START_US + len(values))
    body, raw_length = encode_plain(keys, values, times.tobytes())
    assert decode_batch(body).equals(batch)
    assert raw_length == body_sizes(body, 4).raw_bytes
    assert check_plain(plain_frame(body, raw_length, len(values)))
    assert body == bytes(encode_batch(batch))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100, 1000, 70_000])
def test_a_lone_record_is_written_as_the_batch_of_it(size: int) -> None:
    value = bytes(range(256)) * (size // 256 + 1)
    for time_us in (START_US, 0, -1, 2**53):
        packed = np.array([time_us], np.int64).tobytes()
        assert encode_plain_record(value[:size], time_us) == encode_plain(None, [value[:size]], packed)


def test_a_slice_is_written_without_its_surroundings() -> None:
    whole = batch_of([b"a", None, b"cc", b"d"] * 8, [bytes([number]) * 100 for number in range(32)])
    for start, length in ((8, 9), (16, 1), (0, 32), (24, 8)):
        part = whole.slice(start, length)
        written = encode_plain_batch(part)
        assert written is not None
        body, raw_length = written
        assert decode_batch(body).equals(part)
        assert raw_length == body_sizes(body, 4).raw_bytes < length * 150 + 600
        assert check_plain(plain_frame(body, raw_length, length, START_US + start))


def test_a_bitmap_that_does_not_start_at_a_byte_and_headers_are_left_to_arrow() -> None:
    assert encode_plain_batch(batch_of([b"a", None, b"c"], [b"x"] * 3).slice(1)) is None
    assert encode_plain_batch(batch_of([b"a", b"b", b"c"], [b"x"] * 3).slice(1)) is not None
    assert encode_plain_batch(batch_of([None], [b"x"], headers=[[("name", b"value")]])) is None


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(batch_of([None], [b"x"]), "lz4"),
        frame_of(batch_of([None], [b"x"], headers=[[("name", b"value")]])),
        frame_of(batch_of([None], [b"x"], headers=[[]])),
    ],
)
def test_other_bodies_are_left_to_arrow(frame: Frame) -> None:
    assert check_plain(frame) is None


def test_the_header_must_say_the_same_as_the_body() -> None:
    for name in ("count", "flags", "min_timestamp", "max_timestamp", "raw_length"):
        frame = frame_of(batch_of([None, None], [b"x", b"y"]))
        setattr(frame, name, 1)
        assert check_plain(frame) is None, name


@pytest.mark.parametrize(
    "seed_frame",
    [
        frame_of(batch_of([None], [b"hello"])),
        frame_of(batch_of([b"a", None, b"bcd"], [b"hello", b"", None])),
        frame_of(batch_of([b"k"] * 10, [b"0123456789"] * 10)),
        frame_of(batch_of([None] * 40, [b"ab"] * 40)),
    ],
)
def test_nothing_passes_that_arrow_refuses(seed_frame: Frame) -> None:
    body = bytes(seed_frame.body)
    chance = random.Random(3)
    passed = refused = 0
    changes = [(at, bit) for at in range(len(body)) for bit in range(8)]
    changes += [(chance.randrange(len(body)), -1) for _ in range(2000)]
    for at, bit in changes:
        changed = bytearray(body)
        if bit >= 0:
            changed[at] ^= 1 << bit
        else:
            changed[at : at + 4] = chance.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", chance.randbytes(4)])
            del changed[len(body) :]
        frame = frame_of(batch_of([None], [b"x"]))
        frame.body, frame.body_length, frame.count = bytes(changed), len(changed), seed_frame.count
        frame.min_timestamp, frame.max_timestamp = seed_frame.min_timestamp, seed_frame.max_timestamp
        frame.raw_length = seed_frame.raw_length
        if check_plain(frame) is None:
            refused += 1
            continue
        passed += 1
        try:
            validate_body(frame, limits.RAW_BYTES_MAX)
        except FormatError as error:
            pytest.fail(f"byte {at}: passed, and Arrow says {error}")
    assert passed > 20
    assert refused > 200
