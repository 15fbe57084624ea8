"""Tests that every lost frame arrives, and that no loss causes a storm of requests or repairs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.storm import Storm, common, independent
from tutti_gateway.core.protocol.messages import Heartbeat, Message, Repair


@pytest.mark.parametrize("body_bytes", [100, 8192])
@pytest.mark.parametrize(("members", "loss"), [(3, 0.1), (7, 0.1), (7, 0.3), (25, 0.01), (25, 0.1)])
def test_a_loss_costs_a_request_and_a_repair_or_little_more(members: int, loss: float, body_bytes: int) -> None:
    figures = independent(members, loss, 100, 7, body_bytes)
    assert figures.lost > 20
    assert (figures.missing, figures.refused) == (0, 0)
    assert figures.requests <= figures.lost, "a request carries all that a member misses"
    assert figures.messages <= 3 * (members - 1) * figures.lost
    if body_bytes > 4096:
        assert figures.repaired <= 2 * figures.lost, "a large body goes to who misses it"
    assert max(figures.recovered_us) < 200 * figures.distance_us


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("members", "body_bytes"), [(25, 100), (25, 8192), (100, 100)])
def test_frames_that_all_miss_are_requested_by_a_few_and_repaired_once(members: int, body_bytes: int, last: bool) -> None:
    figures = common(members, members - 1, 3, body_bytes, last=last)
    assert figures.lost >= members - 1
    assert figures.missing == 0
    assert figures.requests <= 10
    assert figures.repaired == figures.lost
    assert figures.claims <= 2
    assert figures.messages <= 14 * figures.lost


class Pattern:
    """Loses what an example says, one choice a message, until it has said everything; heartbeats and repairs too."""

    def __init__(self, choices: list[bool]) -> None:
        self.choices = choices
        self.at = 0

    def __call__(self, sender: int, to: int, message: Message) -> bool:
        self.at += 1
        return self.at <= len(self.choices) and self.choices[self.at - 1]


@settings(max_examples=60)
@given(st.integers(2, 5), st.lists(st.booleans(), max_size=300), st.integers(0, 9), st.sampled_from([0, 8192]))
def test_after_any_losses_everything_arrives(members: int, choices: list[bool], seed: int, body_bytes: int) -> None:
    storm = Storm(members, Pattern(choices), seed, body_bytes)
    storm.beat()
    storm.stream(12)
    figures = storm.finish(30)
    assert storm.whole, f"{figures.missing} positions are missing after 30 heartbeats"


def test_a_member_that_only_one_can_reach_gets_everything_from_that_one() -> None:
    def cut(sender: int, to: int, message: Message) -> bool:
        return {sender, to} != {4, 5} and 5 in (sender, to)

    storm = Storm(5, cut)
    storm.beat()
    storm.stream(20)
    figures = storm.finish(60)
    assert storm.whole
    assert figures.sent[Repair.__name__] > 0
    assert figures.sent[Heartbeat.__name__] > 0
