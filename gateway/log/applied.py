"""What the log says up to a place, carried on from there: nothing of a frame is believed before its CRC was seen."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core import limits
from gateway.data.frame import Kind, chained, check_payload
from gateway.data.state import LogState
from gateway.errors import Damaged, FormatError
from gateway.log.index import ABORTED, Rows
from gateway.log.view import View

_LET_GO_BYTES = 4 * limits.MIB  # of a segment that was looked at, before its pages leave the process


def applied(state: LogState, found: Iterable[tuple[View, Rows]]) -> LogState:
    """The state, with the frames of these rows taken in, which follow it. Bodies of batches are read only where there is progress:
    of all others the header says it.

    Raises:
        Damaged: a frame does not continue the chain, its CRC does not fit, or it cannot be read.
    """
    for view, rows in found:
        kept = int(rows["place"][0])
        for place, flags in zip(rows["place"].tolist(), rows["flags"].tolist(), strict=True):
            try:
                _apply(state, view, place, bool(flags & ABORTED))
            except FormatError as error:
                raise Damaged(f"{error}; see `tutti log verify {view.directory}`", state.position + 1) from error
            if place > kept + _LET_GO_BYTES:
                view.segment.release(kept, place)
                kept = place
    return state


def _apply(state: LogState, view: View, place: int, aborted: bool) -> None:
    where = f"{view.path} at byte {place}"
    frame = view.segment.frame(place)
    if frame.position != state.position + 1 or not chained(frame, state.chain):
        raise Damaged(f"{where} has a header that does not continue the log at position {state.position + 1}")
    if frame.kind != Kind.BATCH or frame.progress:
        view.segment.populate(place, place + frame.size)
        check_payload(frame, where)
    state.apply(frame, aborted)
