"""Proves that an origin which lost a part of its own lane places nothing where something was decided, and says so."""

from __future__ import annotations

from gateway.core import limits
from gateway.core.messages import Post
from gateway.data.wire import RefusedAnswer
from tests.unit.core.unordered.rig import LaneDisk, answers, group, under_way


def test_a_lane_that_a_start_found_damaged_takes_nothing_and_begins_no_attempt() -> None:
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


def test_an_origin_that_hears_of_more_of_its_lane_than_it_has_takes_nothing() -> None:
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
