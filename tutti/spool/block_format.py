"""The form of a spool's segments: a head, then blocks back to back, each one batch as it travels. No I/O.

All numbers are little-endian. The head has 512 bytes, so that no write tears it apart on most disks:

```
 0 magic b"TUTSPOOL"   8 version u16   10 progress_length u16   12 number u64   20 id 16 bytes
36 before_end u64     44 before_records u64   52 progress, zeros   508 crc u32
```

`before_end` and `before_records` say how far the segment before this one is valid, which was found out before this one was made.
`progress` is the application's last one up to here. A block:

```
 0 magic b"TSB1"   4 flags u8   5 whole u8   6 topic_length u16   8 progress_length u16   10 zero u16
12 count u32      16 body_length u32   20 raw_length u32   24 body_crc u32   28 min_timestamp i64   36 max_timestamp i64
44 first u64      52 synced u64        60 crc u32          64 topic, progress, body
```

`first` counts the records of the segment before the block, `synced` the bytes that were on the disk before it was written: what is
damaged below that was not torn by a crash. `crc` is CRC32C over the bytes before it and the topic, seeded with id and number, so
that no block of another segment is taken for one of this; `body_crc` is the batch's own, over progress and body.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec

from tutti.batching.receipt import Place
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
BLOCK_BYTES = _BLOCK.size + _CRC.size  # what a block takes beside topic, progress and body
_CHUNK_BYTES = 1 << 20


class Head(NamedTuple):
    """What a segment says of itself."""

    number: int
    id: bytes
    before_end: int
    before_records: int
    progress: bytes


class Block(msgspec.Struct, frozen=True):
    """A batch as it is stored. `place` is behind its last record, `start` and `end` are bytes of the segment."""

    place: Place
    topic: str
    progress: bytes
    body: bytes | memoryview
    flags: int
    whole: bool
    count: int
    raw_length: int
    crc: int
    min_timestamp: int
    max_timestamp: int
    synced: int
    start: int
    end: int

    @property
    def before(self) -> Place:
        """The place behind which it stands."""
        return Place(self.place.segment, self.place.records - self.count)


def encode_head(head: Head) -> bytes:
    """The first bytes of a segment."""
    fields = _HEAD.pack(MAGIC, VERSION, len(head.progress), head.number, head.id, head.before_end, head.before_records)
    data = (fields + head.progress).ljust(_CRC_AT, b"\0")
    return data + _CRC.pack(crc32c(data))


def decode_head(data: bytes) -> Head:
    """What `encode_head` made.

    Raises:
        FormatError: it is none, or of a newer release.
        Damaged: the CRC does not fit.
    """
    if len(data) < HEAD_BYTES or data[: len(MAGIC)] != MAGIC:
        raise FormatError(f"no segment of a spool starts with {data[:8]!r}")
    _, version, length, number, whose, before_end, before_records = _HEAD.unpack_from(data)
    if _CRC.unpack_from(data, _CRC_AT)[0] != crc32c(data[:_CRC_AT]):
        raise Damaged("the head of the segment fails its CRC")
    if version != VERSION:
        raise FormatError(f"version {version} of a spool is not known, this release reads {VERSION}: use a newer release")
    return Head(number, whose, before_end, before_records, data[_HEAD.size : _HEAD.size + length])


def seed_of(spool: bytes, number: int) -> int:
    """What the CRC of each block of that segment begins with."""
    return crc32c(_SEED.pack(spool, number))


def encode_block(block: Block, seed: int) -> tuple[bytes, Buffer]:
    """A block in two parts, to be written back to back: all but the body, and that."""
    topic = block.topic.encode()
    fields = _BLOCK.pack(
        _MAGIC,
        block.flags,
        block.whole,
        len(topic),
        len(block.progress),
        0,
        block.count,
        len(block.body),
        block.raw_length,
        block.crc,
        block.min_timestamp,
        block.max_timestamp,
        block.place.records - block.count,
        block.synced,
    )
    return fields + _CRC.pack(crc32c(topic, crc32c(fields, seed))) + topic + block.progress, block.body


def decode_block(data: Buffer, at: int, start: int, number: int, seed: int, *, content: bool = True) -> Block | None:
    """The block at `at` of `data`, which is byte `start` of segment `number`; None if `data` ends before it does.

    Without `content` that may end before progress and body do, which are left out and not checked.

    Raises:
        FormatError: there is none, or what is there fails its CRC.
    """
    if len(data) < at + BLOCK_BYTES:
        return None
    fields = _BLOCK.unpack_from(data, at)
    magic, flags, whole, topic_length, progress_length, _, count, body_length, raw_length, crc, low, high, first, synced = fields
    if magic != _MAGIC:
        raise FormatError(f"no block starts at byte {start}")
    topic_at = at + BLOCK_BYTES
    progress_at = topic_at + topic_length
    if len(data) < progress_at:
        return None
    topic = bytes(data[topic_at:progress_at])
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
    place = Place(number, first + count)
    end = start + body_at + body_length - at
    return Block(place, topic.decode(), progress, body, flags, bool(whole), count, raw_length, crc, low, high, synced, start, end)


Fetch = Callable[[int, int], bytes]  # (size, at): bytes of a segment, fewer at its end


class Walk:
    """Blocks of a segment one after another, read in large pieces.

    Attributes:
        at: the byte behind the last one that was given.
        records: and the records.
    """

    def __init__(self, fetch: Fetch, number: int, seed: int) -> None:
        """Begin behind the head."""
        self.at, self.records = HEAD_BYTES, 0
        self._fetch, self._number, self._seed = fetch, number, seed
        self._data, self._data_at = b"", HEAD_BYTES

    def go(self, at: int, records: int) -> None:
        """Go on there."""
        self.at, self.records = at, records
        self._data, self._data_at = b"", at

    def next(self, end: int) -> Block | None:
        """The next block, None where the segment ends: at byte `end`, or in the middle of one.

        Raises:
            FormatError: what is there is no block, or fails its CRC.
        """
        size = _CHUNK_BYTES
        while True:
            block = None
            if self.at < end:
                block = decode_block(self._data, self.at - self._data_at, self.at, self._number, self._seed)
            if block is not None:
                if block.before.records != self.records:
                    raise FormatError(f"the block at byte {self.at} begins with record {block.before.records}, not {self.records}")
                self.at, self.records = block.end, block.place.records
                return block
            there = len(self._data) - (self.at - self._data_at)
            if self.at >= end or self.at + there >= end:
                return None
            self._data, self._data_at = self._fetch(min(size, end - self.at), self.at), self.at
            if len(self._data) <= there:
                return None  # the file ends here
            size *= 4

    def __iter__(self) -> Iterator[Block]:
        """All that follow in the file, whatever its size."""
        while (block := self.next(1 << 62)) is not None:
            yield block


def heads(fetch: Fetch, at: int, size: int, number: int, seed: int) -> Iterator[Block]:
    """The heads of blocks that there are from byte `at` to `size` of a segment, whatever lies between them."""
    while at < size:
        data = fetch(_CHUNK_BYTES, at)
        if not data:
            return
        found = data.find(_MAGIC)
        while found >= 0:
            candidate = fetch(BLOCK_BYTES + 0xFFFF, at + found)
            with suppress(FormatError, UnicodeDecodeError):
                block = decode_block(candidate, 0, at + found, number, seed, content=False)
                if block is not None:
                    yield block
            found = data.find(_MAGIC, found + 1)
        at += max(1, len(data) - len(_MAGIC) + 1)


def torn(fetch: Fetch, end: int, size: int, number: int, seed: int) -> bool:
    """Whether what follows the last valid block of a segment, from `end` to `size`, is what a crash leaves of unsynced writes.

    It is damage if a later block says that more was on the disk when it was written.
    """
    return not any(block.synced > end for block in heads(fetch, end, size, number, seed))
