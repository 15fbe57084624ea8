"""Vote mark: records the durable end and the decided end of the log (design, section 3).

A mark is written to the current segment together with frames, so that it needs no separate sync. A mark covers only frames that
*earlier* syncs made durable. Each segment has two mark slots, and successive marks alternate between the slots, so that a torn
write never destroys the last synced mark. A start uses the newest valid mark of the whole log.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from tutti.data.frames.frame import Buffer, crc32c
from tutti.errors import Damaged
from tutti.log.files.lane_paths import lane_of_path
from tutti.log.files.layout import FRAMES_AT, MARK_SLOTS, read_header, segment_path
from tutti.log.files.storage import read_file

MAGIC = b"TUTM"
_MARK = struct.Struct("<4sIQQQQqqI")
_CRC = struct.Struct("<I")
MARK_SIZE = _MARK.size + _CRC.size
MARK_SIZE_BOUND = 512  # one disk sector: the maximum size of a mark or of the hard state


class VoteMark(NamedTuple):
    """The durable and decided end of a member's log.

    Attributes:
        sequence: number of the mark. The mark with the highest number in a directory is the newest.
        position, view, chain: position, view and header CRC of the last durable frame; zeros before the first one.
        frontier_position, frontier_offset: the watermark: last decided position, and the offset after the last decided record.
        time_us: wall clock when the mark was created, us.
    """

    sequence: int = 0
    position: int = 0
    view: int = 0
    chain: int = 0
    frontier_position: int = 0
    frontier_offset: int = 0
    time_us: int = 0

    def to_bytes(self) -> bytes:
        """Encode the mark with its CRC."""
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


def read_mark(data: Buffer) -> VoteMark | None:
    """Decode the mark at the start of `data`. Return None if the mark is invalid."""
    if len(data) < MARK_SIZE:
        return None
    head = bytes(data[: _MARK.size])
    if head[:4] != MAGIC or _CRC.unpack_from(data, _MARK.size)[0] != crc32c(head):
        return None
    _, chain, sequence, position, view, frontier_position, frontier_offset, time_us, _ = _MARK.unpack(head)
    return VoteMark(sequence, position, view, chain, frontier_position, frontier_offset, time_us)


def segment_marks(directory: str, first: int) -> list[VoteMark | None]:
    """Return the marks in the two slots of a segment, with None for an invalid slot."""
    data = read_file(segment_path(directory, first), FRAMES_AT)
    return [read_mark(data[at : at + MARK_SIZE]) for at in MARK_SLOTS]


def find_lost_end(directory: str, first: int, size: int) -> tuple[int, str] | None:
    """Find lost data at the end of the last segment: return the first lost byte and a description, or None if nothing is lost.

    The function checks the size of the file, and that one mark is valid. A power loss cannot cause these losses, because size and
    mark are durable before the segment gets its name.
    """
    actual_size = os.path.getsize(segment_path(directory, first))
    if actual_size < size:
        return actual_size, f"the file ends at byte {actual_size}, but was created with {size} bytes"
    if not any(segment_marks(directory, first)):
        return MARK_SLOTS[0], "both of its marks are corrupt, so the durable end of the log is unknown"
    return None


def check_end(directory: str, firsts: list[int], newest: int, *, peers_can_repair: bool = False) -> Damaged | None:
    """Check that the last segment exists and is complete. Without this check, a start could treat a shortened log as complete.

    Args:
        firsts: first positions of the existing segments.
        newest: first position of the newest segment, from the hard state.
        peers_can_repair: True if peers may have the lost frames. If True, and if the file is too short but has a valid mark, the
            function returns the error and does not raise it.

    Returns:
        The error for a segment file that is too short, which the caller must raise if no peer has the lost frames; None if nothing
            is lost.

    Raises:
        Damaged: the segment is missing or incomplete.
        WrongDirectory: a newer release wrote the segment.
    """
    # The hard state contains the first position of the newest segment, so a later position than in the list means a lost file.
    if newest > firsts[-1]:
        raise Damaged(f"segment {segment_path(directory, newest)} is missing: restore it, {repair_advice(directory)}")
    lost = find_lost_end(directory, firsts[-1], read_header(directory, firsts[-1]).size)
    if lost is None:
        return None
    error = Damaged(
        f"segment {segment_path(directory, firsts[-1])} is corrupt at byte {lost[0]}: {lost[1]}. No file was changed. "
        f"Restore the file, {repair_advice(directory)}"
    )
    # Without a valid mark the durable end is unknown, so no peer can show which frames are missing.
    if peers_can_repair and any(segment_marks(directory, firsts[-1])):
        return error
    raise error


def repair_advice(directory: str) -> str:
    """Return the second half of a remedy in an error text, which follows "restore the file".

    For the ordered log, the text mentions the repair tool. For a lane, the text does not, because lanes are never truncated.
    """
    if lane_of_path(directory) is not None:
        return "as it was when its gateway stopped"
    return f"or check what a truncation would lose with `tutti log repair {directory}`"


def newest_mark(directory: str, stored: VoteMark, firsts: list[int]) -> VoteMark:
    """Return the newest of all valid marks in the hard state (`stored`) and in the last two segments.

    Earlier segments cannot contain a newer mark, because each new segment begins with a mark.
    """
    marks = [stored]
    for first in firsts[-2:]:
        marks += [mark for mark in segment_marks(directory, first) if mark is not None]
    return max(marks, key=lambda mark: mark.sequence)
