"""File format of spool segments: a head, followed by blocks; each block is one batch as it is sent. No I/O.

All numbers are little-endian. The head has 512 bytes, so that its write is atomic on most disks:

```
 0 magic b"TUTSPOOL"   8 version u16   10 progress_length u16   12 number u64   20 id 16 bytes
36 before_end u64     44 before_records u64   52 progress, zeros   508 crc u32
```

`before_end` and `before_records` are the final length of the previous segment in bytes and records. `progress` is the application's
last progress before this segment. A block:

```
 0 magic b"TSB1"   4 flags u8   5 atomic u8   6 topic_length u16   8 progress_length u16   10 zero u16
12 count u32      16 body_length u32   20 raw_length u32   24 body_crc u32   28 min_timestamp i64   36 max_timestamp i64
44 first u64      52 synced u64        60 crc u32          64 topic, progress, body
```

`first` is the number of records in the segment before the block. `synced` is the number of bytes that were durable before the block
was written, so corruption below `synced` is not a torn write. `crc` is CRC32C over the preceding bytes and the topic. The seed of
`crc` depends on the spool's id and the segment's number, so that a block of a different segment never matches. `body_crc` is the
CRC32C of progress and body.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec

from tutti.batching.receipt import SpoolPosition
from tutti.data.frames.frame import Buffer, crc32c, payload_crc
from tutti.errors import Damaged, FormatError

MAGIC = b"TUTSPOOL"
VERSION = 1
HEAD_BYTES = 512
_HEAD = struct.Struct("<8sHHQ16sQQ")
_CRC = struct.Struct("<I")
_CRC_AT = HEAD_BYTES - _CRC.size
_SEED = struct.Struct("<16sQ")
_BLOCK = struct.Struct("<4sBBHHHIIIIqqQQ")
_MAGIC = b"TSB1"
BLOCK_BYTES = _BLOCK.size + _CRC.size  # size of a block without topic, progress and body
_CHUNK_BYTES = 1 << 20


class Head(NamedTuple):
    """The head of a segment."""

    number: int
    id: bytes
    before_end: int
    before_records: int
    progress: bytes


class Block(msgspec.Struct, frozen=True):
    """A stored batch: `position` follows its last record; `start` and `end` are the byte offsets of the block in the segment."""

    position: SpoolPosition
    topic: str
    progress: bytes
    body: bytes | memoryview
    flags: int
    atomic: bool
    count: int
    raw_length: int
    crc: int
    min_timestamp: int
    max_timestamp: int
    synced: int
    start: int
    end: int

    @property
    def before(self) -> SpoolPosition:
        """The position before the block's first record."""
        return SpoolPosition(self.position.segment, self.position.records - self.count)


def encode_head(head: Head) -> bytes:
    """Encode the head of a segment, the first `HEAD_BYTES` bytes."""
    fields = _HEAD.pack(MAGIC, VERSION, len(head.progress), head.number, head.id, head.before_end, head.before_records)
    data = (fields + head.progress).ljust(_CRC_AT, b"\0")
    return data + _CRC.pack(crc32c(data))


def decode_head(data: bytes) -> Head:
    """Decode the result of `encode_head`.

    Raises:
        FormatError: the data is not a segment head, or a newer release wrote it.
        Damaged: the CRC does not match.
    """
    if len(data) < HEAD_BYTES or data[: len(MAGIC)] != MAGIC:
        raise FormatError(f"a segment of a spool cannot start with {data[:8]!r}")
    _, version, length, number, spool, before_end, before_records = _HEAD.unpack_from(data)
    if _CRC.unpack_from(data, _CRC_AT)[0] != crc32c(data[:_CRC_AT]):
        raise Damaged("the head of the segment fails its CRC")
    if version != VERSION:
        raise FormatError(f"version {version} of a spool is unknown, and this release reads {VERSION}: use a newer release")
    return Head(number, spool, before_end, before_records, data[_HEAD.size : _HEAD.size + length])


def seed_of(spool: bytes, number: int) -> int:
    """Return the CRC seed for the blocks of segment `number` of a spool."""
    return crc32c(_SEED.pack(spool, number))


def encode_block(block: Block, seed: int) -> tuple[bytes, Buffer]:
    """Encode a block as two buffers, all bytes before the body and the body, so that the body is written without a copy."""
    topic = block.topic.encode()
    fields = _BLOCK.pack(
        _MAGIC,
        block.flags,
        block.atomic,
        len(topic),
        len(block.progress),
        0,
        block.count,
        len(block.body),
        block.raw_length,
        block.crc,
        block.min_timestamp,
        block.max_timestamp,
        block.position.records - block.count,
        block.synced,
    )
    return fields + _CRC.pack(crc32c(topic, crc32c(fields, seed))) + topic + block.progress, block.body


def decode_block(data: Buffer, at: int, start: int, number: int, seed: int, *, content: bool = True) -> Block | None:
    """Decode the block at index `at` of `data`. Return None if `data` ends within the block.

    The block begins at byte `start` of segment `number`. Without `content`, progress and body are neither decoded nor checked, and
    may be missing from `data`.

    Raises:
        FormatError: the bytes are not a block, or fail their CRC.
    """
    if len(data) < at + BLOCK_BYTES:
        return None
    fields = _BLOCK.unpack_from(data, at)
    magic, flags, atomic, topic_length, progress_length, _, count, body_length, raw_length, crc, low, high, first, synced = fields
    if magic != _MAGIC:
        raise FormatError(f"no block starts at byte {start}")
    topic_at = at + BLOCK_BYTES
    progress_at = topic_at + topic_length
    if len(data) < progress_at:
        return None
    topic = bytes(data[topic_at:progress_at])
    # Check the CRC of the head first, because the lengths of progress and body may be corrupt.
    if _CRC.unpack_from(data, at + _BLOCK.size)[0] != crc32c(topic, crc32c(bytes(data[at : at + _BLOCK.size]), seed)):
        raise FormatError(f"the block at byte {start} fails the CRC of its head")
    body_at = progress_at + progress_length
    progress, body = b"", b""
    if content:
        if len(data) < body_at + body_length:
            return None
        progress, body = bytes(data[progress_at:body_at]), bytes(data[body_at : body_at + body_length])
        if payload_crc(progress, body) != crc:
            raise FormatError(f"the block at byte {start} fails the CRC of its records")
    position = SpoolPosition(number, first + count)
    end = start + body_at + body_length - at
    return Block(
        position, topic.decode(), progress, body, flags, bool(atomic), count, raw_length, crc, low, high, synced, start, end
    )


Fetch = Callable[[int, int], bytes]  # fetch(size, at) returns up to `size` bytes of a segment from byte `at` on


class BlockIterator:
    """Iterator over the blocks of a segment, which it reads in large chunks.

    Attributes:
        at: byte offset after the last returned block.
        records: number of records before byte `at`.
    """

    def __init__(self, fetch: Fetch, number: int, seed: int) -> None:
        """Create an iterator that begins after the head of segment `number`."""
        self.at, self.records = HEAD_BYTES, 0
        self._fetch, self._number, self._seed = fetch, number, seed
        self._data, self._data_at = b"", HEAD_BYTES

    def go(self, at: int, records: int) -> None:
        """Continue at byte `at`, before which the segment has `records` records."""
        self.at, self.records = at, records
        self._data, self._data_at = b"", at

    def next(self, end: int) -> Block | None:
        """Return the next block; None if byte `end` or the end of the file comes before the end of a block.

        Raises:
            FormatError: the bytes are not a block, or fail their CRC.
        """
        size = _CHUNK_BYTES
        while True:
            block = None
            if self.at < end:
                block = decode_block(self._data, self.at - self._data_at, self.at, self._number, self._seed)
            if block is not None:
                # A valid block at the wrong position shows that a part of the file was lost or repeated.
                if block.before.records != self.records:
                    raise FormatError(f"the block at byte {self.at} begins with record {block.before.records}, not {self.records}")
                self.at, self.records = block.end, block.position.records
                return block
            there = len(self._data) - (self.at - self._data_at)
            if self.at >= end or self.at + there >= end:
                return None
            self._data, self._data_at = self._fetch(min(size, end - self.at), self.at), self.at
            if len(self._data) <= there:
                return None  # end of the file
            # The chunk ends within the block, so fetch a larger chunk.
            size *= 4

    def __iter__(self) -> Iterator[Block]:
        """Yield all remaining blocks up to the end of the file."""
        while (block := self.next(1 << 62)) is not None:
            yield block


def find_block_heads(fetch: Fetch, at: int, size: int, number: int, seed: int) -> Iterator[Block]:
    """Yield the valid block heads in bytes `at` to `size` of a segment, whatever the other bytes contain."""
    while at < size:
        data = fetch(_CHUNK_BYTES, at)
        if not data:
            return
        found = data.find(_MAGIC)
        while found >= 0:
            # Accept only a head with a valid CRC, because records may contain the magic.
            candidate = fetch(BLOCK_BYTES + 0xFFFF, at + found)
            with suppress(FormatError, UnicodeDecodeError):
                block = decode_block(candidate, 0, at + found, number, seed, content=False)
                if block is not None:
                    yield block
            found = data.find(_MAGIC, found + 1)
        # Let the chunks overlap, because a magic may cross a chunk boundary.
        at += max(1, len(data) - len(_MAGIC) + 1)


def is_torn(fetch: Fetch, end: int, size: int, number: int, seed: int) -> bool:
    """Return True if bytes `end` to `size`, after the last valid block of a segment, are a torn write.

    If a later block has a `synced` above `end`, the bytes were durable before that block was written, so they are corrupt, not
    torn.
    """
    return not any(block.synced > end for block in find_block_heads(fetch, end, size, number, seed))
