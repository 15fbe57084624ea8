"""Snapshots: what the log before a position says, so that nobody has to read it all (design, section 3).

There is one at the start of each segment, written when the frontier passes it, and durable. Within the segment that is being filled
a further one moves along every so many frames and bounds the work of a start; it is not synced, because it and the index rows that
it rests on carry CRCs, and the one at the start of the segment is always there to fall back to.
"""

from __future__ import annotations

import contextlib
import struct
from typing import NamedTuple

from tutti.data.frames.frame import crc32c
from tutti.data.log_state import LogState
from tutti.errors import FormatError
from tutti.log.files.layout import FRAMES_AT, index_path, positions_named, snapshot_path
from tutti.log.files.storage import Storage, read_file
from tutti.log.format.index import Rows, crc_of_rows, map_rows, no_rows

_MAGIC = b"TUTN"
_VERSION = 1
_HEAD = struct.Struct("<4sIQQQII")
_CRC = struct.Struct("<I")
STATE_AT = _HEAD.size + _CRC.size  # where the LogState stands


class Snapshot(NamedTuple):
    """A state, and where the log goes on after it.

    Attributes:
        state: the log before `state.position + 1`.
        segment: first position of the segment where that position stands, or will stand.
        place: its byte there.
        rows_crc: CRC of the segment's index rows up to here.
    """

    state: LogState
    segment: int
    place: int
    rows_crc: int

    @property
    def position(self) -> int:
        """The first position that the state does not cover."""
        return self.state.position + 1

    def to_bytes(self) -> bytes:
        """The file's content."""
        head = _HEAD.pack(_MAGIC, _VERSION, self.position, self.segment, self.place, self.rows_crc, 0)
        return head + _CRC.pack(crc32c(head)) + self.state.to_bytes()


def beginning() -> Snapshot:
    """The empty state before position 1."""
    return Snapshot(LogState(), 1, FRAMES_AT, 0)


def write_snapshot(directory: str, snapshot: Snapshot, storage: Storage, *, durable: bool) -> None:
    """Write a snapshot under the name of its position."""
    storage.replace_file(snapshot_path(directory, snapshot.position), snapshot.to_bytes(), durable=durable)


def read_snapshot(directory: str, position: int) -> Snapshot | None:
    """The snapshot of the log before `position`; None if there is no good one."""
    try:
        data = read_file(snapshot_path(directory, position))
    except OSError:
        return None  # gone, or unreadable: an earlier one serves as well
    head = data[: _HEAD.size]
    if len(data) < STATE_AT or head[:4] != _MAGIC or _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(head):
        return None
    _, version, named, segment, place, rows_crc, _ = _HEAD.unpack(head)
    if version != _VERSION or named != position:
        return None
    try:
        state = LogState.from_bytes(data[STATE_AT:])
    except FormatError:
        return None
    return Snapshot(state, segment, place, rows_crc) if state.position + 1 == position else None


def remove_snapshot(directory: str, position: int, storage: Storage) -> None:
    """Take the snapshot of a position away, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        storage.remove(snapshot_path(directory, position))


def newest_snapshot(directory: str, at_most: int, *, starts_only: bool = False) -> Snapshot:
    """The last good snapshot whose state ends at or below position `at_most`; the beginning if there is none.

    With `starts_only` those within a segment do not count.
    """
    for position in reversed(positions_named(directory, "snap")):
        if position <= at_most + 1:
            found = read_snapshot(directory, position)
            if found is not None and not (starts_only and found.segment != found.position):
                return found
    return beginning()


def rows_before(directory: str, snapshot: Snapshot) -> Rows | None:
    """Index rows of the snapshot's segment before its position; None if they are not those that it rests on."""
    count = snapshot.position - snapshot.segment
    if not count:
        return no_rows()
    mapped = map_rows(index_path(directory, snapshot.segment))
    if mapped is None or len(mapped[1]) < count:
        return None
    rows = mapped[1][:count].copy()
    return rows if crc_of_rows(rows) == snapshot.rows_crc else None
