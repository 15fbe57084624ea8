"""Tests of TRIM: a coordinator never trims undecided frames, and trims only what every voter has, unless it is forced to."""

from __future__ import annotations

import msgspec
import pytest

from tests.transcripts.group import Group, Member, incarnation
from tests.unit.core.stacks import batches, opened, three
from tutti.data.frames.bodies import TrimBody, decode_body
from tutti.data.frames.frame import Kind
from tutti_gateway.core.protocol.events import TrimProposed, submitted
from tutti_gateway.core.protocol.messages import Heartbeat
from tutti_gateway.core.stack import Stack


def trims(member: Member) -> list[tuple[int, int]]:
    bodies = [decode_body(TrimBody, frame.body) for frame in member.log if frame.kind == Kind.TRIM]
    return [(body.position, body.offset) for body in bodies]


def start(stack: Stack) -> tuple[int, int]:
    return stack.decided.start, stack.decided.start_offset


def says(group: Group, number: int, frontier: int, disk: str = "") -> None:
    """A member told the coordinator, from the disk that it has, how far its log is decided."""
    peers = group.members["g1"].stack.layers.peers
    peers.refresh()
    peer = peers.get(number)
    assert peer is not None
    peer.incarnation, peer.beat = incarnation(disk or f"g{number}"), Heartbeat(sent_us=1, end=frontier, frontier=frontier)


def test_the_log_begins_with_the_last_place_before_which_all_is_decided() -> None:
    group, member = opened()
    group.step(member, submitted(1, batches(1, 3)))
    group.settle()
    frontier = member.stack.decided.position
    group.step(member, TrimProposed(((3, 0), (frontier, 2), (frontier + 1, 3))))
    group.settle()
    assert start(member.stack) == (frontier, 2)
    group.step(member, TrimProposed(((3, 0), (frontier, 2))))
    group.settle()
    assert trims(member) == [(frontier, 2)]


def test_two_proposals_before_a_decision_make_one_trim() -> None:
    group, member = opened()
    group.step(member, TrimProposed(((3, 0),)))
    group.step(member, TrimProposed(((2, 0), (3, 0))))
    group.settle()
    assert trims(member) == [(3, 0)]


@pytest.mark.parametrize(
    ("second", "third", "forced", "begins"),
    [
        (0, 0, 0, 1),  # nobody said anything
        (2, 0, 0, 1),
        (2, 1, 0, 2),
        (2, 2, 0, 2),  # the frontier: all of it stays to be read
        (2, 0, 1, 2),
        (0, 0, 9, 2),  # never what is not decided, whatever must go
    ],
)
def test_frames_that_a_voter_lacks_stay_unless_they_must_go(second: int, third: int, forced: int, begins: int) -> None:
    group = three()
    member = group.members["g1"]
    assert member.stack.decided.position == 2
    for number, frontier in ((2, second), (3, third)):
        if frontier:
            says(group, number, frontier)
    group.step(member, TrimProposed(((2, 0), (3, 0)), forced))
    group.settle()
    assert {other.stack.decided.start for other in group.members.values()} == {begins}


def test_another_disk_than_the_roster_names_holds_nothing() -> None:
    group = three()
    says(group, 2, 2)
    says(group, 3, 2, disk="blank")
    group.step(group.members["g1"], TrimProposed(((2, 0),)))
    group.settle()
    assert not trims(group.members["g1"])


def test_only_the_coordinator_orders_one() -> None:
    group = three()
    group.step(group.members["g2"], TrimProposed(((2, 0),), 2))
    group.settle()
    assert not any(trims(member) for member in group.members.values())


def test_a_trim_below_the_current_start_changes_nothing() -> None:
    group, member = opened()
    window = member.stack.layers.context.window
    window.state.start, window.state.start_offset = 4, 9
    member.stack.layers.order_frame(Kind.TRIM, msgspec.convert([2, 1], TrimBody))
    group.settle()
    assert start(member.stack) == (4, 9)
