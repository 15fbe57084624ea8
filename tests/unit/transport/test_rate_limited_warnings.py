"""Tests of rate-limited warnings: a problem is logged once, and again if it lasts, and many different ones fill neither memory nor
log.
"""

from __future__ import annotations

from tutti import limits as common_limits
from tutti_gateway.core import limits
from tutti_gateway.transport.interface import Trouble
from tutti_gateway.transport.warnings_limited import Troubles

LATER = common_limits.WARNING_REPEAT_US


def test_the_same_problem_is_reported_once_and_again_if_it_lasts() -> None:
    troubles = Troubles()
    for now_us in (0, 1, LATER - 1):
        troubles.tell("lga", "another group", now_us)
    assert troubles.take() == [Trouble("lga", "another group")]
    assert troubles.take() == []
    assert troubles.untold == 2
    troubles.tell("lga", "another group", LATER)
    assert troubles.take() == [Trouble("lga", "another group")]


def test_many_different_ones_are_counted_and_not_kept() -> None:
    troubles = Troubles()
    for number in range(3 * limits.CONNECTION_PROBLEMS_MAX):
        troubles.tell(f"10.0.0.1:{number}", "garbage", 5)
    assert len(troubles.take()) == limits.CONNECTION_PROBLEMS_MAX
    assert troubles.untold == 2 * limits.CONNECTION_PROBLEMS_MAX
    troubles.tell("lga", "another group", 5 + LATER)
    assert troubles.take() == [Trouble("lga", "another group")]
