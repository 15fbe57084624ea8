"""The coordinator's count of votes in one view: two-phase commit of many positions at once."""

from __future__ import annotations

from tutti_gateway.core import limits


class Ballot:
    """Votes of the members of a view.

    Attributes:
        votes: the highest position of each member's YES, by gateway number.
        low: why a member's disk accepts no new batches, by gateway number. A report expires after some heartbeats, and each
            heartbeat repeats it. So a lost or late message has no lasting effect.
        full: heartbeats for which a member has been low without a break.
    """

    __slots__ = ("_at_beat", "_low_beats", "_missed", "full", "low", "votes")

    def __init__(self, members: tuple[int, ...], frontier: int) -> None:
        # Every member has accepted a log that holds all decided frames, so each vote starts at the frontier.
        self.votes = dict.fromkeys(members, frontier)
        self.low: dict[int, str] = {}
        self._low_beats: dict[int, int] = {}
        self.full: dict[int, int] = {}
        self._at_beat = dict(self.votes)
        self._missed = dict.fromkeys(members, 0)

    def yes(self, member: int, up_to: int) -> None:
        """Count a YES. Votes are cumulative, so an older one changes nothing."""
        if up_to > self.votes[member]:
            self.votes[member] = up_to

    def report_space(self, member: int, low: str) -> None:
        """Note whether the member's disk accepts new messages."""
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

        The period is counted in this member's own heartbeats, so a coordinator that was paused reports no member.
        """
        for member in list(self.low):
            self._low_beats[member] -= 1
            if not self._low_beats[member]:
                del self.low[member]
        self.full = {member: self.full.get(member, 0) + 1 for member in self.low}
        late = []
        for member, vote in self.votes.items():
            before = self._at_beat[member]
            # A member that owes no vote is not late, even if nothing is ordered for a long time.
            self._missed[member] = self._missed[member] + 1 if vote == before < end else 0
            if self._missed[member] >= period:
                # Another full period must pass before the member is reported again.
                self._missed[member] = 0
                late.append(member)
            self._at_beat[member] = vote
        return late
