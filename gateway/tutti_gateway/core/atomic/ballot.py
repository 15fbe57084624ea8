"""The coordinator's count of votes in one view. One vote covers many positions."""

from __future__ import annotations

from tutti_gateway.core import limits


class Ballot:
    """Votes of the members of a view.

    Attributes:
        votes: the highest position for which each member has voted YES, by gateway number.
        low: for each member with a low disk, the reason why the disk accepts no new batches, by gateway number. An entry expires
            after a few heartbeats unless the member repeats its report, so a late message has no lasting effect.
        full: for each member with a low disk, the number of consecutive heartbeats for which it has been low, by gateway number.
    """

    __slots__ = ("_at_beat", "_low_beats", "_missed", "full", "low", "votes")

    def __init__(self, members: tuple[int, ...], frontier: int) -> None:
        # Every member of the view holds all decided frames, so it starts with a YES to all positions up to the frontier.
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
        """Store the reason why a member's disk is low; an empty reason means that the disk has free space."""
        if low:
            self.low[member] = low
            self._low_beats[member] = limits.LOW_HEARTBEATS
        else:
            self.low.pop(member, None)

    @property
    def all_yes(self) -> int:
        """Last position up to which every member has voted YES."""
        return min(self.votes.values())

    def beat(self, end: int, period: int) -> list[int]:
        """Count one heartbeat. Return the members whose votes made no progress for `period` heartbeats although frames waited.

        Only the coordinator's own heartbeats count, so after a pause of its process the coordinator suspects no member.
        """
        for member in list(self.low):
            self._low_beats[member] -= 1
            if not self._low_beats[member]:
                del self.low[member]
        self.full = {member: self.full.get(member, 0) + 1 for member in self.low}
        late = []
        for member, vote in self.votes.items():
            before = self._at_beat[member]
            # If no frame waits for the member's vote, the member's silence does not count.
            self._missed[member] = self._missed[member] + 1 if vote == before < end else 0
            if self._missed[member] >= period:
                # The count starts again from 0, so that a member is reported at most one time in each period.
                self._missed[member] = 0
                late.append(member)
            self._at_beat[member] = vote
        return late
