"""Tests of unordered sends in the driver: a session has one kind of send, the lane's frontier is visible before receipts leave, and
the lane thread gets writes, reads and index rows in the stack's order.
"""

from __future__ import annotations

from typing import get_args

import pytest

from tests.unit.node.driver_harness import A, B, Bench, placed, submit
from tests.unit.node.fakes import batch_frame, message
from tutti.data.client_protocol import Committed, Denied, Duplicate, RefusedAnswer, encode_submit
from tutti.data.frames.bodies import ForgetBody, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Action, Deliver, DeliverUnordered, Persist, PersistLane, ReadLane, Reply
from tutti_gateway.core.protocol.events import LaneLog, LanePersisted, Persisted, Recovered, Started, Submitted, SubmittedUnordered
from tutti_gateway.node.clients.in_flight import UnorderedInFlight
from tutti_gateway.node.clients.port import Message, SendResult

DISK = bytes(16)


def unordered(routing: bytes, *frames: Frame) -> Message:
    return message(routing, [bytes(part) for part in encode_submit(frames, unordered=True)])


def test_the_node_carries_every_action_out() -> None:
    assert set(get_args(Action)) == Bench().driver._handlers.keys()


def test_a_session_sends_into_the_log_or_into_the_lane() -> None:
    for first, other, event in ((submit, unordered, Submitted), (unordered, submit, SubmittedUnordered)):
        bench = Bench()
        bench.hello()
        bench.hello(B)
        events = bench.say(first(A, batch_frame()), other(A, batch_frame(sequence=2)), other(B, batch_frame()))
        numbers = [one.sessions if isinstance(one, Submitted) else (getattr(one, "session", 0),) for one in events]
        assert {type(one): number for one, number in zip(events, numbers, strict=True)} == {
            Submitted: (1,) if event is Submitted else (2,),
            SubmittedUnordered: (2,) if event is Submitted else (1,),
        }
        (denied,) = bench.clients.told(A)
        assert isinstance(denied, Denied)
        assert denied.code == "malformed"
        assert "not both" in denied.reason
        assert [type(one) for one in bench.say(first(A, batch_frame(sequence=2)))] == [event]


def test_an_unordered_batch_has_no_progress() -> None:
    bench = Bench()
    bench.hello()
    assert bench.say(unordered(A, batch_frame(progress=b"p"))) == []
    (refused,) = bench.clients.told(A)
    assert isinstance(refused, RefusedAnswer)
    assert (refused.code, refused.retry) == ("malformed", False)


def test_the_lane_s_frontier_moves_before_receipts_and_its_index_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.hello()
    frame = placed(batch_frame((b"a", b"b")), 3)
    write, read, run = PersistLane(1, 1, DISK, (frame,)), ReadLane(2, 1, DISK, 1, 2), DeliverUnordered(1, DISK, 10, (frame,))
    seen: list[int] = []

    def send(_routing: bytes, _data: bytes) -> SendResult:
        seen.append(len(bench.lanes.shown))
        return SendResult.SENT

    bench.answers = {
        SubmittedUnordered: [write, read],
        LanePersisted: [run, Reply(1, (Committed(1, 1, 1, 2, 10),))],
    }
    bench.say(unordered(A, batch_frame()))
    monkeypatch.setattr(bench.clients, "send", send)
    bench.happen(LanePersisted(1))
    assert seen == [1]
    assert bench.lanes.queued == [write, read, run]
    told = bench.driver.counters.to_dict()
    assert told["unordered"] == {"frames": 1, "records": 2, "commit_us": bench.driver.counters.commit_unordered_us.to_dict()}
    assert told["committed"] == {"frames": 0, "records": 0}


def test_a_client_s_wait_for_its_unordered_batch_is_measured_from_the_first_copy_to_the_receipt() -> None:
    bench = Bench()
    bench.hello()
    bench.hello(B)
    for routing, make in ((A, unordered), (A, unordered), (B, submit)):
        bench.say(make(routing, batch_frame()))
        bench.clock.time_us += 1000
    receipt = Committed(1, 1, 1, 1, 10)
    bench.answers = {Persisted: [Reply(2, (receipt,))], LanePersisted: [Reply(1, (receipt,))]}
    bench.happen(Persisted(1))  # of the batch of that name in the log
    measured = bench.driver.counters.commit_unordered_us
    assert measured.count == 0
    bench.happen(LanePersisted(1))
    assert (measured.count, measured.sum) == (1, 3000)
    bench.happen(LanePersisted(2))
    assert (measured.count, bench.driver.counters.commit_us.count) == (1, 0)
    assert bench.driver.counters.to_dict()["unordered"] == {"frames": 0, "records": 0, "commit_us": measured.to_dict()}


def test_the_number_of_waits_without_an_answer_is_bounded() -> None:
    awaited = UnorderedInFlight()
    awaited.track([batch_frame(sequence=number + 1) for number in range(limits.LANE_FRAMES_MAX + 5)], 7)
    assert len(awaited.arrived_us) == limits.LANE_FRAMES_MAX
    assert awaited.pop_answered([Committed(1, 1, 5, 1, 0), Duplicate(1, 1, 6, 1), Committed(1, 1, 7, 1, 0)]) == [(7, 1)]
    assert len(awaited.arrived_us) == limits.LANE_FRAMES_MAX - 2


def test_duplicates_are_looked_up_in_the_lane() -> None:
    bench = Bench()
    bench.hello()
    duplicate = Duplicate(1, 1, 5, 2)
    bench.answers = {SubmittedUnordered: [Reply(1, (duplicate,))]}
    bench.say(unordered(A, batch_frame()))
    assert (bench.lookups.queued, bench.lane_lookups.queued) == ([], [(1, [duplicate])])


def test_the_lanes_are_notified_of_producers_deleted_in_the_log() -> None:
    bench = Bench()
    frame = placed(Frame(Kind.FORGET, encode_body(ForgetBody((7, 9), 1))), 1)
    bench.answers = {LanePersisted: [Persist(1, (frame,)), Deliver((frame,), (0,), frozenset(), 0)]}
    bench.happen(LanePersisted(1))
    assert bench.lanes.forgotten == [7, 9]


def test_a_start_reports_the_existing_lanes() -> None:
    bench = Bench()
    lane = LaneLog(origin=1, incarnation=DISK, position=7)
    bench.driver.start(Started(None, b"", Recovered(b"", HardState(), LogState(), (), None, (lane,))))  # type: ignore[arg-type]  # not looked at
    assert bench.lanes.there == (lane,)
