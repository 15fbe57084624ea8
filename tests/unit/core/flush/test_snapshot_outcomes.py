"""Tests of waiting requests at a gateway that installs a snapshot: each gets its answer from the new state."""

from __future__ import annotations

from tests.transcripts.group import Group, Member, incarnation
from tests.unit.core.stacks import three
from tutti.data.client_protocol import (
    AbortedAnswer,
    Answer,
    Denied,
    Done,
    Duplicate,
    EpochFenced,
    EpochOpened,
    FencedAnswer,
    RequestAnswer,
    TopicOpened,
)
from tutti.data.frames.frame import Frame, Kind
from tutti.data.log_state import LogState, Producer, Topic
from tutti_gateway.core.protocol.actions import LogReplaced, Reply
from tutti_gateway.core.protocol.events import EpochAsked, ForgetAsked, OffsetsAsked, TopicAsked, submitted

AHEAD = 100


def batch(producer: int, sequence: int) -> Frame:
    return Frame(Kind.BATCH, b"body", producer=producer, epoch=1, first_sequence=sequence, count=2, topic=1)


def ready() -> tuple[Group, Member]:
    """Decide producers 1 to 5 at epoch 1 and topic 1 everywhere, and drop all later messages of g2."""
    group = three()
    first = group.members["g1"]
    for number in range(1, 6):
        group.step(first, EpochAsked(1, number, f"p{number}", incarnation(f"p{number}"), 1))
    group.step(first, TopicAsked(1, 9, "t"))
    group.settle()
    return group, group.members["g2"]


def further(member: Member) -> LogState:
    """Return a log state much further on: some requests are in it, and others can never be."""
    state = member.stack.decided.copy()
    state.position += AHEAD
    state.next_offset += AHEAD
    state.producers[1].sequence = 4  # of three batches two are in it
    state.producers[2].epoch, state.producers[2].instance = 2, incarnation("other")
    state.producers[3].closed = True
    del state.producers[4]
    state.floor = 3
    state.topics[2] = Topic("new")
    state.next_topic = 3
    state.producers[9] = Producer("mine", incarnation("mine"), 1, 0, b"")
    state.producers[10] = Producer("theirs", incarnation("theirs"), 1, 0, b"")
    state.next_producer = 11
    return state


def go_on(group: Group, member: Member) -> dict[int, list[Answer]]:
    """The log becomes that; the answers by session."""
    layers = member.stack.layers
    state = further(member)
    layers.context.window.replace(state)
    layers.log_replaced()
    actions = layers.context.outbox.drain(None)
    assert LogReplaced(state.position, state.next_offset) in actions
    return {action.session: list(action.answers) for action in actions if isinstance(action, Reply)}


def test_batches_get_their_outcome_from_the_log_and_others_keep_waiting() -> None:
    group, member = ready()
    group.step(member, submitted(7, (batch(1, 1), batch(1, 3), batch(1, 5))))
    for producer in (2, 3, 4):
        group.step(member, submitted(7, (batch(producer, 1),)))
    group.network.clear()
    told = go_on(group, member)
    assert [type(answer) for answer in told[7]] == [Duplicate, Duplicate, FencedAnswer, AbortedAnswer, FencedAnswer]
    forward = member.stack.layers.order.forward
    assert forward.count == 1
    queue = forward.queue(1, 1)
    assert queue is not None
    assert [frame.first_sequence for frame in queue.frames] == [5]
    assert forward.bytes > 0


def test_requests_are_answered_from_the_current_log() -> None:
    group, member = ready()
    for event in (
        TopicAsked(7, 1, "new"),
        TopicAsked(7, 2, "newer"),
        EpochAsked(7, 3, "mine", incarnation("mine"), 1),
        EpochAsked(7, 4, "theirs", incarnation("mine"), 1),
        EpochAsked(7, 5, "nobody's", incarnation("mine"), 2),
        EpochAsked(7, 6, "nobody's", incarnation("mine"), 4),
        OffsetsAsked(7, 7, "reader", 0),
        ForgetAsked(7, 8, ("p4",)),
        ForgetAsked(7, 9, ("p5",)),
    ):
        group.step(member, event)
    group.network.clear()
    told = [answer for answer in go_on(group, member)[7] if isinstance(answer, RequestAnswer)]
    told.sort(key=lambda answer: answer.request)
    assert [(type(answer), answer.request) for answer in told] == [
        (TopicOpened, 1),
        (EpochOpened, 3),
        (EpochFenced, 4),
        (EpochFenced, 5),
        (Denied, 7),
        (Done, 8),
    ]
    assert isinstance(told[4], Denied)
    assert told[4].retry
    assert member.stack.layers.order.requests.count == 3
