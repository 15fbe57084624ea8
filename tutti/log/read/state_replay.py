"""Replay: applies frames of the log to a state, and checks the CRCs of each frame before."""

from __future__ import annotations

from collections.abc import Iterable

from tutti import limits
from tutti.data.frames.frame import HEADER_SIZE, Kind, chained, check_payload
from tutti.data.log_state import LogState
from tutti.errors import Damaged, FormatError
from tutti.log.format.frame_iterator import AHEAD_BYTES
from tutti.log.format.index import ABORTED, Rows
from tutti.log.read.segment_view import SegmentView

_RELEASE_BYTES = 4 * limits.MIB  # number of applied bytes after which their memory is released


def replay(state: LogState, found: Iterable[tuple[SegmentView, Rows]]) -> LogState:
    """Apply the frames that the index rows describe to `state`, and return `state`. The rows must follow the state's position.

    The state needs no data from the body of a batch, so the body is read only if the batch has progress, whose CRC covers the body.

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
    """Apply the frame at byte `file_position`, and return the byte after the frame.

    Args:
        populated_to: end of the bytes of the segment that are already in memory.
    """
    frame = view.segment.frame(file_position, populated_to)
    # If the header continues the chain, no frame between the state and this frame is missing or replaced.
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
