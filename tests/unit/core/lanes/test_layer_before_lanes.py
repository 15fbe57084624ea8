"""Tests of lane messages that arrive before this gateway has lanes, or at a gateway that never has any."""

from __future__ import annotations

import pytest

from tests.transcripts.whole import USUAL, Whole
from tutti_gateway.core.protocol.actions import Dropped
from tutti_gateway.core.protocol.events import Now, Received, StackConfig
from tutti_gateway.core.protocol.messages import LaneEnds

NAMES = ("g1", "g2", "g3")


@pytest.mark.parametrize(("lanes", "told"), [(True, 0), (False, 1)])
def test_a_gateway_that_joins_logs_no_warning_for_lane_messages(lanes: bool, told: int) -> None:
    """The others report the lanes as soon as it connects. It has none before the log names it, and then
    receives the report again.
    """
    world = Whole(StackConfig(lanes=lanes), lambda *_: None, USUAL)
    world.add("g1", {name: f"{name}:7400" for name in NAMES})
    world.start("g1")
    heard = Received(2, LaneEnds(()), b"g2/1".ljust(16, b"-"))
    actions = world.members["g1"].running.step(heard, Now(world.mono_us, 0))
    assert [type(action) for action in actions].count(Dropped) == told
