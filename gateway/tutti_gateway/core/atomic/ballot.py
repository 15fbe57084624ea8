"""The coordinator's count of votes in one view (two-phase commit of many positions at once)."""

from __future__ import annotations

from tutti_gateway.core import limits


class Ballot:
    """How far every member of the view has voted YES.

    Attributes:
        votes: the highest position of each member's YES, by gateway number.
        low: why a member's disk takes nothing new, by gateway number. It holds for some heartbeats and is said again in each,
            so that neither a lost nor a late message leaves it wrong.
        full: heartbeats for which a member has been low without a break.
    """

    __slots__ = ("_at_beat", "_low_beats", "_missed", "full", "low", "votes")

    def __init__(self, members: tuple[int, ...], frontier: int) -> None:
        self.votes = dict.fromkeys(members, frontier)
        self.low: dict[int, str] = {}
        self._low_beats: dict[int, int] = {}
        self.full: dict[int, int] = {}
        self._at_beat = dict(self.votes)
        self._missed = dict.fromkeys(members, 0)

    def yes(self, member: int, up_to: int) -> None:
        """Count a YES. Votes are cumulative: one that was overtaken changes nothing."""
        if up_to > self.votes[member]:
            self.votes[member] = up_to

    def space(self, member: int, low: str) -> None:
        """Note whether the member's disk takes new messages."""
        if low:
            self.low[member] = low
            self._low_beats[member] = limits.LOW_HEARTBEATS
        else:
            self.low.pop(member, None)

    @property
    def all_yes(self) -> int:
        """The position up to which every member voted YES."""
        return min(self.votes.values())

    def beat(self, end: int, period: int) -> list[int]:
        """One heartbeat passed. Returns the members whose votes stood still for `period` of them though something waited.

        The period is counted in heartbeats (heartbeat time), so that a coordinator that did not run accuses nobody.
        """
        for member in list(self.low):
            self._low_beats[member] -= 1
            if not self._low_beats[member]:
                del self.low[member]
        self.full = {member: self.full.get(member, 0) + 1 for member in self.low}
        late = []
        for member, vote in self.votes.items():
            before = self._at_beat[member]
            self._missed[member] = self._missed[member] + 1 if vote == before < end else 0
            if self._missed[member] >= period:
                self._missed[member] = 0
                late.append(member)
            self._at_beat[member] = vote
        return late
