"""Replay: applies the frames of the log to a state, after a CRC check of each frame."""

from __future__ import annotations

from collections.abc import Iterable

from tutti import limits
from tutti.data.frames.frame import HEADER_SIZE, Kind, chained, check_payload
from tutti.data.log_state import LogState
from tutti.errors import Damaged, FormatError
from tutti.log.format.frame_iterator import AHEAD_BYTES
from tutti.log.format.index import ABORTED, Rows
from tutti.log.read.segment_view import SegmentView

_RELEASE_BYTES = 4 * limits.MIB  # scanned bytes of a segment to collect before their release


def replay(state: LogState, found: Iterable[tuple[SegmentView, Rows]]) -> LogState:
    """Apply the frames of the rows, which follow the state, and return the state.

    Bodies of batches are read only if the frame has progress, because the header holds everything else.

    Raises:
        Damaged: a frame does not continue the chain, fails its CRC, or is unreadable.
    """
    for view, rows in found:
        kept = end = int(rows["place"][0])
        there = 0
        for place, flags in zip(rows["place"].tolist(), rows["flags"].tolist(), strict=True):
            if place + HEADER_SIZE > there:
                there = view.segment.readable(place, place + AHEAD_BYTES, place + HEADER_SIZE)
            try:
                end = _apply(state, view, place, there, bool(flags & ABORTED))
            except FormatError as error:
                raise Damaged(f"{error}; see `tutti log verify {view.directory}`", state.position + 1) from error
            if end > kept + _RELEASE_BYTES:
                view.segment.release(kept, end)
                kept = end
        view.segment.release(kept, max(end, there))
    return state


def _apply(state: LogState, view: SegmentView, place: int, there: int, aborted: bool) -> int:
    """Apply the frame at byte `place` and return its end. The segment is populated up to `there`."""
    frame = view.segment.frame(place, there)
    if frame.position != state.position + 1 or not chained(frame, state.chain):
        raise Damaged(f"{view.path} at byte {place} has a header that does not continue the log at position {state.position + 1}")
    if frame.kind != Kind.BATCH or frame.progress:
        if place + frame.size > there:
            view.segment.populate(place, place + frame.size)
        check_payload(frame, f"{view.path} at byte {place}")
    state.apply(frame, aborted)
    return place + frame.size
