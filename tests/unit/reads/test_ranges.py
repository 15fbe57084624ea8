"""Tests of the range check: a gateway below the frontier that a reader has seen waits for more records, or answers at once that it
lags.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tutti_gateway.reads.logs.ranges import RangeResolver
from tutti_gateway.reads.protocol.flight_errors import ReadError
from tutti_gateway.reads.protocol.tickets import Request


class Frontier(NamedTuple):
    offset: int


class Reader:
    log, start = "a" * 32, 0


class Watch:
    """The frontier is at 10, and at 12 after a wait."""

    def __init__(self) -> None:
        self.waited = 0

    def now(self) -> Frontier:
        return Frontier(10)

    def wait(self, beyond: int, timeout_us: int, given_up: Any) -> Frontier:
        self.waited += 1
        return Frontier(12)


def ranges(watch: Watch, state: str) -> RangeResolver:
    return RangeResolver(Reader(), watch, lambda: state)  # type: ignore[arg-type]  # stand-ins with what is used


@pytest.mark.parametrize("state", ["primary", "joining", "leaving", "unknown"])
def test_future_records_are_waited_for(state: str) -> None:
    watch = Watch()
    assert ranges(watch, state).frontier(Request(seen=12), bool).offset == 12
    with pytest.raises(ReadError) as refused:
        ranges(watch, state).frontier(Request(seen=13), bool)
    assert (refused.value.code, watch.waited) == ("behind", 2)


@pytest.mark.parametrize("state", ["minority", "halted"])
def test_a_minority_reports_at_once_that_it_lags(state: str) -> None:
    watch = Watch()
    with pytest.raises(ReadError) as refused:
        ranges(watch, state).frontier(Request(seen=12), bool)
    assert (refused.value.code, watch.waited) == ("behind", 0)


@pytest.mark.parametrize("state", ["primary", "minority", "halted"])
def test_a_reader_that_has_seen_no_more_waits_for_nothing(state: str) -> None:
    watch = Watch()
    assert ranges(watch, state).frontier(Request(seen=10), bool).offset == 10
    assert watch.waited == 0


class Confirming:
    """A gateway that confirms its frontier, or not; its log grows to 12 in that time."""

    def __init__(self, watch: Watch, answer: bool) -> None:
        self.asked = 0
        self._watch = watch
        self._answer = answer

    def __call__(self) -> bool:
        self.asked += 1
        self._watch.now = lambda: Frontier(12)  # type: ignore[method-assign]  # of this one object
        return self._answer


def confirming(answer: bool) -> tuple[RangeResolver, Confirming]:
    watch = Watch()
    confirm = Confirming(watch, answer)
    return RangeResolver(Reader(), watch, lambda: "primary", confirm), confirm  # type: ignore[arg-type]  # as above


def test_a_linearizable_answer_has_the_frontier_of_after_the_confirmation() -> None:
    made, confirm = confirming(True)
    assert made.frontier(Request(), bool).offset == 10
    assert made.frontier(Request(linearizable=True), bool).offset == 12
    assert confirm.asked == 1


def test_a_gateway_that_cannot_confirm_its_frontier_lags() -> None:
    made, _ = confirming(False)
    with pytest.raises(ReadError, match=r"this gateway \(primary\) cannot confirm its frontier 12") as refused:
        made.frontier(Request(seen=7, linearizable=True), bool)
    assert (refused.value.code, refused.value.fields) == ("behind", {"frontier": 12, "seen": 7})


def test_an_offset_beyond_the_frontier_is_refused_permanently_only_with_a_confirmed_frontier() -> None:
    made, confirm = confirming(True)
    assert made.offsets(0, 12, Frontier(10)) == (0, 12)  # type: ignore[arg-type]  # as above
    with pytest.raises(ReadError) as refused:
        made.offsets(0, 13, Frontier(10))  # type: ignore[arg-type]  # as above
    assert (refused.value.code, refused.value.fields["frontier"], confirm.asked) == ("beyond_frontier", 12, 2)
    with pytest.raises(ReadError) as lagging:
        confirming(False)[0].offsets(0, 13, Frontier(10))  # type: ignore[arg-type]  # as above
    assert lagging.value.code == "behind"


def test_a_lane_has_no_linearizable_reads() -> None:
    with pytest.raises(ReadError, match="omit `linearizable`"):
        ranges(Watch(), "primary").frontier(Request(linearizable=True), bool)
