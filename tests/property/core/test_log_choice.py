"""Properties of log choice over random histories of views and corruption: it never drops a decided frame, and an intact majority
never waits.
"""

from __future__ import annotations

import random

import pytest

from tutti.data.frames.bodies import Voter
from tutti_gateway.core.flush.log_choice import choose, greatest, readable_end
from tutti_gateway.core.protocol.messages import Damage, State
from tutti_gateway.core.view.quorum import Rosters

Log = tuple[int, ...]  # the view of each position from 1 on; with what is before it a view names one frame
HISTORIES = 3000


class Model:
    """The logs of a group: logs are adopted completely, ends are lost to views, and frames that all members have are decided."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.voters = list(range(1, self.chance.choice((3, 4, 5)) + 1))
        self.logs: dict[int, Log] = dict.fromkeys(self.voters, ())
        self.accepted = dict.fromkeys(self.voters, 0)
        self.frontiers = dict.fromkeys(self.voters, 0)
        self.decided: Log = ()

    def some(self, least: int) -> list[int]:
        return self.chance.sample(self.voters, self.chance.randint(least, len(self.voters)))

    def view(self, number: int) -> None:
        """Run one view change, which may stop anywhere, and order frames in the view."""
        chance = self.chance
        members = self.some(len(self.voters) // 2 + 1)
        best = max(members, key=lambda member: (self.accepted[member], len(self.logs[member]), -member))
        log = self.logs[best]
        for member in members if chance.random() < 0.6 else members[: chance.randrange(len(members))]:
            assert log[: self.frontiers[member]] == self.decided[: self.frontiers[member]]
            self.logs[member], self.accepted[member] = log, number
        if any(self.accepted[member] != number for member in members):
            return
        ordered = chance.randint(0, 4)
        for member in members:
            self.logs[member] = log + (number,) * chance.randint(0, ordered)
        end = min(len(self.logs[member]) for member in members)
        if end > len(log):  # the VIEW frame is decided
            self.decided = log + (number,) * (end - len(log))
            for member in members:
                self.frontiers[member] = chance.randint(self.frontiers[member], end)
            self.learn(number)

    def learn(self, number: int) -> None:
        """Let a member in no view copy decided frames, which accepts no view."""
        for member in self.voters:
            if self.accepted[member] < number and self.chance.random() < 0.4:
                end = self.chance.randint(self.frontiers[member], len(self.decided))
                if self.logs[member][:end] != self.decided[:end]:
                    self.logs[member] = self.decided[:end]
                self.frontiers[member] = self.chance.randint(self.frontiers[member], end)

    def state(self, member: int, damaged: bool) -> State:
        """Return the state that the member reports of its log."""
        chance, log, frontier = self.chance, self.logs[member], self.frontiers[member]
        base = chance.randint(0, frontier)
        damage, whole = None, len(log)
        if damaged and len(log) > frontier:
            mark = chance.randint(max(frontier + 1, min(len(self.decided), len(log))), len(log))
            first = chance.randint(frontier + 1, mark)
            damage, whole = Damage(first, mark, log[mark - 1], 0), first - 1
        table = tuple((log[at], at + 1) for at in range(base, whole) if at == base or log[at] != log[at - 1])
        end = damage.last if damage else len(log)
        return State(
            view=99, accepted=self.accepted[member], end=end, chain=0, frontier=frontier, base=base, table=table, damage=damage
        )


@pytest.mark.parametrize("part", range(4))
def test_a_choice_has_all_decided_frames_and_a_complete_majority_never_waits(part: int) -> None:
    partly = waited = 0
    for seed in range(part * HISTORIES, (part + 1) * HISTORIES):
        model = Model(seed)
        for number in range(1, model.chance.randint(2, 7)):
            model.view(number)
        answers = model.some(len(model.voters) // 2 + 1)
        states = {member: model.state(member, model.chance.random() < 0.4) for member in answers}
        roster = {member: Voter(member, f"g{member}", bytes([member]), "") for member in model.voters}
        choice = choose(states, Rosters([roster]), {member: bytes([member]) for member in answers})
        whole = [member for member in answers if states[member].damage is None]
        if not choice.source:
            waited += 1
            assert 2 * len(whole) <= len(model.voters), f"seed {seed}: {whole} are a majority, and the choice waits"
            continue
        assert choice.best == greatest(states)
        assert choice.end <= readable_end(states[choice.source]), f"seed {seed}: the source cannot give what is wanted of it"
        adopted = model.logs[choice.source][: choice.end]
        assert adopted[: len(model.decided)] == model.decided, f"seed {seed}: {model.decided} was decided, {adopted} is adopted"
        damage = states[choice.best].damage
        partly += damage is not None and damage.first <= choice.end < damage.last
    assert partly > 20, "damage was never cut in its middle: the histories prove nothing"
    assert waited > 20
