"""Tests of the last attempt of a lane with a lost end: it continues with everything that may be decided, without removed members,
and completes whatever its members report.
"""

from __future__ import annotations

import pytest

from tests.unit.core.lanes.lane_group import Group, answers, arrive, beats, group, halted, members, under_way
from tests.unit.core.lanes.test_retention import begin_of
from tutti.data.client_protocol import Committed, Duplicate
from tutti.data.frames.frame import Frame
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import LaneFetched, LaneMessage, LaneTail, Post, Posted, Settled

_LONG = 4 * limits.LANE_WAIT_HEARTBEATS


def resumed(count: int = 3) -> Group:
    """Gateway 1 lost its lane behind position 1, a mark names position 3. Gateway 2 alone of all others has position 4, the third
    batch. All answered how far they are, and gateway 1 is in the last attempt again, in which gateway 3 gets nothing.
    """
    made = group(count)
    made.vote()
    for sequence in (1, 2):
        made.submit(1, (1, sequence, b"%d" % sequence))
        made.settle()
    made.submit(1, (1, 3, b"3"))
    arrive(made, lambda _sender, to, message: not isinstance(message, Settled) and not (to == 3 and isinstance(message, Post)))
    made.crash(1)
    made.network.clear()
    made[1].disks[made[1].key].lose(2, 3)
    made[1].answers.clear()
    made.start(1)
    beats(made, 2 * limits.LANE_WAIT_HEARTBEATS, Post, to=3)
    assert halted(made).endswith("it waits for gateway 3 to write its last frames")
    return made


def ended(made: Group) -> None:
    """Check that the lane continues, with the third batch in it once, at its position in the last attempt."""
    assert halted(made) == ""
    frame = made.find(made[1].key, 1, 1, 3)
    assert frame is not None
    assert (frame.position, frame.view) == (4, 1)
    made.submit(1, (1, 3, b"3"), (1, 4, b"4"))
    made.settle()
    assert answers(made, 1) == [Duplicate(1, 1, 3, 1), Committed(1, 1, 4, 1, 3)]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_removed_member_is_no_longer_awaited(restarted: bool) -> None:
    """Its frames arrived before the attempt continued, so no decided frame is after the end."""
    made = resumed()
    made.wipe(3)
    made.settle(_LONG)
    assert halted(made).endswith("it waits for gateway 3 to write its last frames"), "it may come back"
    del made.state.roster[3]
    if restarted:
        made.crash(1)
        made.start(1)
    made.settle(_LONG)
    ended(made)
    assert members(made, 1) == (1, 2)


def test_without_a_view_no_member_counts_as_removed() -> None:
    made = resumed()
    made.wipe(3)
    made.standings[1].primary = False
    del made.state.roster[3]
    made.settle(_LONG)
    assert halted(made).endswith("it waits for gateway 3 to write its last frames")
    made.standings[1].primary = True
    made.settle(_LONG)
    ended(made)


def test_with_all_others_removed_it_continues_alone() -> None:
    made = resumed()
    for number in (2, 3):
        made.wipe(number)
        del made.state.roster[number]
    made.settle(_LONG)
    ended(made)
    assert members(made, 1) == (1,)


def test_a_disk_that_is_replaced_learns_all_and_votes() -> None:
    made = resumed()
    made.wipe(3)
    made.vote()
    made.start(3)
    made.settle(_LONG)
    ended(made)
    assert members(made, 1) == (1, 2, 3)


def test_a_member_removed_before_it_sent_its_frames_is_not_awaited() -> None:
    """It answered that it has more, so that others need not have all of it: but as an answer it is like none."""
    made = group()
    made.vote()
    made.submit(1, (1, 1, b"1"))
    made.settle()
    made.submit(1, (1, 2, b"2"))
    arrive(made, lambda _sender, to, message: not isinstance(message, Settled) and not (to == 3 and isinstance(message, Post)))
    made.crash(1)
    made.network.clear()
    made[1].disks[made[1].key].lose(2, 2)
    made.start(1)
    for _ in range(2 * limits.LANE_WAIT_HEARTBEATS):  # gateway 2 has position 3 alone, says so, and what it gives is lost
        beat_without_tails(made)
    assert halted(made).endswith("it waits for more frames from gateway 2")
    made.wipe(2)
    del made.state.roster[2]
    made.settle(_LONG)
    assert halted(made) == ""
    made.submit(1, (1, 2, b"again"))
    made.settle()
    assert answers(made, 1) == [Committed(1, 1, 2, 1, 1)]


def beat_without_tails(made: Group) -> None:
    """A heartbeat in which no answer with frames arrives."""
    for number in made.gateways:
        made.tell(number)
        made.beat(number)
    while made.network:
        message = made.network[0][2]
        if isinstance(message, LaneTail) and message.frames:
            made.network.pop(0)
        else:
            made.deliver()
    for number in made.gateways:
        made.sync(number)
        while made[number].reads:
            made.read(number)


def test_a_member_that_writes_nothing_is_reported_once() -> None:
    """It does not end the attempt, and the status names the member that the lane waits for."""
    made = resumed()
    beats(made, 300, Posted, sender=3)
    assert [(one.member, one.reason) for one in made.suspects] == [
        (3, "no vote since position 3 of lane 1, but 4 is posted: the lane waits for it")
    ]
    made.settle(_LONG)
    ended(made)
    assert members(made, 1) == (1, 2, 3)


def test_a_low_disk_is_no_reason_to_end_frames_that_may_be_decided() -> None:
    made = resumed()
    layer = made[3].layer
    assert layer is not None
    layer.space("the disk runs low")
    made.settle(_LONG)
    assert halted(made).endswith("it waits for gateway 3 to write its last frames")
    assert made[1].disks[made[1].key].attempt == 1, "no other attempt is promised"
    layer.space("")
    made.settle(_LONG)
    ended(made)


def test_a_member_that_got_more_of_an_earlier_run_votes_for_the_end() -> None:
    """The last post of that run arrives late: no other member has it, and the next attempt replaces it."""
    made = group()
    made.vote()
    for sequence in (1, 2):
        made.submit(1, (1, sequence, b"%d" % sequence))
        made.settle()
    made.submit(1, (1, 3, b"3"))
    made.submit(1, (1, 4, b"late"))
    late = [one for one in made.network if one[1] == 3 and isinstance(one[2], Post)]
    made.network = [one for one in made.network if one[1] == 2 and last(one[2]) == 4]
    arrive(made, lambda _sender, _to, message: isinstance(message, Post))
    made.crash(1)
    made[1].disks[made[1].key].lose(2, 3)
    made[1].answers.clear()
    made.start(1)
    beats(made, 2 * limits.LANE_WAIT_HEARTBEATS, Post, to=3)
    assert halted(made).endswith("it waits for gateway 3 to write its last frames")
    made.network.extend(late)
    arrive(made, lambda _sender, _to, message: not (isinstance(message, Posted) and message.up_to == 4))
    assert len(made[3].disks[made[1].key].frames) == 5
    beats(made, _LONG, Post, to=3)  # it has all that is posted, and says so with what it has
    ended(made)
    assert b"late" not in made.lane(2, made[1].key)


def last(message: LaneMessage) -> int:
    """The last position of a Post."""
    return message.frames[-1].position if isinstance(message, Post) else 0


def test_frames_trimmed_by_others_do_not_return_as_a_beginning() -> None:
    """Such a beginning lacks the producers' sequences, so the lane would accept duplicates."""
    made = group()
    made.vote()
    for sequence in (1, 2, 3):
        made.submit(1, (1, sequence, b"%d" % sequence))
        made.settle()
    made.settle(2 * limits.LANE_ENDS_HEARTBEATS)
    made.crash(1)
    disk = made[1].disks[made[1].key]
    frames: list[Frame] = list(disk.frames)
    disk.lose(2, 4)
    made.begins[made[1].key] = begin_of(frames)
    made.start(1)
    made.settle(_LONG)
    assert "position 2 of 4 is at no other gateway (retention removed it at gateway 2, gateway 3)" in halted(made)
    assert "members remove" in halted(made)
    assert len(made[1].disks[made[1].key].frames) == 1
    assert {drop.kind for drop in made.dropped} == {LaneFetched.__name__}
    assert not under_way(made, LaneFetched)
