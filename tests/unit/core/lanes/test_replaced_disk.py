"""Tests of replaced disks: a promise belongs to a disk, so the disks of the last attempt count under any number."""

from __future__ import annotations

import pytest

from tests.unit.core.lanes.lane_disk import Key
from tests.unit.core.lanes.lane_group import Group, answers, beats, group, halted, incarnation, under_way
from tests.unit.core.lanes.test_lost_end_last_attempt import ended, resumed
from tutti.data.client_protocol import Committed, Duplicate
from tutti.data.frames.bodies import LaneViewBody, Voter, decode_body
from tutti.data.frames.frame import Kind
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import LaneEnds, LaneFetch, LaneMessage, Post

_LONG = 4 * limits.LANE_WAIT_HEARTBEATS
RECORDS = [b"1", b"2", b"3"]


def disks(made: Group, key: Key, number: int) -> dict[int, bytes]:
    """The members of the last attempt of a lane and their disks, as a gateway has it."""
    views = [frame for frame in made[number].disks[key].frames if frame.kind == Kind.VIEW]
    return decode_body(LaneViewBody, views[-1].body).by_number


def sent_in_a_part() -> Group:
    """Gateways 1 and 2 acknowledge three records in a part of their own. Gateway 1 dies, gateway 3 learns the records from
    gateway 2, and the disk of gateway 1 loses the last two of them.
    """
    made = group(5)
    made.vote()
    made.split({1, 2}, {3}, {4}, {5})
    made.settle(_LONG)
    for sequence, record in enumerate(RECORDS, 1):
        made.submit(1, (1, sequence, record))
        made.settle()
    key = made[1].key
    assert disks(made, key, 2) == {1: incarnation(1), 2: incarnation(2)}
    made.crash(1)
    made.split({2, 3}, {1}, {4}, {5})
    made.settle(_LONG)
    assert made.lane(3, key) == RECORDS
    for number in (2, 3):
        made.crash(number)
    made.network.clear()
    end = len(made[1].disks[key].frames)
    made[1].disks[key].lose(end - 1, end - 2)
    made[1].answers.clear()
    return made


def whole_again(made: Group) -> None:
    """Check that every record is there once, and that the lane accepts others."""
    made.cuts = set()
    made.settle(_LONG)
    assert halted(made) == ""
    assert made.lane(1, made[1].key) == made.lane(3, made[1].key) == RECORDS
    made.submit(1, (1, 3, b"3"), (1, 4, b"4"))
    made.settle()
    assert answers(made, 1) == [Duplicate(1, 1, 3, 1), Committed(1, 1, 4, 1, 3)]


@pytest.mark.parametrize("how", ["replaced", "removed", "replaced and removed"])
def test_if_the_disk_of_a_member_is_gone_the_complete_roster_is_asked(how: str) -> None:
    made = sent_in_a_part()
    made.wipe(2)
    if "replaced" in how:
        made.vote()
        made.start(2)
    if "removed" in how:
        del made.state.roster[2]
    made.split({1, 2, 4, 5}, {3})
    made.start(1)
    made.settle(_LONG)
    assert halted(made).endswith("it waits for gateway 3, which may have more of the frames")
    made.submit(1, (1, 2, b"other"))
    assert made[1].disks[made[1].key].attempt == disks_attempt(made), "no other attempt is promised"
    answers(made, 1)
    made.start(3)
    whole_again(made)


def disks_attempt(made: Group) -> int:
    """The attempt of the last frame that gateway 1 has left."""
    return made[1].disks[made[1].key].frames[-1].view


def test_frames_named_in_an_answer_are_awaited_before_they_count_as_decided() -> None:
    """Gateway 3 answers, and its message about the decided end is lost for a while."""
    made = sent_in_a_part()
    made.wipe(2)
    made.vote()
    made.cuts = set()
    for number in (1, 2, 3):
        made.start(number)
    beats(made, 4, LaneEnds, sender=3)
    whole_again(made)


def test_a_disk_that_is_back_under_another_number_answers_for_the_attempt() -> None:
    """No other member is awaited."""
    made = sent_in_a_part()
    made.crash(4)
    made[4].disks[made[1].key] = made[2].disks[made[1].key]
    del made.state.roster[2]
    made.state.roster[4] = Voter(4, "g2", incarnation(2), "")
    made.start(4)
    made.split({1, 4}, {3}, {5})
    made.start(1)
    made.settle(_LONG)
    assert halted(made) == ""
    assert made.lane(1, made[1].key) == RECORDS
    made.start(3)
    whole_again(made)


def test_an_attempt_that_names_no_disks_is_asked_of_all_of_the_roster() -> None:
    """A release without disk identities began it: it is unknown whether the disk of a member is still the one that voted."""
    made = group(4)  # there is no roster yet
    made.crash(4)
    made.settle(_LONG)
    made.vote()
    made.submit(1, (1, 1, b"1"))
    made.settle()
    key = made[1].key
    assert disks(made, key, 2) == {1: b"", 2: b"", 3: b""}
    made.crash(1)
    made.network.clear()
    disk = made[1].disks[key]
    disk.lose(len(disk.frames), len(disk.frames) - 1)
    made.start(1)
    made.settle(_LONG)
    assert halted(made).endswith("it waits for gateway 4, which may have more of the frames")
    made.start(4)
    made.settle(_LONG)
    assert halted(made) == ""


def test_an_answer_counts_for_the_disk_that_gave_it() -> None:
    """Gateway 2 answered, then another disk replaced its own: that one is asked again."""
    made = group()
    made.vote()
    made.crash(3)
    made.settle(_LONG)
    made.start(3)
    made.settle(_LONG)
    made.submit(1, (1, 1, b"1"))
    made.settle()
    key = made[1].key
    made.crash(1)
    made.crash(3)
    made.network.clear()
    disk = made[1].disks[key]
    disk.lose(len(disk.frames), len(disk.frames) - 1)
    made.start(1)
    made.settle(_LONG)
    assert halted(made).endswith("it waits for gateway 3, which may have more of the frames")
    made.wipe(2)
    made.vote()
    made.start(3)
    made.settle(_LONG)
    assert halted(made).endswith("it waits for gateway 2, which may have more of the frames")
    made.start(2)
    made.settle(_LONG)
    assert halted(made) == ""
    assert made.lane(1, key) == [b"1"]


def test_a_vote_counts_for_the_disk_that_gave_it() -> None:
    """Gateway 2 had the end of the attempt that is resumed; its new disk has to have it, too."""
    made = resumed()
    made.wipe(2)
    made.vote()
    made.settle(_LONG)
    assert halted(made).endswith("it waits for gateway 2 to write its last frames")
    frame = made[3].disks[made[1].key].frames[-1]
    assert not made.holds(made[1], made[1].key, frame)
    made.start(2)
    made.settle(_LONG)
    assert made.holds(made[2], made[1].key, frame)
    ended(made)


def test_an_attempt_ends_when_another_disk_replaces_a_members_one() -> None:
    """It changes between two heartbeats, and the connected gateways stay the same."""
    made = group()
    made.vote()
    made.crash(3)
    made.settle(_LONG)
    made.start(3)
    made.settle(_LONG)
    key = made[1].key
    assert disks(made, key, 1) == {number: incarnation(number) for number in (1, 2, 3)}
    attempt = made[1].disks[key].attempt
    part = made[1].part
    made.wipe(3)
    made.vote()
    made.start(3)
    made.settle(_LONG)
    assert made[1].part == part
    assert made[1].disks[key].attempt > attempt
    assert disks(made, key, 1)[3] == incarnation(3, 1)
    made.submit(1, (1, 1, b"1"))
    made.settle()
    assert made.lane(3, key) == [b"1"]


def test_a_learner_s_first_named_disk_ends_no_attempt() -> None:
    """The roster names the disk of an added gateway when it gives it a vote."""
    made = group()
    made.submit(1, (1, 1, b"1"))
    made.settle()
    attempt = made[1].disks[made[1].key].attempt
    made.vote()
    made.settle(_LONG)
    assert made[1].disks[made[1].key].attempt == attempt


def test_a_disk_that_was_replaced_is_a_source_no_more() -> None:
    """Gateway 3 reported that it has more of gateway 1's lane, and was replaced: its new disk is not asked for it without end."""
    made = group()
    made.vote()
    made.crash(2)
    made.settle(_LONG)
    made.submit(1, (1, 1, b"1"))
    made.settle()
    made.crash(1)
    made.start(2)
    made.network.clear()
    lost: type[LaneMessage] = LaneFetch
    beats(made, 2 * limits.LANE_ENDS_HEARTBEATS, lost, sender=2)
    layer = made[2].layer
    assert layer is not None
    lane = layer._member._lanes[made[1].key]
    assert set(lane.sources) == {3}
    made.wipe(3)
    made.vote()
    made.start(3)
    made.settle(_LONG)
    assert not lane.sources
    made.network.clear()
    made.beat(2)
    assert not under_way(made, LaneFetch)


def test_an_attempt_is_posted_to_the_members_that_its_view_names() -> None:
    made = group()
    made.vote()
    made.crash(3)
    made.settle(_LONG)
    made.submit(1, (1, 1, b"1"))
    assert {to for _, to, message in made.network if isinstance(message, Post)} == {2}
    assert set(disks(made, made[1].key, 1)) == {1, 2}
