"""Which log a candidate adopts: the greatest of a majority's answers, judged position by position where its end is damaged
(design, sections 5.3 and 6). No I/O, no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.core.flush.logs import Extent, common, view_at
from gateway.core.messages import Damage, State
from gateway.core.rosters import Rosters

LACKS = 0  # instead of a view: no frame of the damaged log stands there
UNSEEN = -1  # a frame that nobody who answered holds


class Choice(NamedTuple):
    """The log to adopt: who has the greatest, up to where it is adopted, and who gives the frames (0: nobody can; wait).

    `blocking`: sets of voters (number -> incarnation) that prove something by being in the way of every majority. They have to be
    that by the rosters of the adopted log too.
    """

    best: int
    end: int
    source: int
    blocking: tuple[Mapping[int, bytes], ...] = ()


def greatest(states: Mapping[int, State]) -> int:
    """The member whose log is adopted: the greatest (accepted view, end); of equal ones one that is whole, then the lowest
    number.
    """
    return min(
        states, key=lambda member: (-states[member].accepted, -states[member].end, states[member].damage is not None, member)
    )


def whole_to(state: State) -> int:
    """The last position of the log that can be read."""
    return state.end if state.damage is None else state.damage.first - 1


def choose(states: Mapping[int, State], rosters: Rosters, incarnations: Mapping[int, bytes]) -> Choice:
    """Choose among the answers of a majority.

    A damaged end counts as present when logs are compared. It is cut from the first position on that was provably not decided; what
    stands before that is taken from a member that holds what alone can have been decided there. Else the candidate waits for who
    knows more.
    """
    best = greatest(states)
    state = states[best]
    if state.damage is None:
        return Choice(best, state.end, best)
    return _Judge(states, best, state.damage, rosters, incarnations).choice()


class _Judge:
    """Judges the damaged end of the greatest log by what all others say of these positions."""

    def __init__(
        self, states: Mapping[int, State], best: int, damage: Damage, rosters: Rosters, incarnations: Mapping[int, bytes]
    ) -> None:
        self._all = states
        self._states = {member: state for member, state in sorted(states.items()) if member != best}
        self._best, self._mine, self._damage = best, states[best], damage
        self._rosters, self._incarnations = rosters, incarnations
        self._apart = {member for member, state in self._states.items() if self._differs(state)}
        self._blocking: list[Mapping[int, bytes]] = []

    def choice(self) -> Choice:
        """How far the log is adopted, and out of whose."""
        first, last = self._damage.first, self._damage.last
        cut = next((position for position in self._steps(first) if self._undecided(position)), last + 1)
        proof = self._blocking
        reach, source = first - 1, self._best
        held: list[Mapping[int, bytes]] = []
        for member in self._states:
            self._blocking = []
            end = self._right_to(member)
            if end > reach:
                reach, source, held = end, member, self._blocking
        if reach < cut - 1:
            return Choice(self._best, self._mine.end, 0)
        return Choice(self._best, reach, source, (*(proof if reach < last else ()), *held))

    def _steps(self, first: int) -> list[int]:
        """The positions from `first` on where what anybody says of them may change."""
        places = {first, self._damage.last}
        for state in self._states.values():
            places |= {state.base + 1, state.frontier + 1, whole_to(state) + 1, state.end + 1, *(at for _, at in state.table)}
        return sorted(place for place in places if first <= place <= self._damage.last)

    def _differs(self, state: State) -> bool:
        """Whether another log differs from the damaged one in what can be read of that."""
        mine = Extent(self._mine.base, self._mine.table, self._damage.first - 1)
        theirs = Extent(state.base, state.table, min(whole_to(state), mine.end))
        equal = common(mine, theirs, max(mine.base, theirs.base))
        return equal.known and equal.position < theirs.end

    def _says(self, member: int, position: int) -> int | None:
        """The view of the frame that a member's log has at a position behind what can be read of the damaged one; None if it does
        not tell. A damaged log does not tell where it ended: more may have stood behind its mark.
        """
        state = self._states[member]
        if member in self._apart or (position > state.end and state.damage is None):
            return LACKS
        if position > whole_to(state):
            return None
        view = view_at(Extent(state.base, state.table, state.end), position) or None
        return LACKS if view and position == self._damage.last and view != self._damage.view else view

    def _undecided(self, position: int) -> bool:
        """Whether nothing was decided at a position of the damage, whatever stood there."""
        lacking = [member for member in self._states if self._says(member, position) == LACKS]
        return bool(lacking) and self._block(lacking, max(self._states[member].accepted for member in lacking))

    def _block(self, members: list[int], accepted: int) -> bool:
        """Whether members that cannot have voted for some frame are in the way of every majority. `accepted` is the view of one of
        them: its log has whatever was decided in that view or before, so that only a later view may have decided the frame, and who
        accepted none did not vote for it either.
        """
        older = [member for member, state in self._all.items() if state.accepted <= accepted]
        voters = {member: self._incarnations[member] for member in {*members, *older}}
        blocks = self._rosters.blocks(voters)
        if blocks and voters not in self._blocking:
            self._blocking.append(voters)
        return blocks

    def _right_to(self, member: int) -> int:
        """The last position of the damage up to which a member holds what alone can have been decided."""
        before = self._damage.first - 1
        reach = before
        # Where it is not known whether both logs are the same up to there, that has to be right too.
        steps = self._steps(before if before and not self._joins(member, before) else before + 1)
        for step, following in zip(steps, [*steps[1:], self._damage.last + 1], strict=True):
            if not self._right(member, step):
                return step - 1 if step > before else 0
            reach = following - 1
        return reach

    def _joins(self, member: int, position: int) -> bool:
        """Whether a member's log is the damaged one up to a position that can be read there."""
        state, mine = self._states[member], self._mine
        view = view_at(Extent(state.base, state.table, whole_to(state)), position)
        return state.frontier >= position or 0 < view == view_at(Extent(mine.base, mine.table, position), position)

    def _right(self, member: int, position: int) -> bool:
        """Whether a member holds at the position the frame that was decided there, if one was."""
        state = self._states[member]
        if state.frontier >= position:
            return True
        view = self._says(member, position)
        if not view or position == self._damage.last:
            return bool(view)
        said = {other: self._says(other, position) for other in self._states}
        for another in {UNSEEN, *(told for told in said.values() if told)} - {view}:
            against = [other for other, told in said.items() if told is not None and told != another]
            if not self._block(against, state.accepted):
                return False
        return True
