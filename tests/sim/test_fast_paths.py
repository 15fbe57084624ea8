"""Proves that runs have the same events and actions with and without the fast paths of the core, and that a difference is seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.sim.fast_paths import compared
from tests.sim.mixes import MIXES, mix_of
from tests.sim.mutants.patch import Value, applied
from tests.sim.options import Options
from tests.sim.swarm import draw, drawn
from tutti.data.frames.frame import Frame
from tutti_gateway.core.order.receiver import Receiver
from tutti_gateway.core.protocol.messages import Vote


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_run_is_the_same_without_fast_paths(seed: int) -> None:
    options = replace(draw(seed, members=3), seconds=8)
    result = compared(options)
    assert result.violation == "", f"{options.command(draw(seed))} --compare"
    assert result.frames > 5


def test_batches_of_several_clients_that_come_together_are_ordered_as_one_by_one() -> None:
    options = Options(1, members=3, seconds=4, faults=frozenset({"gather", "loss"}), producers=6, stagers=2, rate=30.0, pipeline=4)
    result = compared(options)
    assert result.violation == ""
    assert result.frames > 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 31))
def test_many_runs_are_the_same_without_fast_paths(seed: int) -> None:
    assert compared(replace(drawn(seed, mix=mix_of(seed)), seconds=20)).violation == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXES)
def test_a_run_of_a_named_mix_is_the_same_without_fast_paths(name: str) -> None:
    assert compared(replace(drawn(2, mix=name), seconds=8)).violation == ""


def _voting(append: Callable[[Receiver, Sequence[Frame]], int]) -> Callable[[Receiver, Sequence[Frame]], int]:
    """A fast path that sends a vote for nothing, which breaks no promise."""

    def voting(self: Receiver, frames: Sequence[Frame]) -> int:
        self._outbox.send(self._view_state.coordinator, Vote(self._view_state.view, 0))
        return append(self, frames)

    return voting


def test_a_fast_path_with_another_action_is_seen() -> None:
    options = Options(1, members=3, seconds=4, rate=10.0)
    assert compared(options).violation == ""
    with applied([Value(Receiver, "_append_in_sequence", _voting, wraps=True)]):
        assert "with its fast paths, g" in compared(options).violation
