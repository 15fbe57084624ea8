"""What is good of a damaged lane, copied into a new log, so that not all of it has to be learned again."""

from __future__ import annotations

from gateway.core import limits
from gateway.data.frame import Frame
from gateway.errors import TuttiError
from gateway.log.layout import FRAMES_AT, positions_named, segment_path
from gateway.log.reader import LogReader
from gateway.log.snapshot import read_snapshot
from gateway.log.start import read_start
from gateway.log.walk import SegmentMap, walk
from gateway.log.writer import LogWriter


def salvage(damaged: str, writer: LogWriter) -> int:
    """Copy the frames of the lane in the directory `damaged`, from its first on and as far as chain and payloads hold, into a new
    log. What was known as decided is so there too; returns the last position that is.

    Raises:
        DiskFull, DiskFailed: the new log cannot be written.
    """
    decided = _decided(damaged)
    position, chain, offset = 1, 0, 0
    begin = read_start(damaged).first
    if begin > 1:
        snapshot = read_snapshot(damaged, begin)
        if snapshot is None:
            return 0  # nothing tells how what is left of it began
        writer.replace(snapshot.state.to_bytes())
        position, chain, offset = begin, snapshot.state.chain, snapshot.state.next_offset
    for first in positions_named(damaged, "seg"):
        if first != position:
            break
        segment = SegmentMap(segment_path(damaged, first), first)
        place = FRAMES_AT
        while True:
            found = walk(segment, place, position, chain, last=position + limits.SCRUB_FRAMES - 1, bodies_from=position)
            if not found.places:
                break
            frames = [found.frame(one) for one in range(position, found.position)]
            offset = _copy(frames, writer, offset, decided)
            segment.release(place, found.place)
            position, chain, place = found.position, found.chain, found.place
    return min(decided, position - 1)


def _copy(frames: list[Frame], writer: LogWriter, offset: int, decided: int) -> int:
    """Write frames, and index those that are decided; returns the offset behind those."""
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
    """Up to where the lane says that it was decided, 0 if nothing says it any more."""
    try:
        reader = LogReader(damaged, damaged=True)
        try:
            return reader.frontier().position
        finally:
            reader.close()
    except TuttiError:
        return 0
