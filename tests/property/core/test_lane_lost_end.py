"""Properties of a lane with a lost end: its origin recovers every decided frame, whatever other gateways die, disconnect or are
wiped, and reuses none of its positions.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.core.test_lanes import Run
from tutti_gateway.core import limits


class LosingRun(Run):
    """Members that are named by the log, in attempts from the start on; now and then an end is lost, and time passes for all."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.wipes = self.random.choice([0, 0, 1])
        self.losses = self.random.choice([0.02, 0.05])
        self.lost = 0
        self.group.vote()
        self.group.settle(limits.LANE_WAIT_HEARTBEATS)

    def move(self) -> None:
        random, group = self.random, self.group
        number, chance = random.choice(self.numbers), random.random()
        if chance < self.losses:
            if group[number].layer is not None:
                self.lost += group.lose_end(number)
                if random.random() < 0.7:
                    group.start(number)
        elif chance < self.losses + 0.03:
            group.settle(random.choice([1, 3, limits.LANE_WAIT_HEARTBEATS]))
        elif chance < self.losses + 0.03 + self.wipes / 100:
            if group[number].layer is not None:
                self.wipe(number)
        else:
            super().move()
        self.clients.read()

    def wipe(self, number: int) -> None:
        """Wipe a disk, except one that may have the last copy of what another one lost."""
        if not self.group.healing:
            super().wipe(number)
            self.group.vote()


def run(seed: int, moves: int = 400) -> LosingRun:
    example = LosingRun(seed)
    for _ in range(moves):
        example.move()
    example.calm()
    example.heal()
    example.check()
    return example


@settings(max_examples=40)
@given(st.integers(0, 1 << 32))
def test_a_lost_lane_end_is_restored_and_never_replaced(seed: int) -> None:
    assert run(seed).group.healing == set()
