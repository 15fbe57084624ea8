"""Tests of offset commits of named readers: each is ordered once, however often it is sent, and never undoes a later one."""

from collections.abc import Callable

import pytest

from tests.transcripts.group import Group, Member, incarnation
from tests.unit.core.stacks import answers, batches, opened, three
from tutti.data.client_protocol import Denied, Done
from tutti.data.frames.bodies import OffsetsBody, decode_body
from tutti.data.frames.frame import Kind
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.codec import decode_message
from tutti_gateway.core.protocol.events import EpochAsked, OffsetsAsked, TopicAsked, submitted
from tutti_gateway.core.protocol.messages import Asking, AskOffsets, Confirm, Message

RESEND_US = limits.RESEND_HEARTBEATS * limits.HEARTBEAT_US


def logged(member: Member) -> list[int]:
    """Offsets that reader `r` committed, as they stand in the member's log, decided or not."""
    return [decode_body(OffsetsBody, frame.body).readers["r"] for frame in member.log if frame.kind == Kind.OFFSETS]


def done(member: Member) -> list[int]:
    return [one.request for one in answers(member, Done) if isinstance(one, Done)]


def forth_and_back(group: Group, member: Member) -> None:
    """The reader is at 5, goes on to 10 and back to 5 while nothing is decided."""
    group.step(member, OffsetsAsked(1, 5, "r", 5))
    group.settle()
    group.step(member, OffsetsAsked(1, 6, "r", 10))
    group.step(member, OffsetsAsked(2, 7, "r", 5, True))


def three_with_records() -> Group:
    group = three()
    first = group.members["g1"]
    group.step(first, EpochAsked(1, 1, "p", incarnation("p"), 1))
    group.step(first, TopicAsked(1, 2, "t"))
    group.settle()
    group.step(first, submitted(1, batches(1, 20)))
    group.settle()
    return group


def carry(group: Group, lost: Callable[[Member, Message], bool] = lambda to, message: False) -> None:
    """The network works, disks do not; what is lost does not arrive."""
    while group.network:
        _, to, data = group.network[0]
        if lost(to, decode_message(data)):
            group.network.pop(0)
        else:
            group.deliver()


def test_a_stalled_disk_orders_no_commit_again() -> None:
    group, member = opened()
    group.step(member, submitted(1, batches(1, 20)))
    group.settle()
    forth_and_back(group, member)
    for _ in range(8):
        group.advance(RESEND_US)
    assert logged(member) == [5, 10]
    group.settle()
    assert logged(member) == [5, 10, 5]
    assert done(member) == [5, 6, 7]
    assert member.stack.decided.readers == {"r": 5}


def test_a_crowded_window_undoes_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    group, member = opened()
    group.step(member, submitted(1, batches(1, 20)))
    group.settle()
    forth_and_back(group, member)
    for _ in range(4):
        # Room for one more frame, and so for the first of two that are asked again.
        monkeypatch.setattr(limits, "REQUEST_UNDECIDED_FRAMES_MAX", len(member.stack.layers.context.window.frames) + 1)
        group.advance(RESEND_US)
    group.settle()
    assert done(member) == [5, 6, 7]
    assert member.stack.decided.readers == {"r": 5}


def test_a_lost_message_undoes_no_commit() -> None:
    group = three_with_records()
    first, second = group.members["g1"], group.members["g2"]
    forth_and_back(group, second)
    carry(group)
    group.advance(RESEND_US)
    carry(group, lambda _, message: isinstance(message, Asking) and isinstance(message.ask, AskOffsets) and message.ask.offset == 5)
    group.settle()
    assert done(second) == [5, 6, 7]
    assert [member.stack.decided.readers for member in group.members.values()] == [{"r": 5}] * 3
    assert logged(first) == [5, 10, 5]
    assert group.problems == []


def test_a_late_copy_is_not_ordered_after_a_commit_that_it_does_not_know() -> None:
    group = three_with_records()
    first, second, third = group.members.values()
    group.step(second, OffsetsAsked(1, 5, "r", 10))
    late = group.network[-1]
    for request, offset in enumerate((10, 5, 10, 5)):
        group.step(third, OffsetsAsked(1, request, "r", offset, True))
        group.settle()
    for _ in range(3):
        group.hand_over(*late)
        group.settle()
    assert logged(first) == [10, 5, 10, 5]
    assert first.stack.decided.readers == {"r": 5}
    assert done(second) == [5]
    assert not answers(third, Denied)


def test_a_coordinator_that_started_behind_the_requester_skips_what_it_cannot_judge() -> None:
    """It learned the reader's offset from a snapshot, which does not say where in the log that was committed."""
    group, member = opened()
    group.step(member, submitted(1, batches(1, 20)))
    group.settle()
    group.step(member, OffsetsAsked(1, 5, "r", 5))
    group.settle()
    begun = group.restart("g1", watermark=len(member.log), keep=len(member.log))
    group.settle()
    view = begun.stack.layers.context.view_state.view
    begun.stack.layers.inbound.on_message(1, Asking(view, AskOffsets("r", 11, member.runs[-2])))
    group.step(begun, OffsetsAsked(1, 6, "r", 10))
    group.settle()
    assert logged(begun) == [5, 10]


def test_a_commit_that_waited_is_asked_from_where_the_one_before_it_is() -> None:
    group = three_with_records()
    first, second, third = group.members.values()
    forth_and_back(group, second)

    def unconfirmed() -> None:
        while group.network or first.persists or second.persists or third.persists:
            carry(group, lambda to, message: to is second and isinstance(message, Confirm))
            for member in (first, second, third):
                group.persisted(member)

    unconfirmed()
    group.step(third, OffsetsAsked(1, 1, "r", 7, True))
    unconfirmed()
    assert done(second) == [5]
    group.advance(limits.HEARTBEAT_US)
    group.settle()
    assert done(second) == [5, 6]
    assert [(one.request, one.code, one.retry) for one in answers(second, Denied) if isinstance(one, Denied)] == [
        (7, "offset", False)
    ]
    assert logged(first) == [5, 10, 7]
