"""Tests of the trace at level debug: a batch has the same name at every gateway, and the traced stack behaves as before."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr

import pytest

from tests.unit.node.driver_harness import placed
from tests.unit.node.fakes import batch_frame
from tutti.data.client_protocol import Committed
from tutti.data.frames.frame import Frame
from tutti.data.lane_name import LaneName
from tutti.data.log_state import LogState, Producer, Topic
from tutti_gateway.core.protocol.actions import Action, Deliver, DeliverUnordered, Persist, PersistLane, Reply
from tutti_gateway.core.protocol.events import (
    Event,
    LanePersisted,
    Now,
    Persisted,
    Received,
    SubmittedUnordered,
    TimeAdvanced,
    submitted,
)
from tutti_gateway.core.protocol.messages import Confirm, Fetched, LaneFetched, No, Order, Post, Posted, Settled, Vote
from tutti_gateway.node.common import logging_setup
from tutti_gateway.node.status.trace import Tracer

NOW = Now(5, 7)
OWN, OTHER = LaneName(1, bytes(16)), LaneName(2, b"o" * 16)


class Scripted:
    """A stack that answers each event with what was put down for it."""

    def __init__(self) -> None:
        self.actions: Sequence[Action] = ()
        self.events: list[tuple[Event, Now]] = []

    def step(self, event: Event, now: Now) -> Sequence[Action]:
        self.events.append((event, now))
        return self.actions


class Rig:
    """A tracer whose lines are kept."""

    def __init__(self) -> None:
        self.stack = Scripted()
        self.state = LogState()
        self.state.producers[1] = Producer("jfk", b"", 1, 0, b"")
        self.state.topics[1] = Topic("flights")

    def lines(self, event: Event, *actions: Action) -> list[dict[str, object]]:
        said = io.StringIO()
        with redirect_stderr(said):
            tracer = Tracer(self.stack, lambda: self.state, lambda: OWN, logging_setup.set_up("g1", "debug"))
            self.stack.actions = actions
            assert tracer.step(event, NOW) == actions
            assert self.stack.events[-1] == (event, NOW)
            for action in actions:  # a token is remembered until it is durable
                self.stack.actions = ()
                if isinstance(action, Persist):
                    tracer.step(Persisted(action.token), NOW)
            tokens = [action.token for action in actions if isinstance(action, PersistLane)]
            if tokens:
                tracer.step(LanePersisted(tokens[-1]), NOW)
        return [json.loads(line) for line in said.getvalue().splitlines()]


def test_a_batch_has_one_name_from_its_client_to_its_receipt() -> None:
    rig = Rig()
    frame = batch_frame([b"a", b"b"], sequence=4)
    (sent,) = rig.lines(submitted(3, (frame,)))
    at = placed(frame, 9)
    written, durable = rig.lines(Received(2, Order(at.view, (at,))), Persist(1, (at,)))[1:]
    (decided,) = rig.lines(TimeAdvanced(), Deliver((at,), (20,), frozenset(), 22))
    (aborted,) = rig.lines(TimeAdvanced(), Deliver((at,), (20,), frozenset({9}), 20))
    (receipt,) = rig.lines(TimeAdvanced(), Reply(3, (Committed(frame.producer, frame.epoch, 4, 2, 20),)))
    for line in (sent, written, decided, aborted, receipt):
        assert (line["gateway"], line["level"]) == ("g1", "debug")
        assert (line["producer"], line["number"], line["epoch"], line["first"], line["last"]) == ("jfk", 1, 1, 4, 5)
    assert [line["event"] for line in (sent, written, durable, decided, aborted, receipt)] == [
        "submitted",
        "written",
        "durable",
        "decided",
        "aborted",
        "receipt",
    ]
    assert (written["position"], durable["up_to"], decided["offset"], receipt["session"]) == (9, 9, 20, 3)


def in_lane(frame: Frame, lane: LaneName, attempt: int, position: int) -> Frame:
    frame.origin = lane.origin
    frame.stamp(attempt, position, 0)
    return frame


def test_frames_of_a_catch_up_are_logged_as_received_too() -> None:
    frame = placed(batch_frame(sequence=4), 9)
    (line,) = Rig().lines(Received(3, Fetched(view=1, first=9, frames=(frame,), stop=9)))
    assert (line["event"], line["by"], line["sender"], line["position"], line["first"]) == ("received", "Fetched", 3, 9, 4)


@pytest.mark.parametrize("lane", [OWN, OTHER])
def test_an_unordered_batch_has_the_name_of_its_lane_and_the_attempt_in_place_of_the_view(lane: LaneName) -> None:
    rig = Rig()
    (submitted,) = rig.lines(SubmittedUnordered(3, (batch_frame([b"a", b"b"], sequence=4),)))
    assert (submitted["lane"], submitted["session"], "position" in submitted) == (OWN.text, 3, False)
    at = in_lane(batch_frame([b"a", b"b"], sequence=4), lane, 5, 9)
    (posted,) = rig.lines(Received(lane.origin, Post(lane.incarnation, (at,))))
    (fetched,) = rig.lines(Received(3, LaneFetched(*lane, (at,))))
    written, durable = rig.lines(TimeAdvanced(), PersistLane(1, *lane, (at,)))
    run = DeliverUnordered(*lane, 20, (at,))
    decided, *receipts = rig.lines(LanePersisted(1), run, Reply(3, (Committed(at.producer, at.epoch, 4, 2, 20),)))
    for line in (posted, fetched, written, decided):
        assert (line["producer"], line["epoch"], line["first"], line["last"]) == ("jfk", 1, 4, 5)
        assert (line["lane"], line["attempt"], line["position"], "in_view" in line) == (lane.text, 5, 9, False)
    assert [(line["by"], line["sender"]) for line in (posted, fetched)] == [("Post", lane.origin), ("LaneFetched", 3)]
    assert {name: durable[name] for name in ("event", "up_to", "attempt", "lane")} == {
        "event": "durable",
        "up_to": 9,
        "attempt": 5,
        "lane": lane.text,
    }
    assert (decided["event"], decided["offset"]) == ("decided", 20)
    (receipt,) = receipts
    assert (receipt["event"], receipt["offset"]) == ("receipt", 20)
    assert ("lane" in receipt) is (lane == OWN)  # another's lane may have the same batch by name: this receipt is not about it


def test_each_lane_logs_how_far_one_sync_made_it_durable() -> None:
    own, other = in_lane(batch_frame(), OWN, 2, 3), in_lane(batch_frame(), OTHER, 7, 8)
    lines = Rig().lines(TimeAdvanced(), PersistLane(1, *OWN, (own,)), PersistLane(2, *OTHER, (other,)))
    told = [(line["lane"], line["attempt"], line["up_to"]) for line in lines if line["event"] == "durable"]
    assert told == [(OWN.text, 2, 3), (OTHER.text, 7, 8)]


def test_votes_and_decisions_in_a_lane_name_it() -> None:
    (vote,) = Rig().lines(Received(2, Posted(OWN.incarnation, 5, 9)))
    (low,) = Rig().lines(Received(2, Posted(OWN.incarnation, 5, 9, "no room")))
    (settled,) = Rig().lines(Received(2, Settled(OTHER.incarnation, 5, 9)))
    assert [(line["event"], line["sender"], line["up_to"], line["attempt"], line["lane"]) for line in (vote, settled)] == [
        ("vote", 2, 9, 5, OWN.text),
        ("confirm", 2, 9, 5, OTHER.text),
    ]
    assert ("reason" in vote, low["reason"]) == (False, "no room")


def test_votes_and_decisions_of_others_are_logged_with_their_sender() -> None:
    rig = Rig()
    (vote,) = rig.lines(Received(2, Vote(65_537, 9)))
    (confirm,) = rig.lines(Received(1, Confirm(65_537, 9)))
    assert [(line["event"], line["sender"], line["up_to"], line["in_view"]) for line in (vote, confirm)] == [
        ("vote", 2, 9, "1.1"),
        ("confirm", 1, 9, "1.1"),
    ]


def test_a_no_is_logged_with_its_position_and_reason() -> None:
    (no,) = Rig().lines(Received(2, No(65_537, 9, "no space")))
    assert {name: no[name] for name in ("event", "sender", "position", "in_view", "reason")} == {
        "event": "no",
        "sender": 2,
        "position": 9,
        "in_view": "1.1",
        "reason": "no space",
    }


def test_a_producer_that_is_not_known_yet_has_its_number() -> None:
    rig = Rig()
    rig.state.producers.clear()
    rig.state.topics.clear()
    (line,) = rig.lines(submitted(3, (batch_frame([b"a"]),)))
    assert (line["producer"], line["number"], line["topic"]) == ("", 1, 1)


def test_level_info_is_silent_below() -> None:
    said = io.StringIO()
    with redirect_stderr(said):
        log = logging_setup.set_up("g1")
        log.debug("no")
        log.info("yes")
    assert [json.loads(line)["event"] for line in said.getvalue().splitlines()] == ["yes"]
