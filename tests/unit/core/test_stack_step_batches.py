"""Tests of steps with several events: their output is one message and one write, equals that of single steps, and is limited to
events of the normal case.
"""

from __future__ import annotations

import pytest

from tests.transcripts.group import Group, Member, incarnation
from tests.unit.core.stacks import VIEW, batches, opened, three
from tutti.data.client_protocol import Committed, EpochOpened
from tutti.data.frames.frame import Frame, Kind
from tutti.errors import InvariantViolated
from tutti_gateway.core.protocol.actions import Persist, Send
from tutti_gateway.core.protocol.events import (
    EpochAsked,
    LinkChanged,
    Persisted,
    Received,
    Several,
    Submitted,
    SubmittedAlone,
    TimeAdvanced,
    TopicAsked,
    groupable,
    submitted,
)
from tutti_gateway.core.protocol.messages import Confirm, Forward, Order, Propose, Vote

CLIENTS = 5


def clients(group: Group, member: Member) -> list[Submitted]:
    """A batch of each of some clients, each with a producer of its own."""
    group.step(member, TopicAsked(1, 1, "t"))
    for number in range(1, CLIENTS + 1):
        group.step(member, EpochAsked(number, 2, f"p{number}", incarnation("p"), 1))
    group.settle()
    opened = {answer.producer: session for session, answer in member.replies if isinstance(answer, EpochOpened)}
    return [
        submitted(session, (Frame(Kind.BATCH, b"body", producer=producer, epoch=1, first_sequence=1, count=1, topic=1),))
        for producer, session in opened.items()
    ]


@pytest.mark.parametrize("through", ["g1", "g2"])
def test_batches_of_many_clients_are_one_message_to_each_and_one_write(through: str) -> None:
    group = three()
    member = group.members[through]
    batches = clients(group, member)
    actions = group.step(member, Several(tuple(batches)))
    sent = [action.message for action in actions if isinstance(action, Send)]
    written = [action for action in actions if isinstance(action, Persist)]
    if through == "g1":
        assert [type(message) for message in sent] == [Order, Order]
        assert [len(action.frames) for action in written] == [CLIENTS]
    else:
        assert [type(message) for message in sent] == [Forward]
        assert not written
    group.settle()
    told = {session: answer for session, answer in member.replies if isinstance(answer, Committed)}
    assert sorted(told) == sorted(one.sessions[0] for one in batches)
    assert sorted(answer.offset for answer in told.values()) == list(range(CLIENTS))


def test_one_step_equals_several_single_steps() -> None:
    logs = []
    for together in (True, False):
        group = three()
        member = group.members["g1"]
        batches = clients(group, member)
        end = member.log[-1].position
        events: list[Submitted | Received] = [*batches, Received(2, Vote(VIEW, end)), Received(3, Vote(VIEW, end))]
        if together:
            group.step(member, Several(tuple(events)))
        else:
            for event in events:
                group.step(member, event)
        group.settle()
        logs.append([[(frame.position, bytes(frame.body), frame.producer) for frame in one.log] for one in group.members.values()])
    assert logs[0] == logs[1]
    assert logs[0][0] == logs[0][1] == logs[0][2]


@pytest.mark.parametrize("together", [False, True])
def test_batches_in_a_recorded_run_of_an_earlier_release_are_submitted(together: bool) -> None:
    logs = []
    for earlier in (False, True):
        group = three()
        member = group.members["g1"]
        events: list[Submitted | SubmittedAlone] = [*clients(group, member)]
        if earlier:
            events = [SubmittedAlone(one.sessions[0], one.frames) for one in clients(group, member)]
        for event in [Several(tuple(events))] if together else events:
            group.step(member, event)
        group.settle()
        logs.append([(frame.position, bytes(frame.body), frame.producer) for frame in member.log])
    assert logs[0] == logs[1]
    assert len(logs[0]) > CLIENTS


def test_orders_that_came_at_once_are_one_write() -> None:
    group = three()
    leader, member = group.members["g1"], group.members["g2"]
    orders = []
    for event in clients(group, leader):
        actions = group.step(leader, event)
        orders += [action.message for action in actions if isinstance(action, Send) and action.to == 2]
        group.network.clear()
    actions = group.step(member, Several(tuple(Received(1, order) for order in orders)))
    assert [len(action.frames) for action in actions if isinstance(action, Persist)] == [CLIENTS]


@pytest.mark.parametrize(
    "event",
    [TimeAdvanced(), Persisted(1), LinkChanged(2, False), Received(2, Propose(2 * VIEW, ())), EpochAsked(1, 1, "p", b"", 1)],
)
def test_an_event_that_may_end_a_view_is_a_step_of_its_own(event: object) -> None:
    assert not groupable(event)
    group, member = opened()
    with pytest.raises(InvariantViolated, match=f"{type(event).__name__} must not be part of Several"):
        group.step(member, Several((submitted(1, batches(1, 1)), event)))  # type: ignore[arg-type]  # what is proven


def test_the_ordinary_course_is_that_of_a_batch() -> None:
    events = [submitted(1, ()), *(Received(2, message) for message in (Order(VIEW, ()), Vote(VIEW, 1), Confirm(VIEW, 1)))]
    assert all(map(groupable, events))
