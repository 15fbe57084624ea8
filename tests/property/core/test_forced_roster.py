"""Properties of forced rosters with random survivors and crashes, where the operator repeats the request until it succeeds: no
decided frame of a survivor is lost, and an excluded gateway stops when it returns.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.transcripts.whole_script import WholeScript
from tutti.data.client_protocol import Denied, Done
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import RosterForced

TRIES_MAX = 40


class Forced:
    """One group that loses its majority, and an operator."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.script = WholeScript()
        self.world = self.script.world
        count = self.chance.choice((3, 4, 5, 5))
        self.names = [f"g{number}" for number in range(1, count + 1)]
        self.kept = sorted(self.chance.sample(self.names, self.chance.randint(1, count // 2)))
        self.gone = [name for name in self.names if name not in self.kept]
        self.asked = 0

    def run(self, *lines: str) -> None:
        """Lines of a transcript; none of them may show anything wrong."""
        text = self.script.run("quiet\n" + "\n".join(lines) + "\n----\n")
        wrong = [line for line in text.split("----\n", 1)[1].splitlines() if line.startswith(("WRONG", "PROBLEM"))]
        assert not wrong, wrong

    def begin(self) -> None:
        """Decide records with all members, then perhaps with a part that excludes some survivors; then stop a majority."""
        chance = self.chance
        self.run(f"gateways {' '.join(self.names)}", f"until primary {' '.join(self.names)}")
        through = chance.choice(self.names)
        self.run(f"client {through} s1 ewr", f"submit {through} s1 p1/1 1+10", f"until committed p1/1 1+10 {' '.join(self.names)}")
        if chance.random() < 0.6:
            apart = chance.sample(self.names, (len(self.names) - 1) // 2)
            rest = [name for name in self.names if name not in apart]
            self.run(f"split {','.join(apart)} {','.join(rest)}", f"until primary {' '.join(rest)}", f"client {rest[0]} s2 jfk")
            self.run(f"submit {rest[0]} s2 p2/1 1+10", f"until committed p2/1 1+10 {' '.join(rest)}")
        self.run(*(f"{chance.choice(('kill', 'power'))} {name}" for name in chance.sample(self.gone, len(self.gone))))
        self.run("heal", f"beats {limits.FORCE_HEARTBEATS + 40}")

    def disturb(self) -> None:
        """Crash a survivor, or suspend its disk for a moment."""
        chance, name = self.chance, self.chance.choice(self.kept)
        kind = chance.choice(("kill", "power", "slow", "nothing"))
        self.world.run(self.world.mono_us + chance.randrange(8_000))
        if kind == "slow":
            self.run(f"slow {name}")
            self.world.run(self.world.mono_us + chance.randrange(400_000))
            self.run(f"fast {name}")
        elif kind != "nothing":
            self.run(f"{kind} {name}")
            self.world.run(self.world.mono_us + chance.randrange(1_000_000))
            self.run(f"start {name}")

    def ask(self) -> bool:
        """Ask one of them; whether it said that it is done."""
        gateway = self.world.members[self.chance.choice(self.kept)]
        self.asked += 1
        before = len(gateway.replies)
        self.world.step(gateway, RosterForced(9, self.asked, tuple(self.kept)))
        if self.chance.random() < 0.5 and self.asked < TRIES_MAX // 2:
            self.disturb()
        self.run("beats 12")
        told = [answer for session, answer in gateway.replies[before:] if session == 9]
        assert all(
            isinstance(answer, Done) or (isinstance(answer, Denied) and answer.code in ("roster", "busy")) for answer in told
        )
        return any(isinstance(answer, Done) for answer in told)


@pytest.mark.parametrize("seed", range(40))
def test_the_operator_retries_until_done_and_no_remaining_record_is_lost(seed: int) -> None:
    group = Forced(seed)
    group.begin()
    shown = max(group.world.members[name].shown for name in group.kept)
    before = [place.frame.header for place in group.world.watch.log[:shown]]
    for _ in range(TRIES_MAX):
        if group.ask():
            break
    else:
        pytest.fail("it was never done")
    kept = " ".join(group.kept)
    group.run(f"until primary {kept}", f"client {group.kept[0]} s5 lga", f"client {group.kept[0]} s6 bos", f"until same-log {kept}")
    assert [place.frame.header for place in group.world.watch.log[:shown]] == before, "what a survivor had shown is gone"
    for name in group.chance.sample(group.gone, len(group.gone)):
        group.run(f"start {name}")
    for name in group.gone:
        group.run(f"until halted {name}")
    group.run("beats 10", f"check primary {kept}", f"until same-log {kept}")
    assert group.script.finish() == []
