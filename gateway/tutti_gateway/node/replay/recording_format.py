"""File format of a recorded run: the events of a stack and the resulting actions, step by step.

    file   = magic "TUTTIRUN", version u32, blocks
    block  = length u32, stored length u32, CRC32C of both lengths and the stored bytes u32, stored bytes (zstd)
    block, decompressed = items, each: length u32, msgpack

All numbers are little-endian. The first item is a `Header`. A `Stepped` follows for each step, or a `Raised` for the last step if
the stack raised an error. A final `Closed` gives the reason why the recording ended. If `Closed` is missing, the process was killed
or the machine crashed, and about the last quarter of a second is missing. A recording without `Closed` may end within a block,
which does not count as corruption.
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
VERSION = 1  # version of the file format; the encoding of events and actions depends on the release
SUFFIX = ".run"
_START = struct.Struct("<8sI")
_BLOCK = struct.Struct("<II")
_CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_CODEC = pa.Codec("zstd", 1)


class Header(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The gateway, release and stack configuration of a recorded run; `started_us` is UTC."""

    release: str
    gateway: str
    started_us: int
    config: StackConfig


class Stepped(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One step: both clocks at the event, the event and the actions, encoded without bodies (`core.protocol.codec`)."""

    mono_us: int
    wall_us: int
    event: msgspec.Raw
    actions: msgspec.Raw


class Raised(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The item for a step in which the stack raised an error; no step follows it."""

    mono_us: int
    wall_us: int
    event: msgspec.Raw
    error: str


class Closed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The last item of a recording that ended regularly: the reason for its end."""

    reason: str


Item = Header | Stepped | Raised | Closed
_ITEMS: msgspec.msgpack.Decoder[Item] = msgspec.msgpack.Decoder(Item)
_ENCODER = msgspec.msgpack.Encoder()


def start_bytes() -> bytes:
    """Return the magic and version at the start of a file."""
    return _START.pack(MAGIC, VERSION)


def item_bytes(item: Item) -> bytes:
    """Return the encoding of an item within a block."""
    data = _ENCODER.encode(item)
    return _LENGTH.pack(len(data)) + data


def block_bytes(items: bytes) -> bytes:
    """Return the compressed block of some encoded items."""
    stored = _CODEC.compress(items, asbytes=True)
    head = _BLOCK.pack(len(items), len(stored))
    return head + _CRC.pack(crc32c(stored, crc32c(head))) + stored


class Recording:
    """Reader of a recorded run. It holds at most one block in memory.

    Attributes:
        header: gateway, release and configuration of the run.
        size: bytes of the file.
        done: bytes read so far.
        torn: whether the file ends within a block or without a reason; known only after the last step.
        closed: reason for the end of the recording, empty if the file has none; known only after the last step.
    """

    def __init__(self, path: Path | str) -> None:
        """Open the file and read its header.

        Raises:
            UsageError: the file does not exist or cannot be read.
            FormatError: the file is not a recorded run, or has another version.
            Damaged: the file is corrupt.
        """
        self._path = Path(path)
        self.torn = False
        self.closed = ""
        self.done = 0
        try:
            if self._path.exists() and not self._path.is_file():  # opening a pipe would wait for a writer
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
        """Iterate over the steps, in order.

        Raises:
            Damaged: the file is corrupt before its end.
        """
        for item in self._items:
            if isinstance(item, Closed):
                self.closed = item.reason
            elif isinstance(item, Header):
                raise Damaged(f"{self._path} has a second header before byte {self.done}")
            else:
                yield item
        # A recording without a reason ended with a kill or a crash, even if its last block is complete.
        self.torn = self.torn or not self.closed

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _header(self) -> Header:
        data = self._file.read(_START.size)
        magic, version = _START.unpack(data.ljust(_START.size, b"\0"))
        if magic != MAGIC:
            raise FormatError(f"{self._path} is not a recorded run: the file does not begin with {MAGIC.decode()}")
        if version != VERSION:
            raise FormatError(
                f"{self._path} is a recorded run of format {version}, but this release reads format {VERSION}: "
                "use the release of the recording"
            )
        self.done = len(data)
        header = next(self._items, None)
        if not isinstance(header, Header):
            raise FormatError(f"{self._path} has no header: the recording is empty if the gateway was killed right after its start")
        return header

    def _read(self) -> Iterator[Item]:
        while (items := self._block()) is not None:
            at = 0
            while at < len(items):
                end = at + _LENGTH.size
                if end <= len(items):
                    end += _LENGTH.unpack_from(items, at)[0]
                if end > len(items):
                    raise self._damaged("an item extends past the end of its block")
                yield self._item(items[at + _LENGTH.size : end])
                at = end

    def _block(self) -> memoryview | None:
        """Return the items of the next block, or None at the end."""
        head = self._file.read(_BLOCK.size + _CRC.size)
        if not head:
            return None
        if len(head) < _BLOCK.size + _CRC.size:
            self.torn = True
            return None
        length, stored_length = _BLOCK.unpack_from(head)
        if stored_length > self.size - self._file.tell():
            self.torn = True  # the file ends within the block, or the length is corrupt: both look the same
            return None
        stored = self._file.read(stored_length)
        # The CRC covers the lengths too, so a corrupt length is detected.
        if crc32c(stored, crc32c(head[: _BLOCK.size])) != _CRC.unpack_from(head, _BLOCK.size)[0]:
            # Only the last block may be incomplete.
            if not self._file.read(1):
                self.torn = True
                return None
            raise self._damaged("the CRC of a block does not match")
        # The decompressor allocates the stated length at once, so the length is checked first.
        if length > limits.RECORD_BLOCK_BYTES_MAX:
            raise self._damaged(f"a block of {length} bytes is above the limit of {limits.RECORD_BLOCK_BYTES_MAX}")
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
        return Damaged(f"{self._path} is corrupt before byte {self._file.tell()}: {what}")
