"""Tests of the retention of a lane: frames go only after every gateway has them, and a late gateway starts at the new beginning."""

from __future__ import annotations

from tests.unit.core.lanes.lane_disk import Key
from tests.unit.core.lanes.lane_group import Group, arrive, incarnation
from tutti.data.frames.bodies import Voter
from tutti.data.frames.frame import Frame
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import LaneHeld
from tutti_gateway.core.protocol.messages import LaneBegin, LaneFetched, Settled


def group_of_roster() -> Group:
    """Three gateways that the log names."""
    made = Group(3)
    made.state.roster = {number: Voter(number, f"g{number}", incarnation(number), "h:1") for number in (1, 2, 3)}
    made.settle(20)
    return made


def send(made: Group, first: int, last: int) -> None:
    for sequence in range(first, last + 1):
        made.submit(1, (1, sequence, b"%d" % sequence))
        made.settle()


def held(made: Group, number: int, key: Key) -> int:
    """Return the last reported position up to which every gateway has a lane."""
    return max((one.position for one in made[number].held if (one.origin, one.incarnation) == key), default=0)


def begin_of(frames: list[Frame]) -> LaneBegin:
    """Return the beginning of a lane after these frames."""
    last = frames[-1]
    return LaneBegin(last.position, last.view, last.header_crc, sum(frame.count for frame in frames), (1, 2, 3))


def test_a_disconnected_member_or_one_with_another_disk_holds_a_lane_back() -> None:
    made = group_of_roster()
    send(made, 1, 3)
    made.settle(2 * limits.LANE_ENDS_HEARTBEATS)
    key = made[1].key
    end = made[1].seen[key]
    assert [held(made, number, key) for number in (1, 2, 3)] == [end] * 3
    made.crash(3)
    made.settle(20)
    send(made, 4, 6)
    made.settle(2 * limits.LANE_ENDS_HEARTBEATS)
    assert held(made, 1, key) == end
    del made.state.roster[3]
    made.settle(2 * limits.LANE_ENDS_HEARTBEATS)
    assert held(made, 1, key) == made[1].seen[key] > end
    made.state.roster[2] = Voter(2, "g2", incarnation(2, 1), "h:1")
    made[1].held.clear()
    send(made, 7, 7)
    assert held(made, 1, key) == 0


def test_a_gateway_that_the_log_does_not_name_trims_nothing() -> None:
    made = Group(1)
    made.settle(20)
    assert made[1].held == []
    made.state.roster = {1: Voter(1, "g1", incarnation(1), "h:1")}
    made.settle(limits.LANE_ENDS_HEARTBEATS)
    assert [one.position for one in made[1].held] == [made[1].seen[made[1].key]]


def behind() -> tuple[Group, list[Frame]]:
    """Let the third one lack what the first one sent while it was down; return the frames of the lane."""
    made = group_of_roster()
    send(made, 1, 1)
    made.crash(3)
    made.settle(20)
    send(made, 2, 5)
    return made, made[1].disks[made[1].key].frames


def test_a_member_that_lacks_trimmed_frames_continues_at_the_start_of_the_lane() -> None:
    made, frames = behind()
    key = made[1].key
    made.begins[key] = begin_of(frames[:-2])
    made.start(3)
    made.settle(40)
    assert made[3].seen[key] == made[1].seen[key]
    assert made[3].disks[key].frames[-1].header == made[1].disks[key].frames[-1].header
    send(made, 6, 7)
    assert made[3].seen[key] == made[1].seen[key]


def test_an_end_that_is_that_very_frame_is_decided() -> None:
    made = group_of_roster()
    send(made, 1, 1)
    key = made[1].key
    made.submit(1, (1, 2, b"2"))
    arrive(made, lambda sender, to, message: not (isinstance(message, Settled) and to == 3))  # it voted, and hears no decision
    frames = made[1].disks[key].frames
    assert made[3].seen[key] == len(frames) - 1
    layer = made[3].layer
    assert layer is not None
    layer.on_message(2, LaneFetched(*key, (), begin_of(frames)))
    made.carry_out(3)
    assert made[3].seen[key] == len(frames)
    assert not made[3].queue  # nothing is replaced


def test_an_undecided_end_is_replaced() -> None:
    made, frames = behind()
    key = made[1].key
    disk = made[3].disks[key]
    last = disk.frames[-1]
    other = Frame(last.kind, b"never", producer=1, epoch=1, first_sequence=2, count=1, topic=1, origin=1)
    other.kind = frames[-1].kind
    for position in range(len(disk.frames) + 1, len(frames) + 1):
        one = other.unstamped() if other.position else other
        one.origin = 1
        one.stamp(last.view, position, disk.frames[-1].header_crc)
        disk.frames.append(one)
    made.begins[key] = begin_of(frames)
    made.start(3)
    made.settle(40)
    assert made[3].seen[key] == made[1].seen[key]
    assert made[3].disks[key].frames[len(frames) - 1].header == frames[-1].header


def test_a_beginning_below_the_own_frames_is_ignored() -> None:
    made = group_of_roster()
    send(made, 1, 3)
    key = made[1].key
    layer, frames = made[3].layer, made[1].disks[key].frames
    assert layer is not None
    layer.on_message(2, LaneFetched(*key, (), begin_of(frames[:2])))
    made.carry_out(3)
    assert not made[3].queue
    assert [type(one) for one in made[3].held] == [LaneHeld] * len(made[3].held)


def test_a_gateway_that_the_roster_names_no_more_is_forgotten() -> None:
    made = group_of_roster()
    member = made[1].layer._member  # type: ignore[union-attr]  # it runs
    assert set(member._reports) == set(member._disks) == {2, 3}
    made.crash(3)
    made.settle(limits.LANE_ENDS_HEARTBEATS)
    assert set(member._reports) == set(member._disks) == {2, 3}, "who is only away holds the lanes back"
    made.state.roster = {number: voter for number, voter in made.state.roster.items() if number != 3}
    made.settle(limits.LANE_ENDS_HEARTBEATS)
    assert set(member._reports) == set(member._disks) == {2}
