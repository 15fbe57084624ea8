"""Segments of the log, as the log writer uses them.

A segment is created with its full size and filled in order. Bytes before the write position never change.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence

import google_crc32c

from tutti.data.frames.bodies import RosterBody, decode_body
from tutti.data.frames.frame import CRC_AT, HEADER_SIZE, TERMINATOR, Buffer, Frame, Kind, sizes_of
from tutti.errors import InvariantViolated, invariant
from tutti.log.files.layout import FRAMES_AT, LOG, PREPARED, SegmentHeader, index_path, read_header, segment_path
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.index import IndexWriter, no_rows
from tutti.log.format.vote_mark import VoteMark, segment_marks
from tutti.runtime.reserved_fds import with_descriptor_wait
from tutti_gateway.log.write.recovery import FoundSegment
from tutti_gateway.log.write.vote_mark_tracker import End

_NEW = "new.tmp"


class Segment:
    """A segment that accepts writes or holds undecided frames.

    Attributes:
        first: first position of the segment.
        last: last position of the segment, or None if no later segment exists.
        file_position: file position at which the next frame is written.
        undecided: file positions of frames, in order. The first `undecided_from` entries are those of frames that are decided
            now, and the other entries are those of undecided frames.
    """

    def __init__(self, first: int, fd: int, size: int, file_position: int, index: IndexWriter, slot: int) -> None:
        """Create the writer's object for a segment file.

        Args:
            file_position: file position after the last frame.
            index: writer of the segment's index, which has the rows of all decided frames.
            slot: number of the mark slot to write next, 0 or 1.
        """
        self.first = first
        self.last: int | None = None
        self.fd = fd
        self.size = size
        self.file_position = file_position
        self.index = index
        self.slot = slot
        self.undecided = array("Q")
        self.undecided_from = 0  # number of decided entries at the front of `undecided`

    @property
    def next_undecided(self) -> int:
        """Return the first position of this segment that has no index row."""
        return self.first + self.index.count

    @property
    def undecided_file_position(self) -> int:
        """Return the file position of the first undecided frame, or of the next frame if all are decided."""
        return self.undecided[self.undecided_from] if self.undecided_from < len(self.undecided) else self.file_position

    def file_position_of(self, position: int, decided: int) -> int | None:
        """Return the file position of an undecided frame, or None if this segment does not hold the frame.

        Args:
            position: position of the frame in the log.
            decided: last decided position.
        """
        at = self.undecided_from + position - max(self.first, decided + 1)
        return self.undecided[at] if self.undecided_from <= at < len(self.undecided) else None

    def file_positions_after(self, position: int, decided: int) -> array[int]:
        """Return the file positions of the frames after `position`, which must not be below the last decided position."""
        return self.undecided[self.undecided_from + position + 1 - max(self.first, decided + 1) :]

    def fitting(self, frames: Sequence[Frame], end: End) -> tuple[list[Buffer], array[int], int, End]:
        """Select the leading frames that fit into this segment; none if even the first frame is too large for the free space.

        Args:
            frames: frames that follow the end of the log.
            end: position, view and chain value of the last frame in the log.

        Returns:
            The buffers of one gathered write, with a terminator; the file position of each selected frame; the file position after
                the last selected frame; and the new end of the log.

        Raises:
            InvariantViolated: a frame does not follow the previous frame.
        """
        position, view, chain = end
        # Every write ends with a terminator, so space for one frame header stays free at the end of the segment.
        file_position, limit, extend = self.file_position, self.size - HEADER_SIZE, google_crc32c.extend
        parts: list[Buffer] = []
        file_positions = array("Q")
        # The next start would discard frames after a broken chain, so a wrong chain raises an error before the write. The protocol
        # stack has checked the chain within the frames, and this method checks where the frames meet the end of the log.
        chained = not frames or extend(chain, frames[0].header[:CRC_AT]) == frames[0].header_crc
        for frame, size in zip(frames, sizes_of(frames), strict=True):
            after = file_position + size
            if after > limit:
                break
            if frame.position != position + 1 or not chained:
                raise InvariantViolated(
                    f"{frame!r} does not follow the end of the log at position {position}, chain value {chain:#010x}"
                )
            if frame.progress or frame.body_length & 7:
                parts += frame.extents()
            else:
                # fast path, because most frames have no progress and no padding: it takes a third of the time
                parts += (frame.header, frame.body)
            file_positions.append(file_position)
            file_position = after
            position, view, chain = position + 1, frame.view, frame.header_crc
        # Bytes of an older frame may follow the new end, so the terminator stops a scan there.
        parts.append(TERMINATOR)
        return parts, file_positions, file_position, (position, view, chain)

    def drop_last(self, count: int) -> None:
        """Remove the last `count` frames from the segment, which becomes the last segment of the log."""
        if count:
            self.file_position = self.undecided[-count]
            del self.undecided[-count:]
        self.last = None

    def pop_file_positions(self, count: int) -> array[int]:
        """Return the file positions of the next `count` frames, which are now decided."""
        start = self.undecided_from
        file_positions = self.undecided[start : start + count]
        self.undecided_from = start + count
        # Each deletion moves the rest of the array, so decided entries are deleted only in large groups.
        if self.undecided_from > 4096:
            del self.undecided[: self.undecided_from]
            self.undecided_from = 0
        return file_positions


def prepared_paths(directory: str) -> list[str]:
    """Return the paths of prepared segments, which are filled with zeros and ready for use."""
    folder = os.path.join(directory, LOG)
    names = with_descriptor_wait(lambda: os.listdir(folder))
    return sorted(os.path.join(folder, name) for name in names if name.startswith(PREPARED) and name.endswith(".seg"))


def size_of_next(options: LogOptions, before: int, frame: Frame | None) -> int:
    """Return the size of the next segment in bytes.

    With the option `first_segment_bytes`, which every lane has, each segment is twice as large as the previous one, up to
    `segment_bytes`. Without this option, all segments have `segment_bytes`. A segment is never too small for `frame`.

    Args:
        before: size of the previous segment; 0 for the first segment.
        frame: first frame of the segment, or None if the frame is not known yet.
    """
    wanted = 2 * before or options.first_segment_bytes if options.first_segment_bytes else options.segment_bytes
    needed = FRAMES_AT + frame.size + HEADER_SIZE if frame is not None else 0
    invariant(needed <= options.segment_bytes, f"{frame!r} does not fit into a segment of {options.segment_bytes} bytes")
    return min(max(wanted, needed), options.segment_bytes)


def begin_segment(directory: str, storage: Storage, header: SegmentHeader, mark: VoteMark, source: str | None) -> int:
    """Create a segment durably and return its file descriptor. A crash leaves the segment complete or absent.

    All positions before the segment must be durable, because the mark in the segment says that they are.

    Args:
        source: path of a zero-filled file of the right size (a prepared segment or the reserve). With None, a new file is
            allocated.

    Raises:
        OSError: the disk is full, or it failed.
    """
    path = source or os.path.join(directory, LOG, _NEW)
    fd = storage.open(path, create=source is None)
    try:
        if source is None:
            storage.truncate(fd, 0)  # a crash may have left the file
            # The blocks are allocated now, so that a full disk raises an error here and not in the middle of a group of frames.
            storage.allocate(fd, header.size)
        storage.write(fd, [header.to_bytes(), mark.to_bytes()], 0)
        storage.make_durable(fd)
        # A start treats each file with this name as a segment, so header and mark must be durable before the rename.
        storage.rename(path, segment_path(directory, header.first))
        storage.make_names_durable(os.path.join(directory, LOG))
    except BaseException:
        storage.close(fd)
        raise
    return fd


def older_slot(marks: list[VoteMark | None]) -> int:
    """Return the number of the mark slot to write next: that of an invalid slot, else that of the slot with the older mark."""
    return min(range(len(marks)), key=lambda slot: -1 if (mark := marks[slot]) is None else mark.sequence)


def new_segment(directory: str, storage: Storage, first: int, fd: int, size: int) -> Segment:
    """Return the object of a segment file that was just created, with an empty index."""
    index = IndexWriter(index_path(directory, first), first, no_rows(), storage)
    return Segment(first, fd, size, FRAMES_AT, index, 1)


def reopen_segment(directory: str, found: FoundSegment, storage: Storage) -> Segment:
    """Reopen a segment that recovery found."""
    path = segment_path(directory, found.first)
    size = read_header(directory, found.first).size
    fd = storage.open(path)
    index = IndexWriter(index_path(directory, found.first), found.first, found.rows, storage)
    segment = Segment(found.first, fd, size, found.file_position, index, older_slot(segment_marks(directory, found.first)))
    segment.undecided = found.undecided
    return segment


def log_uuid_of(frame: Frame) -> bytes:
    """Return the log uuid in a ROSTER frame, the first frame of a log."""
    invariant(frame.kind == Kind.ROSTER, f"a log must begin with a ROSTER frame, but got {frame!r}")
    return decode_body(RosterBody, frame.body).log


def not_yet_written(frames: Sequence[Frame], end: End) -> Sequence[Frame]:
    """Return the frames of `frames` that a log with the end `end` does not hold yet.

    Raises:
        InvariantViolated: the log holds different frames at the positions of `frames`.
    """
    position, _, chain = end
    if not frames or frames[0].position > position:
        return frames
    known = position - frames[0].position + 1
    invariant(
        known <= len(frames) and frames[known - 1].header_crc == chain,
        f"frames {frames[0].position} to {frames[-1].position} differ from those in the log, which ends at position {position}",
    )
    return frames[known:]
