"""Comparison of logs by their extents, without I/O or state (protocol/flush, F5).

No two frames have the same view and position. Each frame contains the checksum of its predecessor, so view and position of a frame
also identify all earlier frames. Two logs are therefore equal up to any position at which both hold a frame of the same view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Table = Sequence[tuple[int, int]]


class Extent(NamedTuple):
    """Extent of a log: the last position, and (view, first position) of each run of frames after `base`."""

    base: int
    table: Table
    end: int


def view_at(log: Extent, position: int) -> int:
    """Return the view of the frame at a position, 0 if the position is outside of the extent."""
    if not log.base < position <= log.end:
        return 0
    found = 0
    for view, first in log.table:
        if first > position:
            break
        found = view
    return found


class Common(NamedTuple):
    """Position up to which two logs are equal.

    If `known` is False, the logs may be equal beyond this position too; only a comparison of their frames can show that.
    """

    position: int
    known: bool


def common(mine: Extent, theirs: Extent, frontier: int) -> Common:
    """Return the last position up to which both logs are known to be equal. They are equal at least up to `frontier`."""
    # A table that begins after the frontier does not describe all undecided frames, so it might not show the first difference.
    if theirs.base > frontier or mine.base > frontier:
        return Common(frontier, False)
    last = min(mine.end, theirs.end)
    # The first difference is at the start of a run in one of the logs, because the view is constant within a run.
    starts = {first for log in (mine, theirs) for _, first in log.table if frontier < first <= last}
    for first in sorted({frontier + 1, *starts}):
        if first <= last and view_at(mine, first) != view_at(theirs, first):
            return Common(first - 1, True)
    return Common(max(last, frontier), True)
