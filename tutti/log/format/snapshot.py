"""Snapshots: a snapshot is the state of the log before a position (design, section 3).

When a gateway starts, it reads the newest snapshot instead of the log before the snapshot's position. Each segment has a durable
snapshot of its start, which is written when the frontier passes the segment's first position. The current segment also has a
snapshot of a position inside it, which is replaced regularly, so that a start need not read the whole segment. The snapshot inside
a segment needs no sync: the snapshot and the index rows before its position have CRCs, and if a CRC is wrong, a start uses the
snapshot of the segment's start.
"""

from __future__ import annotations

import contextlib
import struct
from typing import NamedTuple

from tutti.data.frames.frame import crc32c
from tutti.data.log_state import LogState
from tutti.errors import FormatError
from tutti.log.files.layout import FRAMES_AT, index_path, list_positions, snapshot_path
from tutti.log.files.storage import Storage, read_file
from tutti.log.format.index import Rows, crc_of_rows, map_rows, no_rows

_MAGIC = b"TUTN"
_VERSION = 1
_HEAD = struct.Struct("<4sIQQQII")
_CRC = struct.Struct("<I")
STATE_AT = _HEAD.size + _CRC.size  # byte offset of the LogState


class Snapshot(NamedTuple):
    """A state of the log, and the location of the next frame.

    Attributes:
        state: state of the log up to and including `state.position`.
        segment: first position of the segment that holds, or will hold, the next frame after the state.
        file_position: byte offset of the next frame in the segment.
        rows_crc: CRC of the segment's index rows before the next frame.
    """

    state: LogState
    segment: int
    file_position: int
    rows_crc: int

    @property
    def position(self) -> int:
        """The first position after the state."""
        return self.state.position + 1

    def to_bytes(self) -> bytes:
        """Encode the file's content."""
        head = _HEAD.pack(_MAGIC, _VERSION, self.position, self.segment, self.file_position, self.rows_crc, 0)
        return head + _CRC.pack(crc32c(head)) + self.state.to_bytes()


def empty_snapshot() -> Snapshot:
    """Return the snapshot of the empty log, before position 1."""
    return Snapshot(LogState(), 1, FRAMES_AT, 0)


def write_snapshot(directory: str, snapshot: Snapshot, storage: Storage, *, durable: bool) -> None:
    """Write a snapshot to the file named after its position."""
    storage.replace_file(snapshot_path(directory, snapshot.position), snapshot.to_bytes(), durable=durable)


def read_snapshot(directory: str, position: int) -> Snapshot | None:
    """Return the snapshot of the log before `position`, or None if it does not exist or is invalid."""
    try:
        data = read_file(snapshot_path(directory, position))
    except OSError:
        return None  # a missing or unreadable snapshot is no error, because the caller can use an earlier one
    head = data[: _HEAD.size]
    if len(data) < STATE_AT or head[:4] != _MAGIC or _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(head):
        return None
    _, version, named, segment, file_position, rows_crc, _ = _HEAD.unpack(head)
    if version != _VERSION or named != position:
        return None
    try:
        state = LogState.from_bytes(data[STATE_AT:])
    except FormatError:
        return None
    return Snapshot(state, segment, file_position, rows_crc) if state.position + 1 == position else None


def remove_snapshot(directory: str, position: int, storage: Storage) -> None:
    """Delete the snapshot of a position if it exists."""
    with contextlib.suppress(FileNotFoundError):
        storage.remove(snapshot_path(directory, position))


def newest_snapshot(directory: str, at_most: int, *, starts_only: bool = False) -> Snapshot:
    """Return the newest valid snapshot whose state ends at or before position `at_most`; without one, the empty snapshot.

    With `starts_only`, consider only snapshots of segment starts.
    """
    # An invalid snapshot is skipped, because an earlier snapshot also works and only makes the scan of the log longer.
    for position in reversed(list_positions(directory, "snap")):
        if position <= at_most + 1:
            found = read_snapshot(directory, position)
            if found is not None and not (starts_only and found.segment != found.position):
                return found
    return empty_snapshot()


def rows_before(directory: str, snapshot: Snapshot) -> Rows | None:
    """Return the index rows from the start of the snapshot's segment to its position, or None if the rows do not match its CRC."""
    count = snapshot.position - snapshot.segment
    if not count:
        return no_rows()
    mapped = map_rows(index_path(directory, snapshot.segment))
    if mapped is None or len(mapped[1]) < count:
        return None
    # The rows are copied, because an access to the mapping would fail after the writer has shortened the file.
    rows = mapped[1][:count].copy()
    # The snapshot and the rows are not synced, so after a power loss one of the two can be missing or older than the other.
    return rows if crc_of_rows(rows) == snapshot.rows_crc else None
