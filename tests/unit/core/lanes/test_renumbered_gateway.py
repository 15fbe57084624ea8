"""Tests of a gateway that is removed and added again while it runs: it writes nothing into the lane of its old number."""

from __future__ import annotations

from random import Random

from tests.unit.core.lanes.lane_group import Near, incarnation
from tutti.data.client_protocol import RefusedAnswer
from tutti.data.frames.bodies import ViewBody, Voter, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.log_state import LogState
from tutti_gateway.core.context import Context
from tutti_gateway.core.lanes.lane_activation import Lanes
from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.pending_window import Window
from tutti_gateway.core.protocol.actions import DeliverUnordered, Send
from tutti_gateway.core.protocol.events import Identity, LaneLog, StackConfig, SubmittedUnordered
from tutti_gateway.core.protocol.messages import LaneEnds
from tutti_gateway.core.view.view_state import ViewState


def test_its_lane_is_over_and_it_continues_with_those_of_the_others() -> None:
    standing, state = ViewState(), LogState()
    standing.me = 1
    voter = Voter(1, "g1", incarnation(1), "h:1/2")
    state.roster = {1: voter}
    outbox = Outbox(standing)
    part = [1, 2, 3]
    identity = Identity("g1", incarnation(1), "test", {})
    context = Context(StackConfig(lanes=True), standing, outbox, Window(state, 1 << 20), identity, Random(0))
    lanes = Lanes(context, lambda: part, lambda _: None, Near())
    lanes.start(())
    outbox.drain(None)
    assert lanes.halted == ""
    part, state.roster, standing.me = [2, 3], {}, 1
    lanes.beat()
    part, state.roster, standing.me = [2, 3, 4], {4: Voter(4, "g1", incarnation(1), "h:1/2")}, 4
    lanes.beat()
    told = {action.to for action in outbox.drain(None) if isinstance(action, Send) and isinstance(action.message, LaneEnds)}
    assert told == {2, 3}
    assert "removed and added again" in lanes.halted
    lanes.on_submitted(SubmittedUnordered(7, (Frame(Kind.BATCH, b"r", producer=1, epoch=1, first_sequence=1, count=1, topic=1),)))
    (refused,) = outbox.answers(7)
    assert isinstance(refused, RefusedAnswer)
    assert (refused.code, refused.retry) == ("lane", True)
    again = Lanes(context, lambda: part, lambda _: None, Near())  # the next start
    again.start(())
    again.beat()
    assert again.halted == ""


def test_frames_voted_for_under_its_old_number_are_decided_after_a_start() -> None:
    """Its write came last and is the decision. No other member may know of it, and its lane's origin no longer exists."""
    standing, state = ViewState(), LogState()
    standing.me = 4
    state.roster = {4: Voter(4, "g1", incarnation(1), "h:1/2")}
    outbox = Outbox(standing)
    identity = Identity("g1", incarnation(1), "test", {})
    context = Context(StackConfig(lanes=True), standing, outbox, Window(state, 1 << 20), identity, Random(0))
    view = Frame(Kind.VIEW, encode_body(ViewBody((1, 2, 3))), origin=1)
    view.stamp(1, 1, 0)
    batch = Frame(Kind.BATCH, b"r", producer=1, epoch=1, first_sequence=1, count=1, topic=1, origin=1)
    batch.stamp(1, 2, view.header_crc)
    other = Frame(Kind.BATCH, b"r", producer=1, epoch=1, first_sequence=1, count=1, topic=1, origin=2)
    other.stamp(1, 1, 0)
    old = LaneLog(origin=1, incarnation=incarnation(1), attempt=1, tail=(view, batch))
    another = LaneLog(origin=2, incarnation=incarnation(2), attempt=1, tail=(other,))
    lanes = Lanes(context, lambda: [2, 3, 4], lambda _: None, Near())
    lanes.start((old, another))
    actions = outbox.drain(None)
    assert [(one.origin, one.frames) for one in actions if isinstance(one, DeliverUnordered)] == [(1, (view, batch))]
    ends = next(action.message for action in actions if isinstance(action, Send) and isinstance(action.message, LaneEnds)).ends
    assert {(end.origin, end.decided) for end in ends} == {(1, 2), (2, 0), (4, 0)}
