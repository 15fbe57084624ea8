"""The schema of records, and the codec between record batches and frame bodies (design, section 3).

A body is one Arrow IPC RecordBatch message without its schema. The gateway that receives a body validates it completely, so that
readers can map the body from a segment without another validation.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import pyarrow as pa

from tutti.data.frames.arrow_ipc import body_sizes
from tutti.data.frames.frame import CODEC_FLAGS, Buffer, Flag, Frame
from tutti.errors import FormatError, UsageError

TIMESTAMP = pa.timestamp("us", tz="UTC")
#: Range of record timestamps, us: the years 1 to 9999, which Python's datetime supports.
TIME_US_MIN, TIME_US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=True)]),
        nullable=False,
    )
)

#: The columns of a BATCH body, in order.
_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary(), nullable=True),
    pa.field("value", pa.binary(), nullable=True),
    pa.field("timestamp", TIMESTAMP, nullable=False),
    pa.field("headers", HEADERS, nullable=True),
]
BATCH_SCHEMA: pa.Schema = pa.schema(_FIELDS)

_NO_ENTRIES: Any = pa.StructArray.from_arrays([pa.nulls(0, pa.string()), pa.nulls(0, pa.binary())], fields=list(HEADERS.value_type))

_FLAGS: dict[Literal["lz4", "zstd"] | None, int] = {None: 0, "lz4": int(Flag.LZ4), "zstd": int(Flag.ZSTD)}
_CODECS = {0: None, int(Flag.LZ4): "lz4", int(Flag.ZSTD): "zstd"}


def _schema_message_length() -> int:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BATCH_SCHEMA):
        pass
    return int(sink.getvalue().size) - 8  # without the end-of-stream marker


_SCHEMA_LENGTH = _schema_message_length()
_END_LENGTH = 8


def encode_batch(batch: pa.RecordBatch, compression: Literal["lz4", "zstd"] | None = None) -> pa.Buffer:
    """Encode a batch with the schema `BATCH_SCHEMA` as a body. The compression is "lz4", "zstd" or None."""
    if compression is None:
        return batch.serialize()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BATCH_SCHEMA, options=options) as writer:
        writer.write_batch(batch)
    whole = sink.getvalue()
    return whole.slice(_SCHEMA_LENGTH, whole.size - _SCHEMA_LENGTH - _END_LENGTH)


def compression_of(flags: int) -> Literal["lz4", "zstd"] | None:
    """Return the name of the compression in the flags of a frame, or None if the body is uncompressed."""
    return next(name for name, codec in _FLAGS.items() if codec == flags & CODEC_FLAGS)


def compression_flags(compression: str | None) -> int:
    """Return the flags of a frame for a compression: "lz4", "zstd" or None.

    Raises:
        UsageError: `compression` has any other value.
    """
    if compression not in list(_FLAGS):  # a lookup in the dict would raise TypeError for an unhashable argument
        raise UsageError(f"compression {compression!r} is not supported: use None, 'lz4' or 'zstd'")
    return next(flags for name, flags in _FLAGS.items() if name == compression)


def decode_batch(body: Buffer | pa.Buffer) -> pa.RecordBatch:
    """Decode a validated body. The buffers of the batch are views of `body`, unless the body is compressed."""
    return pa.ipc.read_record_batch(body if isinstance(body, pa.Buffer) else pa.py_buffer(body), BATCH_SCHEMA)


def validate_body(frame: Frame, raw_bytes_max: int) -> pa.RecordBatch:
    """Check the body of a BATCH frame from a client completely, and decode the body (design, section 3).

    The function checks the sizes (before decompression), the compression flag, Arrow's full validation, the record count, forbidden
    nulls, and the range of timestamps in the header.

    Args:
        frame: the frame with its body. The caller must have checked the CRC of the body.
        raw_bytes_max: maximum decompressed size of the body, bytes.

    Raises:
        FormatError: a check failed; the error text contains the wrong values.
    """
    sizes = body_sizes(frame.body, len(BATCH_SCHEMA))
    if sizes.codec != _CODECS.get(frame.codec, "?"):
        raise FormatError(f"the body has compression {sizes.codec}, but the header's flags {_CODECS.get(frame.codec, frame.codec)}")
    if sizes.rows != frame.count:
        raise FormatError(f"the body has {sizes.rows} records, but the header has {frame.count}")
    if sizes.raw_bytes > raw_bytes_max:
        raise FormatError(
            f"the body decompresses to {sizes.raw_bytes} bytes, above the limit of {raw_bytes_max}: send smaller batches"
        )
    try:
        batch = decode_batch(frame.body)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        raise FormatError(f"the body is not a valid Arrow record batch: {_first_line(error)}") from error
    if batch.num_rows != frame.count:
        raise FormatError(f"the body has {batch.num_rows} records, but the header has {frame.count}")
    timestamps = batch.column(2)
    if timestamps.null_count:
        raise FormatError(f"{timestamps.null_count} records have no timestamp")
    _check_headers(cast("pa.ListArray[Any]", batch.column(3)))
    low, high = timestamp_range(timestamps)
    if (low, high) != (frame.min_timestamp, frame.max_timestamp):
        raise FormatError(
            f"the timestamps range from {low} to {high} us, but the header has {frame.min_timestamp} to {frame.max_timestamp} us"
        )
    if sizes.raw_bytes != frame.raw_length:
        raise FormatError(f"the body decompresses to {sizes.raw_bytes} bytes, but the header has {frame.raw_length}")
    return batch


def no_headers(count: int) -> pa.Array[Any]:
    """Return a header column of `count` nulls, whose encoding is 8 bytes a record smaller than that of a column from `pa.nulls`."""
    buffers: list[pa.Buffer | None] = [pa.py_buffer(bytes((count + 7) // 8)), pa.py_buffer(bytes(4 * (count + 1)))]
    return pa.Array.from_buffers(HEADERS, count, buffers, null_count=count, children=[_NO_ENTRIES])


def timestamp_range(timestamps: pa.Array[Any]) -> tuple[int, int]:
    """Return the smallest and the largest timestamp, us, of a non-empty array without nulls."""
    # numpy is used, because it takes a quarter of the time of Arrow's compute functions, and 3 MB less memory.
    values = timestamps.view(pa.int64()).to_numpy()
    return int(values.min()), int(values.max())


def _check_headers(headers: pa.ListArray[Any]) -> None:
    if headers.null_count == len(headers):
        return
    entries = cast("pa.StructArray", headers.flatten())
    if entries.null_count or entries.field(0).null_count:
        raise FormatError("a header has no name: give each header a name and a value")


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
