"""Tests of the backoff: waits double up to their bound, and restart after a success."""

from __future__ import annotations

from tutti.runtime.backoff import Backoff


def test_waits_double_up_to_a_bound_and_begin_again() -> None:
    waits = Backoff(1, 5)
    assert [waits.next_s() for _ in range(5)] == [1, 2, 4, 5, 5]
    waits.reset()
    assert waits.next_s() == 1


def test_no_wait_is_above_the_bound() -> None:
    waits = Backoff(1, 0.5)
    assert [waits.next_s(), waits.next_s()] == [0.5, 0.5]
