"""The file of a recorded run: what happened to a stack, and what it answered, step by step.

    file   = magic "TUTTIRUN", version u32, blocks
    block  = length u32, stored length u32, CRC32C of both and of what is stored u32, stored bytes (zstd)
    block, decompressed = items, each: length u32, msgpack

All numbers are little-endian. The first item is a `Header`, then comes a `Stepped` (or, at the very end, a `Raised`) for each step,
and a `Closed` says why nothing follows. Without one the process was killed, or the machine went down, and the last quarter of a
second or so is missing. A block cut short at the end of the file is what such an end leaves, and is no damage.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa

from tutti.data.frames.frame import Buffer, crc32c
from tutti.errors import Damaged, FormatError, UsageError, remedy
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import StackConfig

MAGIC = b"TUTTIRUN"
VERSION = 1  # of this form; what the events and actions in it look like is the release's
SUFFIX = ".run"
_START = struct.Struct("<8sI")
_BLOCK = struct.Struct("<II")
_CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_CODEC = pa.Codec("zstd", 1)


class Header(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Whose run it is. `started_us` is UTC; `config` is what the stack was told."""

    release: str
    gateway: str
    started_us: int
    config: StackConfig


class Stepped(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One step: both clocks at the event, the event and the actions, lean (`tutti_gateway.core.protocol.codec`)."""

    mono_us: int
    wall_us: int
    event: msgspec.Raw
    actions: msgspec.Raw


class Raised(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The last step: the stack did not survive the event."""

    mono_us: int
    wall_us: int
    event: msgspec.Raw
    error: str


class Closed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The record ends on purpose: why."""

    reason: str


Item = Header | Stepped | Raised | Closed
_ITEMS: msgspec.msgpack.Decoder[Item] = msgspec.msgpack.Decoder(Item)
_ENCODER = msgspec.msgpack.Encoder()


def start_bytes() -> bytes:
    """What a file begins with."""
    return _START.pack(MAGIC, VERSION)


def item_bytes(item: Item) -> bytes:
    """An item as it stands in a block."""
    data = _ENCODER.encode(item)
    return _LENGTH.pack(len(data)) + data


def block_bytes(items: bytes) -> bytes:
    """A block that holds the items."""
    stored = _CODEC.compress(items, asbytes=True)
    head = _BLOCK.pack(len(items), len(stored))
    return head + _CRC.pack(crc32c(stored, crc32c(head))) + stored


class Recording:
    """A recorded run, read item by item: no more than one block is held.

    Attributes:
        header: whose run it is.
        size: bytes of the file, and `done`, how many of them are read.
        torn: whether the file ends within a block, or without any word on why; known at the end.
        closed: why nothing follows, where it is said; known at the end.
    """

    def __init__(self, path: Path | str) -> None:
        """Open the file and read its header.

        Raises:
            UsageError: there is no such file.
            FormatError: it is no recorded run, or one of another version.
            Damaged: it is damaged.
        """
        self._path = Path(path)
        self.torn = False
        self.closed = ""
        self.done = 0
        try:
            if self._path.exists() and not self._path.is_file():  # to open a pipe waits for a process that writes into it
                raise OSError(errno.EINVAL, "it is not a regular file")
            self._file: BinaryIO = self._path.open("rb")
        except OSError as error:
            raise UsageError(
                f"{self._path} cannot be read: {error.strerror}; {remedy(error, 'name a file that tutti serve --record made')}"
            ) from error
        try:
            self.size = self._path.stat().st_size
            self._items = self._read()
            self.header = self._header()
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Stepped | Raised]:
        """The steps, in order.

        Raises:
            Damaged: something is wrong before the end.
        """
        for item in self._items:
            if isinstance(item, Closed):
                self.closed = item.reason
            elif isinstance(item, Header):
                raise Damaged(f"{self._path} has a second header before byte {self.done}")
            else:
                yield item
        self.torn = self.torn or not self.closed

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _header(self) -> Header:
        data = self._file.read(_START.size)
        magic, version = _START.unpack(data.ljust(_START.size, b"\0"))
        if magic != MAGIC:
            raise FormatError(f"{self._path} is no recorded run: it does not begin with {MAGIC.decode()}")
        if version != VERSION:
            raise FormatError(
                f"{self._path} is a recorded run of form {version} and this release reads {VERSION}: use the other release"
            )
        self.done = len(data)
        header = next(self._items, None)
        if not isinstance(header, Header):
            raise FormatError(f"{self._path} does not begin with whose run it is; if it was killed at once, it holds nothing")
        return header

    def _read(self) -> Iterator[Item]:
        while (items := self._block()) is not None:
            at = 0
            while at < len(items):
                end = at + _LENGTH.size
                if end <= len(items):
                    end += _LENGTH.unpack_from(items, at)[0]
                if end > len(items):
                    raise self._damaged("an item goes on behind its block")
                yield self._item(items[at + _LENGTH.size : end])
                at = end

    def _block(self) -> memoryview | None:
        """The items of the next block; None at the end."""
        head = self._file.read(_BLOCK.size + _CRC.size)
        if not head:
            return None
        if len(head) < _BLOCK.size + _CRC.size:
            self.torn = True
            return None
        length, stored_length = _BLOCK.unpack_from(head)
        if stored_length > self.size - self._file.tell():
            self.torn = True  # or a damaged length, which at the end looks the same
            return None
        stored = self._file.read(stored_length)
        if crc32c(stored, crc32c(head[: _BLOCK.size])) != _CRC.unpack_from(head, _BLOCK.size)[0]:
            if not self._file.read(1):
                self.torn = True
                return None
            raise self._damaged("a block fails its CRC")
        if length > limits.RECORD_BLOCK_BYTES_MAX:
            raise self._damaged(f"a block of {length} bytes is over the limit of {limits.RECORD_BLOCK_BYTES_MAX}")
        self.done += len(head) + stored_length
        try:
            return memoryview(_CODEC.decompress(stored, decompressed_size=length, asbytes=True))
        except (OSError, ValueError) as error:
            raise self._damaged(str(error)) from error

    def _item(self, data: Buffer) -> Item:
        try:
            return _ITEMS.decode(data)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, what: str) -> Damaged:
        return Damaged(f"{self._path} is damaged before byte {self._file.tell()}: {what}")
