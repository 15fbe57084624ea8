"""Copies the valid part of a corrupt lane into a new log, so that fewer frames must be fetched."""

from __future__ import annotations

from tutti.data.frames.frame import Frame
from tutti.errors import Damaged, TuttiError
from tutti.log.files.layout import FRAMES_AT, list_positions, read_header, segment_path
from tutti.log.files.log_start import read_start
from tutti.log.format.frame_iterator import SegmentMap, walk
from tutti.log.format.hard_state import read_hard_state
from tutti.log.format.snapshot import read_snapshot
from tutti.log.format.vote_mark import segment_marks
from tutti.log.read.reader import LogReader
from tutti_gateway.core import limits
from tutti_gateway.log.writer import LogWriter


def salvage(damaged: str, writer: LogWriter) -> int:
    """Copy the leading valid frames of a corrupt lane into a new log, and return the last decided position in it.

    Frames that were known as decided stay decided.

    Args:
        damaged: directory of the corrupt lane.
        writer: writer of the new log.

    Raises:
        DiskFull, DiskFailed: the new log cannot be written.
        Damaged, WrongDirectory, OSError: no more of the old log can be read.
    """
    decided = _decided(damaged)
    position, chain, offset = 1, 0, 0
    begin = _begin_of(damaged)
    if begin > 1:
        snapshot = read_snapshot(damaged, begin)
        if snapshot is None:
            return 0  # no snapshot gives the state before the first remaining frame
        writer.replace(snapshot.state.to_bytes())
        position, chain, offset = begin, snapshot.state.chain, snapshot.state.next_offset
    for first in list_positions(damaged, "seg", all_there=True):
        if first < begin:
            continue
        if first != position:
            break
        segment = SegmentMap(segment_path(damaged, first), first)
        place = FRAMES_AT
        while True:
            # The copy works in pieces, so that a large lane does not fill the memory.
            found = walk(segment, place, position, chain, last=position + limits.SCRUB_FRAMES - 1, bodies_from=position)
            if not found.places:
                break
            frames = [found.frame(one) for one in range(position, found.position)]
            offset = _copy(frames, writer, offset, decided)
            segment.release(place, found.place)
            position, chain, place = found.position, found.chain, found.place
    return min(decided, position - 1)


def _begin_of(damaged: str) -> int:
    """Return the first position of the lane. If it is unknown, return the start of the oldest segment from which all later segments
    follow.

    Earlier segments may belong to a log that a snapshot replaced.
    """
    try:
        return read_start(damaged).first
    except Damaged:
        firsts = list_positions(damaged, "seg", all_there=True)
    begin = firsts[-1] if firsts else 1
    for first in reversed(firsts[:-1]):
        if not _continues_at(damaged, first, begin):
            break
        begin = first
    return begin


def _continues_at(damaged: str, first: int, following: int) -> bool:
    """True if the frames of a segment end directly before the next segment, with its chain value."""
    try:
        chain, wanted = (read_header(damaged, one).chain for one in (first, following))
    except (Damaged, OSError):
        return False
    segment = SegmentMap(segment_path(damaged, first), first)
    found = walk(segment, FRAMES_AT, first, chain, last=following - 1, bodies_from=None)
    return (found.position, found.chain) == (following, wanted)


def _copy(frames: list[Frame], writer: LogWriter, offset: int, decided: int) -> int:
    """Append frames and index the decided ones; return the offset after those."""
    writer.append(frames)
    writer.sync()
    known = [frame for frame in frames if frame.position <= decided]
    offsets = []
    for frame in known:
        offsets.append(offset)
        offset += frame.count
    if known:
        writer.frontier(known[-1].position, offset)
        writer.decided(known, offsets)
    return offset


def _decided(damaged: str) -> int:
    """Return the last position that the lane recorded as decided; 0 if it is unknown."""
    try:
        reader = LogReader(damaged, damaged=True)
        try:
            return reader.frontier().position
        finally:
            reader.close()
    except TuttiError:
        return _decided_by_marks(damaged)


def _decided_by_marks(damaged: str) -> int:
    """Return the last decided position that a mark names, for a lane whose identity or start is corrupt."""
    try:
        stored = read_hard_state(damaged)
        firsts = list_positions(damaged, "seg", all_there=True)
        marks = [stored.mark if stored is not None else None, *(mark for first in firsts for mark in segment_marks(damaged, first))]
    except (TuttiError, OSError):
        return 0
    return max((mark.frontier_position for mark in marks if mark is not None), default=0)
