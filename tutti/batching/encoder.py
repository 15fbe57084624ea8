"""Encoder: validates the application's records and encodes each batch once.

An invalid argument raises at once, and the message contains the value. Every encoded body passes the validation of the gateway.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tutti import limits
from tutti.batching.receipt import Batch, Header, Record
from tutti.data.frames.frame import PROGRESS_BYTES_MAX, payload_crc
from tutti.data.frames.plain_body import encode_plain, encode_plain_batch, encode_plain_record, raw_length_of
from tutti.data.frames.schema import (
    BATCH_SCHEMA,
    HEADERS,
    TIME_US_MAX,
    TIME_US_MIN,
    TIMESTAMP,
    decode_batch,
    encode_batch,
    no_headers,
    timestamp_range,
)
from tutti.errors import UsageError

__all__ = [
    "BODY_OVERHEAD_BYTES",
    "RECORD_OVERHEAD_BYTES",
    "TIME_US_MAX",
    "TIME_US_MIN",
    "Compression",
    "ValidatedBatch",
    "check_progress",
    "check_record",
    "drop_committed",
    "encode_open",
    "encode_record_batch",
    "largest_record",
    "seal",
    "to_us",
    "validated_batch",
]  # fmt: skip

#: Bytes of one record in a body besides key and value: Arrow offsets, the timestamp, and validity bits.
RECORD_OVERHEAD_BYTES = 21
#: Bytes of a body besides its records: metadata of the Arrow message, and padding of buffers.
BODY_OVERHEAD_BYTES = 1024
_HEADER_OVERHEAD_BYTES = 16

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BINARY = pa.binary()
_COLUMNS = tuple(BATCH_SCHEMA.names)
_TYPES = {name: BATCH_SCHEMA.field(name).type for name in _COLUMNS}
_BYTES = frozenset({"key", "value"})

Compression = Literal["lz4", "zstd"] | None


def check_record(value: object, key: object, timestamp: object, headers: Iterable[Header]) -> Record:
    """Validate the arguments of `send()` and return the record.

    Raises:
        UsageError: an argument has a wrong type or value. The message names the argument.
    """
    value_bytes = value if value.__class__ is bytes else _check_bytes("value", value)
    key_bytes = None if key is None else _check_bytes("key", key)
    stamp = None if timestamp is None else to_us(timestamp)
    pairs = _check_headers(headers) if headers else ()
    payload = len(value_bytes or b"") + len(key_bytes or b"")
    size = RECORD_OVERHEAD_BYTES + payload
    for name, content in pairs:
        size += len(name.encode()) + len(content or b"") + _HEADER_OVERHEAD_BYTES
    return Record(value_bytes, key_bytes, stamp, pairs, payload, size)


def check_progress(progress: object) -> bytes:
    """Return the progress as bytes; None becomes b"".

    Raises:
        UsageError: the progress is not bytes, is empty, or is too long.
    """
    if progress is None:
        return b""
    if not isinstance(progress, bytes | bytearray | memoryview):
        raise UsageError(f"progress must be bytes, not {type(progress).__name__}: encode it, for example with str.encode()")
    data = bytes(progress)
    if not data:
        raise UsageError("progress is empty: leave it out, or give at least one byte")
    if len(data) > PROGRESS_BYTES_MAX:
        raise UsageError(f"progress has {len(data)} bytes, and at most {PROGRESS_BYTES_MAX} are allowed")
    return data


def _check_bytes(what: str, data: object) -> bytes | None:
    if data is None or data.__class__ is bytes:
        return data
    if isinstance(data, bytes | bytearray | memoryview):
        return memoryview(data).tobytes()  # not bytes(data), because a subclass of bytes may override __bytes__
    raise UsageError(f"the {what} must be bytes or None, not {type(data).__name__} ({str(data)[:40]!r}): encode it first")


def to_us(timestamp: object) -> int:
    """Return a timestamp in microseconds since 1970, UTC, from an aware datetime or an int of microseconds.

    Raises:
        UsageError: the timestamp has another type, or is outside of the years 1 to 9999, UTC.
    """
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise UsageError(f"the timestamp {timestamp.isoformat()} has no zone: give an aware datetime, such as with tzinfo=UTC")
        return _in_range((timestamp - _EPOCH) // timedelta(microseconds=1), timestamp.isoformat())
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | np.integer):
        raise UsageError(
            f"a timestamp must be an aware datetime or an int (microseconds since 1970, UTC), "
            f"not {type(timestamp).__name__} ({timestamp!r})"
        )
    return _in_range(int(timestamp), "")


def _in_range(time_us: int, given: str) -> int:
    if not TIME_US_MIN <= time_us <= TIME_US_MAX:
        given = given or (f"{time_us} us" if abs(time_us) < 1 << 64 else f"of {time_us.bit_length()} bits")
        raise UsageError(f"the timestamp {given} is outside of the years 1 to 9999, UTC: check its unit and its zone")
    return time_us


def _check_headers(headers: Iterable[Header]) -> Sequence[Header]:
    # Strings and dicts are iterable, but their items are not pairs.
    if isinstance(headers, str | bytes | dict):
        raise UsageError(f"headers must be a list of pairs (name, value), not {type(headers).__name__}: use [(name, b'...'), ...]")
    if not isinstance(headers, Iterable):
        raise UsageError(f"headers must be a list of pairs (name, value), not {type(headers).__name__}: use [(name, b'...'), ...]")
    pairs = []
    for header in headers:
        if not _is_pair(header):
            raise UsageError(f"a header must be a pair (name, bytes or None), not {header!r}")
        pairs.append((header[0], _check_bytes(f"header {header[0]!r}", header[1])))
    return pairs


def _is_pair(header: object) -> bool:
    """Return True for a pair (name, value) with a name that can be encoded as UTF-8."""
    if not isinstance(header, tuple | list) or len(header) != 2 or not isinstance(header[0], str):
        return False
    try:
        header[0].encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_open(batch: Batch, compression: Compression) -> None:
    """Encode the columns of an open batch: set the body and the fields of the frame header that depend on the body."""
    count = len(batch.values)
    # Batches of one record are frequent, and numpy is slow for a single value.
    if count == 1:
        time_us = batch.stamps[0] if batch.stamps else round(batch.times[0] * 1e6)
        batch.count, batch.min_timestamp, batch.max_timestamp = 1, time_us, time_us
        value = batch.values[0]
        if value is not None and batch.keys is None and batch.headers is None and compression is None:
            body, raw_length = encode_plain_record(value, time_us)
            seal(batch, body, raw_length)
            return
        packed = struct.pack("<q", time_us)
    else:
        # `struct` converts a list to an array in a third of the time that numpy takes.
        stamps = np.rint(np.frombuffer(struct.pack(f"{count}d", *batch.times), np.float64) * 1e6).astype(np.int64)
        for index, stamp in (batch.stamps or {}).items():
            stamps[index] = stamp
        batch.min_timestamp, batch.max_timestamp = int(stamps.min()), int(stamps.max())
        packed = stamps.tobytes()
    batch.count = count
    # Without headers and compression, assemble the body from its buffers, which is several times faster than Arrow's writer.
    if batch.headers is None and compression is None:
        body, raw_length = encode_plain(batch.keys, batch.values, packed)
        seal(batch, body, raw_length)
        return
    columns: list[pa.Array[Any]] = [
        pa.nulls(count, pa.binary()) if batch.keys is None else _binary(batch.keys),
        _binary(batch.values),
        pa.Array.from_buffers(TIMESTAMP, count, [None, pa.py_buffer(packed)], null_count=0),
        no_headers(count) if batch.headers is None else _header_column(batch.headers, count),
    ]
    _encode(batch, pa.RecordBatch.from_arrays(columns, schema=BATCH_SCHEMA), compression)


def _binary(values: Sequence[Any], kind: pa.DataType = _BINARY) -> pa.Array[Any]:
    """Return a column of bytes without `pa.array`, which imports an installed pandas: 0.2 s and 40 MB at the first record."""
    count = len(values)
    nulls = None
    try:
        lengths = np.frombuffer(struct.pack(f"{count}i", *map(len, values)), np.int32)
    except TypeError:
        # `len` failed because a value is None: build the validity bitmap, and store b"" for None.
        there = np.fromiter((value is not None for value in values), np.bool_, count)
        nulls = pa.py_buffer(np.packbits(there, bitorder="little").data)
        values = [value or b"" for value in values]
        lengths = np.fromiter(map(len, values), np.int32, count)
    offsets = _offsets(lengths)
    data = b"".join(values)
    return pa.Array.from_buffers(kind, count, [nulls, pa.py_buffer(offsets.data), pa.py_buffer(data)])


def _offsets(lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _header_column(headers: Mapping[int, Sequence[Header]], count: int) -> pa.Array[Any]:
    """Return the header column for `count` records; `headers` maps a record's index to its headers."""
    entries = [entry for index in range(count) for entry in headers.get(index, ())]
    lengths = np.fromiter((len(headers.get(index, ())) for index in range(count)), np.int32, count)
    there = np.packbits(lengths > 0, bitorder="little")
    names = _binary([name.encode() for name, _ in entries], pa.string())
    pairs = pa.StructArray.from_arrays([names, _binary([value for _, value in entries])], fields=list(HEADERS.value_type))
    buffers: list[pa.Buffer | None] = [pa.py_buffer(there.data), pa.py_buffer(_offsets(lengths).data)]
    return pa.Array.from_buffers(HEADERS, count, buffers, children=[pairs])


def encode_record_batch(batch: Batch, records: ValidatedBatch, compression: Compression) -> None:
    """Set the body of a batch from `records`."""
    batch.atomic = True
    batch.count = records.batch.num_rows
    batch.min_timestamp, batch.max_timestamp = records.min_timestamp, records.max_timestamp
    _encode(batch, records.batch, compression)


def _encode(batch: Batch, records: pa.RecordBatch, compression: Compression) -> None:
    plain = encode_plain_batch(records) if compression is None else None
    if plain is not None:
        seal(batch, *plain)
        return
    # Arrow's writer handles the rest: compression, headers, and bitmaps that do not begin at a byte boundary.
    body = memoryview(encode_batch(records, compression))
    seal(batch, body, raw_length_of(body, batch.remaining))


def seal(batch: Batch, body: bytes | memoryview, raw_length: int) -> None:
    """Set the body of a batch, which closes the batch."""
    crc = payload_crc(batch.progress, body)
    # Set all fields in one assignment, so that Ctrl-C leaves the batch either encoded or without a body.
    batch.crc, batch.raw_length, batch.size, batch.body = crc, raw_length, len(body), body
    batch.drop_columns()


def largest_record(records: pa.RecordBatch) -> int:
    """Return the size of the largest record: the bytes of its key and value."""
    columns: list[Any] = [records.column(number) for number in (0, 1)]
    sizes = [pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()) for column in columns]
    return int(pc.max(pc.add(sizes[0], sizes[1])).as_py())


def drop_committed(batch: Batch, committed: int, compression: Compression) -> None:
    """Remove the first `committed` records, which are already in the log, and encode the rest again."""
    # Decode the body, because `seal` released the columns.
    rest = decode_batch(batch.body).slice(committed)
    batch.trimmed += committed
    batch.first_sequence += committed
    batch.min_timestamp, batch.max_timestamp = timestamp_range(rest.column(2))
    _encode(batch, rest, compression)


class ValidatedBatch(NamedTuple):
    """A batch with schema `BATCH_SCHEMA`, and the range of its timestamps in microseconds."""

    batch: pa.RecordBatch
    min_timestamp: int
    max_timestamp: int


def validated_batch(records: object, now_us: int) -> ValidatedBatch:
    """Return the batch of `send_batch()` with its columns in order and missing columns filled (timestamp: `now_us`).

    Raises:
        UsageError: `records` is not a record batch, or it is empty, has an unknown column, a column of a wrong type, or nulls in
            the column `timestamp`.
    """
    if not isinstance(records, pa.RecordBatch):
        raise UsageError(f"send_batch needs a pyarrow.RecordBatch, not {type(records).__name__}")
    count = records.num_rows
    if not count:
        raise UsageError("the record batch is empty: send at least one record")
    names = records.schema.names
    unknown = [name for name in names if name not in _COLUMNS]
    if unknown:
        raise UsageError(f"column {unknown[0]!r} is unknown: a record batch has the columns {', '.join(_COLUMNS)}")
    if len(set(names)) != len(names):
        raise UsageError(f"the record batch has a column twice: {', '.join(names)}")
    if "value" not in names:
        raise UsageError(f"the record batch has no column 'value', only {', '.join(names) or 'no columns'}")
    columns = [_column(records, names, name, count, now_us) for name in _COLUMNS]
    conformed = pa.RecordBatch.from_arrays(columns, schema=BATCH_SCHEMA)
    try:
        # Validate here, because a refusal of a malformed batch by the gateway would end the producer's epoch.
        conformed.validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UsageError(f"the record batch is malformed: {str(error).splitlines()[0]}") from error
    low, high = timestamp_range(conformed.column(2)) if "timestamp" in names else (now_us, now_us)
    # Arrow timestamps cover more years than the log accepts (1 to 9999).
    if low < TIME_US_MIN or high > TIME_US_MAX:
        raise UsageError(f"column 'timestamp' has values from {low} to {high} us, outside of the years 1 to 9999")
    return ValidatedBatch(conformed, low, high)


def _column(records: pa.RecordBatch, names: list[str], name: str, count: int, now_us: int) -> pa.Array[Any]:
    if name not in names:
        if name == "timestamp":
            return pa.Array.from_buffers(TIMESTAMP, count, [None, pa.py_buffer(np.full(count, now_us, np.int64).data)])
        return _cached_null_column(name, count) if count <= limits.ABSENT_RECORDS_MAX else _null_column(name, count)
    column: pa.Array[Any] = records.column(names.index(name))
    wanted = _TYPES[name]
    if name in _BYTES and column.type == wanted:
        return column
    if name == "timestamp":
        if not pa.types.is_timestamp(column.type) or column.type.tz is None:
            raise _wrong_type(name, column.type, "timestamp[us, tz=UTC] (or another unit or zone of an aware timestamp)")
        if column.null_count:
            raise UsageError(f"column 'timestamp' has {column.null_count} nulls: omit the column to use the current time")
    elif name == "headers":
        # A column with only nulls may have any type, because libraries choose different types for it.
        if column.null_count != count and not _is_headers(column.type):
            raise _wrong_type(name, column.type, "list<struct<key: string not null, value: binary>>")
    elif not _is_binary(column.type):
        raise _wrong_type(name, column.type, "binary (encode strings with cast(pa.binary()))")
    if column.type == wanted and name != "headers":
        return column
    try:
        fitted: pa.Array[Any] = _headers(column, count) if name == "headers" else column.cast(wanted)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UsageError(f"column {name!r} of type {column.type} does not fit {wanted}: {str(error).splitlines()[0]}") from error
    return fitted


def _null_column(name: str, count: int) -> pa.Array[Any]:
    """Return a column of nulls for a column that the caller omitted."""
    return no_headers(count) if name == "headers" else pa.nulls(count, _BINARY)


#: Cache of null columns, useful because a producer often sends batches of equal length; safe because Arrow arrays are immutable.
_cached_null_column = lru_cache(limits.ABSENT_COLUMNS_KEPT)(_null_column)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_null(kind)
    )


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    entry = kind.value_type
    return bool(
        entry.num_fields == 2
        and entry.field(0).name == "key"
        and entry.field(1).name == "value"
        and (pa.types.is_string(entry.field(0).type) or pa.types.is_large_string(entry.field(0).type))
        and _is_binary(entry.field(1).type)
    )


def _headers(column: pa.Array[Any], count: int) -> pa.Array[Any]:
    if column.null_count == count:
        return no_headers(count)
    # `list_flatten` applies the offsets and nulls of a slice, which the child array (`values`) ignores.
    entries: Any = pc.list_flatten(column)
    if entries.null_count or entries.field(0).null_count:
        raise UsageError("a header in column 'headers' has no name: headers must be pairs of a name and a value")
    # Rebuild the column from its parts, because libraries differ in the names and the nullability of nested fields.
    there = column.is_valid()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int32)
    parts = [entries.field(0).cast(pa.string()), entries.field(1).cast(pa.binary())]
    entry = pa.StructArray.from_arrays(parts, fields=list(HEADERS.value_type))
    nulls = pa.py_buffer(np.packbits(there.to_numpy(zero_copy_only=False), bitorder="little").data)
    return pa.Array.from_buffers(HEADERS, count, [nulls, pa.py_buffer(_offsets(lengths).data)], children=[entry])


def _wrong_type(name: str, found: pa.DataType, wanted: str) -> UsageError:
    return UsageError(f"column {name!r} has type {found}; it must be {wanted}")
