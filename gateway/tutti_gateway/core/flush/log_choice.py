"""Which log a candidate adopts: the greatest of a majority's answers, judged position by position where its end is damaged
(design, sections 5.3 and 6). No I/O, no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tutti_gateway.core.flush.log_compare import Extent, common, view_at
from tutti_gateway.core.protocol.messages import Damage, State
from tutti_gateway.core.view.quorum import Rosters

LACKS = 0  # instead of a view: no frame of the damaged log stands there
UNSEEN = -1  # a frame that nobody who answered holds
Voters = Mapping[int, bytes]  # number -> incarnation


class Choice(NamedTuple):
    """The log to adopt: who has the greatest, up to where it is adopted, and who gives the frames (0: nobody can; wait).

    `blocking`: sets of voters that prove something by being in the way of every majority. They have to be that by the rosters of
    the adopted log too.
    """

    best: int
    end: int
    source: int
    blocking: tuple[Voters, ...] = ()


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

    def choice(self) -> Choice:
        """How far the log is adopted, and out of whose."""
        first, last = self._damage.first, self._damage.last
        cut, proof = last + 1, None
        for position in self._steps(first):
            proof = self._against_all(position)
            if proof is not None:
                cut = position
                break
        reach, source = first - 1, self._best
        held: list[Voters] = []
        for member in self._states:
            end, proofs = self._right_to(member)
            if end > reach:
                reach, source, held = end, member, proofs
        if reach < cut - 1:
            return Choice(self._best, self._mine.end, 0)
        return Choice(self._best, reach, source, (*((proof,) if proof is not None and reach < last else ()), *held))

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

    def _against_all(self, position: int) -> Voters | None:
        """Who proves that nothing was decided at a position of the damage, whatever stood there; None if nobody does."""
        lacking = [member for member in self._states if self._says(member, position) == LACKS]
        return self._in_the_way(lacking, max(self._states[member].accepted for member in lacking)) if lacking else None

    def _in_the_way(self, members: list[int], accepted: int) -> Voters | None:
        """Those who cannot have voted for some frame, if they are in the way of every majority: `members` and others. `accepted` is
        the view of one of them: its log has whatever was decided in that view or before, so that only a later view may have decided
        the frame, and who accepted none did not vote for it either.
        """
        older = [member for member, state in self._all.items() if state.accepted <= accepted]
        voters = {member: self._incarnations[member] for member in {*members, *older}}
        return voters if self._rosters.blocks(voters) else None

    def _right_to(self, member: int) -> tuple[int, list[Voters]]:
        """The last position of the damage up to which a member holds what alone can have been decided, and who proves it."""
        before = self._damage.first - 1
        reach = before
        proofs: list[Voters] = []
        # Where it is not known whether both logs are the same up to there, that has to be right too.
        steps = self._steps(before if before and not self._joins(member, before) else before + 1)
        for step, following in zip(steps, [*steps[1:], self._damage.last + 1], strict=True):
            proof = self._proof(member, step)
            if proof is None:
                return (step - 1, proofs) if step > before else (0, [])
            proofs += [voters for voters in proof if voters not in proofs]
            reach = following - 1
        return reach, proofs

    def _joins(self, member: int, position: int) -> bool:
        """Whether a member's log is the damaged one up to a position that can be read there."""
        state, mine = self._states[member], self._mine
        view = view_at(Extent(state.base, state.table, whole_to(state)), position)
        return state.frontier >= position or 0 < view == view_at(Extent(mine.base, mine.table, position), position)

    def _proof(self, member: int, position: int) -> list[Voters] | None:
        """Who proves that a member holds at the position the frame that was decided there, if one was: voters in the way of each
        other frame that may stand there, nobody where the member knows. None if it is not proven.
        """
        state = self._states[member]
        if state.frontier >= position:
            return []
        view = self._says(member, position)
        if not view or position == self._damage.last:
            return [] if view else None
        said = {other: self._says(other, position) for other in self._states}
        proof = []
        for another in {UNSEEN, *(told for told in said.values() if told)} - {view}:
            against = [other for other, told in said.items() if told is not None and told != another]
            voters = self._in_the_way(against, state.accepted)
            if voters is None:
                return None
            proof.append(voters)
        return proof
