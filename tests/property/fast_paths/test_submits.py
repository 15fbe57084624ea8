"""Properties of the fast path for one plain batch from a client: it accepts the plain batches that the general path accepts, and no
other message.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.history import Compression
from tutti import limits
from tutti.data.client_protocol import INLINE_BYTES_MAX, SUBMIT, decode_lone_submit, decode_submit, encode_submit
from tutti.data.frames.bodies import TxnBody, encode_body
from tutti.data.frames.frame import HEADER_DTYPE, HEADER_SIZE, STAGED, Frame, Kind, payload_crc
from tutti.data.frames.plain_body import check_plain, raw_length_of
from tutti.data.frames.schema import (
    BATCH_SCHEMA,
    HEADERS,
    TIME_US_MAX,
    TIME_US_MIN,
    TIMESTAMP,
    compression_flags,
    encode_batch,
    no_headers,
    timestamp_range,
)
from tutti.errors import FormatError
from tutti_gateway.node.clients.batch_validation import SEQUENCE_MAX, BatchValidator, lone_valid

HEAD_BYTES = 8  # before the headers of the frames
FIELDS: dict[str, tuple[int, int]] = {
    name: (HEADER_DTYPE.fields[name][1], HEADER_DTYPE.fields[name][0].itemsize)  # type: ignore[index]  # the type has fields
    for name in HEADER_DTYPE.names or ()
}
BODY_CRC_AT = HEAD_BYTES + FIELDS["body_crc"][0]
NOW_US = 1_700_000_000_000_000
TIMES = (*(NOW_US,) * 9, 0, TIME_US_MIN, TIME_US_MAX, TIME_US_MIN - 1, TIME_US_MAX + 1)
SIZES = (0, 1, 7, 8, 100, INLINE_BYTES_MAX - 600, INLINE_BYTES_MAX)


def batch(chance: Random) -> Frame:
    """A batch as a client sends it, most often plain."""
    count = chance.choice((1, 1, 1, 2, 9, 33))
    values = [chance.choice((b"", b"value", bytes(chance.choice(SIZES)), None)[: chance.choice((3, 4))]) for _ in range(count)]
    keys = [chance.choice((None, b"", b"key"))] * count if chance.random() < 0.7 else [chance.choice((None, b"k")) for _ in values]
    headers = [[("name", b"value")]] * count if chance.random() < 0.1 else None
    first = chance.choice(TIMES)
    times = [first + number * (chance.random() < 0.5) for number in range(count)]
    columns: list[pa.Array[Any]] = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(times, TIMESTAMP),
        pa.array(headers, HEADERS) if headers else no_headers(count),
    ]
    records = pa.record_batch(columns, schema=BATCH_SCHEMA)
    compression: Compression = chance.choice((*[None] * 8, "lz4", "zstd"))
    body = bytes(encode_batch(records, compression))
    low, high = timestamp_range(records.column(2))
    return Frame(
        Kind.BATCH,
        body,
        progress=chance.choice((b"",) * 8 + (b"p", b"progress")),
        flags=compression_flags(compression) | (STAGED if chance.random() < 0.1 else 0),
        producer=chance.choice((1, 2**64 - 1)),
        epoch=1,
        first_sequence=chance.choice((*(1,) * 9, 7, SEQUENCE_MAX - count, SEQUENCE_MAX - count + 1)),
        count=count,
        topic=1,
        min_timestamp=low,
        max_timestamp=high,
        raw_length=raw_length_of(body, count),
    )


def message(chance: Random) -> bytes:
    """The first part of a submit message of one batch, sometimes of two batches or a transaction."""
    frames = [batch(chance) for _ in range(chance.choice((1,) * 9 + (2,)))]
    if chance.random() < 0.05:
        frames = [Frame(Kind.TXN, encode_body(TxnBody((5,), (2,))), producer=1, epoch=1, first_sequence=1, count=2, topic=1)]
    frame = frames[0]
    if len(frames) == 1 and chance.random() < 0.5:  # inline whatever the size of its body
        data = SUBMIT + b"\0\1\0\0\0\0\0" + frame.packed_header() + frame.progress + bytes(frame.body)
        return data + bytes(-frame.body_length & 7)
    return bytes(encode_submit(frames)[0])


def changed(data: bytes, chance: Random) -> bytes:
    """The message with one byte, one number of its head or header, or its length changed; the CRC of the body is right or not."""
    out = bytearray(data)
    how = chance.choice((0, 1, 1, 1, 2, 3))
    if how == 0:
        out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
    elif how == 1:
        at, size = chance.choice([*((HEAD_BYTES + at, size) for at, size in FIELDS.values()), (1, 1), (2, 2), (4, 4)])
        before = int.from_bytes(out[at : at + size], "little")
        number = chance.choice((0, 1, 2, 4, before + 1, before - 1, 1 << (8 * size - 1), (1 << 8 * size) - 1, Kind.TXN))
        out[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
    elif how == 2:
        del out[chance.randrange(len(out)) :]
    else:
        out += bytes(chance.choice((1, 8)))
    if len(out) >= HEAD_BYTES + HEADER_SIZE and chance.random() < 0.5:
        at, (length_at, _), (progress_at, _) = HEAD_BYTES + HEADER_SIZE, FIELDS["body_length"], FIELDS["progress_length"]
        progress = int.from_bytes(out[HEAD_BYTES + progress_at :][:2], "little")
        length = int.from_bytes(out[HEAD_BYTES + length_at :][:4], "little")
        crc = payload_crc(bytes(out[at : at + progress]), bytes(out[at + progress : at + progress + length]))
        out[BODY_CRC_AT : BODY_CRC_AT + 4] = crc.to_bytes(4, "little")
    return bytes(out)


def general(data: bytes) -> Frame | None:
    """The batch that the general path accepts, if the message is one plain batch in one part, with the reserved bytes zero."""
    try:
        frames = decode_submit([data])
    except FormatError:
        return None
    good, _ = BatchValidator().check(1, frames)
    if len(frames) != 1 or not good:
        return None
    frame = good[0]
    plain = frame.kind == Kind.BATCH and not frame.flags and not frame.progress and frame.body_length <= INLINE_BYTES_MAX
    return frame if plain and data[:1] == SUBMIT and not any(data[4:8]) and check_plain(frame) else None


def fields(frame: Frame | None) -> dict[str, object] | None:
    if frame is None:
        return None
    values = {name: getattr(frame, name) for name in Frame.__slots__}
    return {**values, "body": bytes(frame.body)}


@given(st.integers(0, 2**32))
@settings(max_examples=100)
def test_one_plain_batch_is_accepted_exactly_if_the_general_path_accepts_it(seed: int) -> None:
    chance = Random(seed)
    for _ in range(8):
        data = message(chance)
        for one in (data, *(changed(data, chance) for _ in range(12))):
            lone = decode_lone_submit(one)
            accepted = lone if lone is not None and lone_valid(lone) else None
            assert fields(accepted) == fields(general(one)), one


def test_ordinary_messages_take_the_fast_path() -> None:
    chance = Random(1)
    accepted = [lone_valid(lone) for _ in range(300) if (lone := decode_lone_submit(message(chance))) is not None]
    assert len(accepted) > 80
    assert sum(accepted) > 40


def test_only_bytes_take_the_fast_path_because_the_body_must_be_bytes() -> None:
    frame = next(one for one in map(batch, map(Random, range(100))) if not one.flags and not one.progress and one.body_length < 600)
    (data,) = encode_submit([frame])
    assert decode_lone_submit(bytes(data)) == frame
    assert decode_lone_submit(memoryview(bytes(data))) is None
    assert decode_lone_submit(bytearray(data)) is None


def test_a_body_above_the_inline_limit_does_not_take_the_fast_path() -> None:
    body = bytes(limits.RECORD_BYTES_MAX)
    frame = Frame(Kind.BATCH, body, producer=1, epoch=1, first_sequence=1, count=1, topic=1)
    assert decode_lone_submit(SUBMIT + b"\0\1\0\0\0\0\0" + frame.packed_header() + body) is None
