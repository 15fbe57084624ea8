"""File names of a data directory, and the header of a segment."""

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
from tutti.runtime.reserved_fds import with_descriptor_wait

FORMAT_VERSION = 1  # format version of the whole directory, which is also stored in segments and in the hard state

LOCK = "LOCK"
IDENTITY = "identity.json"
HARD_STATE_FILE = "scalars"
LIVE = "live"
RESERVE = "reserve"
LOG = "log"
PREPARED = "prepared-"

PAGE = 4096
# Each mark slot has its own page, so that a torn write of one slot cannot corrupt the other slot.
MARK_SLOTS = (PAGE, 2 * PAGE)  # byte offsets of the two mark slots in a segment
FRAMES_AT = 3 * PAGE  # byte offset of the first frame in a segment

SEGMENT_MAGIC = b"TUTL"
_SEGMENT = struct.Struct("<4sI16sQQII")
_CRC = struct.Struct("<I")
SEGMENT_HEADER_SIZE = _SEGMENT.size + _CRC.size
# The pattern matches only names of complete files of the log, and no temporary, prepared or quarantined files.
_NAMED = re.compile(r"(\d{20})\.(seg|idx|snap)\Z")


def segment_path(directory: str, first: int) -> str:
    """Return the path of the segment with first position `first`."""
    return os.path.join(directory, LOG, f"{first:020d}.seg")


def index_path(directory: str, first: int) -> str:
    """Return the path of the index of the segment with first position `first`."""
    return os.path.join(directory, LOG, f"{first:020d}.idx")


def snapshot_path(directory: str, first: int) -> str:
    """Return the path of the snapshot of the log before position `first`."""
    return os.path.join(directory, LOG, f"{first:020d}.snap")


def list_positions(directory: str, kind: str, *, include_trimmed: bool = False) -> list[int]:
    """Return the positions in the names of all files of a kind ("seg", "idx" or "snap") in ascending order.

    Without a log folder, the list is empty. It has files before the start of the log only with `include_trimmed`.
    """
    try:
        names = with_descriptor_wait(lambda: os.listdir(os.path.join(directory, LOG)))
    except FileNotFoundError:
        return []
    # The start is read after the listing, because a trim first moves the start and then removes files.
    start = 0 if include_trimmed else read_start(directory).first
    found = (int(match[1]) for name in names if name.endswith(kind) and (match := _NAMED.match(name)))
    return sorted(position for position in found if position >= start)


def remove_before(directory: str, storage: Storage, first: int, segments_max: int | None = None) -> bool:
    """Remove the log's files with positions below `first`, the oldest first. Return True if some of these files remain.

    Args:
        segments_max: maximum number of segments to remove, or None to remove all.
    """
    some_remain = False
    removed = 0
    for kind in ("seg", "idx", "snap"):
        before = [position for position in list_positions(directory, kind, include_trimmed=True) if position < first]
        if segments_max is not None and len(before) > segments_max:
            before, some_remain = before[:segments_max], True
        for position in before:
            with contextlib.suppress(FileNotFoundError):
                storage.remove(os.path.join(directory, LOG, f"{position:020d}.{kind}"))
        removed += len(before)
    # One directory sync for all removals is enough: a file that remains after a crash lies before the start and is ignored.
    if removed:
        storage.make_names_durable(os.path.join(directory, LOG))
    return some_remain


def check_begin(directory: str, firsts: Sequence[int]) -> None:
    """Check that the first segment of the log exists.

    Args:
        firsts: first positions of the existing segments; the list must not be empty.

    Raises:
        Damaged: the first segment is missing.
    """
    start = read_start(directory).first
    if firsts[0] > start:
        raise segment_missing(directory, start, firsts[0])


def segment_missing(directory: str, first: int, following: int) -> Damaged:
    """Return the error for a missing segment.

    Args:
        first: first position of the missing segment.
        following: first position of the next existing segment; 0 if no later segment exists.
    """
    rest = f"the log continues only at position {following}" if following else "no later segment exists"
    return Damaged(
        f"segment {segment_path(directory, first)} is missing: {rest}. Restore the file; see `tutti log verify {directory}`",
        first,
    )


class SegmentHeader(NamedTuple):
    """The header in page 0 of a segment: log uuid, first position, chain value before that position, and file size at creation."""

    log: bytes
    first: int
    chain: int
    size: int

    def to_bytes(self) -> bytes:
        """Encode the page."""
        head = _SEGMENT.pack(SEGMENT_MAGIC, FORMAT_VERSION, self.log, self.first, self.size, self.chain, 0)
        return (head + _CRC.pack(crc32c(head))).ljust(PAGE, b"\0")

    @classmethod
    def from_bytes(cls, data: Buffer, path: str) -> SegmentHeader:
        """Decode the header at the start of `data`. `path` is the path of the file for error texts.

        Raises:
            Damaged: the header fails its CRC.
            WrongDirectory: the header has a format version that this release does not support.
        """
        if len(data) < SEGMENT_HEADER_SIZE or bytes(data[:4]) != SEGMENT_MAGIC:
            raise Damaged(f"{path} does not begin with a segment header (byte 0)")
        _, version, log, first, size, chain, _ = _SEGMENT.unpack_from(data)
        if _CRC.unpack_from(data, _SEGMENT.size)[0] != crc32c(bytes(data[: _SEGMENT.size])):
            raise Damaged(f"the header of segment {path} fails its CRC (byte 0)")
        if version != FORMAT_VERSION:
            raise WrongDirectory(
                f"{path} has format {version}, but this release supports format {FORMAT_VERSION}: use the release that wrote it"
            )
        return cls(log, first, chain, size)


def read_header(directory: str, first: int) -> SegmentHeader:
    """Return the header of the segment with first position `first`.

    Raises:
        Damaged: the header fails its CRC, or its position differs from the file name.
        WrongDirectory: the header has a format version that this release does not support.
    """
    path = segment_path(directory, first)
    header = SegmentHeader.from_bytes(read_file(path, PAGE), path)
    # A valid header with another position means that the file was renamed or restored under a wrong name.
    if header.first != first:
        raise Damaged(
            f"segment {path} has the wrong name: its header (byte 24) gives {header.first} as the first position. Give the file "
            "its original name, or restore the right file from a copy"
        )
    return header
