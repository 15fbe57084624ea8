"""Proves what transcripts do not show: bounds, strangers, wrong starts, and that bodies pass through untouched."""

from __future__ import annotations

import msgspec
import pytest

from gateway.core import limits
from gateway.core.actions import Deliver, Halt, Persist, Reply, Send, Suspect
from gateway.core.events import (
    EpochAsked,
    ForgetAsked,
    Identity,
    Now,
    OffsetsAsked,
    Persisted,
    Received,
    Recovered,
    Scalars,
    StackConfig,
    Started,
    Submitted,
    TimeAdvanced,
    TopicAsked,
)
from gateway.core.flush.start import Phase
from gateway.core.messages import Asking, AskTopic, Confirm, Forward, Message, No, Order, Vote
from gateway.core.stack import Stack
from gateway.data.bodies import RosterBody, TickBody, ViewBody, encode_body
from gateway.data.frame import Frame, Kind, decode_frame
from gateway.data.state import LogState
from gateway.data.wire import Answer, Committed, Denied, Done, RefusedAnswer
from gateway.errors import InvariantViolated
from tests.transcripts.group import ENTROPY, Group, Member, incarnation, voters

VIEW = 1 << 16 | 1


def started(members: dict[str, str], state: LogState | None = None, tail: tuple[Frame, ...] = ()) -> Started:
    identity = Identity("g1", incarnation("g1"), "test", members)
    return Started(identity, ENTROPY, Recovered(b"", Scalars(), state or LogState(), tail))


def alone(**config: int) -> tuple[Group, Member]:
    group = Group(msgspec.structs.replace(StackConfig(), **config))
    member = group.start_alone("g1")
    group.settle()
    return group, member


def opened(**config: int) -> tuple[Group, Member]:
    """With producer 1 at epoch 1 for session 1, and topic 1."""
    group, member = alone(**config)
    group.step(member, EpochAsked(1, 1, "p", incarnation("p"), 1))
    group.step(member, TopicAsked(1, 2, "t"))
    group.settle()
    return group, member


def batches(first: int, count: int, body: bytes | memoryview = b"body") -> tuple[Frame, ...]:
    return tuple(
        Frame(Kind.BATCH, body, producer=1, epoch=1, first_sequence=first + place, count=1, topic=1) for place in range(count)
    )


def answers(member: Member, kind: type[Answer]) -> list[Answer]:
    return [answer for _, answer in member.replies if isinstance(answer, kind)]


# Starting


def test_a_group_of_more_is_refused_in_one_sentence() -> None:
    actions = Stack().step(started({"g1": "a:1", "g2": "b:1"}), Now(0, 0))
    assert actions == [
        Halt(
            "the group 'test' has the members g1, g2, and groups of more than one are not built yet: "
            "set [group] members to 'g1' alone"
        )
    ]


@pytest.mark.parametrize("in_tail", [False, True])
def test_a_log_of_other_voters_is_not_gone_on_with(in_tail: bool) -> None:
    roster = Frame(Kind.ROSTER, encode_body(RosterBody("test", ENTROPY, voters(["g1", "g2"]))), origin=1)
    roster.stamp(VIEW, 1, 0)
    state = LogState()
    if not in_tail:
        state.apply(roster)
    stack = Stack()
    actions = stack.step(started({"g1": "a:1"}, state, (roster,) if in_tail else ()), Now(0, 0))
    assert actions == [Halt("the log belongs to the group of g1, g2; 'g1' alone may not go on with it")]
    assert stack.phase is Phase.HALTED


def test_a_genesis_cut_short_goes_on_as_a_view_change() -> None:
    roster = Frame(Kind.ROSTER, encode_body(RosterBody("test", ENTROPY, voters(["g1"]))), origin=1)
    roster.stamp(VIEW, 1, 0)
    stack = Stack()
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
        Stack().step(started({"g1": "a:1"}, tail=(tick,)), Now(0, 0))


def test_started_comes_first_and_once_and_a_broken_stack_takes_nothing_more() -> None:
    stack = Stack()
    with pytest.raises(InvariantViolated, match="TimeAdvanced came before Started"):
        stack.step(TimeAdvanced(), Now(0, 0))
    stack = Stack()
    stack.step(started({"g1": "a:1"}), Now(0, 0))
    with pytest.raises(InvariantViolated, match="started before"):
        stack.step(started({"g1": "a:1"}), Now(0, 0))
    with pytest.raises(InvariantViolated, match="takes nothing more: Started could not be finished"):
        stack.step(TimeAdvanced(), Now(0, 0))


# Bodies and bounds


def test_bodies_pass_through_by_reference() -> None:
    group, member = opened()
    body = memoryview(bytearray(b"x" * 100))
    frames = batches(1, 3, body)
    actions = group.step(member, Submitted(1, frames))
    persist = next(action for action in actions if isinstance(action, Persist))
    assert all(one is other for one, other in zip(persist.frames, frames, strict=True))
    group.persisted(member)
    assert all(frame.body is body for frame, _, _ in member.delivered[-3:])
    assert [answer.offset for answer in answers(member, Committed) if isinstance(answer, Committed)] == [0, 1, 2]


def test_over_the_forward_table_batches_are_refused_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FORWARDED_FRAMES_MAX", 5)
    group, member = opened()
    group.step(member, Submitted(1, batches(1, 7)))
    refused = answers(member, RefusedAnswer)
    assert [(one.first_sequence, one.code, one.retry) for one in refused if isinstance(one, RefusedAnswer)] == [
        (6, "busy", True),
        (7, "busy", True),
    ]
    group.settle()
    group.step(member, Submitted(1, batches(6, 2)))
    group.settle()
    assert len(answers(member, Committed)) == 7


def test_the_window_of_undecided_frames_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ROOM_FRAMES", 4)
    group, member = opened()
    group.step(member, Submitted(1, batches(1, 10)))
    assert len(member.stack.layers.context.window.frames) == 4
    group.settle()
    assert len(answers(member, Committed)) == 10


def test_a_stalled_disk_makes_no_frame_of_what_is_ordered_already() -> None:
    group, member = alone()
    for number in range(50):
        group.step(member, OffsetsAsked(1, number, f"reader{number}", 0))
        group.step(member, OffsetsAsked(1, 50 + number, f"reader{number}", 0))
    ordered = len(member.stack.layers.context.window.frames)
    assert ordered == 50
    group.advance(20 * limits.RESEND_HEARTBEATS * limits.HEARTBEAT_US)
    assert len(member.stack.layers.context.window.frames) == ordered
    group.settle()
    assert len(answers(member, Done)) == 100


def test_requests_and_ticks_wait_for_room_and_views_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_ROOM_FRAMES", 3)
    group, member = opened()
    window = member.stack.layers.context.window
    group.step(member, Submitted(1, batches(1, 1)))
    for number in range(3):
        group.step(member, TopicAsked(1, 10 + number, f"more{number}"))
        group.step(member, OffsetsAsked(1, 20 + number, f"reader{number}", 0))
    assert len(window.frames) == 3
    group.advance(10 * limits.TICK_INTERVAL_US)
    assert len(window.frames) == 3, "nothing that can wait is ordered while there is no room"
    member.stack.layers.place(Kind.VIEW, ViewBody((1,)))
    assert len(window.frames) == 4
    group.settle()
    for _ in range(5):
        group.advance(limits.TICK_INTERVAL_US)
        group.settle()
    assert len(answers(member, Done)) == 3
    assert {topic.name for topic in member.stack.decided.topics.values()} == {"t", "more0", "more1", "more2"}
    assert member.stack.decided.tick == 1


def test_no_more_is_ever_undecided_than_where_an_abort_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    group, member = opened()
    monkeypatch.setattr(limits, "UNDECIDED_FRAMES_MAX", 3)
    group.step(member, Submitted(1, batches(1, 3)))
    with pytest.raises(InvariantViolated, match="3 frames are undecided, and 1 more are over the bound"):
        member.stack.layers.place(Kind.VIEW, ViewBody((1,)))


def test_a_producer_that_waits_for_room_is_not_forgotten() -> None:
    group, member = opened(undecided_bytes_max=100)
    group.step(member, EpochAsked(1, 3, "q", incarnation("q"), 1))
    group.settle()
    group.step(member, Submitted(1, batches(1, 1)))
    later = Frame(Kind.BATCH, b"body", producer=2, epoch=1, first_sequence=1, count=1, topic=1)
    group.step(member, Submitted(1, (later,)))
    assert len(member.stack.layers.context.window.frames) == 1, "there is no room for the second"
    group.step(member, ForgetAsked(1, 4, ("q",)))
    assert [(one.request, one.code, one.retry) for one in answers(member, Denied) if isinstance(one, Denied)] == [(4, "busy", True)]
    group.settle()
    assert [one.producer for one in answers(member, Committed) if isinstance(one, Committed)] == [1, 2]


def test_requests_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUESTS_MAX", 2)
    group, member = alone()
    for number in range(3):
        group.step(member, TopicAsked(1, number, f"t{number}"))
    assert [(one.request, one.code, one.retry) for one in answers(member, Denied) if isinstance(one, Denied)] == [
        (2, "limit", True)
    ]


@pytest.mark.parametrize("what", ["producers", "topics"])
def test_names_are_bounded_with_what_is_under_way(what: str) -> None:
    group, member = alone(producers_max=2, topics_max=2)
    for number in range(3):
        if what == "producers":
            group.step(member, EpochAsked(1, number, f"p{number}", incarnation("p"), 1))
        else:
            group.step(member, TopicAsked(1, number, f"t{number}"))
    group.settle()
    assert [(one.request, one.code, one.retry) for one in answers(member, Denied) if isinstance(one, Denied)] == [
        (2, "limit", False)
    ]


def test_epochs_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING_EPOCHS_MAX", 1)
    group, member = opened()
    group.step(member, Submitted(1, batches(1, 1)))
    for number in (10, 11):
        group.step(member, EpochAsked(1, number, "p", incarnation(f"p{number}"), 2))
    assert [(one.request, one.code) for one in answers(member, Denied) if isinstance(one, Denied)] == [(11, "limit")]
    group.settle()
    assert member.stack.decided.producers[1].epoch == 2


def test_readers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READERS_MAX", 1)
    group, member = alone()
    for number, reader in enumerate(["a", "a", "b"]):
        group.step(member, OffsetsAsked(1, number, reader, 0))
    group.settle()
    assert [(one.request, one.code) for one in answers(member, Denied) if isinstance(one, Denied)] == [(2, "limit")]
    assert member.stack.decided.readers == {"a": 0}


def test_what_followed_an_offset_commit_that_is_denied_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    group = three()
    member = group.members["g2"]
    for number in range(2):
        group.step(member, OffsetsAsked(1, number, "a", 0))
    monkeypatch.setattr(limits, "READERS_MAX", 0)
    group.settle()
    denied = [(one.request, one.code, one.retry) for one in answers(member, Denied) if isinstance(one, Denied)]
    assert denied == [(0, "limit", False), (1, "busy", True)]
    assert member.stack.layers.order.quiet


def test_readers_that_commit_again_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READERS_MAX", 2)
    group, member = opened()
    group.step(member, Submitted(1, batches(1, 2)))
    group.step(member, OffsetsAsked(1, 1, "a", 0))
    group.settle()
    group.step(member, OffsetsAsked(1, 2, "a", 1))
    group.step(member, OffsetsAsked(1, 3, "b", 0))
    group.settle()
    assert not answers(member, Denied)
    assert member.stack.decided.readers == {"a": 1, "b": 0}


def test_an_offset_commit_that_is_asked_again_takes_nothing_back() -> None:
    group, member = opened()
    group.step(member, Submitted(1, batches(1, 2)))
    group.settle()
    assert member.stack.decided.next_offset >= 2
    for request, offset in ((10, 1), (11, 2), (10, 1)):
        group.step(member, OffsetsAsked(1, request, "reader", offset))
    group.advance(limits.RESEND_HEARTBEATS * limits.HEARTBEAT_US)  # nothing is decided meanwhile: the coordinator is asked again
    group.settle()
    assert member.stack.decided.readers == {"reader": 2}
    done = [one.request for one in answers(member, Done) if isinstance(one, Done)]
    assert done == [10, 11]


def test_a_reader_goes_back_only_when_it_says_so() -> None:
    group, member = opened()
    group.step(member, Submitted(1, batches(1, 2)))
    group.settle()
    group.step(member, OffsetsAsked(1, 10, "reader", 2, False))
    group.step(member, OffsetsAsked(1, 11, "reader", 1, False))  # below what is on its way
    group.settle()
    group.step(member, OffsetsAsked(1, 12, "reader", 1, False))
    group.step(member, OffsetsAsked(1, 13, "reader", 2, False))
    group.settle()
    assert member.stack.decided.readers == {"reader": 2}
    assert [(one.request, one.code, one.retry) for one in answers(member, Denied) if isinstance(one, Denied)] == [
        (11, "offset", False),
        (12, "offset", False),
    ]
    group.step(member, OffsetsAsked(1, 14, "reader", 1, True))
    group.settle()
    assert member.stack.decided.readers == {"reader": 1}


def test_too_many_or_no_names_are_not_forgotten() -> None:
    group, member = opened()
    group.step(member, ForgetAsked(1, 5, ()))
    group.step(member, ForgetAsked(1, 6, ("p",) * (limits.FORGET_PRODUCERS_MAX + 1)))
    assert [(one.request, one.code) for one in answers(member, Denied) if isinstance(one, Denied)] == [
        (5, "unknown"),
        (6, "unknown"),
    ]


def test_messages_are_cut_to_what_the_transport_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FRAMES_A_MESSAGE_MAX", 2)
    group = Group()
    group.start_group(["g1", "g2"], VIEW)
    group.settle()
    member = group.members["g1"]
    group.step(member, EpochAsked(1, 1, "p", incarnation("p"), 1))
    group.step(member, TopicAsked(1, 2, "t"))
    group.settle()
    actions = group.step(member, Submitted(1, batches(1, 5)))
    orders = [action.message for action in actions if isinstance(action, Send) and isinstance(action.message, Order)]
    assert [len(order.frames) for order in orders] == [2, 2, 1]


# Strangers, and messages out of place


def three(**config: int) -> Group:
    group = Group(msgspec.structs.replace(StackConfig(), **config))
    group.start_group(["g1", "g2", "g3"], VIEW)
    group.settle()
    return group


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
def test_the_coordinator_ignores_what_is_not_for_it(sender: int, message: Message) -> None:
    group = three()
    member = group.members["g1"]
    before = member.stack.layers.context.window.end
    assert group.step(member, Received(sender, message)) == []
    assert member.stack.layers.context.window.end == before


@pytest.mark.parametrize("sender", [2, 3, 9])
def test_a_member_takes_order_and_confirm_of_its_coordinator_only(sender: int) -> None:
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


def test_a_member_does_not_take_what_breaks_the_chain() -> None:
    group = three()
    member = group.members["g2"]
    window, receiver = member.stack.layers.context.window, member.stack.layers.order.receiver
    tick = Frame(Kind.TICK, encode_body(TickBody(1, 1)), origin=1)
    tick.stamp(VIEW, 3, 12345)
    group.step(member, Received(1, Order(VIEW, (tick,))))
    assert (window.end, receiver.discarded, receiver.missing()) == (2, 1, [(3, 3)])


def test_what_is_held_back_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELD_FRAMES_MAX", 4)
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


def test_what_is_next_is_taken_however_much_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELD_MORE_BYTES_MAX", 0)
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
    group.step(member, Submitted(1, batches(1, 3, b"a body")))
    sender, to, data = group.network.pop()
    assert data.count(b"a body") == 3
    group.hand_over(sender, to, data.replace(b"a body", b"nobody", 1))
    group.settle()
    group.advance(limits.RESEND_HEARTBEATS * limits.HEARTBEAT_US)
    group.settle()
    assert [one.first_sequence for one in answers(member, Committed) if isinstance(one, Committed)] == [1, 2, 3]
    for other in group.members.values():
        assert [bytes(frame.body) for frame in other.log if frame.kind == Kind.BATCH] == [b"a body"] * 3


def test_a_vote_for_what_was_not_ordered_stops_the_coordinator() -> None:
    group = three()
    with pytest.raises(InvariantViolated, match="beyond what was ordered"):
        group.step(group.members["g1"], Received(2, Vote(VIEW, 99)))


def test_a_confirm_of_what_was_not_voted_for_stops_the_member() -> None:
    group = three()
    member = group.members["g2"]
    window = member.stack.layers.context.window
    tick = Frame(Kind.TICK, encode_body(TickBody(1, 1)), origin=1)
    tick.stamp(VIEW, 3, window.chain)
    group.step(member, Received(1, Order(VIEW, (tick,))))
    with pytest.raises(InvariantViolated, match="DECIDED goes from 2 to 3, and VOTED is at 2"):
        group.step(member, Received(1, Confirm(VIEW, 3)))


def test_a_member_that_cannot_take_what_may_not_be_aborted_is_suspected() -> None:
    group = three()
    member = group.members["g1"]
    group.step(member, TopicAsked(1, 1, "t"))
    actions = group.step(member, Received(3, No(VIEW, 3, "no space")))
    assert actions == [Suspect(3, "it cannot take position 3, which may not be aborted: no space")]


def test_a_frame_that_does_not_follow_stops_the_member() -> None:
    group = three()
    member = group.members["g2"]
    window = member.stack.layers.context.window
    tick = Frame(Kind.TICK, encode_body(TickBody(7, 1)), origin=1)
    tick.stamp(VIEW, 3, window.chain)
    with pytest.raises(InvariantViolated, match="tick 7 follows tick 0"):
        group.step(member, Received(1, Order(VIEW, (tick,))))


def test_only_the_coordinator_orders() -> None:
    group = three()
    with pytest.raises(InvariantViolated, match="a VIEW is ordered by a member that does not coordinate"):
        group.members["g2"].stack.layers.place(Kind.VIEW, ViewBody((2,)))


def test_a_reply_never_comes_with_the_persist_it_waits_for() -> None:
    group, member = opened()
    actions = group.step(member, Submitted(1, batches(1, 1)))
    assert any(isinstance(action, Persist) for action in actions)
    assert not any(isinstance(action, Reply | Deliver) for action in actions)
