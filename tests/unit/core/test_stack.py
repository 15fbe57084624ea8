"""Tests of the stack beside the transcripts: bounds, unknown senders, wrong starts, and that bodies pass through unchanged."""

from __future__ import annotations

from random import Random

import pytest

from tests.transcripts.group import ENTROPY, Group, incarnation, voters
from tests.unit.core.stacks import VIEW, answers, batches, opened, started, three
from tutti.data.client_protocol import Committed
from tutti.data.frames.bodies import RosterBody, TickBody, ViewBody, encode_body
from tutti.data.frames.frame import Frame, Kind, decode_frame
from tutti.data.log_state import LogState
from tutti.errors import InvariantViolated
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Deliver, Dropped, Halt, Peers, Persist, Reply, SetTimer, Suspect
from tutti_gateway.core.protocol.events import EpochAsked, Now, Persisted, Received, TimeAdvanced, TopicAsked, submitted
from tutti_gateway.core.protocol.messages import Asking, AskTopic, Confirm, Forward, Message, No, Order, Vote
from tutti_gateway.core.stack import Stack
from tutti_gateway.core.view.phases import Phase

# Starting


def test_one_of_several_waits_for_all_of_them_before_a_log_begins() -> None:
    stack = Stack(Random)
    actions = stack.step(started({"g1": "a:1", "g2": "b:1"}), Now(0, 0))
    assert actions == [Peers(((2, "g2", "b:1"),)), SetTimer(200_000)]
    assert stack.phase is Phase.SEARCHING


@pytest.mark.parametrize("in_tail", [False, True])
def test_a_log_of_other_voters_is_not_continued(in_tail: bool) -> None:
    roster = Frame(Kind.ROSTER, encode_body(RosterBody("test", ENTROPY, voters(["g2", "g3"]))), origin=1)
    roster.stamp(VIEW, 1, 0)
    state = LogState()
    if not in_tail:
        state.apply(roster)
    stack = Stack(Random)
    actions = stack.step(started({"g1": "a:1"}, state, (roster,) if in_tail else ()), Now(0, 0))
    assert actions[1:] == [Halt("the log belongs to the group of g2, g3; 'g1' alone must not continue it")]
    assert stack.phase is Phase.HALTED


def test_an_interrupted_genesis_continues_as_a_view_change() -> None:
    roster = Frame(Kind.ROSTER, encode_body(RosterBody("test", ENTROPY, voters(["g1"]))), origin=1)
    roster.stamp(VIEW, 1, 0)
    stack = Stack(Random)
    stack.step(started({"g1": "a:1"}, tail=(roster,)), Now(0, 0))
    for token in (1, 2):
        stack.step(Persisted(token), Now(0, 0))
    delivered = [action for action in stack.step(Persisted(3), Now(0, 0)) if isinstance(action, Deliver)]
    assert [Kind(frame.kind) for run in delivered for frame in run.frames] == [Kind.ROSTER, Kind.VIEW]
    assert stack.decided.members == (1,)
    assert stack.decided.view == VIEW + (1 << 16)


def test_a_log_without_roster_is_no_log() -> None:
    tick = Frame(Kind.TICK, encode_body(TickBody(1, 1)))
    tick.stamp(VIEW, 1, 0)
    with pytest.raises(InvariantViolated, match="does not begin with a ROSTER"):
        Stack(Random).step(started({"g1": "a:1"}, tail=(tick,)), Now(0, 0))


def test_started_comes_first_and_once_and_a_broken_stack_accepts_nothing_more() -> None:
    stack = Stack(Random)
    with pytest.raises(InvariantViolated, match="TimeAdvanced came before Started"):
        stack.step(TimeAdvanced(), Now(0, 0))
    stack = Stack(Random)
    stack.step(started({"g1": "a:1"}), Now(0, 0))
    with pytest.raises(InvariantViolated, match="already started"):
        stack.step(started({"g1": "a:1"}), Now(0, 0))
    with pytest.raises(InvariantViolated, match="takes no further event, because Started raised an error"):
        stack.step(TimeAdvanced(), Now(0, 0))


# Strangers, and messages out of place


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (9, Vote(VIEW, 99)),
        (9, No(VIEW, 2, "full")),
        (9, Forward(VIEW, ())),
        (2, Vote(VIEW + 1, 99)),
        (2, No(VIEW, 1, "decided already")),
        (2, Confirm(VIEW, 99)),
        (2, Order(VIEW, ())),
        (2, Asking(VIEW + 1, AskTopic("t"))),
    ],
)
def test_the_coordinator_ignores_messages_for_members(sender: int, message: Message) -> None:
    group = three()
    member = group.members["g1"]
    before = member.stack.layers.context.window.end
    assert group.step(member, Received(sender, message)) == []
    assert member.stack.layers.context.window.end == before


@pytest.mark.parametrize("sender", [2, 3, 9])
def test_a_member_accepts_order_and_confirm_from_its_coordinator_only(sender: int) -> None:
    group = three()
    member = group.members["g2"]
    window = member.stack.layers.context.window
    tick = Frame(Kind.TICK, encode_body(TickBody(1, 1)), origin=1)
    tick.stamp(VIEW, window.end + 1, window.chain)
    assert group.step(member, Received(sender, Order(VIEW, (tick,)))) == []
    assert group.step(member, Received(sender, Confirm(VIEW, 99))) == []
    assert window.end == window.frontier == 2
    group.step(member, Received(1, Order(VIEW, (tick,))))
    assert window.end == 3


def test_a_member_refuses_frames_that_break_the_chain() -> None:
    group = three()
    member = group.members["g2"]
    window, receiver = member.stack.layers.context.window, member.stack.layers.order.receiver
    tick = Frame(Kind.TICK, encode_body(TickBody(1, 1)), origin=1)
    tick.stamp(VIEW, 3, 12345)
    group.step(member, Received(1, Order(VIEW, (tick,))))
    assert (window.end, receiver.discarded, receiver.missing()) == (2, 1, [(3, 3)])


def test_deferred_frames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUFFERED_FRAMES_MAX", 4)
    group = three()
    member = group.members["g2"]
    receiver = member.stack.layers.order.receiver
    for position in (5, 4, 7, 8):
        tick = Frame(Kind.TICK, encode_body(TickBody(1, 1)), origin=1)
        tick.stamp(VIEW, position, 0)
        group.step(member, Received(1, Order(VIEW, (tick,))))
    assert receiver.discarded == 2
    assert receiver.missing() == [(3, 3), (6, 8)]


def carried(group: Group, count: int, size: int) -> list[Frame]:
    """Batches of producer 1, placed behind what is decided."""
    member = group.members["g1"]
    group.step(member, EpochAsked(1, 1, "p", incarnation("p"), 1))
    group.step(member, TopicAsked(1, 2, "t"))
    group.settle()
    window = member.stack.layers.context.window
    frames, chain = list(batches(1, count, bytes(size))), window.chain
    for place, frame in enumerate(frames, 1):
        frame.stamp(VIEW, window.end + place, chain)
        chain = frame.header_crc
    return frames


def test_the_next_frame_is_accepted_however_many_are_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUFFERED_MORE_BYTES_MAX", 0)
    group = three(undecided_bytes_max=4000)
    frames = carried(group, 9, 1000)
    member = group.members["g2"]
    window, receiver = member.stack.layers.context.window, member.stack.layers.order.receiver
    end = window.end
    for frame in frames[1:]:
        group.step(member, Received(1, Order(VIEW, (frame,))))
    assert receiver.discarded == 4
    assert receiver.missing() == [(end + 1, end + 1), (end + 6, end + 9)]
    group.step(member, Received(1, Order(VIEW, (frames[0], *frames[5:]))))
    assert (window.end, receiver.missing()) == (end + 9, [])


@pytest.mark.parametrize("field", ["body", "progress"])
def test_a_damaged_frame_is_missing_at_the_member(field: str) -> None:
    group = three()
    good = carried(group, 1, 1000)[0]
    member = group.members["g2"]
    window, receiver = member.stack.layers.context.window, member.stack.layers.order.receiver
    end = window.end
    damaged = decode_frame(good.to_bytes())
    setattr(damaged, field, b"?" * len(getattr(good, field)) or b"?")
    group.step(member, Received(1, Order(VIEW, (damaged,))))
    assert (window.end, receiver.discarded, receiver.missing()) == (end, 1, [(end + 1, end + 1)])
    group.step(member, Received(1, Order(VIEW, (good,))))
    assert (window.end, receiver.missing()) == (end + 1, [])


def test_a_damaged_batch_is_not_ordered_and_comes_again() -> None:
    group = three()
    member = group.members["g2"]
    group.step(member, EpochAsked(1, 1, "p", incarnation("p"), 1))
    group.step(member, TopicAsked(1, 2, "t"))
    group.settle()
    group.step(member, submitted(1, batches(1, 3, b"a body")))
    sender, to, data = group.network.pop()
    assert data.count(b"a body") == 3
    group.hand_over(sender, to, data.replace(b"a body", b"nobody", 1))
    group.settle()
    group.advance(limits.RESEND_HEARTBEATS * limits.HEARTBEAT_US)
    group.settle()
    assert [one.first_sequence for one in answers(member, Committed) if isinstance(one, Committed)] == [1, 2, 3]
    for other in group.members.values():
        assert [bytes(frame.body) for frame in other.log if frame.kind == Kind.BATCH] == [b"a body"] * 3


def test_a_vote_for_an_unordered_frame_is_dropped_and_reported_once() -> None:
    group = three()
    actions = group.step(group.members["g1"], Received(2, Vote(VIEW, 99)))
    assert actions == [Dropped("Vote", 2, "a YES to position 99, but only 2 is ordered", 1)]
    assert group.step(group.members["g1"], Received(2, Vote(VIEW, 99))) == []


def test_a_confirm_of_a_frame_without_votes_is_dropped() -> None:
    group = three()
    member = group.members["g2"]
    window = member.stack.layers.context.window
    tick = Frame(Kind.TICK, encode_body(TickBody(1, 1)), origin=1)
    tick.stamp(VIEW, 3, window.chain)
    group.step(member, Received(1, Order(VIEW, (tick,))))
    reason = "position 3 was not voted for here, or an ABORT reaches over it"
    assert group.step(member, Received(1, Confirm(VIEW, 3))) == [Dropped("Confirm", 1, reason, 1)]
    assert window.frontier == 2


def test_a_member_that_cannot_accept_unabortable_frames_is_suspected() -> None:
    group = three()
    member = group.members["g1"]
    group.step(member, TopicAsked(1, 1, "t"))
    actions = group.step(member, Received(3, No(VIEW, 3, "no space")))
    assert actions == [Suspect(3, "it cannot take position 3, which must not be aborted: no space")]


def test_a_chained_frame_that_does_not_follow_is_refused() -> None:
    group = three()
    member = group.members["g2"]
    window = member.stack.layers.context.window
    tick = Frame(Kind.TICK, encode_body(TickBody(7, 1)), origin=1)
    tick.stamp(VIEW, 3, window.chain)
    assert Dropped("Order", 1, "tick 7 cannot follow tick 0", 1) in group.step(member, Received(1, Order(VIEW, (tick,))))
    receiver = member.stack.layers.order.receiver
    assert (window.end, receiver.missing(), receiver.discarded) == (2, [(3, 3)], 1)
    right = Frame(Kind.TICK, encode_body(TickBody(1, 1)), origin=1)
    right.stamp(VIEW, 3, window.chain)
    group.step(member, Received(1, Order(VIEW, (right,))))
    assert (window.end, receiver.missing()) == (3, [])


def test_only_the_coordinator_orders() -> None:
    group = three()
    with pytest.raises(InvariantViolated, match="a VIEW is ordered by a member that does not coordinate"):
        group.members["g2"].stack.layers.order_frame(Kind.VIEW, ViewBody((2,)))


def test_a_reply_never_comes_with_the_persist_it_waits_for() -> None:
    group, member = opened()
    actions = group.step(member, submitted(1, batches(1, 1)))
    assert any(isinstance(action, Persist) for action in actions)
    assert not any(isinstance(action, Reply | Deliver) for action in actions)
