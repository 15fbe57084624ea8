"""Tests of a member that gets frames and no CONFIRM: it stops at its bound, reports nothing wrong, and catches up."""

from __future__ import annotations

import pytest

from tests.transcripts.group import Group, Member, incarnation
from tests.unit.core.stacks import VIEW, answers, batches, three
from tutti import limits as common_limits
from tutti.data.client_protocol import Committed
from tutti.data.frames.bodies import TickBody, ViewBody, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core import limits
from tutti_gateway.core.pending_window import Window
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.events import EpochAsked, Received, TopicAsked, submitted
from tutti_gateway.core.protocol.messages import Confirm, Order

FRAMES = 64
BATCHES = 8


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    """A group of three with one producer, where few frames may be undecided."""
    monkeypatch.setattr(common_limits, "UNDECIDED_FRAMES_MAX", FRAMES)
    monkeypatch.setattr(limits, "BUFFERED_FRAMES_MAX", FRAMES)
    monkeypatch.setattr(limits, "BATCH_UNDECIDED_FRAMES_MAX", FRAMES // 2)
    monkeypatch.setattr(limits, "REQUEST_UNDECIDED_FRAMES_MAX", FRAMES // 2)
    monkeypatch.setattr(limits, "WINDOW_MORE_FRAMES", 4)
    monkeypatch.setattr(limits, "VIEW_RESERVE_FRAMES", 2)
    return opened()


def opened(**config: int) -> Group:
    group = three(**config)
    member = group.members["g1"]
    group.step(member, EpochAsked(1, 1, "p", incarnation("p"), 1))
    group.step(member, TopicAsked(1, 2, "t"))
    group.settle()
    return group


def window_of(group: Group, name: str = "g2") -> Window:
    return group.members[name].stack.layers.context.window


def settle_without_confirm(group: Group) -> None:
    """Disks and network do what is under way, and no CONFIRM reaches g2."""
    while group.network or any(member.persists for member in group.members.values()):
        while group.network:
            sender, to, data = group.network.pop(0)
            if to.name != "g2" or not isinstance(codec.decode_message(data), Confirm):
                group.hand_over(sender, to, data)
        for member in group.members.values():
            group.persisted(member)


def send(group: Group, first: int, body: bytes = b"body") -> None:
    group.step(group.members["g1"], submitted(1, batches(first, BATCHES, body)))
    settle_without_confirm(group)


def committed(member: Member) -> int:
    return sum(answer.count for answer in answers(member, Committed) if isinstance(answer, Committed))


def test_a_member_without_confirms_accepts_no_frame_over_its_bound_and_catches_up(group: Group) -> None:
    window, rounds = window_of(group), 4 * FRAMES // BATCHES
    for number in range(rounds):
        send(group, 1 + number * BATCHES)
        assert len(window.frames) <= FRAMES
    held_back = window_of(group, "g1")
    assert (len(window.frames), window.end) == (FRAMES, held_back.frontier), "it voted for what it took, and for nothing else"
    assert held_back.full, "its coordinator is held up"
    group.settle()
    for _ in range(3):
        group.advance(group.members["g1"].stack.layers.context.config.heartbeat_us)
        group.settle()
    assert committed(group.members["g1"]) == rounds * BATCHES
    assert not window.frames
    assert [frame.header_crc for frame in group.members["g2"].log] == [frame.header_crc for frame in group.members["g1"].log]
    assert not group.problems


def test_a_member_without_confirms_bounds_the_bytes_that_it_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNDECIDED_BYTES_CONFIG_MIN", 20_000)
    monkeypatch.setattr(limits, "BUFFERED_MORE_BYTES_MAX", 4_000)
    group = opened(undecided_bytes_max=20_000)
    window, size = window_of(group), 0
    for number in range(12):
        send(group, 1 + number * BATCHES, bytes(1_000))
        size = max(size, window.bytes)
    assert 20_000 < size < 20_000 + 4_000 + 2_000
    group.settle()
    group.advance(group.members["g1"].stack.layers.context.config.heartbeat_us)
    group.settle()
    assert committed(group.members["g1"]) == 12 * BATCHES
    assert not group.problems


def stamped(window: Window, *frames: Frame) -> tuple[Frame, ...]:
    chain = window.chain
    for place, frame in enumerate(frames, 1):
        frame.stamp(VIEW, window.end + place, chain)
        chain = frame.header_crc
    return frames


def ticks(count: int) -> list[Frame]:
    return [Frame(Kind.TICK, encode_body(TickBody(number, number)), origin=1) for number in range(1, count + 1)]


def test_a_member_at_its_bound_requests_no_repair_until_it_has_capacity(group: Group) -> None:
    member, window = group.members["g2"], window_of(group)
    receiver = member.stack.layers.order.receiver
    frames = stamped(window, *ticks(FRAMES + 8))
    group.step(member, Received(1, Order(VIEW, frames[:FRAMES])))
    group.persisted(member)
    group.step(member, Received(1, Order(VIEW, frames[-1:])))
    assert (len(window.frames), receiver.highest, receiver.missing()) == (FRAMES, frames[-1].position, [])
    group.step(member, Received(1, Confirm(VIEW, frames[0].position)))
    assert receiver.missing() == [(frames[FRAMES].position, frames[-2].position)]
    group.step(member, Received(1, Order(VIEW, frames[FRAMES:])))
    assert window.end == frames[FRAMES].position, "one is decided, one has room"


def test_a_view_frame_is_accepted_after_a_log_without_capacity(group: Group) -> None:
    """What was carried over waits for the decision of the VIEW frame."""
    member, window = group.members["g2"], window_of(group)
    carried = stamped(
        window, *ticks(FRAMES + limits.WINDOW_MORE_FRAMES), Frame(Kind.VIEW, encode_body(ViewBody((1, 2, 3))), origin=1)
    )
    assert member.stack.layers.append_adopted(carried[:-1]) == (len(carried) - 1, "")
    group.step(member, Received(1, Order(VIEW, carried[-1:])))
    assert window.end == carried[-1].position
