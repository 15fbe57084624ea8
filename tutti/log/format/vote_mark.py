"""Vote mark: the durable end and the decided end of the log (design, section 3).

A mark is written to the current segment together with frames, so it needs no sync of its own. A mark covers only frames that
*earlier* syncs made durable. Each segment has two slots, and successive marks alternate between them, so a torn write never
destroys the last synced mark. The newest valid mark of the whole log is the one that a start uses.
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
        sequence: number of the mark in its directory; the highest is the newest.
        position, view, chain: position, view and header CRC of the last durable frame; zeros if there is none.
        frontier_position, frontier_offset: the watermark: last decided position, and the offset after its last record.
        time_us: wall clock at the write, us.
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
    """Decode the mark at the start of `data`, or None if it is invalid."""
    if len(data) < MARK_SIZE:
        return None
    head = bytes(data[: _MARK.size])
    if head[:4] != MAGIC or _CRC.unpack_from(data, _MARK.size)[0] != crc32c(head):
        return None
    _, chain, sequence, position, view, frontier_position, frontier_offset, time_us, _ = _MARK.unpack(head)
    return VoteMark(sequence, position, view, chain, frontier_position, frontier_offset, time_us)


def segment_marks(directory: str, first: int) -> list[VoteMark | None]:
    """Return the marks in the slots of a segment, or None for an invalid slot."""
    data = read_file(segment_path(directory, first), FRAMES_AT)
    return [read_mark(data[at : at + MARK_SIZE]) for at in MARK_SLOTS]


def find_lost_end(directory: str, first: int, size: int) -> tuple[int, str] | None:
    """Return the byte and a description of the first lost part of the last segment, or None if nothing is lost.

    The check covers only parts that a power loss cannot destroy, because they are durable before the segment gets its name: the
    size of the file, and one valid mark.
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
        peers_can_repair: True if peers may have the lost end. If only the end of the file is lost, and a mark is valid, the
            function then returns the error. The caller raises it if no peer can repair the end.

    Returns:
        The error, if peers may repair the loss; None if nothing is lost.

    Raises:
        Damaged: the segment is missing or incomplete.
        WrongDirectory: a newer release wrote the segment.
    """
    # The hard state names the newest segment, which shows that a missing last file did exist.
    if newest > firsts[-1]:
        raise Damaged(f"segment {segment_path(directory, newest)} is missing: restore it, {repair_advice(directory)}")
    lost = find_lost_end(directory, firsts[-1], read_header(directory, firsts[-1]).size)
    if lost is None:
        return None
    error = Damaged(
        f"segment {segment_path(directory, firsts[-1])} is corrupt at byte {lost[0]}: {lost[1]}. No file was changed. "
        f"Restore the file, {repair_advice(directory)}"
    )
    if peers_can_repair and any(segment_marks(directory, firsts[-1])):
        return error
    raise error


def repair_advice(directory: str) -> str:
    """Return the end of an error text, after the advice to restore a file.

    For the ordered log, the text names the repair tool. A lane is never truncated, so its text names no tool.
    """
    if lane_of_path(directory) is not None:
        return "as it was when its gateway stopped"
    return f"or check what a truncation would lose with `tutti log repair {directory}`"


def newest_mark(directory: str, stored: VoteMark, firsts: list[int]) -> VoteMark:
    """Return the newest of all valid marks in the hard state (`stored`) and in the last two segments.

    Older segments cannot have a newer mark, because each new segment begins with a mark.
    """
    marks = [stored]
    for first in firsts[-2:]:
        marks += [mark for mark in segment_marks(directory, first) if mark is not None]
    return max(marks, key=lambda mark: mark.sequence)
