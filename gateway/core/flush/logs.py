"""Comparing logs by what their members say of them: no I/O, no state (design, sections 5.3, 5.4 and 6).

(view, position) names one frame for ever, and the chain makes it name everything before it. So two logs are equal up to a position
where both hold a frame of the same view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.core.messages import State
from gateway.core.rosters import Rosters

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


def greatest(states: Mapping[int, State]) -> int:
    """The member whose log is adopted: the greatest (accepted view, end); of equal ones one that is whole, then the lowest
    number.
    """
    return min(
        states, key=lambda member: (-states[member].accepted, -states[member].end, states[member].damage is not None, member)
    )


class Choice(NamedTuple):
    """The log to adopt: who has the greatest, up to where it is adopted, and who can give the frames (0: nobody; wait).

    `lacking`, where a damaged end is cut because so many voters lack it: they have to suffice by the rosters of the adopted log
    too.
    """

    best: int
    end: int
    source: int
    lacking: Mapping[int, bytes] | None = None


def choose(states: Mapping[int, State], rosters: Rosters, incarnations: Mapping[int, bytes]) -> Choice:
    """Choose among the answers.

    A damaged end counts as present when logs are compared. It is taken from whoever holds the very same log. It is cut only when a
    member of the same accepted view, or so many voters that no majority is without one, show by their logs, which end before it or
    hold another frame there, that it was not decided. Else the candidate waits for who knows more.
    """
    best = greatest(states)
    state = states[best]
    damage = state.damage
    if damage is None:
        return Choice(best, state.end, best)
    clean = {member: other for member, other in sorted(states.items()) if other.damage is None}
    for member, other in clean.items():
        if holds(other, damage.last, damage.view) or other.frontier >= damage.last:
            return Choice(best, state.end, member)
    same = [member for member, other in clean.items() if other.accepted == state.accepted]
    if same:
        # Logs of one accepted view continue each other: what this member lacks, it did not vote for, and neither did the view.
        source = max(same, key=lambda member: (clean[member].end, -member))
        end = max(clean[source].end, damage.first - 1)
        return Choice(best, end, source if clean[source].end == end else best)
    lacking = {member: incarnations[member] for member, other in clean.items() if _lacks(state, damage.first, other)}
    if rosters.blocks(lacking):
        return Choice(best, damage.first - 1, best, lacking)
    return Choice(best, state.end, 0)


def holds(state: State, position: int, view: int) -> bool:
    """Whether the log holds, whole, the frame that (view, position) names."""
    if state.damage is not None and position >= state.damage.first:
        return False
    return view_at(Extent(state.base, state.table, state.end), position) == view


def _lacks(damaged: State, position: int, other: State) -> bool:
    """Whether the other log cannot hold the damaged frame at the position: it ends before it, or differs earlier."""
    if other.end < position:
        return True
    mine, theirs = (Extent(state.base, state.table, min(state.end, position - 1)) for state in (damaged, other))
    equal = common(mine, theirs, max(mine.base, theirs.base))
    return equal.known and equal.position < position - 1
