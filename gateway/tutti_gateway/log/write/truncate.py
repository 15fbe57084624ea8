"""Taking frames off the end of the log (design, 5.4), so that a crash at any instant leaves a log and never damage.

Each step is durable before the next:

1. The mark is lowered in both slots of the scalars, which from then on name the segment that will be the last. Until the first of
   them is durable the log is as it was; from then on nothing behind the cut was promised to be there.
2. In that segment the header of every frame that goes is overwritten, so that none is ever found again, whatever comes to stand
   before it; and both mark slots say what the scalars say, one after the other, so that one is good at every instant.
3. The segments behind it are removed. A start that finds one knows it by its marks, which are older than the lowered one.

A start in between finds what still stands there for a torn end, or takes it for a tail: the log as it was, or with fewer of the
frames that go. A cut takes no room: everything is written in place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

from tutti.data.frames.frame import HEADER_SIZE
from tutti.errors import Damaged
from tutti.log.files.layout import FRAMES_AT, LOG, MARK_SLOTS, index_path, read_header, segment_path
from tutti.log.files.storage import WRITE_BYTES, Storage
from tutti.log.format.frame_iterator import SegmentMap, walk
from tutti.log.format.hard_state import SLOTS, ScalarsFile
from tutti.log.format.vote_mark import Mark
from tutti_gateway.log.write.mark_tracker import End
from tutti_gateway.log.write.segment import Segment


def end_at(directory: str, segments: Sequence[Segment], decided: End, position: int) -> End:
    """The end of a log that is cut behind `position`, which is the last decided one or above it.

    Args:
        segments: those that hold undecided frames.
        decided: position, view and chain of the last decided frame.

    Raises:
        Damaged: the frames up to there cannot be read.
    """
    if position == decided[0]:
        return decided
    segment = next(segment for segment in reversed(segments) if segment.first <= position)
    if segment.first > decided[0]:
        start, place, chain = segment.first, FRAMES_AT, read_header(directory, segment.first).chain
    else:
        start, place, chain = decided[0] + 1, segment.decided_place, decided[2]
    mapped = SegmentMap(segment_path(directory, segment.first), segment.first)
    found = walk(mapped, place, start, chain, last=position, bodies_from=None)
    if found.position <= position:
        raise Damaged(f"{mapped.path} has {found.stop.value} at byte {found.place}, where position {found.position} must be")
    return position, found.frame(position).view, found.chain


def take_off(
    directory: str,
    storage: Storage,
    scalars: ScalarsFile,
    mark: Mark,
    kept: Segment | None,
    places: Sequence[int],
    gone: Sequence[Segment],
) -> None:
    """Carry a cut out, in the order that is described above; done again, it does no harm.

    Args:
        mark: the lowered one.
        kept: the segment that will be the last, None if none stays.
        places: where in it the frames stand that go.
        gone: the segments behind it.
    """
    state_mark(scalars, mark, kept.first if kept is not None else 0)
    if kept is not None:
        erase(storage, kept, mark, [(place, HEADER_SIZE) for place in places or [kept.place]])
    for segment in reversed(gone):
        for path in (segment_path(directory, segment.first), index_path(directory, segment.first)):
            with contextlib.suppress(FileNotFoundError):
                storage.remove(path)
    storage.make_names_durable(os.path.join(directory, LOG))


def state_mark(scalars: ScalarsFile, mark: Mark, segment: int) -> None:
    """Have both slots of the scalars say the mark, and the first position of the segment that is to be the last."""
    for _ in SLOTS:
        scalars.write(scalars.scalars, mark, segment)


def erase(storage: Storage, segment: Segment, mark: Mark, extents: Iterable[tuple[int, int]]) -> None:
    """Overwrite extents (place, bytes) of a segment with zeros and have both its slots say the mark, durably."""
    for place, size in extents:
        for at in range(place, place + size, WRITE_BYTES):
            storage.write(segment.fd, [bytes(min(WRITE_BYTES, place + size - at))], at)
    for slot in (segment.slot, 1 - segment.slot):
        storage.write(segment.fd, [mark.to_bytes()], MARK_SLOTS[slot])
        storage.make_durable(segment.fd)
