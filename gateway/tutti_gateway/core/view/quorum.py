"""Majorities: the sets of gateways that may decide on a view (protocol/membership, M21).

Several ROSTER frames of a log may count: the last decided ROSTER and all later ones. A set of gateways is a majority if it contains
a majority of each roster that counts. A gateway counts by its number *and the incarnation of its disk*, so a wiped disk has no
vote. After a forced ROSTER no earlier ROSTER counts, because the voters that the forced one excludes are lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tutti.data.frames.bodies import RosterBody, Voter, decode_body
from tutti.data.frames.frame import Frame
from tutti.data.log_state import LogState


class Rosters:
    """The rosters that count for one log.

    Attributes:
        named: gateways of the last roster, by number, including learners without a vote.
        known: gateways of all rosters that count, by number. A removed gateway is included until its removal is decided.
        blank: True if the log is empty and therefore has no roster.
    """

    __slots__ = ("_all", "blank", "known", "named")

    def __init__(self, rosters: Iterable[Mapping[int, Voter]]) -> None:
        named: Mapping[int, Voter] = {}
        self.known: dict[int, Voter] = {}
        counts = []
        for roster in rosters:
            named = roster
            self.known.update(roster)
            counts.append({number: voter.incarnation for number, voter in roster.items() if voter.voting})
        # An empty log has one roster without voters, which is left out because no set can be a majority of it.
        self._all = [count for count in counts if count]
        self.named = named
        self.blank = not self._all

    def majority(self, gateways: Mapping[int, bytes]) -> bool:
        """True if the gateways (number -> incarnation) are a majority of every roster that counts; False for an empty log."""
        # A wiped disk has a new incarnation, which differs from that in the roster, so the gateway does not count.
        return bool(self._all) and all(
            2 * sum(gateways.get(number) == incarnation for number, incarnation in roster.items()) > len(roster)
            for roster in self._all
        )

    def blocks(self, gateways: Mapping[int, bytes]) -> bool:
        """True if every possible majority of each roster that counts includes at least one of the gateways."""
        return bool(self._all) and all(
            2 * sum(gateways.get(number) != incarnation for number, incarnation in roster.items()) <= len(roster)
            for roster in self._all
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of voters in each roster that counts."""
        return tuple(map(len, self._all))

    def votes(self, number: int, incarnation: bytes) -> bool:
        """True if the gateway, with this disk, is a voter in any of the rosters that count."""
        return any(roster.get(number) == incarnation for roster in self._all)

    def voter(self, number: int, incarnation: bytes) -> bool:
        """True if the gateway, with this disk, is a voter in the last roster."""
        return bool(self._all) and self._all[-1].get(number) == incarnation

    def member(self, number: int, incarnation: bytes) -> bool:
        """True if the gateway, with this disk, may be a member of a view.

        A voter of any roster may be a member until its removal is decided. A learner may be a member too, because otherwise a group
        of one could never grow to two.
        """
        voter = self.named.get(number)
        return self.votes(number, incarnation) or (voter is not None and not voter.voting)


def rosters_of(state: LogState, undecided: Iterable[Frame]) -> Rosters:
    """Return the rosters that count for a log with the decided `state` and these undecided ROSTER frames."""
    counting = [state.roster]
    for frame in undecided:
        body = decode_body(RosterBody, frame.body)
        roster = {voter.number: voter for voter in body.voters}
        # An operator forces a ROSTER when an earlier roster has lost its majority, so no earlier roster counts (membership, M25).
        counting = [roster] if body.forced else [*counting, roster]
    return Rosters(counting)
