"""A look into an Arrow IPC message before Arrow itself is let loose on it.

Arrow allocates what a compressed buffer says it will become. A hostile or broken sender could so make a gateway allocate without
bound; this module reads the message's flatbuffer (Arrow columnar format, "Encapsulated message format" and "RecordBatch message")
with every bound checked, and adds the sizes up first.
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
BUFFERS_MAX = 64  # the schema has 11; more is no batch of ours
NOT_COMPRESSED = -1  # in place of a length: the buffer follows as it is


class BodySizes(NamedTuple):
    """What a message announces: records, bytes of its buffers when decompressed, and the codec (None, "lz4", "zstd")."""

    rows: int
    raw_bytes: int
    codec: str | None


def body_sizes(data: Buffer, columns: int) -> BodySizes:
    """Sizes of the RecordBatch message in `data`.

    Args:
        data: one encapsulated IPC message, nothing behind it.
        columns: how many columns the schema has; there must be at least as many buffers.

    Raises:
        FormatError: the bytes are no such message, or any offset in them points outside.
    """
    try:
        return _body_sizes(memoryview(data).cast("B"), columns)
    except (struct.error, IndexError) as error:
        raise FormatError("the body is no Arrow IPC message: an offset in it points outside") from error


def _body_sizes(data: memoryview, columns: int) -> BodySizes:
    if len(data) < _PREFIX.size:
        raise FormatError(f"the body has {len(data)} bytes, too few for an Arrow IPC message")
    mark, length = _PREFIX.unpack_from(data, 0)
    if mark != _CONTINUATION or length <= 0 or _PREFIX.size + length > len(data):
        raise FormatError("the body does not start with an Arrow IPC message")
    metadata = data[_PREFIX.size : _PREFIX.size + length]
    content = data[_PREFIX.size + length :]
    message = _Table(metadata, _I32.unpack_from(metadata, 0)[0])
    if message.u8(1) != _RECORD_BATCH:
        raise FormatError("the body is an Arrow IPC message of another kind than RecordBatch")
    if message.i64(3) != len(content):
        raise FormatError(f"the Arrow IPC message announces {message.i64(3)} bytes and {len(content)} follow")
    batch = message.table(2)
    rows = batch.i64(0)
    compression = batch.find(3)
    codec: str | None = None
    if compression:
        codec = _CODECS.get(batch.table(3).u8(0))
        if codec is None:
            raise FormatError("the body is compressed by a codec that is not known")
    at, count = batch.vector(2)
    if not columns <= count <= BUFFERS_MAX:
        raise FormatError(f"the body has {count} buffers, which fits no batch of {columns} columns")
    raw = 0
    for number in range(count):
        raw += _raw_size(metadata, content, at + number * _EXTENT.size, codec)
    if rows < 0:
        raise FormatError(f"the body announces {rows} records")
    return BodySizes(rows, raw, codec)


def _raw_size(metadata: memoryview, content: memoryview, at: int, codec: str | None) -> int:
    offset, length = _EXTENT.unpack_from(metadata, at)
    if offset < 0 or length < 0 or offset + length > len(content):
        raise FormatError("a buffer of the body lies outside of the message")
    if codec is None or length == 0:
        return int(length)
    (size,) = _I64.unpack_from(content, offset)
    if size == NOT_COMPRESSED:
        return int(length) - _I64.size
    if size < 0:
        raise FormatError(f"a compressed buffer of the body announces {size} bytes")
    return int(size)


class _Table:
    """A flatbuffer table at `start` of `data`; reads raise struct.error or IndexError when they would leave the buffer."""

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
        """Where the field's value lies, 0 if it is absent."""
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
        """Where the vector's first element lies, and how many there are."""
        at = self.find(field)
        if not at:
            return 0, 0
        start = at + int(_U32.unpack_from(self.data, at)[0])
        return start + 4, int(_U32.unpack_from(self.data, start)[0])
