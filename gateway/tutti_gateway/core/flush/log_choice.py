"""Choice of the log that a candidate adopts: the greatest of a majority's answers.

If the greatest log has a corrupt end, each corrupt position is examined with the help of the other answers. The module has no I/O
and no state (protocol/flush, F6 and F20 to F24).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tutti_gateway.core.flush.log_compare import Extent, common, view_at
from tutti_gateway.core.protocol.messages import Damage, State
from tutti_gateway.core.view.quorum import Rosters

LACKS = 0  # stands for a view: the log has no frame at the position, or a different one
UNSEEN = -1  # stands for the view of a frame that none of the members that answered holds
Voters = Mapping[int, bytes]  # number -> incarnation


class Choice(NamedTuple):
    """The log to adopt: the member with the greatest log, the end of the adopted part, and the source of the frames.

    Source 0 means that the candidate must wait for more answers. Each set in `blocking` contains voters that did not vote for a
    certain frame. Every majority includes one of them, so that frame was not decided. The candidate checks each set again with the
    rosters of the adopted log.
    """

    best: int
    end: int
    source: int
    blocking: tuple[Voters, ...] = ()


def greatest(states: Mapping[int, State]) -> int:
    """Return the member whose log has the greatest (accepted view, end).

    Of several such members, prefer one with an intact log, then the lowest gateway number.
    """
    return min(
        states, key=lambda member: (-states[member].accepted, -states[member].end, states[member].damage is not None, member)
    )


def readable_end(state: State) -> int:
    """Return the last position of the log that can be read."""
    return state.end if state.damage is None else state.damage.first - 1


def choose(states: Mapping[int, State], rosters: Rosters, incarnations: Mapping[int, bytes]) -> Choice:
    """Choose the log to adopt among the answers of a majority.

    A corrupt end counts as present when logs are compared. The adopted log ends before the first corrupt position at which provably
    no frame was decided. For each earlier corrupt position, the source must hold the only frame that can have been decided. If no
    member holds these frames, the choice has source 0, and the candidate waits for further answers.
    """
    best = greatest(states)
    state = states[best]
    # The greatest log of a majority holds every decided frame, so an intact one can be adopted as it is.
    if state.damage is None:
        return Choice(best, state.end, best)
    return _Judge(states, best, state.damage, rosters, incarnations).choice()


class _Judge:
    """Finds out which frames of the corrupt end may have been decided, from the other members' answers."""

    def __init__(
        self, states: Mapping[int, State], best: int, damage: Damage, rosters: Rosters, incarnations: Mapping[int, bytes]
    ) -> None:
        self._all = states
        self._states = {member: state for member, state in sorted(states.items()) if member != best}
        self._best, self._mine, self._damage = best, states[best], damage
        self._rosters, self._incarnations = rosters, incarnations
        self._diverged = {member for member, state in self._states.items() if self._differs(state)}

    def choice(self) -> Choice:
        """Return the choice for a greatest log with a corrupt end; its source is 0 if the answers do not suffice."""
        first, last = self._damage.first, self._damage.last
        truncate_from, proof = last + 1, None
        # Frames after an undecided position cannot have been decided either, so the first such position ends the search (flush,
        # F20).
        for position in self._steps(first):
            proof = self._proof_undecided(position)
            if proof is not None:
                truncate_from = position
                break
        reach, source = first - 1, self._best
        proofs_held: list[Voters] = []
        # Of the members that provably hold the right frames, the one that holds the longest part is the source (flush, F21).
        for member in self._states:
            end, proofs = self._provable_reach(member)
            if end > reach:
                reach, source, proofs_held = end, member, proofs
        # A position that is neither proven undecided nor held by the source may be decided, so more answers are needed (flush,
        # F22).
        if reach < truncate_from - 1:
            return Choice(self._best, self._mine.end, 0)
        return Choice(self._best, reach, source, (*((proof,) if proof is not None and reach < last else ()), *proofs_held))

    def _steps(self, first: int) -> list[int]:
        """Return the positions from `first` at which an answer may give a new result; between them, all answers stay equal."""
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
        """Return the view of a member's frame at a corrupt position: LACKS if its log lacks the frame, None if unknown.

        A member whose own log is corrupt may have had frames after its vote mark, so its log never counts as too short.
        """
        state = self._states[member]
        if member in self._diverged or (position > state.end and state.damage is None):
            return LACKS
        if position > readable_end(state):
            return None
        view = view_at(Extent(state.base, state.table, state.end), position) or None
        # The vote mark names the view of the last corrupt frame, so a frame of another view there is a different frame.
        return LACKS if view and position == self._damage.last and view != self._damage.view else view

    def _proof_undecided(self, position: int) -> Voters | None:
        """Return voters that prove that no frame was decided at the position; None without a proof (protocol/flush, F20)."""
        lacking = [member for member in self._states if self._view_of(member, position) == LACKS]
        return self._blocking_voters(lacking, max(self._states[member].accepted for member in lacking)) if lacking else None

    def _blocking_voters(self, members: list[int], accepted: int) -> Voters | None:
        """Return the voters that cannot have voted for a frame, if every majority includes one of them; else None.

        The voters in `members` lack the frame, and one of them has the accepted view `accepted`. The log of that voter holds all
        frames that were decided up to that view, so only a later view can have decided the missing frame. A voter that has accepted
        no later view did not vote for that frame either, so it is added to the set.
        """
        # The corrupt member itself counts too, because its accepted view is known from the hard state.
        older = [member for member, state in self._all.items() if state.accepted <= accepted]
        voters = {member: self._incarnations[member] for member in {*members, *older}}
        return voters if self._rosters.blocks(voters) else None

    def _provable_reach(self, member: int) -> tuple[int, list[Voters]]:
        """Return the last corrupt position up to which the member holds the only frames that can have been decided, with the
        proofs.

        This is rule F21 of protocol/flush.
        """
        before = self._damage.first - 1
        reach = before
        proofs: list[Voters] = []
        # If the member's log may differ at the last readable position, the frame at that position needs a proof too.
        steps = self._steps(before if before and not self._is_equal_at(member, before) else before + 1)
        for step, following in zip(steps, [*steps[1:], self._damage.last + 1], strict=True):
            proof = self._proof(member, step)
            if proof is None:
                return (step - 1, proofs) if step > before else (0, [])
            proofs += [voters for voters in proof if voters not in proofs]
            reach = following - 1
        return reach, proofs

    def _is_equal_at(self, member: int, position: int) -> bool:
        """True if the member's log certainly equals the corrupt log up to the readable position."""
        state, mine = self._states[member], self._mine
        view = view_at(Extent(state.base, state.table, readable_end(state)), position)
        return state.frontier >= position or 0 < view == view_at(Extent(mine.base, mine.table, position), position)

    def _proof(self, member: int, position: int) -> list[Voters] | None:
        """Return the proofs that only the member's frame can have been decided at the position; None without a proof.

        Each proof is a set of voters that excludes one other frame at the position. The list is empty if the member knows that its
        frame is decided.
        """
        state = self._states[member]
        if state.frontier >= position:
            return []
        view = self._view_of(member, position)
        # The vote mark names the view of the last corrupt frame, so a frame of that view there is certainly the right one.
        if not view or position == self._damage.last:
            return [] if view else None
        views = {other: self._view_of(other, position) for other in self._states}
        proof = []
        for another in {UNSEEN, *(other_view for other_view in views.values() if other_view)} - {view}:
            # A member with an unknown frame proves nothing, because it may hold the other frame.
            against = [other for other, other_view in views.items() if other_view is not None and other_view != another]
            voters = self._blocking_voters(against, state.accepted)
            if voters is None:
                return None
            proof.append(voters)
        return proof
