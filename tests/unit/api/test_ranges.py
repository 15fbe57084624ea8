"""Proves that a gateway below what a reader has seen waits for more, or says at once that it is behind when none can come."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from gateway.api.faults import Fault
from gateway.api.ranges import Ranges
from gateway.api.requests import Known


class Frontier(NamedTuple):
    offset: int


class Reader:
    log, start = "a" * 32, 0


class Watch:
    """The frontier is at 10, and at 12 for who waits."""

    def __init__(self) -> None:
        self.waited = 0

    def now(self) -> Frontier:
        return Frontier(10)

    def wait(self, beyond: int, timeout_us: int, given_up: Any) -> Frontier:
        self.waited += 1
        return Frontier(12)


def ranges(watch: Watch, state: str) -> Ranges:
    return Ranges(Reader(), watch, lambda: state)  # type: ignore[arg-type]  # stand-ins with what is used


@pytest.mark.parametrize("state", ["primary", "joining", "leaving", "unknown"])
def test_what_may_come_is_waited_for(state: str) -> None:
    watch = Watch()
    assert ranges(watch, state).frontier(Known(seen=12), bool).offset == 12
    with pytest.raises(Fault) as refused:
        ranges(watch, state).frontier(Known(seen=13), bool)
    assert (refused.value.code, watch.waited) == ("behind", 2)


@pytest.mark.parametrize("state", ["minority", "halted"])
def test_who_is_cut_off_says_at_once_that_it_is_behind(state: str) -> None:
    watch = Watch()
    with pytest.raises(Fault) as refused:
        ranges(watch, state).frontier(Known(seen=12), bool)
    assert (refused.value.code, watch.waited) == ("behind", 0)


@pytest.mark.parametrize("state", ["primary", "minority", "halted"])
def test_who_has_seen_no_more_waits_for_nothing(state: str) -> None:
    watch = Watch()
    assert ranges(watch, state).frontier(Known(seen=10), bool).offset == 10
    assert watch.waited == 0
