"""Tests of lost messages of a lane: they are sent again, and foreign messages change nothing."""

from __future__ import annotations

import msgspec

from tests.unit.core.lanes.lane_group import arrive, group
from tutti.data.frames.frame import Kind, decode_frame
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import LaneEnd, LaneEnds, LaneFetched, LaneMessage, Post, Posted, Settled


def test_a_gap_is_reported_at_once_and_the_last_post_is_resent_after_a_while() -> None:
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


def test_a_live_lane_is_not_fetched_but_a_stalled_one_is() -> None:
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


def test_foreign_messages_are_dropped_and_change_nothing() -> None:
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
        made.carry_out(2)
        assert not made[2].queue, message
        assert not made[2].reads, message
    assert {drop.kind for drop in made.dropped} == {"Post", "LaneFetched", "Posted"}
    made.settle(5)
    assert made.lane(2, made[1].key) == [b"a"]
