"""Comparing logs by what their members say of them: no I/O, no state (design, sections 5.3 and 5.4).

(view, position) names one frame for ever, and the chain makes it name everything before it. So two logs are equal up to a position
where both hold a frame of the same view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Table = Sequence[tuple[int, int]]


class Extent(NamedTuple):
    """A log as its member tells of it: (view, first position) of its runs behind `base`, and its last position."""

    base: int
    table: Table
    end: int


def view_at(log: Extent, position: int) -> int:
    """View of the frame at a position; 0 where the extent does not tell."""
    if not log.base < position <= log.end:
        return 0
    found = 0
    for view, first in log.table:
        if first > position:
            break
        found = view
    return found


class Common(NamedTuple):
    """Up to where two logs are equal. `known` is False where only the frames themselves can tell what lies behind it."""

    position: int
    known: bool


def common(mine: Extent, theirs: Extent, frontier: int) -> Common:
    """The last position up to which both logs are known to be equal, at least `frontier`, which is decided here."""
    if theirs.base > frontier or mine.base > frontier:
        return Common(frontier, False)
    last = min(mine.end, theirs.end)
    starts = {first for log in (mine, theirs) for _, first in log.table if frontier < first <= last}
    for first in sorted({frontier + 1, *starts}):
        if first <= last and view_at(mine, first) != view_at(theirs, first):
            return Common(first - 1, True)
    return Common(max(last, frontier), True)
