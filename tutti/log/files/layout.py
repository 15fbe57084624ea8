"""Names of the files of a data directory, and the header of a segment."""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

from tutti.data.frames.frame import Buffer, crc32c
from tutti.errors import Damaged, WrongDirectory
from tutti.log.files.log_start import read_start
from tutti.log.files.storage import Storage, read_file
from tutti.runtime.reserved_fds import patiently

FORMAT_VERSION = 1  # of the whole directory; each file that has a form of its own repeats it

LOCK = "LOCK"
IDENTITY = "identity.json"
SCALARS = "scalars"
LIVE = "live"
RESERVE = "reserve"
LOG = "log"
PREPARED = "prepared-"

PAGE = 4096
MARK_SLOTS = (PAGE, 2 * PAGE)  # one of them is rewritten with each group of writes, in turns
FRAMES_AT = 3 * PAGE  # where the first frame of a segment stands

SEGMENT_MAGIC = b"TUTL"
_SEGMENT = struct.Struct("<4sI16sQQII")
_CRC = struct.Struct("<I")
SEGMENT_HEADER_SIZE = _SEGMENT.size + _CRC.size
_NAMED = re.compile(r"(\d{20})\.(seg|idx|snap)\Z")


def segment_path(directory: str, first: int) -> str:
    """Path of the segment whose first position is `first`."""
    return os.path.join(directory, LOG, f"{first:020d}.seg")


def index_path(directory: str, first: int) -> str:
    """Path of that segment's index."""
    return os.path.join(directory, LOG, f"{first:020d}.idx")


def snapshot_path(directory: str, first: int) -> str:
    """Path of the snapshot of the log before position `first`."""
    return os.path.join(directory, LOG, f"{first:020d}.snap")


def positions_named(directory: str, kind: str, *, all_there: bool = False) -> list[int]:
    """Positions in the names of the log's files of a kind ("seg", "idx" or "snap"), ascending; empty if there is no log yet.

    Files before the begin of the log do not count, unless `all_there` are asked for.
    """
    try:
        names = patiently(lambda: os.listdir(os.path.join(directory, LOG)))
    except FileNotFoundError:
        return []
    begin = 0 if all_there else read_start(directory).first  # read behind the names: what goes went from before the begin
    found = (int(match[1]) for name in names if name.endswith(kind) and (match := _NAMED.match(name)))
    return sorted(position for position in found if position >= begin)


def remove_before(directory: str, storage: Storage, first: int, segments_max: int | None = None) -> bool:
    """Remove the files of the log before position `first`, the oldest first; whether some are left.

    Args:
        segments_max: of that many segments at most, None for all.
    """
    left = False
    gone = 0
    for kind in ("seg", "idx", "snap"):
        before = [position for position in positions_named(directory, kind, all_there=True) if position < first]
        if segments_max is not None and len(before) > segments_max:
            before, left = before[:segments_max], True
        for position in before:
            with contextlib.suppress(FileNotFoundError):
                storage.remove(os.path.join(directory, LOG, f"{position:020d}.{kind}"))
        gone += len(before)
    if gone:
        storage.make_names_durable(os.path.join(directory, LOG))
    return left


def check_begin(directory: str, firsts: Sequence[int]) -> None:
    """Refuse a log whose first segment is gone.

    Args:
        firsts: of the segments that count and are there, one at least.

    Raises:
        Damaged: it is.
    """
    begin = read_start(directory).first
    if firsts[0] > begin:
        raise segment_missing(directory, begin, firsts[0])


def segment_missing(directory: str, first: int, following: int) -> Damaged:
    """The error of a log in which no segment begins with position `first`, and the next one with `following` (0: none does)."""
    goes_on = f"the log goes on with position {following} only" if following else "nothing is behind it"
    return Damaged(
        f"segment {segment_path(directory, first)} is missing: {goes_on}. Restore the file; see `tutti log verify {directory}`",
        first,
    )


class SegmentHeader(NamedTuple):
    """Page 0 of a segment: uuid of the log, position of its first frame, chain value before that, size of the file when made."""

    log: bytes
    first: int
    chain: int
    size: int

    def to_bytes(self) -> bytes:
        """The page."""
        head = _SEGMENT.pack(SEGMENT_MAGIC, FORMAT_VERSION, self.log, self.first, self.size, self.chain, 0)
        return (head + _CRC.pack(crc32c(head))).ljust(PAGE, b"\0")

    @classmethod
    def from_bytes(cls, data: Buffer, path: str) -> SegmentHeader:
        """The header at the start of `data`, of the file `path`.

        Raises:
            Damaged: it fails its CRC.
            WrongDirectory: it is of a version that this release does not read.
        """
        if len(data) < SEGMENT_HEADER_SIZE or bytes(data[:4]) != SEGMENT_MAGIC:
            raise Damaged(f"{path} does not start as a segment of a log does (byte 0)")
        _, version, log, first, size, chain, _ = _SEGMENT.unpack_from(data)
        if _CRC.unpack_from(data, _SEGMENT.size)[0] != crc32c(bytes(data[: _SEGMENT.size])):
            raise Damaged(f"the header of segment {path} fails its CRC (byte 0)")
        if version != FORMAT_VERSION:
            raise WrongDirectory(
                f"{path} has format {version} and this release reads format {FORMAT_VERSION}: use the release that wrote it"
            )
        return cls(log, first, chain, size)


def read_header(directory: str, first: int) -> SegmentHeader:
    """Header of the segment whose first position is `first`.

    Raises:
        Damaged: it fails its CRC, or names another position than the file.
        WrongDirectory: it is of a version that this release does not read.
    """
    path = segment_path(directory, first)
    header = SegmentHeader.from_bytes(read_file(path, PAGE), path)
    if header.first != first:
        raise Damaged(f"the header of segment {path} names position {header.first}: the file was renamed (byte 24)")
    return header
