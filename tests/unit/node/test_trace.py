"""At level debug a batch is named alike wherever it passes, and the stack between tracer and driver does what it did."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr

from gateway.core.actions import Action, Deliver, DeliverUnordered, Persist, Reply
from gateway.core.events import Event, Now, Persisted, Received, Submitted, TimeAdvanced
from gateway.core.messages import Confirm, No, Order, Vote
from gateway.data.state import LogState, Producer, Topic
from gateway.data.wire import Committed
from gateway.node import logs
from gateway.node.trace import Tracer
from tests.unit.node.bench import placed
from tests.unit.node.fakes import batch_frame

NOW = Now(5, 7)


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
            tracer = Tracer(self.stack, lambda: self.state, logs.set_up("g1", "debug"))
            self.stack.actions = actions
            assert tracer.step(event, NOW) == actions
            assert self.stack.events[-1] == (event, NOW)
            for action in actions:  # a token is remembered until it is durable
                if isinstance(action, Persist):
                    self.stack.actions = ()
                    tracer.step(Persisted(action.token), NOW)
        return [json.loads(line) for line in said.getvalue().splitlines()]


def test_a_batch_has_one_name_from_its_client_to_its_receipt() -> None:
    rig = Rig()
    frame = batch_frame([b"a", b"b"], sequence=4)
    (submitted,) = rig.lines(Submitted(3, (frame,)))
    at = placed(frame, 9)
    written, durable = rig.lines(Received(2, Order(at.view, (at,))), Persist(1, (at,)))[1:]
    (decided,) = rig.lines(TimeAdvanced(), Deliver((at,), (20,), frozenset(), 22))
    (aborted,) = rig.lines(TimeAdvanced(), Deliver((at,), (20,), frozenset({9}), 20))
    (receipt,) = rig.lines(TimeAdvanced(), Reply(3, (Committed(frame.producer, frame.epoch, 4, 2, 20),)))
    for line in (submitted, written, decided, aborted, receipt):
        assert (line["gateway"], line["level"]) == ("g1", "debug")
        assert (line["producer"], line["number"], line["epoch"], line["first"], line["last"]) == ("jfk", 1, 1, 4, 5)
    assert [line["event"] for line in (submitted, written, durable, decided, aborted, receipt)] == [
        "submitted",
        "written",
        "durable",
        "decided",
        "aborted",
        "receipt",
    ]
    assert (written["position"], durable["up_to"], decided["offset"], receipt["session"]) == (9, 9, 20, 3)


def test_the_receipt_of_an_unordered_batch_is_not_taken_for_an_ordered_one() -> None:
    frame = batch_frame([b"a", b"b"], sequence=4)
    receipt = Reply(3, (Committed(frame.producer, frame.epoch, 4, 2, 0),))
    assert Rig().lines(TimeAdvanced(), DeliverUnordered(1, b"i" * 16, 0, (frame,)), receipt) == []
    assert len(Rig().lines(TimeAdvanced(), receipt)) == 1


def test_votes_and_decisions_of_others_are_told_with_who_sent_them() -> None:
    rig = Rig()
    (vote,) = rig.lines(Received(2, Vote(65_537, 9)))
    (confirm,) = rig.lines(Received(1, Confirm(65_537, 9)))
    assert [(line["event"], line["sender"], line["up_to"], line["in_view"]) for line in (vote, confirm)] == [
        ("vote", 2, 9, "1.1"),
        ("confirm", 1, 9, "1.1"),
    ]


def test_a_no_is_told_with_its_place_and_its_reason() -> None:
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
    (line,) = rig.lines(Submitted(3, (batch_frame([b"a"]),)))
    assert (line["producer"], line["number"], line["topic"]) == ("", 1, 1)


def test_level_info_is_silent_below() -> None:
    said = io.StringIO()
    with redirect_stderr(said):
        log = logs.set_up("g1")
        log.debug("no")
        log.info("yes")
    assert [json.loads(line)["event"] for line in said.getvalue().splitlines()] == ["yes"]
