"""Proves that a trouble is told once, again when it lasts, and that many different ones neither fill the memory nor the log."""

from __future__ import annotations

from tutti import limits as common_limits
from tutti_gateway.core import limits
from tutti_gateway.transport.interface import Trouble
from tutti_gateway.transport.rate_limited_log import TroubleLog

LATER = common_limits.WARNING_REPEAT_US


def test_the_same_trouble_is_told_once_and_again_when_it_lasts() -> None:
    troubles = TroubleLog()
    for now_us in (0, 1, LATER - 1):
        troubles.report("lga", "another group", now_us)
    assert troubles.drain() == [Trouble("lga", "another group")]
    assert troubles.drain() == []
    assert troubles.suppressed == 2
    troubles.report("lga", "another group", LATER)
    assert troubles.drain() == [Trouble("lga", "another group")]


def test_many_different_ones_are_counted_and_not_kept() -> None:
    troubles = TroubleLog()
    for number in range(3 * limits.CONNECTION_PROBLEMS_MAX):
        troubles.report(f"10.0.0.1:{number}", "garbage", 5)
    assert len(troubles.drain()) == limits.CONNECTION_PROBLEMS_MAX
    assert troubles.suppressed == 2 * limits.CONNECTION_PROBLEMS_MAX
    troubles.report("lga", "another group", 5 + LATER)
    assert troubles.drain() == [Trouble("lga", "another group")]
