"""The vote mark: how far the log is known to be durable, and how far it was decided (design, section 3).

A mark is written into the segment that takes the frames, with the frames, so that it costs no sync of its own; it names only what
*earlier* syncs made durable. Two slots take turns with the syncs: the slot of the last synced mark is never touched, so a torn
write leaves one good. The newest good mark counts, wherever it stands.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from tutti.data.frames.frame import Buffer, crc32c
from tutti.errors import Damaged
from tutti.log.files.lane_paths import lane_at
from tutti.log.files.layout import FRAMES_AT, MARK_SLOTS, read_header, segment_path
from tutti.log.files.storage import read_file

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


def end_lost(directory: str, first: int, size: int) -> tuple[int, str] | None:
    """What of a last segment, made with `size` bytes, is gone that was durable before it got its name, so that no power loss takes
    it: its size, and one good mark at least, as the slot of the last synced mark is never touched. The byte, and what; or None.
    """
    there = os.path.getsize(segment_path(directory, first))
    if there < size:
        return there, f"the file ends at byte {there} and was made with {size}"
    if not any(segment_marks(directory, first)):
        return MARK_SLOTS[0], "neither of its two marks is good, so what was durable is not known"
    return None


def check_end(directory: str, firsts: list[int], newest: int, *, heals: bool = False) -> Damaged | None:
    """How far a log was durable and decided can only be told when its last segment is there and as it was begun.

    Args:
        firsts: of the segments that are there.
        newest: first position of the newest segment that there must be, as the scalars say.
        heals: others may have what is gone: where it is the end of the file alone, with a good mark before it, the error is
            returned, to be raised where they have not; None if nothing is.

    Raises:
        Damaged: it is not; a log that ended earlier would pass for all of it.
        WrongDirectory: it is of a newer release.
    """
    if newest > firsts[-1]:
        raise Damaged(f"segment {segment_path(directory, newest)} is missing: restore it, {or_repair(directory)}")
    lost = end_lost(directory, firsts[-1], read_header(directory, firsts[-1]).size)
    if lost is None:
        return None
    error = Damaged(
        f"segment {segment_path(directory, firsts[-1])} is damaged at byte {lost[0]}: {lost[1]}. Nothing was changed. "
        f"Restore the file, {or_repair(directory)}"
    )
    if heals and any(segment_marks(directory, firsts[-1])):
        return error
    raise error


def or_repair(directory: str) -> str:
    """The other thing to be done about a damage. Nothing is cut from a lane: see `tutti.data.lane_name.NEW_LANE`."""
    if lane_at(directory) is not None:
        return "as it was when its gateway ended"
    return f"or see what would be lost with `tutti log repair {directory}`"


def newest_mark(directory: str, stored: Mark, firsts: list[int]) -> Mark:
    """The vote mark: the newest of that in the scalars and those in the slots of the last two segments."""
    marks = [stored]
    for first in firsts[-2:]:
        marks += [mark for mark in segment_marks(directory, first) if mark is not None]
    return max(marks, key=lambda mark: mark.sequence)
