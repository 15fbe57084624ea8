"""The frame: one entry of the ordered stream, with one encoding for network and disk (design, section 3).

A frame is a header of 96 bytes, then the producer's opaque progress, then the body. Progress and body are padded with zeros to a
multiple of 8 bytes. All numbers are little-endian:

```
 0 magic b"TUT1"     4 version u8       5 kind u8          6 flags u16        8 view u64
16 position u64     24 producer u64    32 first_sequence u64
40 min_timestamp i64                   48 max_timestamp i64
56 epoch u32        60 count u32       64 topic u32       68 origin u16      70 progress_length u16
72 body_length u32  76 raw_length u32  80 body_crc u32    84 zero u32        88 zero u32       92 header_crc u32
```

`body_crc` is the producer's CRC32C over progress and body. `header_crc` is a CRC32C over bytes 0 to 91, seeded with the header CRC
of the previous frame, so that the header CRC of the last frame identifies the whole log (the chain value).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable

import google_crc32c
import numpy as np

from tutti.data.view_id import view_text
from tutti.errors import Damaged, FormatError

Buffer = bytes | bytearray | memoryview

MAGIC = b"TUT1"
VERSION = 1
HEADER_SIZE = 96
POSITION_AT, CRC_AT = 16, 92
TERMINATOR = bytes(HEADER_SIZE)  # an invalid header of zeros, which is written after the last frame of every write
PROGRESS_BYTES_MAX = 256
# Size below which a memoryview is copied for the CRC library, which rejects memoryviews. For larger ones, a numpy view is faster.
CRC_COPY_BELOW = 1024

_HEADER = struct.Struct("<4sBBHQQQQqqIIIHHIIIIII")
_PREFIX = struct.Struct("<4sBBHQQQQqqIIIHHIIIII")
_CRC = struct.Struct("<I")
#: Packs a header whose view, position, origin and header CRC are zero, as clients submit it. The arguments are all other fields.
pack_unstamped = struct.Struct("<4sBBH16xQQqqIII2xHIII12x").pack
_PADDING = tuple(bytes(n) for n in range(8))

#: The header of a frame as a numpy type, for vectorised code over many headers.
HEADER_DTYPE: np.dtype[np.void] = np.dtype(
    [
        ("magic", "S4"),
        ("version", "u1"),
        ("kind", "u1"),
        ("flags", "<u2"),
        ("view", "<u8"),
        ("position", "<u8"),
        ("producer", "<u8"),
        ("first_sequence", "<u8"),
        ("min_timestamp", "<i8"),
        ("max_timestamp", "<i8"),
        ("epoch", "<u4"),
        ("count", "<u4"),
        ("topic", "<u4"),
        ("origin", "<u2"),
        ("progress_length", "<u2"),
        ("body_length", "<u4"),
        ("raw_length", "<u4"),
        ("body_crc", "<u4"),
        ("zero", "<u4", (2,)),
        ("header_crc", "<u4"),
    ]
)


class Kind(enum.IntEnum):
    """Kind of a frame (design, section 3)."""

    BATCH = 1
    VIEW = 2
    ROSTER = 3
    EPOCH = 4
    TOPIC = 5
    FORGET = 6
    ABORT = 7
    TICK = 8
    TRIM = 9
    OFFSETS = 10
    TXN = 11


KINDS = frozenset(int(kind) for kind in Kind)
_TXN = int(Kind.TXN)

#: Kinds of frames that clients send, whose records have sequence numbers. The group itself creates the frames of all other kinds.
SEQUENCED = frozenset((int(Kind.BATCH), _TXN))


class Flag(enum.IntFlag):
    """Flags of a frame: the compression of the body (Arrow IPC body compression), and STAGED.

    The records of a staged BATCH are in the log, but get offsets only when a TXN makes them visible.
    """

    LZ4 = 1
    ZSTD = 2
    STAGED = 4


CODEC_FLAGS = int(Flag.LZ4 | Flag.ZSTD)
STAGED = int(Flag.STAGED)
KNOWN_FLAGS = CODEC_FLAGS | STAGED
_UNKNOWN_FLAGS = ~KNOWN_FLAGS


def crc32c(data: Buffer, seed: int = 0) -> int:
    """Return the CRC32C of `data`. `seed` is the CRC of the bytes before `data`, or 0."""
    if isinstance(data, bytes):
        return int(google_crc32c.extend(seed, data))
    if len(data) < CRC_COPY_BELOW:
        return int(google_crc32c.extend(seed, bytes(data)))
    return int(google_crc32c.extend(seed, np.frombuffer(data, dtype=np.uint8)))


def padded(length: int) -> int:
    """Return `length` rounded up to a multiple of 8 bytes."""
    return (length + 7) & ~7


class Frame:
    """One frame with the fields of its header. Before `stamp`, `position` is 0 and `header` is empty.

    A stamped frame must not change, because the protocol layers, the disk thread and the network share the same object. `body` can
    be a buffer of any type. The gateway never copies the body.
    """

    __slots__ = (
        "body",
        "body_crc",
        "body_length",
        "count",
        "epoch",
        "first_sequence",
        "flags",
        "header",
        "header_crc",
        "kind",
        "max_timestamp",
        "min_timestamp",
        "origin",
        "position",
        "producer",
        "progress",
        "raw_length",
        "topic",
        "view",
    )

    def __init__(
        self,
        kind: int,
        body: Buffer,
        *,
        progress: bytes = b"",
        flags: int = 0,
        producer: int = 0,
        epoch: int = 0,
        first_sequence: int = 0,
        count: int = 0,
        topic: int = 0,
        origin: int = 0,
        min_timestamp: int = 0,
        max_timestamp: int = 0,
        raw_length: int = 0,
        body_crc: int | None = None,
    ) -> None:
        """Create a frame without a position. If `body_crc` is None, it is computed."""
        self.kind = kind
        self.body = body
        self.body_length = len(body)
        self.progress = progress
        self.flags = flags
        self.producer = producer
        self.epoch = epoch
        self.first_sequence = first_sequence
        self.count = count
        self.topic = topic
        self.origin = origin
        self.min_timestamp = min_timestamp
        self.max_timestamp = max_timestamp
        self.raw_length = raw_length
        self.body_crc = payload_crc(progress, body) if body_crc is None else body_crc
        self.view = 0
        self.position = 0
        self.header = b""
        self.header_crc = 0

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record of a BATCH or TXN."""
        return self.first_sequence + self.count - 1

    @property
    def codec(self) -> int:
        """The compression flags of the body; 0 if uncompressed."""
        return self.flags & CODEC_FLAGS

    @property
    def staged(self) -> bool:
        """True for a BATCH that becomes visible only through a TXN."""
        return bool(self.flags & STAGED)

    @property
    def transactional(self) -> bool:
        """True for a staged BATCH or a TXN."""
        return self.kind == _TXN or bool(self.flags & STAGED)

    @property
    def visible(self) -> bool:
        """True if records get their offsets at this frame: for a BATCH that is not staged, and for a TXN.

        An ABORT may still void the frame.
        """
        return self.kind in SEQUENCED and not self.flags & STAGED

    @property
    def size(self) -> int:
        """Size in bytes in a log or on the wire, padding included."""
        # `padded` is inlined here, because this is a hot path.
        return HEADER_SIZE + ((len(self.progress) + 7) & ~7) + ((self.body_length + 7) & ~7)

    def stamp(self, view: int, position: int, previous_crc: int) -> None:
        """Assign a position to the frame: set `view`, `position`, `header` and `header_crc`. A frame can be stamped only once."""
        if self.position:
            raise FormatError(f"the frame already has position {self.position}; it cannot be stamped again with {position}")
        self.view = view
        self.position = position
        prefix = self._prefix(view, position)
        self.header_crc = crc = google_crc32c.extend(previous_crc, prefix)
        self.header = prefix + _CRC.pack(crc)

    def unstamped(self) -> Frame:
        """Return a copy of the frame without a position. The copy shares progress and body with this frame."""
        return Frame(
            self.kind,
            self.body,
            progress=self.progress,
            flags=self.flags,
            producer=self.producer,
            epoch=self.epoch,
            first_sequence=self.first_sequence,
            count=self.count,
            topic=self.topic,
            origin=self.origin,
            min_timestamp=self.min_timestamp,
            max_timestamp=self.max_timestamp,
            raw_length=self.raw_length,
            body_crc=self.body_crc,
        )

    def extents(self) -> list[Buffer]:
        """Return buffers that together contain the bytes of the frame, for one vectored write. Nothing is copied."""
        out: list[Buffer] = [self.header]
        progress = self.progress
        if progress:
            out.append(progress)
            if len(progress) & 7:
                out.append(_PADDING[-len(progress) & 7])
        if self.body_length:
            out.append(self.body)
            if self.body_length & 7:
                out.append(_PADDING[-self.body_length & 7])
        return out

    def to_bytes(self) -> bytes:
        """Return the bytes of the frame. Before `stamp`, view, position and header CRC in these bytes are zero."""
        return b"".join([self.packed_header(), *self.extents()[1:]])

    def _prefix(self, view: int, position: int) -> bytes:
        """Return the header without its CRC."""
        return _PREFIX.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.flags,
            view,
            position,
            self.producer,
            self.first_sequence,
            self.min_timestamp,
            self.max_timestamp,
            self.epoch,
            self.count,
            self.topic,
            self.origin,
            len(self.progress),
            self.body_length,
            self.raw_length,
            self.body_crc,
            0,
            0,
        )

    def packed_header(self) -> bytes:
        """Return the 96 bytes of the header. Before `stamp`, view, position and header CRC in these bytes are zero."""
        return self.header or self._prefix(0, 0) + _CRC.pack(0)

    def __repr__(self) -> str:
        """Return a description of the frame in one line, for log messages and test transcripts."""
        kind = Kind(self.kind).name if self.kind in KINDS else str(self.kind)
        text = f"{kind} view={view_text(self.view)} position={self.position}"
        if self.producer:
            text += f" producer={self.producer}/{self.epoch} sequence={self.first_sequence}+{self.count}"
        return f"<{text} topic={self.topic} body={self.body_length}>"

    def __eq__(self, other: object) -> bool:
        """True if header, progress and body are equal."""
        if not isinstance(other, Frame):
            return NotImplemented
        return (
            self.packed_header() == other.packed_header()
            and self.progress == other.progress
            and bytes(self.body) == bytes(other.body)
        )

    __hash__ = None  # type: ignore[assignment]  # not hashable: frames are compared by content, and a body may be mutable


def sizes_of(frames: Iterable[Frame]) -> list[int]:
    """Return `size` of each frame, in a third of the time."""
    return [
        HEADER_SIZE + ((frame.body_length + 7) & ~7) + ((len(frame.progress) + 7) & ~7 if frame.progress else 0) for frame in frames
    ]


def payload_crc(progress: bytes, body: Buffer) -> int:
    """Return the producer's CRC: CRC32C over progress and body."""
    if not progress and body.__class__ is bytes:
        return int(google_crc32c.value(body))
    return crc32c(body, google_crc32c.extend(0, progress) if progress else 0)


def decode_header(data: Buffer, at: int = 0) -> Frame:
    """Decode the header at byte `at` into a frame with empty progress and body. The chain is not checked (see `chained`).

    The field `body_length` is set. `progress_length_at(data, at)` returns the length of the progress.

    Raises:
        FormatError: the bytes are not a header with a known version and kind.
    """
    return decode_header_and_length(data, at)[0]


def decode_header_and_length(data: Buffer, at: int = 0) -> tuple[Frame, int]:
    """Decode the header as `decode_header` does. Return the frame, and the length of the progress.

    Raises:
        FormatError: the bytes are not a header with a known version and kind.
    """
    if len(data) < at + HEADER_SIZE:
        raise FormatError(f"a frame header needs {HEADER_SIZE} bytes, but only {max(0, len(data) - at)} are left")
    frame = Frame.__new__(Frame)
    (
        magic,
        version,
        frame.kind,
        frame.flags,
        frame.view,
        frame.position,
        frame.producer,
        frame.first_sequence,
        frame.min_timestamp,
        frame.max_timestamp,
        frame.epoch,
        frame.count,
        frame.topic,
        frame.origin,
        progress_length,
        frame.body_length,
        frame.raw_length,
        frame.body_crc,
        zero,
        zero_too,
        frame.header_crc,
    ) = _HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise FormatError(f"no frame begins here, because the magic number is {magic!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise FormatError(
            f"frame version {version} is not supported (this release supports version {VERSION}): use a newer release"
        )
    if frame.kind not in KINDS:
        raise FormatError(f"frame kind {frame.kind} is not supported by this release: use a newer release")
    if frame.flags & _UNKNOWN_FLAGS or zero or zero_too:
        raise FormatError(f"reserved bits are set in the header (flags {frame.flags:#x})")
    if progress_length > PROGRESS_BYTES_MAX:
        raise FormatError(f"progress of {progress_length} bytes is over the limit of {PROGRESS_BYTES_MAX}")
    frame.header = bytes(data[at : at + HEADER_SIZE]) if frame.position else b""
    frame.progress = b""
    frame.body = b""
    return frame, progress_length


def progress_length_at(data: Buffer, at: int = 0) -> int:
    """Return the length of the progress according to the header at byte `at`."""
    return int(_PROGRESS_LENGTH.unpack_from(data, at + 70)[0])


_PROGRESS_LENGTH = struct.Struct("<H")


def header_chain(header: Buffer, previous_crc: int) -> int:
    """Return the CRC that `header` (96 bytes) must have if the previous frame has the header CRC `previous_crc`."""
    return int(google_crc32c.extend(previous_crc, bytes(header[:CRC_AT])))


def chained(frame: Frame, previous_crc: int) -> bool:
    """True if the header CRC of the frame continues the chain after a frame with the header CRC `previous_crc`."""
    return header_chain(frame.header, previous_crc) == frame.header_crc


def decode_frame(data: Buffer, at: int = 0) -> Frame:
    """Decode the whole frame at byte `at`. The body of the frame is a view of `data`.

    The function does not check the CRCs; `chained` and `check_payload` check them.

    Raises:
        FormatError: the bytes are not a header with a known version and kind, or `data` ends inside the frame.
    """
    frame, length = decode_header_and_length(data, at)
    body_at = at + HEADER_SIZE + padded(length)
    if body_at + frame.body_length > len(data):
        raise FormatError(f"the frame at byte {at} needs {body_at + frame.body_length - at} bytes, but {len(data) - at} are left")
    view = memoryview(data)
    if length:
        frame.progress = bytes(view[at + HEADER_SIZE : at + HEADER_SIZE + length])
    frame.body = view[body_at : body_at + frame.body_length]
    return frame


def check_payload(frame: Frame, where: str = "") -> None:
    """Raise `Damaged` if progress and body do not match the CRC in the header. `where` is the frame's location for the error."""
    found = payload_crc(frame.progress, frame.body)
    if found != frame.body_crc or len(frame.body) != frame.body_length:
        raise Damaged(
            f"the body of position {frame.position}{f' in {where}' if where else ''} has CRC {found:#010x} "
            f"instead of {frame.body_crc:#010x} as in its header"
        )
