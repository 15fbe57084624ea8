"""Proves that a recorded run holds all that a stack looks at: through every kind of fault, a fresh stack takes the events that were
written down and answers each as the first one did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.sim import gateways
from tests.sim.options import FAULTS, Options
from tests.sim.run import play
from tests.sim.swarm import draw
from tests.support.cases import first_fast
from tutti_gateway.core.protocol.actions import Action
from tutti_gateway.core.protocol.codec import decode_lean_event, encode_lean_actions, encode_lean_event
from tutti_gateway.core.protocol.events import Event, Now, StackConfig
from tutti_gateway.core.random_source import RandomSource
from tutti_gateway.core.stack import Stack

RUNS = [
    Options(3, members=3, seconds=60, faults=frozenset(FAULTS), pace=10.0, unordered=1),
    Options(4, members=5, seconds=60, faults=frozenset(FAULTS) - {"rot", "wipe"}, pace=5.0, latency="wan"),
    *(replace(draw(seed), seconds=30) for seed in (11, 12, 13)),
]


class Recorded(Stack):
    """Writes down what it is told and what it answers, as a recorder does."""

    runs: list[Recorded]

    def __init__(self, chance: Callable[[bytes], RandomSource], config: StackConfig) -> None:
        super().__init__(chance, config)
        self.config = config
        self.steps: list[tuple[Now, bytes, bytes]] = []
        self.runs.append(self)

    def step(self, event: Event, now: Now) -> list[Action]:
        told = encode_lean_event(event)
        actions = super().step(event, now)
        self.steps.append((now, told, encode_lean_actions(actions)))
        return actions


@pytest.mark.parametrize("options", first_fast(RUNS, 1), ids=lambda options: f"seed{options.seed}-{options.members}")
def test_a_recorded_run_replays_to_equal_actions(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "Stack", Recorded)
    monkeypatch.setattr(Recorded, "runs", [], raising=False)
    result = play(options)
    assert result.violation == ""
    assert len(Recorded.runs) >= options.members
    for process in Recorded.runs:
        again = Stack(Random, process.config)
        for number, (now, told, answered) in enumerate(process.steps, 1):
            event = decode_lean_event(told)
            assert encode_lean_actions(again.step(event, now)) == answered, f"event {number}: {event!r:.500}"
