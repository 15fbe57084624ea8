"""Choice of the log that a candidate adopts: the greatest of a majority's answers. A corrupt end is judged one position at a time.

The module has no I/O and no state (protocol/flush, F6 and F20 to F24).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tutti_gateway.core.flush.log_compare import Extent, common, view_at
from tutti_gateway.core.protocol.messages import Damage, State
from tutti_gateway.core.view.quorum import Rosters

LACKS = 0  # used in place of a view: the log has no frame at that position
UNSEEN = -1  # used in place of a view: no member that answered holds this frame
Voters = Mapping[int, bytes]  # number -> incarnation


class Choice(NamedTuple):
    """The log to adopt: the member with the greatest log, the end of the adopted part, and the source of the frames. Source 0 means
    to wait.

    `blocking` holds sets of voters that lack a frame. Every majority includes a member of each set, so no majority voted for the
    frame. The same must be true for the rosters of the adopted log.
    """

    best: int
    end: int
    source: int
    blocking: tuple[Voters, ...] = ()


def greatest(states: Mapping[int, State]) -> int:
    """Return the member with the greatest (accepted view, end).

    Among equals prefer an intact log, then the lowest gateway number.
    """
    return min(
        states, key=lambda member: (-states[member].accepted, -states[member].end, states[member].damage is not None, member)
    )


def readable_end(state: State) -> int:
    """Return the last position of the log that can be read."""
    return state.end if state.damage is None else state.damage.first - 1


def choose(states: Mapping[int, State], rosters: Rosters, incarnations: Mapping[int, bytes]) -> Choice:
    """Choose among the answers of a majority.

    When logs are compared, a corrupt end counts as present. It is truncated at the first position that provably was not decided.
    For each earlier corrupt position, a member must hold the only frame that can have been decided there. If no member does, the
    candidate waits for further answers.
    """
    best = greatest(states)
    state = states[best]
    if state.damage is None:
        return Choice(best, state.end, best)
    return _Judge(states, best, state.damage, rosters, incarnations).choice()


class _Judge:
    """Judges the corrupt end of the greatest log, based on the other answers."""

    def __init__(
        self, states: Mapping[int, State], best: int, damage: Damage, rosters: Rosters, incarnations: Mapping[int, bytes]
    ) -> None:
        self._all = states
        self._states = {member: state for member, state in sorted(states.items()) if member != best}
        self._best, self._mine, self._damage = best, states[best], damage
        self._rosters, self._incarnations = rosters, incarnations
        self._diverged = {member for member, state in self._states.items() if self._differs(state)}

    def choice(self) -> Choice:
        """Return the end of the adopted part, and the source of its frames."""
        first, last = self._damage.first, self._damage.last
        truncate_from, proof = last + 1, None
        # The adopted log ends before the first position that provably was not decided (flush, F20).
        for position in self._steps(first):
            proof = self._proof_undecided(position)
            if proof is not None:
                truncate_from = position
                break
        reach, source = first - 1, self._best
        proofs_held: list[Voters] = []
        # The source is the member that provably holds most of the rest (flush, F21).
        for member in self._states:
            end, proofs = self._provable_reach(member)
            if end > reach:
                reach, source, proofs_held = end, member, proofs
        # If it is unknown whether a corrupt position was decided, further answers are needed (flush, F22).
        if reach < truncate_from - 1:
            return Choice(self._best, self._mine.end, 0)
        return Choice(self._best, reach, source, (*((proof,) if proof is not None and reach < last else ()), *proofs_held))

    def _steps(self, first: int) -> list[int]:
        """Return the positions, starting at `first`, at which the result for any answer may change."""
        positions = {first, self._damage.last}
        for state in self._states.values():
            positions |= {
                state.base + 1,
                state.frontier + 1,
                readable_end(state) + 1,
                state.end + 1,
                *(at for _, at in state.table),
            }
        return sorted(position for position in positions if first <= position <= self._damage.last)

    def _differs(self, state: State) -> bool:
        """True if the other log differs from the readable part of the corrupt log."""
        mine = Extent(self._mine.base, self._mine.table, self._damage.first - 1)
        theirs = Extent(state.base, state.table, min(readable_end(state), mine.end))
        equal = common(mine, theirs, max(mine.base, theirs.base))
        return equal.known and equal.position < theirs.end

    def _view_of(self, member: int, position: int) -> int | None:
        """Return the view of a member's frame at a position after the readable part of the corrupt log; None if unknown.

        A corrupt log does not show its last position. It may have had frames after its vote mark.
        """
        state = self._states[member]
        if member in self._diverged or (position > state.end and state.damage is None):
            return LACKS
        if position > readable_end(state):
            return None
        view = view_at(Extent(state.base, state.table, state.end), position) or None
        # The vote mark names the view of the last corrupt frame. So a frame with another view at that position is a different
        # frame.
        return LACKS if view and position == self._damage.last and view != self._damage.view else view

    def _proof_undecided(self, position: int) -> Voters | None:
        """Return the voters that prove that no frame was decided at a corrupt position; None if there is no proof (protocol/flush,
        F20).
        """
        lacking = [member for member in self._states if self._view_of(member, position) == LACKS]
        return self._blocking_voters(lacking, max(self._states[member].accepted for member in lacking)) if lacking else None

    def _blocking_voters(self, members: list[int], accepted: int) -> Voters | None:
        """Return the voters that cannot have voted for a frame, if every majority includes one of them; else None.

        The set consists of `members` and further voters. `accepted` is the accepted view of one of `members`. Its log holds all
        frames that were decided in that view or before. So only a later view can have decided the missing frame. A voter that has
        accepted no later view did not vote for that frame.
        """
        older = [member for member, state in self._all.items() if state.accepted <= accepted]
        voters = {member: self._incarnations[member] for member in {*members, *older}}
        return voters if self._rosters.blocks(voters) else None

    def _provable_reach(self, member: int) -> tuple[int, list[Voters]]:
        """Return the last corrupt position up to which a member holds the only frames that can have been decided. Return the proofs
        too (F21).
        """
        before = self._damage.first - 1
        reach = before
        proofs: list[Voters] = []
        # If it is unknown whether both logs are equal up to that position, the position itself must be proven too.
        steps = self._steps(before if before and not self._is_equal_at(member, before) else before + 1)
        for step, following in zip(steps, [*steps[1:], self._damage.last + 1], strict=True):
            proof = self._proof(member, step)
            if proof is None:
                return (step - 1, proofs) if step > before else (0, [])
            proofs += [voters for voters in proof if voters not in proofs]
            reach = following - 1
        return reach, proofs

    def _is_equal_at(self, member: int, position: int) -> bool:
        """True if a member's log equals the corrupt log up to a readable position."""
        state, mine = self._states[member], self._mine
        view = view_at(Extent(state.base, state.table, readable_end(state)), position)
        return state.frontier >= position or 0 < view == view_at(Extent(mine.base, mine.table, position), position)

    def _proof(self, member: int, position: int) -> list[Voters] | None:
        """Return the proofs that, if a frame was decided at the position, the member holds it; None if there is no proof.

        Each proof is a set of voters that excludes one other frame at the position. The list is empty if the member knows the
        decision.
        """
        state = self._states[member]
        if state.frontier >= position:
            return []
        view = self._view_of(member, position)
        if not view or position == self._damage.last:
            return [] if view else None
        views = {other: self._view_of(other, position) for other in self._states}
        proof = []
        for another in {UNSEEN, *(other_view for other_view in views.values() if other_view)} - {view}:
            against = [other for other, other_view in views.items() if other_view is not None and other_view != another]
            voters = self._blocking_voters(against, state.accepted)
            if voters is None:
                return None
            proof.append(voters)
        return proof
