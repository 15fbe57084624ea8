"""Tests of the bounds of a stack: every queue is bounded, and input beyond a bound or repeated input has a defined outcome."""

from __future__ import annotations

import pytest

from tests.transcripts.group import Group, incarnation
from tests.unit.core.stacks import VIEW, alone, answers, batches, opened, three
from tutti import limits as common_limits
from tutti.data.client_protocol import Committed, Denied, Done, RefusedAnswer
from tutti.data.frames.bodies import TickBody, ViewBody
from tutti.data.frames.frame import Frame, Kind
from tutti.errors import InvariantViolated
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Persist, Send
from tutti_gateway.core.protocol.events import EpochAsked, ForgetAsked, OffsetsAsked, TopicAsked, submitted
from tutti_gateway.core.protocol.messages import Order


def test_bodies_pass_through_by_reference() -> None:
    group, member = opened()
    body = memoryview(bytearray(b"x" * 100))
    frames = batches(1, 3, body)
    actions = group.step(member, submitted(1, frames))
    persist = next(action for action in actions if isinstance(action, Persist))
    assert all(one is other for one, other in zip(persist.frames, frames, strict=True))
    group.persisted(member)
    assert all(frame.body is body for frame, _, _ in member.delivered[-3:])
    assert [answer.offset for answer in answers(member, Committed) if isinstance(answer, Committed)] == [0, 1, 2]


def test_over_the_forward_table_batches_are_refused_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FORWARDED_FRAMES_MAX", 5)
    group, member = opened()
    group.step(member, submitted(1, batches(1, 7)))
    refused = answers(member, RefusedAnswer)
    assert [(one.first_sequence, one.code, one.retry) for one in refused if isinstance(one, RefusedAnswer)] == [
        (6, "busy", True),
        (7, "busy", True),
    ]
    group.settle()
    group.step(member, submitted(1, batches(6, 2)))
    group.settle()
    assert len(answers(member, Committed)) == 7


def test_the_window_of_undecided_frames_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_UNDECIDED_FRAMES_MAX", 4)
    group, member = opened()
    group.step(member, submitted(1, batches(1, 10)))
    assert len(member.stack.layers.context.window.frames) == 4
    group.settle()
    assert len(answers(member, Committed)) == 10


def test_a_drain_waits_for_capacity_however_little_may_be_undecided() -> None:
    group, member = opened(undecided_bytes_max=limits.UNDECIDED_BYTES_CONFIG_MIN)
    window, body = member.stack.layers.context.window, bytes(common_limits.BODY_BYTES_MAX)
    group.step(member, submitted(1, batches(1, 1, body)))
    assert window.full
    drained = (limits.DRAIN_BYTES_MAX + common_limits.MESSAGE_BYTES_MAX) // len(body) + 1
    group.step(member, submitted(1, batches(2, drained, body)))
    group.step(member, submitted(1, batches(2 + drained, 1)))
    assert len(window.frames) == 1
    assert not answers(member, RefusedAnswer)
    group.settle()
    assert len(answers(member, Committed)) == 2 + drained


def test_a_stalled_disk_makes_no_second_frame_of_ordered_batches() -> None:
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


def test_requests_and_ticks_wait_for_capacity_and_views_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_UNDECIDED_FRAMES_MAX", 3)
    group, member = opened()
    window = member.stack.layers.context.window
    group.step(member, submitted(1, batches(1, 1)))
    for number in range(3):
        group.step(member, TopicAsked(1, 10 + number, f"more{number}"))
        group.step(member, OffsetsAsked(1, 20 + number, f"reader{number}", 0))
    assert len(window.frames) == 3
    group.advance(10 * common_limits.TICK_INTERVAL_US)
    assert len(window.frames) == 3, "nothing that can wait is ordered while there is no room"
    member.stack.layers.order_frame(Kind.VIEW, ViewBody((1,)))
    assert len(window.frames) == 4
    group.settle()
    for _ in range(5):
        group.advance(common_limits.TICK_INTERVAL_US)
        group.settle()
    assert len(answers(member, Done)) == 3
    assert {topic.name for topic in member.stack.decided.topics.values()} == {"t", "more0", "more1", "more2"}
    assert member.stack.decided.tick == 1


def test_undecided_frames_never_exceed_the_range_of_the_abort_search(monkeypatch: pytest.MonkeyPatch) -> None:
    group, member = opened()
    monkeypatch.setattr(common_limits, "UNDECIDED_FRAMES_MAX", 3)
    group.step(member, submitted(1, batches(1, 3)))
    with pytest.raises(InvariantViolated, match="3 frames are undecided, and 1 more would exceed the limit"):
        member.stack.layers.order_frame(Kind.TICK, TickBody(1, 1))


def test_a_producer_that_waits_for_capacity_is_not_deleted() -> None:
    group, member = opened(undecided_bytes_max=100)
    group.step(member, EpochAsked(1, 3, "q", incarnation("q"), 1))
    group.settle()
    group.step(member, submitted(1, batches(1, 1)))
    later = Frame(Kind.BATCH, b"body", producer=2, epoch=1, first_sequence=1, count=1, topic=1)
    group.step(member, submitted(1, (later,)))
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
def test_names_are_bounded_including_those_in_flight(what: str) -> None:
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
    group.step(member, submitted(1, batches(1, 1)))
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


def test_requests_after_a_denied_offset_commit_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
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
    group.step(member, submitted(1, batches(1, 2)))
    group.step(member, OffsetsAsked(1, 1, "a", 0))
    group.settle()
    group.step(member, OffsetsAsked(1, 2, "a", 1))
    group.step(member, OffsetsAsked(1, 3, "b", 0))
    group.settle()
    assert not answers(member, Denied)
    assert member.stack.decided.readers == {"a": 1, "b": 0}


def test_a_repeated_offset_commit_undoes_nothing() -> None:
    group, member = opened()
    group.step(member, submitted(1, batches(1, 2)))
    group.settle()
    assert member.stack.decided.next_offset >= 2
    for request, offset in ((10, 1), (11, 2), (10, 1)):
        group.step(member, OffsetsAsked(1, request, "reader", offset))
    group.advance(limits.RESEND_HEARTBEATS * limits.HEARTBEAT_US)  # nothing is decided meanwhile: the coordinator is asked again
    group.settle()
    assert member.stack.decided.readers == {"reader": 2}
    done = [one.request for one in answers(member, Done) if isinstance(one, Done)]
    assert done == [10, 11]


def test_a_reader_goes_back_only_on_request() -> None:
    group, member = opened()
    group.step(member, submitted(1, batches(1, 2)))
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
    group.step(member, ForgetAsked(1, 6, ("p",) * (common_limits.DELETE_PRODUCERS_MAX + 1)))
    assert [(one.request, one.code) for one in answers(member, Denied) if isinstance(one, Denied)] == [
        (5, "unknown"),
        (6, "unknown"),
    ]


def test_messages_are_split_at_the_transports_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_limits, "FRAMES_A_MESSAGE_MAX", 2)
    group = Group()
    group.start_group(["g1", "g2"], VIEW)
    group.settle()
    member = group.members["g1"]
    group.step(member, EpochAsked(1, 1, "p", incarnation("p"), 1))
    group.step(member, TopicAsked(1, 2, "t"))
    group.settle()
    actions = group.step(member, submitted(1, batches(1, 5)))
    orders = [action.message for action in actions if isinstance(action, Send) and isinstance(action.message, Order)]
    assert [len(order.frames) for order in orders] == [2, 2, 1]
