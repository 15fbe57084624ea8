"""Proves that the quick check takes nothing that Arrow's full validation refuses, and that it takes what it is made for."""

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from gateway.core import limits
from gateway.data.frame import Frame, Kind
from gateway.data.schema import BATCH_SCHEMA, HEADERS, TIMESTAMP, encode_batch, timestamp_range, validate_body
from gateway.errors import FormatError
from gateway.node.quick import QuickCheck
from tests.unit.node.fakes import START_US, batch_frame


def frame_of(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], times: Sequence[int] | None = None, headers: Any = None
) -> Frame:
    count = len(values)
    columns: list[pa.Array[Any]] = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(times or range(START_US, START_US + count), TIMESTAMP),
        pa.array(headers, HEADERS) if headers else pa.nulls(count, HEADERS),
    ]
    batch = pa.record_batch(columns, schema=BATCH_SCHEMA)
    low, high = timestamp_range(batch.column(2))
    body = bytes(encode_batch(batch))
    return Frame(Kind.BATCH, body, count=count, min_timestamp=low, max_timestamp=high)


def learned(frame: Frame) -> QuickCheck:
    quick = QuickCheck()
    assert not quick.passes(frame)
    quick.learn(frame, validate_body(frame, limits.RAW_BYTES_MAX))
    return quick


@pytest.mark.parametrize("count", [1, 3, 9, limits.QUICK_RECORDS_MAX])
def test_batches_of_the_same_shape_pass(count: int) -> None:
    quick = learned(frame_of([b"k"] * count, [b"value"] * count))
    chance = random.Random(1)
    for _ in range(20):
        values = [chance.randbytes(5) for _ in range(count)]
        times = [chance.randrange(2**50) for _ in range(count)]
        assert quick.passes(frame_of([b"K"] * count, values, times))


def test_nulls_may_stand_elsewhere_and_lengths_may_differ() -> None:
    quick = learned(frame_of([None, b"ab", b"c"], [b"x", b"yz", None]))
    assert quick.passes(frame_of([b"abc", None, b""], [None, b"x", b"yz"]))


@pytest.mark.parametrize(
    "frame",
    [
        batch_frame([b"x"], compression="lz4"),
        batch_frame([b"x"] * (limits.QUICK_RECORDS_MAX + 1)),
        batch_frame([bytes(limits.QUICK_BODY_BYTES_MAX)]),
        frame_of([None], [b"x"], headers=[[("name", b"value")]]),
        frame_of([None], [b"x"], headers=[[]]),
    ],
)
def test_what_is_not_small_and_plain_is_left_to_arrow(frame: Frame) -> None:
    assert not learned(frame).passes(frame)


def test_the_header_must_say_the_same_as_the_body() -> None:
    quick = learned(frame_of([None, None], [b"x", b"y"]))
    for name, value in (("count", 1), ("flags", 1), ("min_timestamp", 0), ("max_timestamp", 0), ("body_length", 8)):
        frame = frame_of([None, None], [b"x", b"y"])
        setattr(frame, name, value)
        assert not quick.passes(frame), name


@pytest.mark.parametrize(
    "seed_frame",
    [
        frame_of([None], [b"hello"]),
        frame_of([b"a", None, b"bcd"], [b"hello", b"", None]),
        frame_of([b"k"] * 10, [b"0123456789"] * 10),
    ],
)
def test_nothing_passes_that_arrow_refuses(seed_frame: Frame) -> None:
    quick = learned(seed_frame)
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
        frame = batch_frame()
        frame.body, frame.body_length, frame.count = bytes(changed), len(changed), seed_frame.count
        frame.min_timestamp, frame.max_timestamp = seed_frame.min_timestamp, seed_frame.max_timestamp
        if not quick.passes(frame):
            refused += 1
            continue
        passed += 1
        try:
            validate_body(frame, limits.RAW_BYTES_MAX)
        except FormatError as error:
            pytest.fail(f"byte {at}: passed, and Arrow says {error}")
    assert passed > 20
    assert refused > 200


def test_what_is_remembered_is_bounded() -> None:
    quick = QuickCheck()
    for size in range(3 * limits.QUICK_LAYOUTS_MAX):
        frame = frame_of([None], [bytes(size)])
        quick.learn(frame, validate_body(frame, limits.RAW_BYTES_MAX))
        assert quick.passes(frame)
        assert len(quick._layouts) <= limits.QUICK_LAYOUTS_MAX
