"""The coordinator's count of votes in one view: two-phase commit of many positions at once."""

from __future__ import annotations

from tutti_gateway.core import limits


class Ballot:
    """Votes of the members of a view.

    Attributes:
        votes: the highest position of each member's YES, by gateway number.
        low: reason why a member's disk accepts no new batches, by gateway number. A report expires after a few heartbeats unless
            the member repeats it, so a late message has no lasting effect.
        full: number of consecutive heartbeats for which a member's disk has been low, by gateway number.
    """

    __slots__ = ("_at_beat", "_low_beats", "_missed", "full", "low", "votes")

    def __init__(self, members: tuple[int, ...], frontier: int) -> None:
        # Every member of the view has all decided frames, so the frontier counts as its first YES.
        self.votes = dict.fromkeys(members, frontier)
        self.low: dict[int, str] = {}
        self._low_beats: dict[int, int] = {}
        self.full: dict[int, int] = {}
        self._at_beat = dict(self.votes)
        self._missed = dict.fromkeys(members, 0)

    def yes(self, member: int, up_to: int) -> None:
        """Count a YES, which covers all positions up to `up_to`. An older vote changes nothing."""
        if up_to > self.votes[member]:
            self.votes[member] = up_to

    def report_space(self, member: int, low: str) -> None:
        """Store the reason why a member's disk is low; an empty reason means that it has free space."""
        if low:
            self.low[member] = low
            self._low_beats[member] = limits.LOW_HEARTBEATS
        else:
            self.low.pop(member, None)

    @property
    def all_yes(self) -> int:
        """Position up to which every member has voted YES."""
        return min(self.votes.values())

    def beat(self, end: int, period: int) -> list[int]:
        """Count one heartbeat. Return the members whose votes made no progress for `period` heartbeats although frames waited.

        The period is counted in the coordinator's own heartbeats, so a coordinator whose process was paused suspects no member.
        """
        for member in list(self.low):
            self._low_beats[member] -= 1
            if not self._low_beats[member]:
                del self.low[member]
        self.full = {member: self.full.get(member, 0) + 1 for member in self.low}
        late = []
        for member, vote in self.votes.items():
            before = self._at_beat[member]
            # While no frame waits for the member's vote, its silence does not count.
            self._missed[member] = self._missed[member] + 1 if vote == before < end else 0
            if self._missed[member] >= period:
                # Starting again from 0 limits the reports to one for each period.
                self._missed[member] = 0
                late.append(member)
            self._at_beat[member] = vote
        return late
