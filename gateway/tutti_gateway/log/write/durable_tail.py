"""Finds whole frames after the mark when a frame before the mark is corrupt."""

from __future__ import annotations

from tutti.data.frames.frame import HEADER_SIZE, POSITION_AT
from tutti.log.files.layout import FRAMES_AT, segment_path
from tutti.log.format.frame_iterator import SegmentMap, walk
from tutti.log.format.vote_mark import VoteMark

_SEARCH_BYTES = 1 << 20  # bytes of a segment to search at a time


def extended_mark(directory: str, first: int, mark: VoteMark) -> VoteMark:
    """Return the mark, moved to the last whole frame that follows it in the last segment.

    Such a frame may be synced and voted for although no mark names it yet. Corruption before it does not make it torn.
    """
    segment = SegmentMap(segment_path(directory, first), first)
    place = FRAMES_AT if mark.position + 1 == first else _file_position_after(segment, mark)
    found = walk(segment, place, mark.position + 1, mark.chain)
    if not found.places:
        return mark
    return mark._replace(position=found.position - 1, view=int(found.headers()["view"][-1]), chain=found.chain)


def _file_position_after(segment: SegmentMap, mark: VoteMark) -> int:
    """Return the file position of the frame after the mark, or the segment size if none is found.

    The search compares position and chain value, because corrupt headers cannot lead to the frame.
    """
    wanted = (mark.position + 1).to_bytes(8, "little")
    for start in range(FRAMES_AT, segment.size, _SEARCH_BYTES):
        end = min(start + _SEARCH_BYTES + HEADER_SIZE, segment.size)
        if not segment.readable(start, end, end):
            continue  # a bad sector
        data = bytes(segment.view[start:end])
        at = data.find(wanted, POSITION_AT)
        while at >= 0:
            place = start + at - POSITION_AT
            if walk(segment, place, mark.position + 1, mark.chain, last=mark.position + 1, bodies_from=None).places:
                return place
            at = data.find(wanted, at + 1)
        segment.release(start, end)
    return segment.size
