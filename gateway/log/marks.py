"""The vote mark: how far the log is known to be durable, and how far it was decided (design, section 3).

A mark is written into the segment that takes the frames, with the frames, so that it costs no sync of its own; it names only what
*earlier* syncs made durable. Two slots take turns with the syncs: the slot of the last synced mark is never touched, so a torn
write leaves one good. The newest good mark counts, wherever it stands.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from gateway.data.frame import Buffer, crc32c
from gateway.log.layout import FRAMES_AT, MARK_SLOTS, segment_path
from gateway.log.storage import read_file

MAGIC = b"TUTM"
_MARK = struct.Struct("<4sIQQQQqqI")
_CRC = struct.Struct("<I")
MARK_SIZE = _MARK.size + _CRC.size
MARK_SIZE_BOUND = 512  # a sector: what a mark, or the scalars, may grow to


class Mark(NamedTuple):
    """What a member knows to be durable.

    Attributes:
        sequence: counts the marks of a directory; the highest is the newest.
        position, view, chain: the last durable frame: its position, its view, its header CRC (zeros before any).
        frontier_position, frontier_offset: the watermark: last decided position, and the offset after its last record.
        time_us: wall clock when it was made, us.
    """

    sequence: int = 0
    position: int = 0
    view: int = 0
    chain: int = 0
    frontier_position: int = 0
    frontier_offset: int = 0
    time_us: int = 0

    def to_bytes(self) -> bytes:
        """The mark with its CRC."""
        head = _MARK.pack(
            MAGIC,
            self.chain,
            self.sequence,
            self.position,
            self.view,
            self.frontier_position,
            self.frontier_offset,
            self.time_us,
            0,
        )
        return head + _CRC.pack(crc32c(head))


def read_mark(data: Buffer) -> Mark | None:
    """The mark at the start of `data`, None if there is no good one."""
    if len(data) < MARK_SIZE:
        return None
    head = bytes(data[: _MARK.size])
    if head[:4] != MAGIC or _CRC.unpack_from(data, _MARK.size)[0] != crc32c(head):
        return None
    _, chain, sequence, position, view, frontier_position, frontier_offset, time_us, _ = _MARK.unpack(head)
    return Mark(sequence, position, view, chain, frontier_position, frontier_offset, time_us)


def segment_marks(directory: str, first: int) -> list[Mark | None]:
    """What stands in the mark slots of a segment, None for a slot that holds no good mark."""
    data = read_file(segment_path(directory, first), FRAMES_AT)
    return [read_mark(data[at : at + MARK_SIZE]) for at in MARK_SLOTS]


def newest_mark(directory: str, stored: Mark, firsts: list[int]) -> Mark:
    """The vote mark: the newest of that in the scalars and those in the slots of the last two segments."""
    marks = [stored]
    for first in firsts[-2:]:
        marks += [mark for mark in segment_marks(directory, first) if mark is not None]
    return max(marks, key=lambda mark: mark.sequence)
