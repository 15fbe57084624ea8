"""Truncates the end of the log (design, 5.4), so that a crash at any instant leaves a valid log and no corruption.

Each step is durable before the next one:

1. The lowered mark is written to both slots of the hard state, together with the first position of the new last segment. Until the
   first slot is durable, the log is unchanged. After that, the newest mark covers no frame after the truncation point.
2. In the new last segment, zeros overwrite the header of each removed frame, so that no later scan finds the frame again. The
   lowered mark is written to both mark slots of the segment, one after the other, so that one slot is always valid.
3. Later segments are removed. After a crash, a start recognises a segment that should have been removed, because all marks in it
   are older than the lowered mark.

After an interrupted truncation, a start may still find frames after the truncation point. The start treats such frames as a valid
tail or as a torn end. Truncation writes in place, so it needs no free disk space.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

from tutti.data.frames.frame import HEADER_SIZE
from tutti.errors import Damaged
from tutti.log.files.layout import FRAMES_AT, LOG, MARK_SLOTS, index_path, read_header, segment_path
from tutti.log.files.storage import WRITE_BYTES, Storage
from tutti.log.format.frame_iterator import SegmentMap, scan_frames
from tutti.log.format.hard_state import SLOTS, HardStateFile
from tutti.log.format.vote_mark import VoteMark
from tutti_gateway.log.write.segment import Segment
from tutti_gateway.log.write.vote_mark_tracker import End


def end_at(directory: str, segments: Sequence[Segment], decided: End, position: int) -> End:
    """Return the end that the log has after a truncation at `position`, which is at or above the last decided position.

    Args:
        segments: the segments that hold undecided frames.
        decided: position, view and chain value of the last decided frame.

    Raises:
        Damaged: the frames up to `position` cannot be read.
    """
    if position == decided[0]:
        return decided
    segment = next(segment for segment in reversed(segments) if segment.first <= position)
    # The scan begins after the last decided frame, or at the start of the segment if the segment has no decided frame.
    if segment.first > decided[0]:
        start, file_position, chain = segment.first, FRAMES_AT, read_header(directory, segment.first).chain
    else:
        start, file_position, chain = decided[0] + 1, segment.undecided_file_position, decided[2]
    mapped = SegmentMap(segment_path(directory, segment.first), segment.first)
    found = scan_frames(mapped, file_position, start, chain, last=position, bodies_from=None)
    if found.position <= position:
        raise Damaged(
            f"{mapped.path} has {found.stop.value} at byte {found.file_position}, "
            f"where the frame at position {found.position} must be"
        )
    return position, found.frame(position).view, found.chain


def truncate_files(
    directory: str,
    storage: Storage,
    hard_state_file: HardStateFile,
    mark: VoteMark,
    new_last: Segment | None,
    file_positions: Sequence[int],
    removed: Sequence[Segment],
) -> None:
    """Truncate the files of the log, in the steps of the module docstring. The call can be repeated safely.

    Args:
        mark: the lowered mark, which records the end of the log after the truncation.
        new_last: the segment that becomes the last one, or None if no segment remains.
        file_positions: file positions of the removed frames in the segment `new_last`.
        removed: the segments after `new_last`, which are removed.
    """
    write_mark_to_hard_state(hard_state_file, mark, new_last.first if new_last is not None else 0)
    if new_last is not None:
        # If no frame is removed, the header at the end is still erased, because bytes of an older frame may be there.
        erase_extents(
            storage, new_last, mark, [(file_position, HEADER_SIZE) for file_position in file_positions or [new_last.file_position]]
        )
    # The last segment is removed first, so that a crash never leaves a gap between segments.
    for segment in reversed(removed):
        for path in (segment_path(directory, segment.first), index_path(directory, segment.first)):
            with contextlib.suppress(FileNotFoundError):
                storage.remove(path)
    storage.make_names_durable(os.path.join(directory, LOG))


def write_mark_to_hard_state(hard_state_file: HardStateFile, mark: VoteMark, segment: int) -> None:
    """Write the mark and the first position of the last segment into both slots of the hard state."""
    for _ in SLOTS:
        hard_state_file.write(hard_state_file.hard_state, mark, segment)


def erase_extents(storage: Storage, segment: Segment, mark: VoteMark, extents: Iterable[tuple[int, int]]) -> None:
    """Overwrite byte ranges of a segment with zeros, and write the mark into both mark slots, durably.

    Args:
        extents: file position and length of each range, bytes.
    """
    for file_position, size in extents:
        for at in range(file_position, file_position + size, WRITE_BYTES):
            storage.write(segment.fd, [bytes(min(WRITE_BYTES, file_position + size - at))], at)
    # A torn write destroys the slot that is written, so the first slot becomes durable before the second slot is written.
    for slot in (segment.slot, 1 - segment.slot):
        storage.write(segment.fd, [mark.to_bytes()], MARK_SLOTS[slot])
        storage.make_durable(segment.fd)
