"""Tests of well-formed messages with wrong content: a layer drops and reports them, and nothing changes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transcripts.group import ENTROPY, Group, incarnation
from tests.transcripts.whole import Gateway, Pace, Whole
from tests.unit.core.stacks import VIEW, batches, three
from tutti import limits as common_limits
from tutti.data.frames.bodies import (
    AbortBody,
    Entry,
    EpochBody,
    ForgetBody,
    OffsetsBody,
    RosterBody,
    TickBody,
    TopicBody,
    TrimBody,
    TxnBody,
    ViewBody,
    Voter,
    encode_body,
)
from tutti.data.frames.frame import SEQUENCED, Frame, Kind
from tutti_gateway.core import limits
from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.protocol.actions import Action, Dropped, Halt, Send
from tutti_gateway.core.protocol.events import EpochAsked, Received, StackConfig, TopicAsked, submitted
from tutti_gateway.core.protocol.messages import Asking, AskOffsets, Echo, Fetched, Forward, Heartbeat, Message, No, Order, Vote
from tutti_gateway.core.view.view_state import ViewState

ENTRY = Entry(incarnation("p"), 1, 0, b"")
VOTER = Voter(1, "g1", incarnation("g1"), "g1:7400")
BODIES: list[tuple[Kind, Any, dict[str, int]]] = [
    (Kind.VIEW, ViewBody(()), {}),
    (Kind.VIEW, ViewBody((1, 1)), {}),
    (Kind.VIEW, ViewBody((0, 1)), {}),
    (Kind.ROSTER, RosterBody("test", ENTROPY, ()), {}),
    (Kind.ROSTER, RosterBody("other", ENTROPY, (VOTER,)), {}),
    (Kind.ROSTER, RosterBody("test", b"another log's id", (VOTER,)), {}),
    (Kind.ROSTER, RosterBody("test", ENTROPY, (VOTER, VOTER)), {}),
    (Kind.ROSTER, RosterBody("test", ENTROPY, (Voter(1, "g1", b"", "", False),)), {}),
    (Kind.EPOCH, EpochBody("q", ENTRY.instance, 0, b""), {"producer": 1, "epoch": 2}),
    (Kind.EPOCH, EpochBody("p", ENTRY.instance, 0, b""), {"producer": 1, "epoch": 1}),
    (Kind.EPOCH, EpochBody("p", ENTRY.instance, 7, b""), {"producer": 1, "epoch": 2}),
    (Kind.EPOCH, EpochBody("p", ENTRY.instance, 0, b""), {"producer": 2, "epoch": 1}),
    (Kind.EPOCH, EpochBody("new", ENTRY.instance, 0, b""), {"producer": 3, "epoch": 1}),
    (Kind.TOPIC, TopicBody("new"), {"topic": 9}),
    (Kind.TOPIC, TopicBody("t"), {"topic": 2}),
    (Kind.FORGET, ForgetBody((5,), 1), {}),
    (Kind.FORGET, ForgetBody((1, 1), 1), {}),
    (Kind.FORGET, ForgetBody((1,), 2**33), {}),
    (Kind.ABORT, AbortBody(1, "why", ENTRY), {"producer": 1, "epoch": 1}),
    (Kind.ABORT, AbortBody(99, "why", ENTRY), {"producer": 1, "epoch": 1}),
    (Kind.ABORT, AbortBody(5, "why", Entry(b"", 1, 9, b"")), {"producer": 1, "epoch": 1}),
    (Kind.ABORT, AbortBody(5, "why", ENTRY), {"producer": 7, "epoch": 1}),
    (Kind.TICK, TickBody(2, 5), {}),
    (Kind.TICK, TickBody(1, 2**63), {}),
    (Kind.TRIM, TrimBody(0, 0), {}),
    (Kind.TRIM, TrimBody(99, 0), {}),
    (Kind.TRIM, TrimBody(1, -1), {}),
    (Kind.OFFSETS, OffsetsBody({"r": -1}), {}),
    (Kind.TXN, TxnBody((4,), (1,)), {"producer": 1, "epoch": 1, "first_sequence": 1, "count": 1, "topic": 1}),
    (Kind.TXN, TxnBody((), ()), {"producer": 1, "epoch": 1, "first_sequence": 1, "count": 1, "topic": 1}),
]


def ready() -> Group:
    """With producer 1 at epoch 1 and topic 1, all of it decided."""
    group = three()
    group.step(group.members["g1"], EpochAsked(1, 1, "p", incarnation("p"), 1))
    group.step(group.members["g1"], TopicAsked(1, 2, "t"))
    group.settle()
    return group


def next_frame(group: Group, kind: Kind, body: bytes, **fields: int) -> Frame:
    window = group.members["g2"].stack.layers.context.window
    frame = Frame(kind, body, origin=1, **fields)  # type: ignore[arg-type] # all are numbers
    frame.stamp(VIEW, window.end + 1, window.chain)
    return frame


def told(actions: list[Action]) -> list[str]:
    return [action.reason for action in actions if isinstance(action, Dropped)]


@pytest.mark.parametrize(("kind", "body", "fields"), BODIES)
def test_a_frame_that_is_impossible_at_its_position_changes_nothing(kind: Kind, body: Any, fields: dict[str, int]) -> None:
    group = ready()
    member = group.members["g2"]
    window, received = member.stack.layers.context.window, member.stack.layers.order.received
    frame = next_frame(group, kind, encode_body(body), **fields)
    before = (window.end, dict(received.lines), dict(received.forgotten), received.tick, received.next_topic, received.floor)
    assert len(told(group.step(member, Received(1, Order(VIEW, (frame,)))))) == 1
    after = (window.end, dict(received.lines), dict(received.forgotten), received.tick, received.next_topic, received.floor)
    assert after == before
    group.step(group.members["g1"], submitted(1, batches(1, 1)))
    group.settle()
    assert [member.stack.decided.next_offset for member in group.members.values()] == [1, 1, 1], "the right one is taken"


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in SEQUENCED])
def test_a_body_that_is_none_changes_nothing(kind: Kind) -> None:
    group = ready()
    frame = next_frame(group, kind, b"\xc1", producer=1, epoch=2)
    assert "is not a valid " in told(group.step(group.members["g2"], Received(1, Order(VIEW, (frame,)))))[0]
    assert not group.members["g2"].stack.layers.order.received.lines


@pytest.mark.parametrize("fields", [{"producer": 9}, {"epoch": 2}, {"first_sequence": 2}, {"count": 0}, {"topic": 9}])
def test_a_batch_that_is_impossible_at_its_position_is_dropped(fields: dict[str, int]) -> None:
    group = ready()
    fields = {"producer": 1, "epoch": 1, "first_sequence": 1, "count": 1, "topic": 1, **fields}
    frame = next_frame(group, Kind.BATCH, b"body", **fields)
    assert len(told(group.step(group.members["g2"], Received(1, Order(VIEW, (frame,)))))) == 1
    assert not group.members["g2"].stack.layers.order.received.lines


@pytest.mark.parametrize(
    "fields", [{"topic": 9}, {"count": 0}, {"first_sequence": 0}, {"raw_length": common_limits.RAW_BYTES_MAX + 1}]
)
def test_a_forwarded_batch_that_cannot_be_is_left_out_and_the_others_are_ordered(fields: dict[str, int]) -> None:
    group = ready()
    good = batches(1, 2)
    fields = {"producer": 1, "epoch": 1, "first_sequence": 2, "count": 1, "topic": 1, **fields}
    bad = Frame(Kind.BATCH, b"body", **fields)  # type: ignore[arg-type] # all are numbers
    placed = batches(2, 1)[0]
    placed.stamp(VIEW, 3, 0)
    coordinator = group.members["g1"]
    group.step(coordinator, Received(2, Forward(VIEW, (good[0], bad, placed, good[1]))))
    assert coordinator.stack.layers.order.received.lines[1].sequence == 2
    assert [frame.first_sequence for frame in coordinator.stack.layers.context.window.frames] == [1, 2]


@pytest.mark.parametrize("position", [2**40, 2**62])
def test_a_position_that_cannot_exist_is_not_missed(position: int) -> None:
    group = ready()
    receiver = group.members["g2"].stack.layers.order.receiver
    frame = Frame(Kind.TICK, encode_body(TickBody(1, 1)), origin=1)
    frame.stamp(VIEW, position, 0)
    streamed = receiver.streamed
    group.step(group.members["g2"], Received(1, Order(VIEW, (frame,))))
    group.step(group.members["g2"], Received(1, Echo(VIEW, frame.header)))
    assert (receiver.missing(), receiver.streamed) == ([], streamed)


def test_a_no_after_a_yes_aborts_nothing() -> None:
    group = ready()
    coordinator = group.members["g1"]
    group.step(coordinator, submitted(1, batches(1, 1)))
    end = coordinator.stack.layers.context.window.end
    group.step(coordinator, Received(2, Vote(VIEW, end)))
    actions = group.step(coordinator, Received(2, No(VIEW, end, "no space")))
    assert told(actions) == [f"a NO to position {end} after a YES to {end}"]
    assert coordinator.stack.layers.context.window.end == end


@pytest.mark.parametrize(("offset", "frontier"), [(1, 0), (0, 99)])
def test_an_offset_that_no_client_can_have_seen_is_not_logged(offset: int, frontier: int) -> None:
    group = ready()
    coordinator = group.members["g1"]
    end = coordinator.stack.layers.context.window.end
    group.step(coordinator, Received(2, Asking(VIEW, AskOffsets("r", offset, frontier))))
    assert coordinator.stack.layers.context.window.end == end


def test_drops_of_more_senders_than_are_remembered_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DROPPED_KINDS_MAX", 2)
    outbox = Outbox(ViewState())
    for sender in range(1, 9):
        outbox.drop(Vote(VIEW, 1), sender, "why")
    assert [action.sender for action in outbox.drain(None) if isinstance(action, Dropped)] == [1, 2, 3]
    assert outbox.drops == 8


# A whole group: heartbeats, learning


def whole(dropped: list[str]) -> Whole:
    def tell(name: str, what: Action | str) -> None:
        if isinstance(what, Dropped | Halt):
            dropped.append(what.reason)

    world = Whole(StackConfig(), tell, Pace())
    for name in ("g1", "g2", "g3"):
        world.add(name, {other: f"{other}:7400" for other in ("g1", "g2", "g3")})
        world.start(name)
    world.run(20 * limits.HEARTBEAT_US)
    return world


def hand(world: Whole, to: Gateway, sender: int, message: Message) -> None:
    world.step(to, Received(sender, message, world.members[to.names[sender]].disk.incarnation))


def test_an_echo_from_the_future_and_a_claim_of_another_count_for_nothing() -> None:
    dropped: list[str] = []
    world = whole(dropped)
    gateway = world.members["g1"]
    peer = gateway.running.layers.peers.get(2)
    assert peer is not None
    echoed = peer.echoed_us
    hand(world, gateway, 2, Heartbeat(sent_us=1, echo_us=2**60))
    assert peer.echoed_us == echoed
    hand(world, gateway, 2, Heartbeat(sent_us=1, claim=99 << 16 | 3))
    assert dropped == ["view 99.3 names another coordinator"]


def test_a_contradiction_halts_only_when_another_question_brings_it_again() -> None:
    reasons: list[str] = []
    world = whole(reasons)
    gateway = world.members["g3"]
    world.kill("g3", 0)
    world.run(world.mono_us + 20 * limits.HEARTBEAT_US)
    world.start("g3")
    layers = gateway.running.layers
    adopting, window = layers.flush.adoption, layers.context.window
    frame = Frame(Kind.TICK, encode_body(TickBody(77, 1)), origin=1)
    frame.stamp(5 << 16 | 1, window.end + 1, window.chain)
    message = Fetched(view=0, first=frame.position, frames=(frame,), source=5 << 16 | 1, stop=frame.position)
    for _ in range(3):
        assert adopting.append(1, message, frame.position, frame.position) == frame.position
    assert (layers.context.view_state.active, gateway.halted) == (True, ""), "copies of one message prove nothing"
    learner = layers.flush.learner
    learner._source = 1
    learner._request_next()
    adopting.append(1, message, frame.position, frame.position)
    assert not layers.context.view_state.active
    actions = layers.context.outbox.drain(None)
    assert [action.reason for action in actions if isinstance(action, Halt)] == [
        f"gateway 'g1' holds a frame that cannot follow this log: tick 77 cannot follow tick {layers.order.received.tick}; "
        "what is decided here can still be read"
    ]
    assert any(isinstance(action, Send) for action in actions)
