"""Tests of an own lane with a lost end: which members it waits for, what it reports meanwhile, and that no other answer counts."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.core.lanes.lane_disk import LaneDisk
from tests.unit.core.lanes.lane_group import Group, answers, arrive, group, halted, under_way
from tutti.data.client_protocol import Committed, Duplicate, RefusedAnswer
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import LaneAsk, LaneTail, Settled


def lost(*away: int, marked: int = 3, first: int = 2) -> Group:
    """Gateway 1 lost its lane from a position on; it has a VIEW and three batches, the last of which only gateway 1 knows as
    decided. Others are down.
    """
    made = group()
    made.vote()
    for sequence in (1, 2):
        made.submit(1, (1, sequence, b"%d" % sequence))
        made.settle()
    made.submit(1, (1, 3, b"3"))
    arrive(made, lambda sender, to, message: not isinstance(message, Settled))
    made.crash(1)
    made.network.clear()
    for number in away:
        made.crash(number)
    made[1].disks[made[1].key].lose(first, marked)
    made[1].answers.clear()
    made.start(1)
    made.settle(limits.LANE_WAIT_HEARTBEATS)
    return made


def test_frames_decided_only_at_the_origin_are_decided_again_and_the_lane_continues() -> None:
    made = lost()
    assert halted(made) == ""
    assert made.lane(2, made[1].key) == [b"1", b"2", b"3"]
    made.submit(1, (1, 3, b"3"), (1, 4, b"4"))
    made.settle()
    assert answers(made, 1) == [Duplicate(1, 1, 3, 1), Committed(1, 1, 4, 1, 3)]


@pytest.mark.parametrize("marked", [3, 4])
def test_it_waits_for_every_member_of_the_last_attempt(marked: int) -> None:
    made = lost(3, marked=marked)
    assert halted(made).endswith("it waits for gateway 3, which may have more of the frames")
    made.submit(1, (1, 4, b"4"))
    (refused,) = answers(made, 1)
    assert isinstance(refused, RefusedAnswer)
    assert (refused.code, refused.retry) == ("lane", True)
    made.start(3)
    made.settle(limits.LANE_WAIT_HEARTBEATS)
    assert halted(made) == ""


def test_frames_that_no_gateway_has_are_reported_with_a_remedy() -> None:
    made = lost(2, 3)
    assert "position 2 of 3 is at no gateway that has answered; it waits for gateway 2, gateway 3" in halted(made)
    for number in (2, 3):
        del made[number].disks[made[1].key]
        made.start(number)
    made.settle(limits.LANE_WAIT_HEARTBEATS)
    assert "is at no other gateway" in halted(made)
    assert "members remove" in halted(made)


def test_an_answer_to_another_run_counts_for_nothing() -> None:
    made = lost(2, 3)
    made.start(2)
    made.start(3)
    made.tell(1)
    made.beat(1)
    (ask, *_) = [message for _, _, message in made.network if isinstance(message, LaneAsk)]
    made.network.clear()
    layer = made[1].layer
    assert layer is not None
    for sender in (2, 3):
        layer.on_message(sender, LaneTail(ask.incarnation, ask.token ^ 1, 1, 2))
        made.carry_out(1)
    assert "it waits for gateway 2, gateway 3" in halted(made)
    assert not under_way(made, LaneTail)


@pytest.mark.parametrize(("attempt", "decided"), [(1, 1), (2, 0)])
def test_frames_durable_at_the_origin_decide_the_frame_of_that_attempt_alone(attempt: int, decided: int) -> None:
    """Another attempt may have another frame at the same position."""
    made = group()
    before = made[2].seen.get(made[1].key, 0)
    made.submit(1, (1, 1, b"a"))
    arrive(made, lambda _sender, _to, message: not isinstance(message, Settled))
    member, lane = made[2].layer, made[1].key
    assert member is not None
    assert made[2].seen.get(lane, 0) == before
    member.on_message(1, LaneAsk(lane[1], 9, attempt, before + 1))
    made.carry_out(2)
    assert made[2].seen.get(lane, 0) == before + decided


def again(made: Group, **changes: object) -> None:
    """Gateway 1 starts again, and finds something else lost."""
    made.crash(1)
    disk = made[1].disks[made[1].key]
    assert disk.lost is not None
    disk.lost = msgspec.structs.replace(disk.lost, **changes)
    made.start(1)
    made.settle(limits.LANE_WAIT_HEARTBEATS)


def test_frames_published_after_the_mark_are_awaited() -> None:
    """Clients know of them, and no connected gateway has them: no other frame may take their position."""
    made = lost(2, 3)
    for number in (2, 3):
        del made[number].disks[made[1].key].frames[3:]
        made.start(number)
    again(made, shown=4)
    assert "position 4 of 4 is at no other gateway" in halted(made)
    assert made[1].disks[made[1].key].attempt == 1


def test_another_frame_at_the_mark_than_the_disk_had_halts_the_lane() -> None:
    made = lost(2, 3)
    for number in (2, 3):
        made.start(number)
    again(made, chain=7)
    assert halted(made).startswith(
        "the lane of this gateway takes nothing more: another gateway has decided a different frame at position 3"
    )


def test_if_a_member_of_the_last_attempt_was_removed_all_members_are_asked() -> None:
    """Its disk may be back under another number."""
    made = group(4)
    made.vote()
    made.crash(4)
    made.settle(2 * limits.LANE_WAIT_HEARTBEATS)
    made.submit(1, (1, 1, b"1"))
    made.settle()
    for number in (1, 3):
        made.crash(number)
    disk = made[1].disks[made[1].key]
    disk.lose(len(disk.frames), len(disk.frames))
    made.start(1)
    made.settle(limits.LANE_WAIT_HEARTBEATS)
    assert "it waits for gateway 3, which may have more of the frames" in halted(made), "gateway 4 was in no attempt of that time"
    del made.state.roster[3]
    made.settle(limits.LANE_WAIT_HEARTBEATS)
    assert "it waits for gateway 4, which may have more of the frames" in halted(made)
    made.start(4)
    made.settle(limits.LANE_WAIT_HEARTBEATS)
    assert halted(made) == ""
    assert made.lane(4, made[1].key) == [b"1"]


def test_an_end_that_was_this_gateway_s_alone_is_asked_of_all_that_there_are() -> None:
    """A gateway that copied it has it as decided, and was in no attempt of that time."""
    made = group()
    made.vote()
    for number in (2, 3):
        made.crash(number)
    made.settle(2 * limits.LANE_WAIT_HEARTBEATS)
    for sequence in (1, 2, 3):
        made.submit(1, (1, sequence, b"%d" % sequence))
        made.settle()
    key, disk = made[1].key, made[1].disks[made[1].key]
    made.crash(1)
    made[2].disks[key] = LaneDisk(frames=list(disk.frames), attempt=disk.attempt, delivered=len(disk.frames))
    end = len(disk.frames)
    disk.lose(end, end - 1)
    made.start(1)
    made.settle(2 * limits.LANE_WAIT_HEARTBEATS)
    assert halted(made).endswith("it waits for gateway 2, gateway 3, which may have more of the frames")
    made.start(3)
    made.settle(2 * limits.LANE_WAIT_HEARTBEATS)
    assert halted(made).endswith("it waits for gateway 2, which may have more of the frames")
    made.start(2)
    made.settle(2 * limits.LANE_WAIT_HEARTBEATS)
    assert halted(made) == ""
    made.submit(1, (1, 3, b"3"), (1, 4, b"4"))
    made.settle()
    assert made.lane(1, key) == made.lane(3, key) == [b"1", b"2", b"3", b"4"]


def test_the_roster_is_believed_in_a_view_alone() -> None:
    """The roster at a start may be older: members of the last attempt may have been removed since, and others added."""
    made = lost(2, 3)
    made.standings[1].primary = False
    for number in (2, 3):
        made.start(number)
    made.settle(limits.LANE_WAIT_HEARTBEATS)
    assert halted(made).endswith("it waits for a view of the group")
    assert made[1].disks[made[1].key].attempt == 1
    made.standings[1].primary = True
    made.settle(limits.LANE_WAIT_HEARTBEATS)
    assert halted(made) == ""


def test_an_end_that_is_not_durable_is_neither_reported_nor_sent() -> None:
    """It could be lost in a crash after others had counted on it."""
    made = group()
    key = made[1].key
    for sequence in (1, 2):
        made.submit(1, (1, sequence, b"%d" % sequence))
        made.network = [one for one in made.network if one[1] == 2 and not isinstance(one[2], Settled)]
        while made.network:
            made.deliver()
        if sequence == 1:
            made.sync(2)
            made.network.clear()
    durable = len(made[2].disks[key].frames)
    member = made[2].layer
    assert member is not None
    assert made[2].queue, "the second batch is being written"
    member.on_message(1, LaneAsk(key[1], 9, 1, durable - 1, durable - 1))
    made.carry_out(2)
    (tail,) = [message for _, _, message in made.network if isinstance(message, LaneTail)]
    assert tail.up_to == durable
    assert [frame.position for frame in tail.frames] == [durable]
