"""Plain body: fast codec for the most common bodies, which have no compression and no headers, and the layout of Arrow's writer.

The metadata of a plain body (a flatbuffer of 480 bytes) is constant except for a few numbers: the record count, and the bytes and
nulls of keys and values. Therefore this module encodes a plain body with one copy of its data, and checks a plain body with a few
comparisons. For a single record, Arrow's own functions take five times as long, and even longer with cold CPU caches. For other
bodies, the functions of this module return None, and callers use Arrow (`tutti.data.frames.schema`).

The output of `encode_plain` is byte for byte that of `RecordBatch.serialize` (Arrow columnar format, "IPC"). For a slice of a
batch, Arrow also writes some bytes of neighbouring records, but `encode_plain_batch` writes zeros instead of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tutti.data.frames.arrow_ipc import body_sizes
from tutti.data.frames.frame import CODEC_FLAGS, Buffer, Frame, padded
from tutti.data.frames.schema import BATCH_SCHEMA, HEADERS, TIMESTAMP

# The metadata contains these numbers: body length, rows, (offset, length) of 17 buffers, and (length, nulls) of 7 columns.
_METADATA = struct.Struct("<40sq24sq8s34q8s14q")
_METADATA_BYTES = _METADATA.size
# In the metadata, at bytes 72, 128, 176, 376 and 392: rows, bytes of keys and of values, nulls of keys and of values.
_NUMBERS = struct.Struct("<72xq48xq40xq192xq8xq")
_LONE_OFFSETS, _LONE_TIME = struct.Struct("<ii"), struct.Struct("<q")
_FEW = 32  # largest number of records for which plain Python is faster than numpy
_NO_HEADERS_END = 16  # size with padding of the last two offset buffers, those of the (missing) header names and values
_PADDING = tuple(bytes(n) for n in range(8))
_DATA_BYTES_MAX = 2**31 - 1
_LAYOUTS_KEPT = 256  # number of cached layouts; the cache saves time, because most clients send records of equal size


def _fixed_parts() -> tuple[bytes, bytes, bytes, bytes]:
    """Return the parts of a plain message that are the same for all records, taken from a message that Arrow has written."""
    columns = [pa.nulls(1, kind) for kind in (pa.binary(), pa.binary(), TIMESTAMP, HEADERS)]
    message = pa.RecordBatch.from_arrays(columns, schema=BATCH_SCHEMA).serialize().to_pybytes()
    fields = _METADATA.unpack_from(message)
    return fields[0], fields[2], fields[4], fields[39]


_FIXED = _fixed_parts()


class Layout(NamedTuple):
    """Positions (bytes) of the buffers in a plain body, and the numbers in its metadata.

    Attributes:
        records: number of records.
        metadata: bytes of the metadata at the start of the body.
        key_size, value_size: total bytes of all keys, and of all values.
        key_nulls, value_nulls: number of null keys, and of null values.
        raw_length: total bytes of all buffers, without padding.
        no_keys, no_headers: the zeros from `key_validity` to `key_data` of records without keys, and from `headers` to `end`; empty
            for many records.
    """

    records: int
    metadata: bytes
    key_size: int
    value_size: int
    key_nulls: int
    value_nulls: int
    key_validity: int
    key_offsets: int
    key_data: int
    value_validity: int
    value_offsets: int
    value_data: int
    times: int
    headers: int
    end: int
    raw_length: int
    no_keys: bytes
    no_headers: bytes


_checked: dict[bytes, Layout] = {}  # layouts that `plain_layout` has found, by metadata


@lru_cache(_LAYOUTS_KEPT)
def _layout(count: int, key_data: int, key_nulls: int, value_data: int, value_nulls: int) -> Layout:
    """Return the layout of `count` records whose keys and values have these numbers of bytes and nulls."""
    bits, offsets = (count + 7) // 8, 4 * (count + 1)
    key_bits, value_bits = bits if key_nulls else 0, bits if value_nulls else 0
    a = padded(key_bits)
    b = a + padded(offsets)
    c = b + padded(key_data)
    d = c + padded(value_bits)
    e = d + padded(offsets)
    f = e + padded(value_data)
    g = f + 8 * count
    h = g + padded(bits)
    i = h + padded(offsets)
    end = i + _NO_HEADERS_END
    fixed = _FIXED
    metadata = _METADATA.pack(
        *(fixed[0], end, fixed[1], count, fixed[2]),
        *(0, key_bits, a, offsets, b, key_data),
        *(c, value_bits, d, offsets, e, value_data),
        *(f, 0, f, 8 * count),
        *(g, bits, h, offsets),
        *(i, 0, i, 0, i, 4, i + 8, 0, i + 8, 0, i + 8, 4, end, 0),
        *(fixed[3], count, key_nulls, count, value_nulls, count, 0, count, count, 0, 0, 0, 0, 0, 0),
    )
    at = _METADATA.size
    raw_length = key_bits + value_bits + bits + key_data + value_data + 3 * offsets + 8 * count + 8
    return Layout(
        *(count, metadata, key_data, value_data, key_nulls, value_nulls),
        *(at, at + a, at + b, at + c, at + d, at + e, at + f, at + g, at + end),
        raw_length,
        *((bytes(b), bytes(end - g)) if count <= _FEW else (b"", b"")),
    )


def encode_plain(keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], times: Buffer) -> tuple[bytes, int]:
    """Encode records without headers. Return the body and its `raw_length`.

    Args:
        keys: one key for each record, or None if no record has a key.
        values: one value for each record; at least one record, and below 2 GiB in total.
        times: timestamps as packed int64, us.
    """
    return _join(None if keys is None else _column(keys), _column(values), times, len(values))


def encode_plain_record(value: bytes, time_us: int) -> tuple[bytes, int]:
    """Encode one record without key and headers. Return the same as `encode_plain`, in a third of the time."""
    start, end, raw_length = _around_value(len(value))
    return b"".join((start, value, _PADDING[-len(value) & 7], _LONE_TIME.pack(time_us), end)), raw_length


@lru_cache(_LAYOUTS_KEPT)
def _around_value(size: int) -> tuple[bytes, bytes, int]:
    """Return the constant bytes before and after value and time of a record without key, and the record's `raw_length`."""
    layout = _layout(1, 0, 1, size, 0)
    start = layout.metadata + bytes(layout.value_offsets - layout.key_validity) + struct.pack("<2i", 0, size)
    return start, bytes(layout.end - layout.headers), layout.raw_length


def encode_plain_batch(records: pa.RecordBatch) -> tuple[bytes, int] | None:
    """Encode a valid batch with `BATCH_SCHEMA`. Return the body and its `raw_length`.

    Return None if the batch has headers, or if it has nulls and is a slice that begins inside a byte of the null bitmap.
    """
    count = records.num_rows
    if records.column(3).null_count != count:
        return None
    key, value = _sliced(records.column(0)), _sliced(records.column(1))
    times = records.column(2)
    if key is None or value is None:
        return None
    stamps = _view(times.buffers()[1])[8 * times.offset : 8 * (times.offset + count)]
    return _join(None if key.nulls == count and not key.size else key, value, stamps, count)


class _Column(NamedTuple):
    """The buffers of a key or value column in a body."""

    nulls: int
    validity: Buffer
    offsets: Buffer
    size: int  # bytes of all data
    data: Sequence[Buffer]

    def add_to(self, parts: list[Buffer]) -> None:
        for buffer in (self.validity, self.offsets):
            parts.append(buffer)
            parts.append(_PADDING[-len(buffer) & 7])
        parts.extend(self.data)
        parts.append(_PADDING[-self.size & 7])


def _join(key: _Column | None, value: _Column, times: Buffer, count: int) -> tuple[bytes, int]:
    parts: list[Buffer]
    if key is None:
        layout = _layout(count, 0, count, value.size, value.nulls)
        parts = [layout.metadata, bytes(layout.value_validity - layout.key_validity)]
    else:
        layout = _layout(count, key.size, key.nulls, value.size, value.nulls)
        parts = [layout.metadata]
        key.add_to(parts)
    value.add_to(parts)
    parts.append(times)
    parts.append(bytes(layout.end - layout.headers))
    return b"".join(parts), layout.raw_length


def _column(values: Sequence[bytes | None]) -> _Column:
    try:
        offsets = _offsets(values)  # type: ignore[arg-type]  # None has no len()
    except (TypeError, struct.error):
        there = np.fromiter((value is not None for value in values), np.bool_, len(values))
        data = [value or b"" for value in values]
        offsets = _offsets(data)
        validity = np.packbits(there, bitorder="little").tobytes()
        return _Column(len(values) - int(there.sum()), validity, offsets, int.from_bytes(offsets[-4:], "little"), data)
    return _Column(0, b"", offsets, int.from_bytes(offsets[-4:], "little"), values)  # type: ignore[arg-type]  # none is None


def _sliced(column: pa.Array[Any]) -> _Column | None:
    count, start, nulls = len(column), column.offset, column.null_count
    if nulls and start & 7:
        return None
    validity, ends, data = map(_view, column.buffers())
    offsets = np.frombuffer(ends, np.int32, count + 1, 4 * start)
    first, last = int(offsets[0]), int(offsets[-1])
    if first:
        offsets = offsets - first
    bits = validity[start >> 3 : (start + count + 7) >> 3] if nulls else b""
    return _Column(nulls, bits, offsets.data.cast("B"), last - first, [data[first:last]])


def _view(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"" if buffer is None else buffer)


def _offsets(values: Sequence[bytes]) -> bytes:
    count = len(values)
    if count <= _FEW:
        return struct.pack(f"<{count + 1}i", 0, *accumulate(map(len, values)))
    offsets = np.zeros(count + 1, np.int32)
    # The list of lengths is converted with `struct`, which takes a third of the time of numpy.
    np.cumsum(np.frombuffer(struct.pack(f"{count}i", *map(len, values)), np.int32), out=offsets[1:])
    return offsets.tobytes()


def plain_layout(body: Buffer, count: int) -> Layout | None:
    """Return the layout of a body with `count` records if its metadata is that of a plain body, else None.

    The content of the buffers is not checked.
    """
    metadata = bytes(body[:_METADATA_BYTES])
    layout = _checked.get(metadata)
    if layout is not None:
        return layout if layout.records == count and layout.end == len(body) else None
    if len(metadata) < _METADATA_BYTES:
        return None
    rows, key_data, value_data, key_nulls, value_nulls = _NUMBERS.unpack_from(metadata)
    if not (0 < rows == count and 0 <= key_nulls <= count and 0 <= value_nulls <= count):
        return None
    if not (0 <= key_data <= _DATA_BYTES_MAX and 0 <= value_data <= _DATA_BYTES_MAX):
        return None
    layout = _layout(count, key_data, key_nulls, value_data, value_nulls)
    if len(body) != layout.end or metadata != layout.metadata:
        return None
    if len(_checked) >= _LAYOUTS_KEPT:
        _checked.clear()
    _checked[metadata] = layout
    return layout


def raw_length_of(body: Buffer, count: int) -> int:
    """Return the `raw_length` of a body with `count` records: the bytes of its buffers without compression and padding."""
    layout = plain_layout(body, count)
    return layout.raw_length if layout else body_sizes(body, len(BATCH_SCHEMA)).raw_bytes


def check_plain(frame: Frame) -> Layout | None:
    """Return the layout of a frame's body if this module can prove that the body is plain and valid, else None.

    If the function returns a layout, Arrow's full validation would accept the body, and count, timestamps and `raw_length` match
    the header. If the function returns None, the body can still be valid, but only Arrow can check it.
    """
    body, count = frame.body, frame.count
    if frame.flags & CODEC_FLAGS:
        return None
    # Most bodies have known metadata, and need no call of `plain_layout`.
    layout = _checked.get(bytes(body[:_METADATA_BYTES]))
    if layout is None or layout.records != count or layout.end != len(body):
        layout = plain_layout(body, count)
    if layout is None or layout.raw_length != frame.raw_length:
        return None
    if count == 1:  # the most frequent body
        first, last = _LONE_OFFSETS.unpack_from(body, layout.value_offsets)
        values = first == 0 <= last <= layout.value_size
    else:
        values = _ends(body, count, layout.value_offsets, layout.value_size)
    if not values or (layout.value_nulls and not _bits(body, count, layout.value_validity, layout.value_nulls)):
        return None
    # A memoryview compares item by item, so the ranges are compared as bytes.
    if not layout.key_size and bytes(body[layout.key_validity : layout.key_data]) == (
        layout.no_keys or bytes(layout.key_data - layout.key_validity)
    ):
        keys = layout.key_nulls in (0, count)
    else:
        keys = _ends(body, count, layout.key_offsets, layout.key_size)
        keys = keys and (not layout.key_nulls or _bits(body, count, layout.key_validity, layout.key_nulls))
    if not keys or bytes(body[layout.headers : layout.end]) != (layout.no_headers or bytes(layout.end - layout.headers)):
        return None
    if count == 1:
        (low,) = _LONE_TIME.unpack_from(body, layout.times)
        high = low
    elif count <= _FEW:
        times = struct.unpack_from(f"<{count}q", body, layout.times)
        low, high = min(times), max(times)
    else:
        stamps = np.frombuffer(body, np.int64, count, layout.times)
        low, high = int(stamps.min()), int(stamps.max())
    return layout if low == frame.min_timestamp and high == frame.max_timestamp else None


def _ends(body: Buffer, count: int, start: int, size: int) -> bool:
    """True if the offsets start at 0, never decrease, and end within `size` bytes."""
    if count <= _FEW:
        offsets = struct.unpack_from(f"<{count + 1}i", body, start)
        return not (offsets[0] or offsets[-1] > size or any(before > after for before, after in pairwise(offsets)))
    ends = np.frombuffer(body, np.int32, count + 1, start)
    return bool(ends[0] == 0 and ends[-1] <= size and (ends[1:] >= ends[:-1]).all())


def _bits(body: Buffer, count: int, start: int, nulls: int) -> bool:
    """True if the null bitmap at `start` has exactly `nulls` zero bits."""
    bits = int.from_bytes(body[start : start + (count + 7) // 8], "little") & ((1 << count) - 1)
    return count - bits.bit_count() == nulls
