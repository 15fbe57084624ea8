"""Tests of the receiver of repairs: which frames it accepts, and that it knows every missing position, for any
order of messages.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transcripts.group import Group, Member
from tests.unit.core.stacks import VIEW, three
from tutti.data.frames.bodies import TickBody, encode_body
from tutti.data.frames.frame import Frame, Kind, decode_frame
from tutti_gateway.core import limits
from tutti_gateway.core.order.receiver import Receiver
from tutti_gateway.core.pending_window import Window
from tutti_gateway.core.protocol.events import Received
from tutti_gateway.core.protocol.messages import Echo, Order, Repair


def looked_at(group: Group, name: str = "g2") -> tuple[Member, Window, Receiver]:
    member = group.members[name]
    return member, member.stack.layers.context.window, member.stack.layers.order.receiver


def ticks(window: Window, count: int, view: int = VIEW) -> list[Frame]:
    frames, chain = [], window.chain
    for place in range(1, count + 1):
        frame = Frame(Kind.TICK, encode_body(TickBody(place, place)), origin=1)
        frame.stamp(view, window.end + place, chain)
        chain = frame.header_crc
        frames.append(frame)
    return frames


@pytest.mark.parametrize("sender", [1, 3])
def test_any_member_repairs(sender: int) -> None:
    _, window, receiver = looked_at(three())
    frames = ticks(window, 3)
    receiver.on_order(1, Order(VIEW, (frames[2],)))
    assert receiver.missing() == [(3, 4)]
    receiver.on_repair(sender, Repair(VIEW, tuple(frames[:2])))
    assert (window.end, receiver.missing()) == (5, [])


@pytest.mark.parametrize(("sender", "view"), [(2, VIEW), (4, VIEW), (1, VIEW + 1), (3, VIEW - 1)])
def test_a_repair_of_another_view_or_of_no_member_is_dropped(sender: int, view: int) -> None:
    _, window, receiver = looked_at(three())
    receiver.on_repair(sender, Repair(view, tuple(ticks(window, 1))))
    assert (window.end, receiver.highest) == (2, 2)


def test_the_coordinator_accepts_no_repair() -> None:
    _, window, receiver = looked_at(three(), "g1")
    receiver.on_repair(3, Repair(VIEW, tuple(ticks(window, 1))))
    receiver.log_end_reported(2, 9)
    assert (window.end, receiver.missing()) == (2, [])


@pytest.mark.parametrize("view", [VIEW - 1, VIEW + 1])
def test_a_frame_of_another_view_above_the_installed_end_is_no_repair(view: int) -> None:
    _, window, receiver = looked_at(three())
    receiver.on_repair(3, Repair(VIEW, tuple(ticks(window, 1, view))))
    receiver.on_order(1, Order(VIEW, tuple(ticks(window, 1, view))))
    assert (window.end, receiver.discarded, receiver.highest) == (2, 2, 2)


def test_a_repair_that_breaks_the_chain_or_is_damaged_is_still_missing() -> None:
    _, window, receiver = looked_at(three())
    good = ticks(window, 2)
    broken = Frame(Kind.TICK, encode_body(TickBody(7, 7)), origin=1)
    broken.stamp(VIEW, 3, 12345)
    receiver.on_repair(3, Repair(VIEW, (broken, good[1])))
    damaged = decode_frame(good[0].to_bytes())
    damaged.body = b"?" * len(good[0].body)
    receiver.on_repair(3, Repair(VIEW, (damaged,)))
    assert (window.end, receiver.discarded, receiver.missing()) == (2, 2, [(3, 3)])
    receiver.on_repair(3, Repair(VIEW, (good[0],)))
    assert (window.end, receiver.missing()) == (4, [])


def test_positions_up_to_a_reported_end_are_missing_and_impossible_ones_are_ignored() -> None:
    _, window, receiver = looked_at(three())
    receiver.log_end_reported(3, window.end)
    assert receiver.missing() == []
    receiver.log_end_reported(3, window.end + 2)
    receiver.log_end_reported(3, window.end + limits.BUFFERED_FRAMES_MAX + 1)
    assert (receiver.missing(), receiver.streamed) == ([(3, 4)], 2)
    receiver.log_end_reported(1, window.end + 2)
    assert (receiver.missing(), receiver.streamed) == ([(3, 4)], 4)


def test_a_header_that_is_none_does_not_stop_a_step() -> None:
    group = three()
    member, window, receiver = looked_at(group)
    for headers in (b"x" * 96, b"short"):
        group.step(member, Received(1, Echo(VIEW, headers)))
    assert (window.end, receiver.discarded) == (2, 2)


STEPS = st.lists(st.tuples(st.sampled_from(["order", "repair", "heard"]), st.integers(0, 11), st.integers(1, 3)), max_size=25)


@given(STEPS)
def test_every_announced_position_is_present_or_missing(steps: list[tuple[str, int, int]]) -> None:
    _, window, receiver = looked_at(three())
    base, frames, told = window.end, ticks(window, 14), window.end
    came: set[int] = set()
    for what, at, count in steps:
        run = tuple(frames[at : at + count])
        if what == "heard":
            receiver.log_end_reported(3, base + at)
            told = max(told, base + at)
            continue
        if what == "order":
            receiver.on_order(1, Order(VIEW, run))
        else:
            receiver.on_repair(3, Repair(VIEW, run))
        came |= {frame.position for frame in run}
        told = max(told, run[-1].position)
        missing = {position for first, last in receiver.missing() for position in range(first, last + 1)}
        assert missing == {position for position in range(base + 1, told + 1) if position not in came}
        assert window.end == min(missing, default=told + 1) - 1
