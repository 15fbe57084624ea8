"""Majorities: which sets of gateways may decide who decides (design, section 5, roster change).

A log may hold several ROSTER frames that count: the last decided one and every later one, decided or not. A set of gateways counts
when it holds a majority of each, by number *and incarnation*: a wiped disk is nobody's voter. One that was made by force ends what
counted before it: those who were counted there are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tutti.data.frames.bodies import RosterBody, Voter, decode_body
from tutti.data.frames.frame import Frame
from tutti.data.log_state import LogState


class Rosters:
    """The rosters that count for one log.

    Attributes:
        named: everybody that the last of them names, by number; learners that do not vote yet too.
        known: everybody that any of them names: who was removed still answers while that is not decided.
        blank: whether the log does not name anybody yet (it has not begun).
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
        self._all = [count for count in counts if count]
        self.named = named
        self.blank = not self._all

    def majority(self, gateways: Mapping[int, bytes]) -> bool:
        """Whether the gateways (number -> incarnation) hold a majority of every roster that counts. Never of a blank log."""
        return bool(self._all) and all(
            2 * sum(gateways.get(number) == incarnation for number, incarnation in roster.items()) > len(roster)
            for roster in self._all
        )

    def blocks(self, gateways: Mapping[int, bytes]) -> bool:
        """Whether no majority of any roster that counts is without one of the gateways."""
        return bool(self._all) and all(
            2 * sum(gateways.get(number) != incarnation for number, incarnation in roster.items()) <= len(roster)
            for roster in self._all
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many voters each roster that counts has."""
        return tuple(map(len, self._all))

    def votes(self, number: int, incarnation: bytes) -> bool:
        """Whether any of the rosters counts this gateway with this disk."""
        return any(roster.get(number) == incarnation for roster in self._all)

    def voter(self, number: int, incarnation: bytes) -> bool:
        """Whether the last roster counts this gateway with this disk."""
        return bool(self._all) and self._all[-1].get(number) == incarnation

    def member(self, number: int, incarnation: bytes) -> bool:
        """Whether the gateway may be a member of a view: whoever any of the rosters counts, until it is decided that it is removed;
        and one that is to vote, which has to be in the view before its vote counts, or a group of one could never become two.
        """
        voter = self.named.get(number)
        return self.votes(number, incarnation) or (voter is not None and not voter.voting)


def rosters_of(state: LogState, undecided: Iterable[Frame]) -> Rosters:
    """The rosters that count for the log that `state` and the undecided ROSTER frames behind it make."""
    counting = [state.roster]
    for frame in undecided:
        body = decode_body(RosterBody, frame.body)
        roster = {voter.number: voter for voter in body.voters}
        counting = [roster] if body.forced else [*counting, roster]
    return Rosters(counting)
