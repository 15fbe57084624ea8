"""Tests of the range map: it equals a dictionary of positions, in as few ranges as possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tutti_gateway.core.range_map import RangeMap

POSITIONS = st.integers(1, 30)
CHANGES = st.lists(st.tuples(POSITIONS, POSITIONS, st.sampled_from([None, "a", "b"])), max_size=20)


@given(CHANGES, POSITIONS, POSITIONS)
def test_it_equals_a_dictionary_of_positions(changes: list[tuple[int, int, str | None]], low: int, high: int) -> None:
    ranges: RangeMap[str] = RangeMap()
    model: dict[int, str] = {}
    for first, last, value in changes:
        if value is None:
            ranges.remove(first, last)
        else:
            ranges.put(first, last, value)
        for position in range(first, last + 1):
            model.pop(position, None)
            if value is not None:
                model[position] = value
    assert {position: value for first, last, value in ranges for position in range(first, last + 1)} == model
    pieces = ranges.slices(low, high)
    assert [position for first, last, _ in pieces for position in range(first, last + 1)] == list(range(low, high + 1))
    assert all(model.get(position) == value for first, last, value in pieces for position in range(first, last + 1))
    for (_, last, value), (first, _, other) in zip(list(ranges), list(ranges)[1:], strict=False):
        assert first > last + 1 or value != other, "neighbours with one value are one range"
    assert ranges.lowest(2) == list(ranges)[:2]


def test_it_may_change_during_iteration() -> None:
    ranges: RangeMap[int] = RangeMap()
    ranges.put(1, 2, 7)
    ranges.put(5, 6, 8)
    for first, last, _ in ranges:
        ranges.remove(first, last)
    assert len(ranges) == 0
    ranges.put(3, 3, 1)
    ranges.clear()
    assert ranges.slices(1, 9) == [(1, 9, None)]
