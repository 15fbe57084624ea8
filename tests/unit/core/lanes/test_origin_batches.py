"""Tests of batches in a lane: they are decided together, or refused, and answered once."""

from __future__ import annotations

import pytest

from tests.unit.core.lanes.lane_group import answers, group, quiet, under_way
from tutti.data.client_protocol import Committed, Duplicate, Expected, FencedAnswer, RefusedAnswer
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Post, Posted


def test_a_batch_is_decided_when_all_have_it_and_the_origin_votes_last() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"), (2, 1, b"b"))
    assert len(under_way(made, Post)) == 2
    assert not made[1].queue
    made.deliver()
    made.sync(2)
    made.deliver(under_way(made, Posted)[0])
    assert not made[1].queue
    made.deliver(under_way(made, Post)[0])
    made.sync(3)
    made.deliver(under_way(made, Posted)[0])
    assert [len(write.frames) for write in made[1].queue] == [2]
    assert answers(made, 1) == []
    made.sync(1)
    assert answers(made, 1) == [Committed(1, 1, 1, 1, 0), Committed(2, 1, 1, 1, 1)]
    assert made.lane(2, made[1].key) == []
    made.settle()
    assert made.lane(2, made[1].key) == made.lane(3, made[1].key) == [b"a", b"b"]


def test_many_are_in_flight_and_one_vote_and_one_decision_serve_them() -> None:
    made = group()
    for sequence in range(1, 11):
        made.submit(1, (1, sequence, b"x"))
    for _ in range(20):
        made.deliver()
    made.sync(2)
    made.sync(3)
    assert len(under_way(made, Posted)) <= 20
    made.settle()
    assert [answer.offset for answer in answers(made, 1) if isinstance(answer, Committed)] == list(range(10))


def test_a_batch_sent_twice_is_answered_to_its_last_sender_when_decided() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"), session=5)
    made.submit(1, (1, 1, b"a"), session=6)
    made.submit(1, (1, 2, b"b"), session=6)
    assert made[1].layer is not None
    made[1].layer.session_closed(5)
    made.settle()
    assert made[1].answers == [(6, Committed(1, 1, 1, 1, 0)), (6, Committed(1, 1, 2, 1, 1))]
    answers(made, 1)
    made.submit(1, (1, 2, b"b"), (1, 4, b"d"))
    assert answers(made, 1) == [Duplicate(1, 1, 2, 1), Expected(1, 1, 3)]


def test_a_differently_split_batch_waits_for_the_undecided_ones() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    made.submit(1, (1, 1, b"ab"), count=2)
    (answer,) = answers(made, 1)
    assert isinstance(answer, RefusedAnswer)
    assert (answer.code, answer.retry) == ("busy", True)
    made.settle()
    made.submit(1, (1, 1, b"ab"), count=2)
    assert answers(made, 1) == [Committed(1, 1, 1, 1, 0), Expected(1, 1, 2)]


def test_an_epoch_begins_with_sequence_1_and_fences_the_one_before() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"), (1, 2, b"b"))
    made.settle()
    answers(made, 1)
    made.state.producers[1].epoch = 2
    made.submit(1, (1, 3, b"c"))
    made.submit(1, (1, 3, b"c"), epoch=2)
    made.submit(1, (1, 1, b"c"), epoch=2)
    made.settle()
    assert answers(made, 1) == [FencedAnswer(1, 2, 3), Expected(1, 2, 1), Committed(1, 2, 1, 1, 2)]


def test_fenced_means_that_a_batch_of_an_ended_epoch_is_not_in_the_lane() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    made.settle()
    made.submit(1, (1, 2, b"b"))
    answers(made, 1)
    made.state.producers[1].epoch = 2
    made.submit(1, (1, 1, b"a"), (1, 2, b"b"), (1, 3, b"c"), session=2)
    assert answers(made, 1) == [Duplicate(1, 1, 1, 1), FencedAnswer(1, 2, 3)]
    made.settle()
    assert made[1].answers == [(2, Committed(1, 1, 2, 1, 1))]
    answers(made, 1)
    made.submit(1, (1, 2, b"b"), (1, 3, b"c"))
    made.submit(1, (1, 1, b"c"), epoch=2)
    made.settle()
    assert answers(made, 1) == [Duplicate(1, 1, 2, 1), FencedAnswer(1, 2, 3), Committed(1, 2, 1, 1, 2)]
    assert made.lane(3, made[1].key) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("producer", "epoch", "code"), [(99, 1, "producer"), (1, 2, "epoch")])
def test_a_batch_of_unknown_names_is_refused(producer: int, epoch: int, code: str) -> None:
    made = group()
    made.submit(1, (producer, 1, b"a"), epoch=epoch)
    (answer,) = answers(made, 1)
    assert isinstance(answer, RefusedAnswer)
    assert (answer.code, answer.retry) == (code, False)


def test_over_its_bound_a_batch_is_refused_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LANE_FRAMES_MAX", 2)
    made = group()
    made.submit(1, (1, 1, b"a"), (1, 2, b"b"), (1, 3, b"c"))
    (answer,) = answers(made, 1)
    assert isinstance(answer, RefusedAnswer)
    assert (answer.first_sequence, answer.code, answer.retry) == (3, "busy", True)
    made.settle()
    made.submit(1, (1, 3, b"c"))
    made.settle()
    assert made.lane(3, made[1].key) == [b"a", b"b", b"c"]


def test_a_stopping_gateway_answers_decided_batches_and_accepts_no_new_ones() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    assert not quiet(made, 1)
    made.settle(limits.LANE_REPEAT_HEARTBEATS)
    assert not quiet(made, 1)
    made.settle()
    assert quiet(made, 1)
    answers(made, 1)
    made.standings[1].closed = ("leaving", "it stops")
    made.submit(1, (1, 1, b"a"), (1, 2, b"b"))
    assert answers(made, 1) == [Duplicate(1, 1, 1, 1), RefusedAnswer(1, 1, 2, "leaving", "it stops", True)]


def test_a_stopping_gateway_refuses_each_later_batch_too() -> None:
    """Otherwise its sender could not send it to another gateway. A partly accepted batch is not refused."""
    made = group()
    made.submit(1, (1, 1, b"a"))
    made.settle()
    answers(made, 1)
    made.standings[1].closed = ("leaving", "it stops")
    made.submit(1, (1, 2, b"b"), (1, 3, b"c"), (1, 5, b"d"))
    assert answers(made, 1) == [RefusedAnswer(1, 1, sequence, "leaving", "it stops", True) for sequence in (2, 3, 5)]
    made.submit(1, (1, 1, b"ab"), count=2)
    assert answers(made, 1) == [Expected(1, 1, 2)]


def test_a_low_member_votes_no_and_batches_in_flight_are_refused_once_that_is_durable() -> None:
    made = group()
    assert made[2].layer is not None
    made[2].layer.space("3 MB are left")
    made.submit(1, (1, 1, b"a"))
    while made.network:
        made.deliver()
    assert not made[2].queue
    assert answers(made, 1) == []
    made.sync(1)
    (answer,) = answers(made, 1)
    assert isinstance(answer, RefusedAnswer)
    assert (answer.code, answer.reason, answer.retry) == ("space", "gateway 2: 3 MB are left", True)
    made.settle()
    made.submit(1, (1, 1, b"a"))
    (answer,) = answers(made, 1)
    assert isinstance(answer, RefusedAnswer)
    made.settle(3)
    made.submit(1, (1, 1, b"a"))
    assert isinstance(answers(made, 1)[0], RefusedAnswer)
    made[2].layer.space("")
    made.settle(limits.LOW_HEARTBEATS)
    made.submit(1, (1, 1, b"a"))
    made.settle()
    assert made.lane(2, made[1].key) == [b"a"]


def test_an_origin_with_a_low_disk_finishes_and_accepts_no_new_batches() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    assert made[1].layer is not None
    made[1].layer.space("full soon")
    made.submit(1, (1, 2, b"b"))
    made.settle()
    assert answers(made, 1) == [RefusedAnswer(1, 1, 2, "space", "full soon", True), Committed(1, 1, 1, 1, 0)]


def test_frames_decided_before_a_start_are_not_announced_after_it() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"), (1, 2, b"b"))
    made.settle()
    answers(made, 1)
    made.crash(1)
    for key, disk in made[1].disks.items():
        disk.delivered = made[1].seen[key]
    made.start(1)
    made.settle(20)
    made.submit(1, (1, 1, b"a"), (1, 2, b"b"), (1, 3, b"c"))
    made.settle()
    told = answers(made, 1)
    assert told[:2] == [Duplicate(1, 1, 1, 1), Duplicate(1, 1, 2, 1)]
    assert made.lane(2, made[1].key) == [b"a", b"b", b"c"]
