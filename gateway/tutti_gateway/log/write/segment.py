"""Segments from the writer's side: taken into use whole, filled in order, never changed behind what was written."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence

import google_crc32c

from tutti.data.frames.bodies import RosterBody, decode_body
from tutti.data.frames.frame import CRC_AT, HEADER_SIZE, TERMINATOR, Buffer, Frame, Kind
from tutti.errors import InvariantViolated, invariant
from tutti.log.files.layout import FRAMES_AT, LOG, PREPARED, SegmentHeader, index_path, read_header, segment_path
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.format.index import IndexWriter, no_rows
from tutti.log.format.vote_mark import Mark, segment_marks
from tutti.runtime.reserved_fds import patiently
from tutti_gateway.log.write.mark_tracker import End
from tutti_gateway.log.write.recovery import FoundSegment

_NEW = "new.tmp"


class Segment:
    """A segment that is written to, or holds undecided frames.

    Attributes:
        first, last: first position; last position once a later segment has begun, else None.
        place: where the next frame goes.
        undecided: places of the frames that are not decided yet, in order; the first is that of position `next_undecided`.
    """

    def __init__(self, first: int, fd: int, size: int, place: int, index: IndexWriter, slot: int) -> None:
        """A segment whose frames up to `place` are decided as far as `index` has rows; `slot` is the mark slot to write next."""
        self.first = first
        self.last: int | None = None
        self.fd = fd
        self.size = size
        self.place = place
        self.index = index
        self.slot = slot
        self.undecided = array("Q")
        self.undecided_from = 0  # how many of `undecided` are decided by now (the array is cut now and then)

    @property
    def next_undecided(self) -> int:
        """The first position of this segment that is not decided."""
        return self.first + self.index.count

    @property
    def decided_place(self) -> int:
        """Where that position stands, or will stand."""
        return self.undecided[self.undecided_from] if self.undecided_from < len(self.undecided) else self.place

    def place_of(self, position: int, decided: int) -> int | None:
        """Where the undecided frame at a position stands, None if there is none; `decided` is the last position that is decided."""
        at = self.undecided_from + position - max(self.first, decided + 1)
        return self.undecided[at] if self.undecided_from <= at < len(self.undecided) else None

    def places_behind(self, position: int, decided: int) -> array[int]:
        """Where the frames behind a position stand, that is decided or above."""
        return self.undecided[self.undecided_from + position + 1 - max(self.first, decided + 1) :]

    def fitting(self, frames: Sequence[Frame], end: End) -> tuple[list[Buffer], array[int], int, End]:
        """What goes in here of frames that are to follow the log's `end`: the buffers of one gathered write, with a terminator; the
        place of each frame, the place behind them, and the end that the log has then. None go in where the first finds no room.

        Raises:
            InvariantViolated: one of them does not follow.
        """
        position, view, chain = end
        place, limit, extend = self.place, self.size - HEADER_SIZE, google_crc32c.extend
        parts: list[Buffer] = []
        places = array("Q")
        for frame in frames:
            behind = place + frame.size
            if behind > limit:
                break
            if frame.position != position + 1 or extend(chain, frame.header[:CRC_AT]) != frame.header_crc:
                raise InvariantViolated(f"{frame!r} does not follow position {position} with chain {chain:#010x}, the log's end")
            if frame.progress or frame.body_length & 7:
                parts += frame.extents()
            else:
                parts += (frame.header, frame.body)  # what is in most of them, in a third of the time
            places.append(place)
            place = behind
            position, view, chain = position + 1, frame.view, frame.header_crc
        parts.append(TERMINATOR)
        return parts, places, place, (position, view, chain)

    def shorten(self, count: int) -> None:
        """The last `count` frames are gone, and no segment follows."""
        if count:
            self.place = self.undecided[-count]
            del self.undecided[-count:]
        self.last = None

    def take_places(self, count: int) -> array[int]:
        """Places of the next `count` frames that are decided."""
        start = self.undecided_from
        taken = self.undecided[start : start + count]
        self.undecided_from = start + count
        if self.undecided_from > 4096:
            del self.undecided[: self.undecided_from]
            self.undecided_from = 0
        return taken


def prepared_paths(directory: str) -> list[str]:
    """Segments of written zeros that are ready for use."""
    folder = os.path.join(directory, LOG)
    names = patiently(lambda: os.listdir(folder))
    return sorted(os.path.join(folder, name) for name in names if name.startswith(PREPARED) and name.endswith(".seg"))


def size_of_next(options: LogOptions, before: int, frame: Frame | None) -> int:
    """Size of a segment that begins with a frame, if that is known, behind one of the size `before` (0: it is the first).

    A log that is hardly used takes little room, and one that grows gets large segments soon.
    """
    wanted = 2 * before or options.first_segment_bytes if options.first_segment_bytes else options.segment_bytes
    needed = FRAMES_AT + frame.size + HEADER_SIZE if frame is not None else 0
    invariant(needed <= options.segment_bytes, f"{frame!r} does not fit into a segment of {options.segment_bytes} bytes")
    return min(max(wanted, needed), options.segment_bytes)


def begin_segment(directory: str, storage: Storage, header: SegmentHeader, mark: Mark, source: str | None) -> int:
    """Take a new segment into use, durably, and return its descriptor: a crash leaves it whole or not there.

    Everything before its first position must be durable: the mark in it says so.

    Args:
        source: path of a file of zeros of the right size to use (prepared, or the reserve); None allocates one.

    Raises:
        OSError: there is no room, or the disk failed.
    """
    path = source or os.path.join(directory, LOG, _NEW)
    fd = storage.open(path, create=source is None)
    try:
        if source is None:
            storage.truncate(fd, 0)  # left over from a crash
            storage.allocate(fd, header.size)
        storage.write(fd, [header.to_bytes(), mark.to_bytes()], 0)
        storage.make_durable(fd)
        storage.rename(path, segment_path(directory, header.first))
        storage.make_names_durable(os.path.join(directory, LOG))
    except BaseException:
        storage.close(fd)
        raise
    return fd


def older_slot(marks: list[Mark | None]) -> int:
    """The slot to write next: the one that does not hold the newest mark."""
    return min(range(len(marks)), key=lambda slot: -1 if (mark := marks[slot]) is None else mark.sequence)


def new_segment(directory: str, storage: Storage, first: int, fd: int, size: int) -> Segment:
    """A segment that was just begun, with an empty index."""
    index = IndexWriter(index_path(directory, first), first, no_rows(), storage)
    return Segment(first, fd, size, FRAMES_AT, index, 1)


def reopen(directory: str, found: FoundSegment, storage: Storage) -> Segment:
    """A segment as a start found it."""
    path = segment_path(directory, found.first)
    size = read_header(directory, found.first).size
    fd = storage.open(path)
    index = IndexWriter(index_path(directory, found.first), found.first, found.rows, storage)
    segment = Segment(found.first, fd, size, found.place, index, older_slot(segment_marks(directory, found.first)))
    segment.undecided = found.undecided
    return segment


def begun_by(frame: Frame) -> bytes:
    """The uuid of the log that begins with a frame."""
    invariant(frame.kind == Kind.ROSTER, f"a log begins with its ROSTER, not with {frame!r}")
    return decode_body(RosterBody, frame.body).log


def unwritten(frames: Sequence[Frame], end: End) -> Sequence[Frame]:
    """Those of `frames` that a log does not hold yet which ends there.

    Raises:
        InvariantViolated: it holds others.
    """
    position, _, chain = end
    if not frames or frames[0].position > position:
        return frames
    known = position - frames[0].position + 1
    invariant(
        known <= len(frames) and frames[known - 1].header_crc == chain,
        f"frames {frames[0].position} to {frames[-1].position} differ from the log, which ends at {position}",
    )
    return frames[known:]
