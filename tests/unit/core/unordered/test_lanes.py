"""Proves what becomes of batches in a lane: decided together, refused, in doubt, finished, caught up, and answered once."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from gateway.core import limits
from gateway.core.unordered.messages import LaneEnd, LaneEnds, LaneFetched, LaneMessage, Post, Posted, Settled
from gateway.core.unordered.origin import ATTEMPT, Input, Phase
from gateway.data.frame import Kind, decode_frame
from gateway.data.wire import Committed, Duplicate, Expected, FencedAnswer, RefusedAnswer
from tests.unit.core.unordered.rig import Group, LaneDisk, incarnation


def group(count: int = 3, beats: int = 1) -> Group:
    """Gateways that hear each other, each in an attempt with all."""
    made = Group(count)
    made.settle(beats)
    return made


def answers(made: Group, number: int) -> list[object]:
    """What clients of a gateway were told since the last time."""
    found = [answer for _, answer in made[number].answers]
    made[number].answers.clear()
    return list(found)


def under_way(made: Group, kind: type[LaneMessage]) -> list[int]:
    """Places in the network of messages of a kind."""
    return [place for place, (_, _, message) in enumerate(made.network) if isinstance(message, kind)]


def arrive(made: Group, wanted: Callable[[int, int, LaneMessage], bool]) -> None:
    """The messages that are wanted arrive, all others are lost, and disks do their work, until nothing is under way."""
    while made.network or any(gateway.queue for gateway in made.gateways.values()):
        while made.network:
            if wanted(*made.network[0]):
                made.deliver()
            else:
                made.network.pop(0)
        for number in made.gateways:
            made.sync(number)


def quiet(made: Group, number: int) -> bool:
    """Whether the gateway has nothing more to do for its lane."""
    layer = made[number].layer
    assert layer is not None
    return layer.quiet


def members(made: Group, number: int) -> tuple[int, ...]:
    """Those of the gateway's last attempt."""
    return made.members[max(place for place in made.members if place[0] == made[number].key)]


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


def test_a_batch_sent_twice_is_answered_when_decided_to_who_sent_it_last() -> None:
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


def test_a_batch_that_is_cut_otherwise_waits_for_what_is_undecided() -> None:
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


@pytest.mark.parametrize(("producer", "epoch", "code"), [(99, 1, "producer"), (1, 2, "epoch")])
def test_what_the_log_does_not_know_is_refused(producer: int, epoch: int, code: str) -> None:
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


def test_a_stopping_gateway_answers_what_is_decided_and_takes_nothing_new() -> None:
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


# Loss


def test_a_gap_is_told_at_once_and_the_last_post_is_sent_again_after_a_while() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    made.network.clear()
    made.submit(1, (1, 2, b"b"))
    made.submit(1, (1, 3, b"c"))
    arrive(made, lambda *_: True)
    assert made.lane(3, made[1].key) == [b"a", b"b", b"c"]
    made.submit(1, (1, 4, b"d"))
    made.network.clear()
    for beat in range(limits.RESEND_HEARTBEATS + 1):
        assert made.lane(3, made[1].key)[3:] == [], beat
        made.beat(1)
        arrive(made, lambda *_: True)
    assert made.lane(3, made[1].key)[3:] == [b"d"]


def test_a_decision_that_was_lost_is_repeated_and_later_learned_from_anybody() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    arrive(made, lambda sender, to, message: not isinstance(message, Settled))
    assert made.lane(2, made[1].key) == []
    made.beat(1)
    arrive(made, lambda sender, to, message: to == 2 or not isinstance(message, Settled))
    assert made.lane(2, made[1].key) == [b"a"]
    assert made.lane(3, made[1].key) == []
    made.crash(1)
    for _ in range(2 * limits.LANE_ENDS_HEARTBEATS):
        made.settle()
    assert made.lane(3, made[1].key) == [b"a"]


def test_a_live_lane_is_not_fetched_but_one_that_stands_still_is() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"), (2, 1, b"b"))
    arrive(made, lambda sender, to, message: to != 3 or not isinstance(message, Settled))
    for _ in range(2 * limits.LANE_ENDS_HEARTBEATS):
        made.beat(1)
        made.beat(2)
        made.beat(3)
        made.network = [one for one in made.network if not isinstance(one[2], Settled)]
        made.settle(0)
        while made.network or made[1].reads or made[2].reads:
            arrive(made, lambda sender, to, message: not isinstance(message, Settled))
            for number in (1, 2):
                while made[number].reads:
                    made.read(number)
    assert made.lane(3, made[1].key) == [b"a", b"b"]


def test_a_member_that_does_not_vote_is_suspected() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    for _ in range(11):
        made.network.clear()
        made.beat(1)
    assert {suspect.member for suspect in made.suspects} == {2, 3}


# Attempts


def test_without_a_member_the_origin_ends_its_attempt_durably_and_tries_again_with_who_is_left() -> None:
    made = group()
    made.crash(3)
    made.submit(1, (1, 1, b"a"))
    arrive(made, lambda *_: True)
    assert answers(made, 1) == []
    made.tell(1)
    made.tell(2)
    assert not under_way(made, Post)
    assert [write.attempt for write in made[1].queue] == [2]
    arrive(made, lambda *_: True)
    assert members(made, 1) == (1, 2)
    assert answers(made, 1) == [Committed(1, 1, 1, 1, 0)]


def test_what_the_origin_wrote_before_its_attempt_ended_is_decided_with_the_members_of_then() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"), (1, 2, b"b"))
    made.deliver(0)
    made.deliver(0)
    made.sync(2)
    made.sync(3)
    made.deliver(0)
    made.deliver(0)
    made.crash(3)
    made.tell(1)
    made.submit(1, (1, 3, b"c"))
    arrive(made, lambda *_: True)
    frames = {bytes(frame.body): frame.view for (key, _), frame in made.decided.items() if frame.kind == Kind.BATCH}
    assert frames == {b"a": 1, b"b": 1, b"c": 2}


def test_each_part_goes_on_and_everybody_has_everything_after_the_heal() -> None:
    made = group(5)
    made.submit(4, (1, 1, b"before"))
    made.network.pop(0)
    made.split({1}, {2, 3}, {4, 5})
    made.settle()
    for number in made.gateways:
        made.submit(number, (2, 1, f"of {number}".encode()))
    made.settle()
    assert all(isinstance(answers(made, number)[-1], Committed) for number in made.gateways)
    assert made.lane(5, made[4].key) == [b"before", b"of 4"]
    assert made.lane(1, made[4].key) == []
    assert members(made, 1) == (1,)
    made.split()
    made.settle(3)
    for number in made.gateways:
        assert made.lane(number, made[4].key) == [b"before", b"of 4"]
        assert made.lane(number, made[1].key) == [b"of 1"]
        assert members(made, number) == (1, 2, 3, 4, 5)


def test_an_attempt_waits_to_hear_of_all_its_members_and_leaves_out_who_says_nothing() -> None:
    made = Group(3)
    for number in made.gateways:
        made.tell(number)
    made.submit(1, (1, 1, b"a"))
    for _ in range(limits.LANE_WAIT_HEARTBEATS):
        arrive(made, lambda sender, to, message: sender != 3)
        assert made[1].key not in {key for key, _ in made.members}
        made.beat(1)
    arrive(made, lambda *_: True)
    assert members(made, 1) == (1, 2)
    made.settle(limits.LANE_ENDS_HEARTBEATS)
    assert members(made, 1) == (1, 2, 3)


def test_who_is_far_behind_catches_up_before_an_attempt_takes_it_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LANE_BEHIND_MAX", 5)
    made = group()
    made.crash(3)
    made.settle()
    for sequence in range(1, 21):
        made.submit(1, (1, sequence, b"x"))
    made.settle()
    made.start(3)
    for number in made.gateways:
        made.tell(number)
    made.submit(1, (1, 21, b"y"))
    arrive(made, lambda *_: True)
    assert members(made, 1) == (1, 2)
    assert made.lane(2, made[1].key)[20:] == [b"y"]
    made.settle(2 * limits.LANE_ENDS_HEARTBEATS)
    assert members(made, 1) == (1, 2, 3)
    assert made.lane(3, made[1].key) == [b"x"] * 20 + [b"y"]


def test_a_gateway_that_left_the_part_has_to_say_again_how_far_it_is() -> None:
    made = group()
    made.split({1, 2}, {3})
    made.settle()
    made.split()
    made.tell(1)
    arrive(made, lambda sender, to, message: False)
    made.submit(1, (1, 1, b"a"))
    arrive(made, lambda *_: True)
    assert members(made, 1) == (1, 2)


def test_the_table_of_attempts_knows_no_way_around_the_durable_end() -> None:
    assert {before for (before, _), after in ATTEMPT.items() if after is Phase.OPEN} == {Phase.ASKING}
    assert {before for (before, _), after in ATTEMPT.items() if after is Phase.ASKING} == {Phase.ENDING}
    assert [input_ for (before, input_) in ATTEMPT if before is Phase.ENDING] == [Input.DURABLE]


# A dead origin


def test_one_member_that_saw_the_decision_is_enough_for_all() -> None:
    made = group(4)
    made.submit(1, (1, 1, b"a"))
    arrive(made, lambda sender, to, message: to == 3 or not isinstance(message, Settled))
    made.crash(1)
    made.settle()
    assert {number: made.lane(number, incarnation_key(1)) for number in (2, 3, 4)} == {2: [b"a"], 3: [b"a"], 4: [b"a"]}


def incarnation_key(number: int, disk: int = 0) -> tuple[int, bytes]:
    """The lane of a gateway's disk."""
    return number, incarnation(number, disk)


def test_what_nobody_saw_decided_is_in_doubt_for_that_lane_alone_until_its_origin_is_back() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    arrive(made, lambda sender, to, message: not isinstance(message, Settled))
    made[1].answers.clear()
    made.crash(1)
    made.settle(20)
    made.submit(2, (1, 1, b"of 2"))
    made.settle()
    assert made.lane(3, made[2].key) == [b"of 2"]
    assert made.lane(3, incarnation_key(1)) == []
    made.start(1)
    made.settle(3)
    assert made.lane(3, incarnation_key(1)) == [b"a"]
    made.submit(1, (1, 1, b"a"))
    assert answers(made, 1) == [Duplicate(1, 1, 1, 1)]


def test_what_the_origin_had_not_written_when_it_died_is_gone_and_may_be_sent_again() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    arrive(made, lambda sender, to, message: to != 1)
    made.crash(1)
    made.start(1)
    made.settle(3)
    assert made.lane(3, made[1].key) == []
    made.submit(1, (1, 1, b"b"))
    made.settle()
    assert made.lane(3, made[1].key) == [b"b"]


def test_a_member_that_starts_knows_what_stands_before_a_view_as_decided() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    made.settle()
    made.crash(2)
    made.settle()
    made.start(2)
    made.settle()
    made.crash(1)
    made.crash(3)
    made.crash(2)
    disk: LaneDisk = made[2].disks[incarnation_key(1)]
    assert [frame.kind for frame in disk.frames][-1] == Kind.VIEW
    disk.delivered = 0
    made.start(2)
    assert made.lane(2, incarnation_key(1)) == [b"a"]


def test_a_wiped_origin_begins_a_lane_of_its_own() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    made.settle()
    made.wipe(1)
    made.settle()
    made.start(1)
    made.settle(3)
    made.submit(1, (1, 1, b"b"))
    made.settle()
    assert answers(made, 1) == [Committed(1, 1, 1, 1, 0)]
    for number in made.gateways:
        assert made.lane(number, incarnation_key(1, 0)) == [b"a"]
        assert made.lane(number, incarnation_key(1, 1)) == [b"b"]


# Low disks


def test_a_low_member_says_no_and_what_was_under_way_is_refused_once_that_is_durable() -> None:
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


def test_an_origin_with_a_low_disk_finishes_and_takes_nothing_new() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    assert made[1].layer is not None
    made[1].layer.space("full soon")
    made.submit(1, (1, 2, b"b"))
    made.settle()
    assert answers(made, 1) == [RefusedAnswer(1, 1, 2, "space", "full soon", True), Committed(1, 1, 1, 1, 0)]


# What cannot be


def test_what_does_not_belong_is_dropped_and_changes_nothing() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    post = made.network[0][2]
    assert isinstance(post, Post)
    broken = decode_frame(post.frames[0].to_bytes())
    broken.body = b"?"
    other = decode_frame(post.frames[0].to_bytes())
    other.kind = Kind.TICK
    chained = decode_frame(post.frames[0].to_bytes())
    chained.header_crc ^= 1
    lanes = tuple(LaneEnd(7, bytes([n >> 8, n & 255]) * 8, 0) for n in range(limits.LANES_MAX + 10))
    wrong: list[LaneMessage] = [
        msgspec.structs.replace(post, frames=(broken,)),
        msgspec.structs.replace(post, frames=(other,)),
        msgspec.structs.replace(post, frames=(chained,)),
        LaneFetched(1, post.incarnation, (chained,)),
        LaneFetched(1, post.incarnation, (broken,)),
        LaneFetched(2, made[2].key[1], post.frames),
        Posted(made[2].key[1], 1, 99),
        Posted(b"", 1, 99),
        Settled(post.incarnation, 9, 99),
        LaneEnds(lanes),
        Post(b"one lane too many", ()),
    ]
    layer = made[2].layer
    assert layer is not None
    for message in wrong:
        layer.on_message(3 if isinstance(message, Posted) else 1, message)
        assert layer.take()[0] == [], message
    made.carry_out(2)
    assert {drop.kind for drop in made.dropped} == {"Post", "LaneFetched", "Posted"}
    made.settle(5)
    assert made.lane(2, made[1].key) == [b"a"]
