"""Tests of attempts: how an origin continues with the members that remain, and what happens to its lane when it dies."""

from __future__ import annotations

import pytest

from tests.unit.core.lanes.lane_disk import LaneDisk
from tests.unit.core.lanes.lane_group import Group, answers, arrive, group, incarnation_key, members, under_way
from tutti import limits as common_limits
from tutti.data.client_protocol import Committed, Duplicate
from tutti.data.frames.bodies import Voter
from tutti.data.frames.frame import Kind
from tutti_gateway.core import limits
from tutti_gateway.core.lanes.phases import ATTEMPT, Input, Phase
from tutti_gateway.core.protocol.messages import LaneEnds, LaneMessage, Post, Posted, Settled


def test_without_a_member_the_origin_ends_its_attempt_durably_and_retries_with_the_rest() -> None:
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


def test_members_are_notified_of_acknowledged_frames_once_they_have_all_of_the_lane() -> None:
    """A posted VIEW proves nothing yet: a member that lags votes for it only when it has all earlier frames."""
    made = group()
    layer = made[1].layer
    assert layer is not None
    told = [layer.replicas]
    made.crash(3)
    made.tell(1)
    made.tell(2)
    told.append(layer.replicas)
    posts: list[LaneMessage] = []

    def without_votes(_sender: int, _to: int, message: LaneMessage) -> bool:
        posts.extend([message] if isinstance(message, Post) else [])
        return not isinstance(message, Posted)

    arrive(made, without_votes)
    assert posts
    told.append(layer.replicas)
    made.settle(limits.RESEND_HEARTBEATS + 1)
    assert [*told, layer.replicas] == [(1, 2, 3), (), (), (1, 2)]


def voting(made: Group) -> None:
    """Make all gateways voters in the log."""
    made.state.roster = {number: Voter(number, f"g{number}", made[number].key[1], "") for number in made.gateways}


def test_a_restarted_origin_accepts_nothing_alone_while_others_are_about_to_connect() -> None:
    """A client that reconnects at once would get a commit that is on one disk, with all others running."""
    made = group()
    voting(made)
    made.crash(1)
    made.start(1)
    layer = made[1].layer
    assert layer is not None
    for part in ((1,), (1, 2)):
        layer.set_connected(part)
        made.carry_out(1)
        made.submit(1, (1, 1, b"a"))
        for _ in range(limits.LANE_WAIT_HEARTBEATS // 2 - 1):
            made.beat(1)
            arrive(made, lambda *_: True)
    assert answers(made, 1) == []
    made.settle(limits.LANE_ENDS_HEARTBEATS + 1)
    assert answers(made, 1) == [Committed(1, 1, 1, 1, 0)]
    assert members(made, 1) == (1, 2, 3)


def test_a_restarted_origin_continues_alone_if_no_other_connects() -> None:
    made = group()
    voting(made)
    for number in (1, 2, 3):
        made.crash(number)
    made.start(1)
    made.tell(1)
    made.submit(1, (1, 1, b"a"))
    made.settle(limits.LANE_WAIT_HEARTBEATS - 1)
    assert answers(made, 1) == []
    made.settle(2)
    assert answers(made, 1) == [Committed(1, 1, 1, 1, 0)]
    assert members(made, 1) == (1,)


def test_frames_written_before_an_attempt_ended_are_decided_with_its_members() -> None:
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


def test_each_part_continues_and_all_members_have_everything_after_the_partition() -> None:
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


def test_an_attempt_waits_for_all_its_members_and_excludes_silent_ones() -> None:
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


def test_a_member_far_behind_catches_up_before_an_attempt_includes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LANE_LAG_FRAMES_MAX", 5)
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


def test_an_attempt_that_could_begin_alone_waits_for_a_member_that_reconnected() -> None:
    made = group()
    made.split({1}, {2, 3})
    made.tell(1)
    made.split()
    made.tell(1)
    arrive(made, lambda sender, to, message: sender == 1)
    assert members(made, 1) == (1, 2, 3)
    assert (made[1].key, 2) not in made.members
    made.settle()
    made.settle(limits.LANE_ENDS_HEARTBEATS)
    assert members(made, 1) == (1, 2, 3)


def test_a_member_that_catches_up_requests_the_next_part_when_the_last_one_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_limits, "FRAMES_A_MESSAGE_MAX", 2)
    made = group()
    made.crash(3)
    made.settle()
    for sequence in range(1, 21):
        made.submit(1, (1, sequence, b"x"))
    made.settle()
    made.start(3)
    for number in made.gateways:
        made.tell(number)
    for _ in range(10):
        while made.network:
            made.deliver()
        for number in (1, 2):
            made.sync(number)
            while made[number].reads:
                made.read(number)
    assert 0 < sum(len(write.frames) for write in made[3].queue) <= 3 * 2
    made.settle()
    assert made.lane(3, made[1].key) == [b"x"] * 20


def test_the_table_of_attempts_knows_no_way_around_the_durable_end() -> None:
    assert {before for (before, _), after in ATTEMPT.items() if after is Phase.OPEN} == {Phase.COLLECTING}
    assert {before for (before, _), after in ATTEMPT.items() if after is Phase.COLLECTING} == {Phase.ENDING}
    assert [input_ for (before, input_) in ATTEMPT if before is Phase.ENDING] == [Input.DURABLE]


def test_one_member_that_saw_the_decision_is_enough_for_all() -> None:
    made = group(4)
    made.submit(1, (1, 1, b"a"))
    arrive(made, lambda sender, to, message: to == 3 or not isinstance(message, Settled))
    made.crash(1)
    made.settle()
    assert {number: made.lane(number, incarnation_key(1)) for number in (2, 3, 4)} == {2: [b"a"], 3: [b"a"], 4: [b"a"]}


def test_frames_that_no_member_saw_decided_are_in_doubt_for_that_lane_alone_until_its_origin_returns() -> None:
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


def test_frames_unwritten_when_the_origin_died_are_gone_and_may_be_sent_again() -> None:
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


def test_a_starting_member_knows_frames_before_a_view_as_decided() -> None:
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
    assert made[2].seen[incarnation_key(1)] == disk.frames[-1].position - 1 > 2
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


def test_a_member_truncates_nothing_for_a_new_attempt_before_it_knows_the_decisions() -> None:
    """It voted for frames that the origin has decided since and does not know that yet; these frames must not be lost."""
    made = group()
    made.submit(1, (1, 1, b"a"))
    made.settle()
    made.submit(1, (1, 2, b"b"))
    arrive(made, lambda sender, to, message: isinstance(message, Post | Posted))
    assert made.lane(1, made[1].key) == [b"a", b"b"]
    assert made.lane(2, made[1].key) == [b"a"]
    held = len(made[2].disks[made[1].key].frames)
    made.crash(3)
    made.tell(1)
    made.tell(2)
    arrive(made, lambda sender, to, message: to == 1 or isinstance(message, Post | LaneEnds))
    assert len(made[2].disks[made[1].key].frames) == held
    made.settle(20)
    assert made.lane(2, made[1].key) == [b"a", b"b"]
