"""Choice of the log that a candidate adopts: the greatest log among the answers of a majority.

If the greatest log has a corrupt end, the other answers show which of the corrupt frames may have been decided. The module has no
I/O and no state (protocol/flush, F6 and F20 to F24).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tutti_gateway.core.flush.log_compare import Extent, common, view_at
from tutti_gateway.core.protocol.messages import Damage, State
from tutti_gateway.core.view.quorum import Rosters

LACKS = 0  # value instead of a view: the log has no frame at the position, or a different one
UNSEEN = -1  # value instead of a view: that of a frame which no member that answered holds
Voters = Mapping[int, bytes]  # number -> incarnation


class Choice(NamedTuple):
    """The log to adopt: the member with the greatest log, the end of the adopted part, and the source of the frames.

    Source 0 means that the candidate must wait for more answers. Each set in `blocking` proves that one frame was not decided: the
    voters in the set did not vote for that frame, and every majority includes one of them. The candidate checks these proofs again
    with the rosters of the adopted log.
    """

    best: int
    end: int
    source: int
    blocking: tuple[Voters, ...] = ()


def greatest(states: Mapping[int, State]) -> int:
    """Return the member whose log has the greatest (accepted view, end).

    If several logs are equally great, a member with an intact log is preferred, and then the lowest gateway number.
    """
    return min(
        states, key=lambda member: (-states[member].accepted, -states[member].end, states[member].damage is not None, member)
    )


def readable_end(state: State) -> int:
    """Return the last position up to which all frames of the log can be read."""
    return state.end if state.damage is None else state.damage.first - 1


def choose(states: Mapping[int, State], rosters: Rosters, incarnations: Mapping[int, bytes]) -> Choice:
    """Choose the log to adopt among the answers of a majority.

    The length of a log includes its corrupt end. The adopted log ends before the first corrupt position at which provably no frame
    was decided. For each earlier corrupt position, the source must hold the only frame that can have been decided. If no member
    holds these frames, `source` is 0, and the candidate waits for further answers.
    """
    best = greatest(states)
    state = states[best]
    # The greatest log of a majority holds every decided frame, so the candidate can adopt an intact greatest log completely.
    if state.damage is None:
        return Choice(best, state.end, best)
    return _Judge(states, best, state.damage, rosters, incarnations).choice()


class _Judge:
    """Determines from the other members' answers which frames of the corrupt end may have been decided."""

    def __init__(
        self, states: Mapping[int, State], best: int, damage: Damage, rosters: Rosters, incarnations: Mapping[int, bytes]
    ) -> None:
        self._all = states
        self._states = {member: state for member, state in sorted(states.items()) if member != best}
        self._best, self._mine, self._damage = best, states[best], damage
        self._rosters, self._incarnations = rosters, incarnations
        self._diverged = {member for member, state in self._states.items() if self._differs(state)}

    def choice(self) -> Choice:
        """Return the choice for a greatest log with a corrupt end. The source is 0 if the answers do not suffice."""
        first, last = self._damage.first, self._damage.last
        truncate_from, proof = last + 1, None
        # No frame after an undecided position can be decided, so the first undecided position ends the search (flush, F20).
        for position in self._steps(first):
            proof = self._proof_undecided(position)
            if proof is not None:
                truncate_from = position
                break
        reach, source = first - 1, self._best
        proofs_held: list[Voters] = []
        # The source is the member whose log provably holds the right frames up to the highest position (flush, F21).
        for member in self._states:
            end, proofs = self._provable_reach(member)
            if end > reach:
                reach, source, proofs_held = end, member, proofs
        # If the source lacks a frame that is not proven undecided, the frame may be decided: more answers are needed (F22).
        if reach < truncate_from - 1:
            return Choice(self._best, self._mine.end, 0)
        return Choice(self._best, reach, source, (*((proof,) if proof is not None and reach < last else ()), *proofs_held))

    def _steps(self, first: int) -> list[int]:
        """Return the positions from `first` on at which the result may change. Between two of them, all answers give one result."""
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
        """True if the log of `state` differs from the readable part of the corrupt log."""
        mine = Extent(self._mine.base, self._mine.table, self._damage.first - 1)
        theirs = Extent(state.base, state.table, min(readable_end(state), mine.end))
        equal = common(mine, theirs, max(mine.base, theirs.base))
        return equal.known and equal.position < theirs.end

    def _view_of(self, member: int, position: int) -> int | None:
        """Return the view of a member's frame at a corrupt position.

        Return LACKS if the member's log lacks the frame, and None if this is unknown. A member whose own log is corrupt may have
        had frames after its vote mark, so such a log never counts as too short.
        """
        state = self._states[member]
        if member in self._diverged or (position > state.end and state.damage is None):
            return LACKS
        if position > readable_end(state):
            return None
        view = view_at(Extent(state.base, state.table, state.end), position) or None
        # The vote mark contains the view of the last corrupt frame, so a frame of another view at that position is different.
        return LACKS if view and position == self._damage.last and view != self._damage.view else view

    def _proof_undecided(self, position: int) -> Voters | None:
        """Return a set of voters that proves that no frame was decided at the position, None without a proof (flush, F20)."""
        lacking = [member for member in self._states if self._view_of(member, position) == LACKS]
        return self._blocking_voters(lacking, max(self._states[member].accepted for member in lacking)) if lacking else None

    def _blocking_voters(self, members: list[int], accepted: int) -> Voters | None:
        """Return the voters that cannot have voted for a frame, None unless every majority includes one of them.

        The voters in `members` lack the frame, and one of them has the accepted view `accepted`. The log of that voter holds all
        frames that were decided up to that view, so only a later view can have decided the missing frame. A voter that has accepted
        no later view did not vote for that frame either, so it is added to the set.
        """
        # The member with the corrupt log counts too, because its hard state shows its accepted view.
        older = [member for member, state in self._all.items() if state.accepted <= accepted]
        voters = {member: self._incarnations[member] for member in {*members, *older}}
        return voters if self._rosters.blocks(voters) else None

    def _provable_reach(self, member: int) -> tuple[int, list[Voters]]:
        """Return the last corrupt position up to which a member holds the right frames, with the proofs (protocol/flush, F21).

        The right frame at a position is the only frame that can have been decided there.
        """
        before = self._damage.first - 1
        reach = before
        proofs: list[Voters] = []
        # The member's log may differ from the corrupt log before the corrupt end. Then the last readable frame needs a proof too.
        steps = self._steps(before if before and not self._is_equal_at(member, before) else before + 1)
        for step, following in zip(steps, [*steps[1:], self._damage.last + 1], strict=True):
            proof = self._proof(member, step)
            if proof is None:
                return (step - 1, proofs) if step > before else (0, [])
            proofs += [voters for voters in proof if voters not in proofs]
            reach = following - 1
        return reach, proofs

    def _is_equal_at(self, member: int, position: int) -> bool:
        """True if the member's log certainly equals the corrupt log up to `position`, which is readable in both."""
        state, mine = self._states[member], self._mine
        view = view_at(Extent(state.base, state.table, readable_end(state)), position)
        return state.frontier >= position or 0 < view == view_at(Extent(mine.base, mine.table, position), position)

    def _proof(self, member: int, position: int) -> list[Voters] | None:
        """Return the proofs that no frame other than the member's can have been decided at the position, None without proofs.

        Each proof is a set of voters, and shows that one other frame was not decided at the position. The list is empty if the
        member's frame needs no proof.
        """
        state = self._states[member]
        if state.frontier >= position:
            return []
        view = self._view_of(member, position)
        # The vote mark contains the view of the last corrupt frame, so a frame of that view at that position is the right one.
        if not view or position == self._damage.last:
            return [] if view else None
        views = {other: self._view_of(other, position) for other in self._states}
        proof = []
        for another in {UNSEEN, *(other_view for other_view in views.values() if other_view)} - {view}:
            # A member whose frame at the position is unknown proves nothing, because it may hold the other frame.
            against = [other for other, other_view in views.items() if other_view is not None and other_view != another]
            voters = self._blocking_voters(against, state.accepted)
            if voters is None:
                return None
            proof.append(voters)
        return proof
