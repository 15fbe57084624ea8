"""Replay: applies frames of the log to a state, after a check of each frame's CRCs."""

from __future__ import annotations

from collections.abc import Iterable

from tutti import limits
from tutti.data.frames.frame import HEADER_SIZE, Kind, chained, check_payload
from tutti.data.log_state import LogState
from tutti.errors import Damaged, FormatError
from tutti.log.format.frame_iterator import AHEAD_BYTES
from tutti.log.format.index import ABORTED, Rows
from tutti.log.read.segment_view import SegmentView

_RELEASE_BYTES = 4 * limits.MIB  # the memory of applied frames is released in steps of this size


def replay(state: LogState, found: Iterable[tuple[SegmentView, Rows]]) -> LogState:
    """Apply the frames of the index rows, which follow the state, and return the state.

    The state needs no data from the body of a batch, so such a body is read only to check the CRC of the batch's progress.

    Raises:
        Damaged: a frame does not continue the chain, fails its CRC, or is unreadable.
    """
    for view, rows in found:
        released = end = int(rows["file_position"][0])
        populated_to = 0
        for file_position, flags in zip(rows["file_position"].tolist(), rows["flags"].tolist(), strict=True):
            if file_position + HEADER_SIZE > populated_to:
                populated_to = view.segment.readable(file_position, file_position + AHEAD_BYTES, file_position + HEADER_SIZE)
            try:
                end = _apply(state, view, file_position, populated_to, bool(flags & ABORTED))
            except FormatError as error:
                raise Damaged(f"{error}; see `tutti log verify {view.directory}`", state.position + 1) from error
            if end > released + _RELEASE_BYTES:
                view.segment.release(released, end)
                released = end
        view.segment.release(released, max(end, populated_to))
    return state


def _apply(state: LogState, view: SegmentView, file_position: int, populated_to: int, aborted: bool) -> int:
    """Apply the frame at byte `file_position`, and return the byte after it. The segment is populated up to byte `populated_to`."""
    frame = view.segment.frame(file_position, populated_to)
    # A header that continues the chain proves that no frame between the state and this frame is missing or replaced.
    if frame.position != state.position + 1 or not chained(frame, state.chain):
        raise Damaged(
            f"{view.path} at byte {file_position} has a header that does not continue the log at position {state.position + 1}"
        )
    if frame.kind != Kind.BATCH or frame.progress:
        if file_position + frame.size > populated_to:
            view.segment.populate(file_position, file_position + frame.size)
        check_payload(frame, f"{view.path} at byte {file_position}")
    state.apply(frame, aborted)
    return file_position + frame.size
