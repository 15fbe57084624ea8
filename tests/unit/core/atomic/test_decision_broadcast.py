"""Tests of the decision broadcast: which members get a decision at once, which with the next ORDER, and which a little later."""

from __future__ import annotations

import pytest

from tests.transcripts.group import Group, Member, incarnation
from tests.unit.core.stacks import batches, three
from tutti import limits as common_limits
from tutti.data.view_id import view_of
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.codec import decode_message
from tutti_gateway.core.protocol.events import EpochAsked, Received, Several, TimeAdvanced, TopicAsked, submitted
from tutti_gateway.core.protocol.messages import Confirm, Echo, Forward, Order

VIEW = view_of(1, 1)


@pytest.fixture
def group() -> Group:
    """Three members; g1 coordinates, and a producer has sent to each."""
    group = three()
    first = group.members["g1"]
    group.step(first, EpochAsked(1, 1, "p", incarnation("p"), 1))
    group.step(first, TopicAsked(1, 2, "t"))
    group.settle()
    return group


def said(group: Group) -> list[tuple[int, type]]:
    """Return the messages in flight: receiver and kind, in order."""
    return [(to.number, type(decode_message(data))) for _, to, data in group.network]


def all_vote(group: Group) -> None:
    """Deliver the ordered frames to all members and their votes to the coordinator, which decides."""
    while any(kind is not Confirm for _, kind in said(group)) or any(member.persists for member in group.members.values()):
        place = next((place for place, (_, kind) in enumerate(said(group)) if kind is not Confirm), None)
        if place is None:
            for member in group.members.values():
                group.persisted(member)
        else:
            group.deliver(place)


def submit(group: Group, name: str, first: int) -> None:
    group.step(group.members[name], submitted(1, batches(first, 1)))


def frontier(member: Member) -> int:
    return member.stack.decided.position


def test_the_origin_gets_the_decision_at_once_and_others_a_little_later(group: Group) -> None:
    one, two, three = group.members.values()
    submit(group, "g2", 1)
    all_vote(group)
    assert said(group) == [(2, Confirm)]
    group.settle()
    assert frontier(one) == frontier(two) == frontier(three)

    submit(group, "g1", 2)
    all_vote(group)
    assert said(group) == []
    group.advance(limits.CONFIRM_LATE_US - 1)
    assert said(group) == []
    group.advance(1)
    assert said(group) == [(2, Confirm), (3, Confirm)]
    group.settle()
    assert frontier(one) == frontier(two) == frontier(three)


def test_the_next_order_carries_the_decision_and_no_later_message_is_sent(group: Group) -> None:
    submit(group, "g1", 1)
    all_vote(group)
    group.advance(limits.CONFIRM_LATE_US // 2)
    submit(group, "g1", 2)
    assert said(group) == [(2, Order), (3, Order), (2, Confirm), (3, Confirm)]
    group.network = group.network[2:]  # the frames are lost: they are not what counts here
    group.advance(limits.CONFIRM_LATE_US)
    assert said(group) == [(2, Confirm), (3, Confirm)]  # those, and none behind them
    group.settle()
    assert {frontier(member) for member in group.members.values()} == {frontier(group.members["g1"])}


def test_an_early_one_waits_no_longer_for_a_later_one(group: Group) -> None:
    submit(group, "g1", 1)
    all_vote(group)
    group.advance(limits.CONFIRM_LATE_US // 2)
    submit(group, "g2", 2)
    group.network = [entry for entry in group.network if entry[1].number == 1]  # what is ordered goes to nobody but g1
    all_vote(group)
    group.advance(limits.CONFIRM_LATE_US // 2)
    assert (3, Confirm) in said(group)


def test_frames_that_are_not_batches_matter_to_all(group: Group) -> None:
    group.step(group.members["g2"], TopicAsked(1, 3, "other"))
    all_vote(group)
    assert said(group) == [(2, Confirm), (3, Confirm)]


def test_no_member_is_notified_after_a_higher_view_was_promised(group: Group) -> None:
    submit(group, "g1", 1)
    all_vote(group)
    one = group.members["g1"]
    standing = one.stack.layers.context.view_state
    standing.durable(type(one.scalars)(view_of(2, 2), VIEW, VIEW))
    group.advance(limits.CONFIRM_LATE_US)
    assert (2, Confirm) not in said(group)
    assert (3, Confirm) not in said(group)


def test_an_unneeded_timer_is_moved(group: Group) -> None:
    one = group.members["g1"]
    before = one.timer_us
    assert before is not None
    assert before > group.mono_us + limits.CONFIRM_LATE_US
    submit(group, "g1", 1)
    all_vote(group)
    assert one.timer_us == group.mono_us + limits.CONFIRM_LATE_US
    submit(group, "g1", 2)
    assert one.timer_us is not None
    assert one.timer_us > group.mono_us + limits.CONFIRM_LATE_US


def test_a_frontier_in_a_heartbeat_counts_as_notified(group: Group) -> None:
    """Also in a heartbeat sent after the last decision of a step, as by a leaving coordinator."""
    submit(group, "g2", 1)
    all_vote(group)
    one = group.members["g1"]
    one.stack.layers.membership._announce()
    group.step(one, TimeAdvanced())
    assert said(group)[:2] == [(2, Confirm), (3, Confirm)]


@pytest.mark.slow
def test_echoes_of_much_that_was_placed_at_once_are_several(group: Group) -> None:
    """Each fits into a message."""
    one, two, _ = group.members.values()
    many = 2 * common_limits.FRAMES_A_MESSAGE_MAX + 1
    group.step(two, submitted(1, batches(1, many)))
    came = tuple(Received(2, decode_message(data)) for sender, to, data in group.network if (sender, to) == (two, one))
    assert all(isinstance(event.message, Forward) for event in came)
    group.network = []
    group.step(one, Several(came))
    assert [kind for to, kind in said(group) if to == 2] == [Echo] * 3
    group.settle()
    assert frontier(two) == frontier(one)
    assert frontier(one) >= many
    assert group.problems == []
