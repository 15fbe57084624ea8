"""Tests of the pending window: it keeps the order of its stages, its chain and its barriers after any call."""

from __future__ import annotations

import pytest

from tutti.data.frames.bodies import AbortBody, Entry, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.log_state import LogState, Producer, Topic
from tutti.errors import InvariantViolated
from tutti_gateway.core import limits
from tutti_gateway.core.atomic.ballot import Ballot
from tutti_gateway.core.pending_window import CommitStage, Window

PERIOD = 3


def window() -> Window:
    state = LogState()
    for number in (1, 2):
        state.producers[number] = Producer(f"p{number}", b"", 1, 0, b"")
    state.topics[1] = Topic("t")
    return Window(state)


def add(held: Window, *frames: Frame) -> None:
    for frame in frames:
        frame.stamp(1, held.end + 1, held.chain)
        held.extend((frame,))


def batch(producer: int, sequence: int) -> Frame:
    return Frame(Kind.BATCH, b"body", producer=producer, epoch=1, first_sequence=sequence, count=1, topic=1)


def abort(producer: int, first: int) -> Frame:
    return Frame(Kind.ABORT, encode_body(AbortBody(first, "full", Entry(b"", 1, 0, b""))), producer=producer, epoch=1)


def vote(held: Window, up_to: int) -> None:
    for stage in (CommitStage.WRITING, CommitStage.DURABLE, CommitStage.VOTED):
        held.advance(stage, up_to)


@pytest.mark.parametrize("stage", [CommitStage.WRITING, CommitStage.DURABLE, CommitStage.VOTED, CommitStage.DECIDED])
def test_no_stage_passes_the_one_before_it_or_goes_back(stage: CommitStage) -> None:
    held = window()
    add(held, batch(1, 1), batch(1, 2), batch(1, 3))
    for before in list(CommitStage)[1:stage]:
        held.advance(before, 2)
    limit = 2 if stage > CommitStage.WRITING else 3
    with pytest.raises(InvariantViolated, match=stage.name):
        held.advance(stage, limit + 1)
    held.advance(stage, 2)
    with pytest.raises(InvariantViolated, match="moves from 2 to 1"):
        held.advance(stage, 1)
    assert held.mark(stage) == 2


def test_a_frame_out_of_order_or_of_another_chain_is_refused() -> None:
    held = window()
    early = batch(1, 1)
    early.stamp(1, 2, 0)
    with pytest.raises(InvariantViolated, match="position or chain"):
        held.extend((early,))
    foreign = batch(1, 1)
    foreign.stamp(1, 1, 12345)
    with pytest.raises(InvariantViolated, match="position or chain"):
        held.extend((foreign,))


def test_decisions_never_stop_between_a_batch_and_its_abort() -> None:
    held = window()
    add(held, batch(2, 1), batch(1, 1), batch(2, 2), batch(1, 2), abort(1, 2), abort(2, 3))
    # ABORT 5 covers from 2, ABORT 6 from 3: nothing stops in [2, 5) and [3, 6).
    assert [held.reach(position) for position in range(7)] == [0, 1, 1, 1, 1, 1, 6]
    assert held.is_void(2)
    assert held.is_void(3)
    assert held.is_void(4)
    assert not held.is_void(1)
    vote(held, 6)
    with pytest.raises(InvariantViolated, match="between a batch and its ABORT"):
        held.decide(5)
    held.decide(1)
    run, offsets, void = held.decide(6)
    assert [frame.position for frame in run] == [2, 3, 4, 5, 6]
    assert void == {2, 3, 4}
    assert offsets == (1, 1, 1, 1, 1)
    assert held.bytes == 0
    assert not held.barriers


def test_an_abort_of_a_decided_frame_is_illegal() -> None:
    held = window()
    add(held, batch(1, 1))
    vote(held, 1)
    held.decide(1)
    late = abort(1, 1)
    late.stamp(1, 2, held.chain)
    with pytest.raises(InvariantViolated, match="aborts 1 and the frontier is 1"):
        held.extend((late,))


def test_positions_outside_are_not_looked_up() -> None:
    held = window()
    add(held, batch(1, 1))
    for position in (0, 2):
        with pytest.raises(InvariantViolated, match="not in the window"):
            held.at(position)


def test_a_restored_tail_is_durable_and_not_voted_for() -> None:
    held, first, second = window(), batch(1, 1), batch(1, 2)
    first.stamp(1, 1, 0)
    second.stamp(1, 2, first.header_crc)
    held.restore((first, second))
    assert [held.mark(stage) for stage in CommitStage] == [2, 2, 2, 0, 0]


def test_the_slowest_vote_counts_and_late_ones_change_nothing() -> None:
    ballot = Ballot((1, 2, 3), 4)
    ballot.yes(1, 9)
    ballot.yes(2, 7)
    ballot.yes(3, 8)
    assert ballot.all_yes == 7
    ballot.yes(2, 5)
    assert ballot.all_yes == 7


def test_a_member_is_late_after_the_period_and_only_while_something_waits() -> None:
    ballot = Ballot((1, 2), 0)
    assert [ballot.beat(0, PERIOD) for _ in range(5)] == [[]] * 5, "nothing waits for anybody"
    ballot.yes(1, 4)
    assert [ballot.beat(4, PERIOD) for _ in range(4)] == [[], [], [2], []]
    ballot.yes(2, 1)
    assert [ballot.beat(4, PERIOD) for _ in range(4)] == [[], [], [], [2]], "it moved, so its period began anew"


def test_a_low_disk_counts_while_it_is_reported() -> None:
    ballot = Ballot((1, 2), 0)
    ballot.report_space(2, "full")
    for _ in range(5):
        ballot.beat(0, PERIOD)
        assert ballot.low == {2: "full"}
        ballot.report_space(2, "full")
    for _ in range(3):
        ballot.beat(0, PERIOD)
    assert ballot.low == {}
    ballot.report_space(1, "full")
    ballot.report_space(1, "")
    assert ballot.low == {}


def test_a_tail_as_long_as_a_watermark_may_lag_is_restored_and_one_frame_more_is_not() -> None:
    """What one sync made durable behind the last mark, and what was undecided then, stands above the watermark on the disk."""
    frames: list[Frame] = []
    for position in range(1, limits.TAIL_FRAMES_MAX + 2):
        frame = Frame(Kind.TICK, b"")
        frame.stamp(1, position, frames[-1].header_crc if frames else 0)
        frames.append(frame)
    held = window()
    held.restore(frames[:-1])
    assert held.mark(CommitStage.DURABLE) == limits.TAIL_FRAMES_MAX
    add(held, Frame(Kind.TICK, b""))  # the VIEW frame of the view that goes on with it, say
    with pytest.raises(InvariantViolated, match="exceed the limit"):
        window().restore(frames)
