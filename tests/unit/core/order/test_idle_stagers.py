"""Tests of idle unnamed producers: their state is deleted after an hour, or after a day if they have staged batches."""

from __future__ import annotations

import pytest

from tests.transcripts.group import Group, incarnation
from tests.unit.core.order.test_transactions import COMMITTER, NAMES, OTHER, STAGER, placed, refused, says, staged, submit, txn
from tests.unit.core.stacks import three
from tutti import limits as common_limits
from tutti.data.frames.frame import Frame
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import EpochAsked, TopicAsked, submitted

IDLE_US = limits.IDLE_PRODUCER_CHECK_US


def nameless() -> Group:
    """As `ready`, of producers that have no name."""
    group = three(idle_producer_us=IDLE_US)
    for number, member in enumerate(group.members.values(), 1):
        group.step(member, TopicAsked(number, 1, "t"))
        group.step(member, EpochAsked(number, 2, "~" + NAMES[number], incarnation(NAMES[number]), 1))
        group.settle()
    return group


def rest(group: Group, times: int) -> None:
    """Nobody sends for so many times."""
    for _ in range(times):
        group.advance(IDLE_US)
        group.settle()


def known(group: Group) -> set[int]:
    return set(group.members["g1"].stack.decided.producers)


def stage(group: Group) -> Frame:
    submit(group, staged(1))
    return placed(group)[0]


def test_a_stager_may_be_idle_longer_because_its_transaction_may_come() -> None:
    group = nameless()
    part = stage(group)
    rest(group, 2)
    assert known(group) == {STAGER}, "nobody else has anything to wait for"
    assert says(group) == (0, [part.position])
    rest(group, limits.STAGED_IDLE_FACTOR - 3)
    assert known(group) == {STAGER}
    rest(group, 2)
    assert known(group) == set()
    assert says(group) == (0, []), "its place is free"


def test_slots_of_deleted_producers_are_free_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_limits, "STAGED_BATCHES_MAX", 1)
    group = nameless()
    stage(group)
    submit(group, staged(1, producer=OTHER))
    assert refused(group.members["g3"]) == [(1, "limit", False)]
    rest(group, limits.STAGED_IDLE_FACTOR + 1)
    group.step(group.members["g3"], EpochAsked(OTHER, 3, "~again", incarnation("again"), 2))
    group.settle()
    (number,) = known(group)
    group.step(group.members["g3"], submitted(OTHER, (staged(1, producer=number, epoch=2),)))
    group.settle()
    assert len(says(group)[1]) == 1


def test_a_producer_whose_batches_became_visible_is_idle_like_others() -> None:
    group = nameless()
    submit(group, txn((stage(group),)))
    rest(group, 2)
    assert not known(group) & {STAGER, COMMITTER, OTHER}
    assert says(group) == (1, [])
