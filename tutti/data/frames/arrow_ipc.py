"""Reads the sizes that an Arrow IPC message declares, before Arrow decodes the message.

Arrow allocates the decompressed size that a compressed buffer declares, so a hostile sender could make a gateway allocate memory
without limit. This module reads the message's flatbuffer (Arrow columnar format, "Encapsulated message format" and "RecordBatch
message") with bounds checks, and adds up the declared sizes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tutti.data.frames.frame import Buffer
from tutti.errors import FormatError

_I32 = struct.Struct("<i")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_PREFIX = struct.Struct("<Ii")
_EXTENT = struct.Struct("<qq")

_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3  # Arrow's MessageHeader union
_CODECS = {0: "lz4", 1: "zstd"}
BUFFERS_MAX = 64  # maximum number of buffers in a message; a batch with the record schema has 11
NOT_COMPRESSED = -1  # length that marks an uncompressed buffer in a compressed message


class BodySizes(NamedTuple):
    """Declared sizes of a message: records, decompressed bytes of its buffers, and the codec (None, "lz4", "zstd")."""

    rows: int
    raw_bytes: int
    codec: str | None


def body_sizes(data: Buffer, columns: int) -> BodySizes:
    """Return the declared sizes of the RecordBatch message in `data`.

    Args:
        data: exactly one encapsulated IPC message.
        columns: number of columns in the schema, which is the minimum number of buffers in the message.

    Raises:
        FormatError: the bytes are not a RecordBatch message, or contain an offset that is out of bounds.
    """
    try:
        return _body_sizes(memoryview(data).cast("B"), columns)
    except (struct.error, IndexError) as error:
        raise FormatError("the body is not a valid Arrow IPC message: an offset in it is out of bounds") from error


def _body_sizes(data: memoryview, columns: int) -> BodySizes:
    if len(data) < _PREFIX.size:
        raise FormatError(f"the body has {len(data)} bytes, too few for an Arrow IPC message")
    mark, length = _PREFIX.unpack_from(data, 0)
    if mark != _CONTINUATION or length <= 0 or _PREFIX.size + length > len(data):
        raise FormatError("the body does not begin with an Arrow IPC message")
    metadata = data[_PREFIX.size : _PREFIX.size + length]
    content = data[_PREFIX.size + length :]
    message = _Table(metadata, _I32.unpack_from(metadata, 0)[0])
    if message.u8(1) != _RECORD_BATCH:
        raise FormatError("the body is an Arrow IPC message, but not a RecordBatch")
    if message.i64(3) != len(content):
        raise FormatError(f"the Arrow IPC message declares {message.i64(3)} bytes, but {len(content)} follow")
    batch = message.table(2)
    rows = batch.i64(0)
    compression = batch.find(3)
    codec: str | None = None
    if compression:
        codec = _CODECS.get(batch.table(3).u8(0))
        if codec is None:
            raise FormatError("the body has an unknown compression codec: use lz4 or zstd")
    at, count = batch.vector(2)
    if not columns <= count <= BUFFERS_MAX:
        raise FormatError(f"the body has {count} buffers, which does not match a batch of {columns} columns")
    raw = 0
    for number in range(count):
        raw += _raw_size(metadata, content, at + number * _EXTENT.size, codec)
    if rows < 0:
        raise FormatError(f"the body declares {rows} records, a negative number")
    return BodySizes(rows, raw, codec)


def _raw_size(metadata: memoryview, content: memoryview, at: int, codec: str | None) -> int:
    offset, length = _EXTENT.unpack_from(metadata, at)
    if offset < 0 or length < 0 or offset + length > len(content):
        raise FormatError("a buffer of the body lies outside the message")
    if codec is None or length == 0:
        return int(length)
    (size,) = _I64.unpack_from(content, offset)
    if size == NOT_COMPRESSED:
        return int(length) - _I64.size
    if size < 0:
        raise FormatError(f"a compressed buffer of the body declares {size} bytes, a negative number")
    return int(size)


class _Table:
    """A flatbuffer table that begins at byte `start` of `data`. A read outside of `data` raises struct.error or IndexError."""

    __slots__ = ("data", "fields", "start", "vtable")

    def __init__(self, data: memoryview, start: int) -> None:
        if start < 0:
            raise IndexError(start)
        self.data = data
        self.start = start
        self.vtable = start - _I32.unpack_from(data, start)[0]
        if self.vtable < 0:
            raise IndexError(self.vtable)
        self.fields = (_U16.unpack_from(data, self.vtable)[0] - 4) // 2

    def find(self, field: int) -> int:
        """Return the byte at which the value of the field with number `field` begins; 0 if the table lacks the field."""
        if field >= self.fields:
            return 0
        offset = int(_U16.unpack_from(self.data, self.vtable + 4 + 2 * field)[0])
        return self.start + offset if offset else 0

    def u8(self, field: int) -> int:
        at = self.find(field)
        return int(self.data[at]) if at else 0

    def i64(self, field: int) -> int:
        at = self.find(field)
        return int(_I64.unpack_from(self.data, at)[0]) if at else 0

    def table(self, field: int) -> _Table:
        at = self.find(field)
        if not at:
            raise IndexError(field)
        return _Table(self.data, at + int(_U32.unpack_from(self.data, at)[0]))

    def vector(self, field: int) -> tuple[int, int]:
        """Return the byte at which the first element of a vector begins, and the number of elements; zeros without the vector."""
        at = self.find(field)
        if not at:
            return 0, 0
        start = at + int(_U32.unpack_from(self.data, at)[0])
        return start + 4, int(_U32.unpack_from(self.data, start)[0])
