"""Tests of a halted lane: an origin that lost a part of its own lane accepts no batches and reports it."""

from __future__ import annotations

import pytest

from tests.unit.core.lanes.lane_disk import LaneDisk
from tests.unit.core.lanes.lane_group import Group, answers, group, quiet, under_way
from tutti.data.client_protocol import RefusedAnswer
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import LaneEnd, LaneEnds, LaneMessage, Post, Posted


def test_a_lane_found_damaged_at_a_start_accepts_nothing_and_begins_no_attempt() -> None:
    made = group()
    made.submit(1, (1, 1, b"a"))
    made.settle()
    made.crash(1)
    made[1].disks[made[1].key] = LaneDisk(halted="it is damaged")
    made[1].seen.clear()
    made.start(1)
    made.settle(2 * limits.LANE_WAIT_HEARTBEATS)
    made.submit(1, (1, 2, b"b"))
    (refused,) = answers(made, 1)
    assert isinstance(refused, RefusedAnswer)
    assert (refused.code, refused.retry) == ("lane", True)
    assert "it is damaged" in refused.reason
    assert made.lane(2, made[1].key) == [b"a"]
    assert not made[1].disks[made[1].key].frames


def test_an_origin_that_learns_of_more_of_its_lane_than_it_has_accepts_nothing() -> None:
    made = group()
    for sequence in range(1, 4):
        made.submit(1, (1, sequence, b"%d" % sequence))
        made.settle()
    made.crash(1)
    disk = made[1].disks[made[1].key]
    del disk.frames[2:]
    disk.delivered = 2
    made.start(1)
    made.settle(2 * limits.LANE_WAIT_HEARTBEATS)
    made.submit(1, (1, 4, b"other"))
    (refused,) = answers(made, 1)
    assert isinstance(refused, RefusedAnswer)
    assert refused.code == "lane"
    assert any(suspect.member == 1 and "decided up to position 4" in suspect.reason for suspect in made.suspects)
    assert not under_way(made, Post)
    assert made.lane(2, made[1].key) == [b"1", b"2", b"3"]
    made.submit(2, (1, 1, b"elsewhere"))
    made.settle()
    assert made.lane(3, made[2].key) == [b"elsewhere"]


def with_a_batch_under_way() -> Group:
    """Gateway 1 is in an attempt, and no other received the batch that it placed."""
    made = group()
    made.settle(2 * limits.LANE_REPEAT_HEARTBEATS)
    made.submit(1, (1, 1, b"a"))
    made.network.clear()
    assert not made[1].queue
    return made


def hear(made: Group, sender: int, message: LaneMessage) -> None:
    layer = made[1].layer
    assert layer is not None
    layer.on_message(sender, message)
    made.carry_out(1)


def halt(made: Group) -> None:
    """Let gateway 3 have more decided frames of gateway 1's lane than gateway 1 has."""
    hear(made, 3, LaneEnds((LaneEnd(*made[1].key, 9),)))
    assert made[1].layer is not None
    assert made[1].layer.halted


@pytest.mark.parametrize(("up_to", "low"), [(0, ""), (1, "it is full"), (2, "")], ids=["silence", "a NO", "a YES"])
def test_batches_in_flight_when_a_lane_halts_stay_unknown(up_to: int, low: str) -> None:
    made = with_a_batch_under_way()
    key = made[1].key
    disk = made[1].disks[key]
    attempt = disk.attempt
    halt(made)
    for member in (2, 3):
        hear(made, member, Posted(key[1], attempt, up_to, low, again=False))
    for _ in range(2 * limits.ATOMIC_PERIOD_HEARTBEATS):
        made.beat(1)
        made.sync(1)
    assert (disk.attempt, len(disk.frames)) == (attempt, 1)
    assert not answers(made, 1)
    assert made.lane(1, key) == []
    assert [suspect.member for suspect in made.suspects] == [1], "nobody is late with a vote that counts for nothing"
    assert quiet(made, 1), "who leaves does not wait for it"


def test_batches_at_a_halt_between_two_attempts_are_not_refused() -> None:
    made = with_a_batch_under_way()
    disk = made[1].disks[made[1].key]
    attempt = disk.attempt
    hear(made, 2, Posted(made[1].key[1], attempt, 1, "it is full", again=False))
    halt(made)
    made.sync(1)
    assert disk.attempt == attempt + 1
    assert not answers(made, 1)
