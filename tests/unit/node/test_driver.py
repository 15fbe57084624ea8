"""Tests of the driver with a scripted stack: messages of clients become events in order, the frontier moves before receipts leave,
decided runs are indexed last, and every bound causes a clear answer or a pause.
"""

import pytest

from tests.unit.node.driver_harness import A, B, Bench, Documents, control, placed, submit, takes
from tests.unit.node.fakes import batch_frame, message, token
from tutti import limits as common_limits
from tutti.data.client_protocol import (
    PROTOCOL,
    Bye,
    ChangeRoster,
    Committed,
    Denied,
    Done,
    Duplicate,
    EpochFenced,
    EpochOpened,
    Expected,
    Fence,
    ForceRoster,
    Forget,
    Hello,
    Leave,
    OpenProducer,
    OpenTopic,
    RefusedAnswer,
    SaveOffset,
    Status,
    StatusAnswer,
    TopicOpened,
)
from tutti.data.frames.frame import Frame, Kind
from tutti.data.frames.plain_body import encode_plain_record
from tutti.errors import InvariantViolated
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Deliver, Halt, Persist, ReadIndex, Reply, Send, SetTimer, Stopped
from tutti_gateway.core.protocol.events import (
    EpochAsked,
    LeaveAsked,
    Persisted,
    ReadIndexAsked,
    RosterAsked,
    RosterForced,
    SessionClosed,
    Submitted,
    TimeAdvanced,
    TopicAsked,
    WriteFailed,
    submitted,
)
from tutti_gateway.core.protocol.messages import Confirm
from tutti_gateway.node.clients.duplicate_lookup import LocatedDuplicates
from tutti_gateway.node.clients.port import Message, SendResult


def test_an_unknown_session_gets_a_request_for_hello() -> None:
    bench = Bench()
    assert bench.say(submit(A, batch_frame()), control(A, Status(7))) == []
    first, second = bench.clients.told(A)
    assert isinstance(first, Denied)
    assert isinstance(second, Denied)
    assert (first.request, first.code) == (0, "hello")
    assert (second.request, second.code) == (7, "hello")


def test_another_protocol_is_refused_with_both_numbers() -> None:
    bench = Bench()
    bench.say(control(A, Hello(PROTOCOL + 1, "test", token())))
    (denied,) = bench.clients.told(A)
    assert isinstance(denied, Denied)
    assert denied.code == "protocol"
    assert str(PROTOCOL + 1) in denied.reason


def test_a_session_has_a_name_of_sixteen_bytes() -> None:
    bench = Bench()
    bench.say(control(A, Hello(PROTOCOL, "test", bytes(17))))
    (denied,) = bench.clients.told(A)
    assert isinstance(denied, Denied)
    assert denied.code == "malformed"
    assert len(bench.driver.sessions) == 0


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"X"],
        [b"C"],
        [b"C", b"second part"],
        [b"S"],
        [b"S" + bytes(200)],
        [b"R" + bytes(7)],
        [b"C\x93\x01\x02\x03"],
        [],
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_an_invalid_message_is_answered_and_harms_no_client(parts: list[bytes], known: bool) -> None:
    bench = Bench()
    bench.hello(B)
    if known:
        bench.hello(A)
    events = bench.say(message(A, parts), submit(B, batch_frame()))
    assert [type(event) for event in events] == [Submitted]
    (denied,) = bench.clients.told(A)
    assert isinstance(denied, Denied)
    assert denied.code in ("malformed", "hello")


def test_one_event_for_an_iteration_and_order_within_a_client_is_kept() -> None:
    bench = Bench()
    bench.hello(A)
    bench.hello(B)
    first, second, third, other = (batch_frame(sequence=sequence) for sequence in (1, 2, 3, 50))
    events = bench.say(submit(A, first), submit(B, other), submit(A, second), control(A, OpenTopic(1, "t")), submit(A, third))
    together = Submitted((1, 2, 1), (first, other, second))
    assert events == [together, TopicAsked(1, 1, "t"), submitted(1, (third,))]


def test_a_wrong_batch_is_refused_and_the_right_ones_continue() -> None:
    bench = Bench()
    bench.hello()
    wrong = batch_frame(sequence=2)
    wrong.body_crc ^= 1
    events = bench.say(submit(A, batch_frame(sequence=1), wrong, batch_frame(sequence=3)))
    assert [frame.first_sequence for event in events if isinstance(event, Submitted) for frame in event.frames] == [1, 3]
    (refused,) = bench.clients.told(A)
    assert isinstance(refused, RefusedAnswer)
    assert (refused.first_sequence, refused.code) == (2, "malformed")
    assert bench.driver.counters.refused == {"malformed": 1}


def test_the_frontier_moves_before_receipts_and_the_index_comes_last() -> None:
    bench = Bench()
    bench.hello()
    frame = placed(batch_frame((b"a", b"b")), 3)
    run = Deliver((frame,), (10,), frozenset(), 12)
    bench.answers = {
        Submitted: [Persist(1, (frame,))],
        Persisted: [Reply(1, (Committed(1, 1, 1, 2, 10),)), run],
    }
    bench.say(submit(A, batch_frame()))
    assert bench.disk.queued == [Persist(1, (frame,))]
    assert bench.clients.sent == []
    assert bench.driver.undecided_frames == 1
    bench.happen(Persisted(1))
    assert bench.frontiers == [(3, 12, 0)]
    assert bench.clients.told(A) == [(1, 1, 10, 1, 2)]
    assert bench.disk.queued[1:] == [run]
    assert (bench.driver.undecided_frames, bench.driver.undecided_bytes) == (0, 0)
    assert bench.driver.counters.commit_us.count == 1
    assert bench.driver.counters.records_committed == 2


def test_a_frontier_that_would_move_back_stops_the_gateway() -> None:
    bench = Bench()
    frame = placed(batch_frame(), 5)
    bench.answers = {Persisted: [Persist(1, (frame,)), Deliver((frame,), (0,), frozenset(), 1)]}
    bench.happen(Persisted(1))
    with pytest.raises(InvariantViolated, match="frontier would move back"):
        bench.happen(Persisted(2))


def test_messages_of_the_stack_leave_at_the_end_of_the_iteration_and_before_any_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.hello()
    seen: list[int] = []

    def send(_routing: bytes, _data: bytes) -> SendResult:
        seen.append(len(bench.wire.left))
        return SendResult.SENT

    monkeypatch.setattr(bench.clients, "send", send)
    bench.answers[WriteFailed] = (Send(2, Confirm(1, 1)), Send(3, Confirm(1, 1)), Reply(1, (Done(1),)))
    bench.happen(WriteFailed("gone"))
    assert bench.wire.left == [(2, Confirm(1, 1)), (3, Confirm(1, 1))]
    assert seen == [2]


def test_receipts_of_a_turn_are_one_message_in_the_stacks_order_with_other_answers() -> None:
    bench = Bench()
    bench.hello()
    bench.answers = {
        Persisted: [
            Reply(1, (Committed(1, 1, 1, 1, 0), Committed(1, 1, 2, 1, 1), Expected(1, 1, 9))),
            Reply(1, (Committed(2, 1, 1, 1, 2),)),
        ]
    }
    bench.happen(Persisted(1), Persisted(2))
    assert [data[:1] for _, data in bench.clients.sent] == [b"R", b"C", b"R", b"C", b"R"]
    told = bench.clients.told(A)
    assert told[:3] == [(1, 1, 0, 1, 1), (1, 2, 1, 1, 1), Expected(1, 1, 9)]


def test_duplicates_are_looked_up_and_answered_later() -> None:
    bench = Bench()
    bench.hello()
    duplicate = Duplicate(1, 1, 5, 2)
    bench.answers = {Submitted: [Reply(1, (duplicate,))]}
    bench.say(submit(A, batch_frame()))
    assert bench.lookups.queued == [(1, [duplicate])]
    assert bench.clients.sent == []
    bench.happen(LocatedDuplicates(1, (Committed(1, 1, 5, 2, 77),)))
    assert bench.clients.told(A) == [(1, 5, 77, 1, 2)]


def test_the_port_is_not_drained_above_the_bounds() -> None:
    bench = Bench(undecided_bytes_max=1000)
    bench.hello()
    frame = placed(batch_frame([b"x" * 2000]), 1)
    bench.answers = {Submitted: [Persist(1, (frame,))], Persisted: [Deliver((frame,), (0,), frozenset(), 1)]}
    assert takes(bench)
    bench.say(submit(A, batch_frame()))
    assert not takes(bench)
    bench.happen(Persisted(1))
    assert takes(bench)
    bench.lookups.queued.append((1, [Duplicate(1, 1, 1, 1)] * limits.LOOKUPS_MAX))
    assert not takes(bench)


def test_messages_wait_a_short_time_for_each_other_while_a_small_group_is_undecided() -> None:
    bench = Bench()
    bench.hello()
    assert bench.driver.hold_us() == 0
    frame = placed(batch_frame(), 1)
    bench.answers = {Submitted: [Persist(1, (frame,))], Persisted: [Deliver((frame,), (0,), frozenset(), 1)]}
    bench.say(submit(A, batch_frame()))
    assert bench.driver.hold_us() == limits.HOLD_US
    bench.clock.time_us += limits.HOLD_US - 1
    assert bench.driver.hold_us() == 1
    bench.clock.time_us += 1
    assert bench.driver.hold_us() == 0
    bench.say(control(A, Hello(PROTOCOL, "test", token())))
    assert bench.driver.hold_us() == limits.HOLD_US  # the time counts from the last messages, so they are read again and again
    bench.happen(Persisted(1))
    assert bench.driver.hold_us() == 0


def test_messages_do_not_wait_for_each_other_if_the_undecided_group_is_large() -> None:
    bench = Bench()
    bench.hello()
    bench.answers = {Submitted: [Persist(1, (placed(batch_frame([bytes(limits.HOLD_BYTES_MAX)]), 1),))]}
    bench.say(submit(A, batch_frame()))
    assert bench.driver.undecided_frames == 1
    assert bench.driver.hold_us() == 0


def test_a_plain_batch_that_is_a_message_of_its_own_is_counted() -> None:
    bench = Bench()
    bench.hello()
    body, raw_length = encode_plain_record(b"x", 1)
    alone = Frame(
        Kind.BATCH,
        body,
        raw_length=raw_length,
        producer=1,
        epoch=1,
        first_sequence=1,
        count=1,
        topic=1,
        min_timestamp=1,
        max_timestamp=1,
    )
    bench.say(submit(A, alone))
    bench.say(submit(A, batch_frame(sequence=2), batch_frame(sequence=3)))
    ingest = bench.driver.counters.to_dict()["ingest"]
    assert isinstance(ingest, dict)
    assert (ingest["frames"], ingest["frames_alone"]) == (3, 1)


def test_requests_are_bounded_for_each_client_and_freed_by_answers() -> None:
    bench = Bench()
    bench.hello()
    most = limits.REQUESTS_A_SESSION_MAX
    bench.say(*(control(A, OpenTopic(number, "t")) for number in range(most)))
    assert bench.clients.told(A) == []
    assert bench.say(control(A, OpenTopic(most, "t"))) == []
    (denied,) = bench.clients.told(A)
    assert isinstance(denied, Denied)
    assert (denied.code, denied.retry) == ("limit", True)
    bench.answers = {Persisted: [Reply(1, (TopicOpened(0, 1),))]}
    bench.happen(Persisted(1))
    assert len(bench.say(control(A, OpenTopic(most, "t")))) == 1


def test_a_request_that_is_asked_again_has_one_place_and_one_answer_frees_it() -> None:
    bench = Bench()
    bench.hello()
    for _ in range(3):
        bench.say(*(control(A, SaveOffset(number, "reader", 0)) for number in range(limits.REQUESTS_A_SESSION_MAX)))
    assert bench.clients.told(A) == []
    bench.answers = {Persisted: [Reply(1, tuple(Done(number) for number in range(limits.REQUESTS_A_SESSION_MAX)))]}
    bench.happen(Persisted(1))
    bench.clients.told(A)
    bench.answers = {}
    bench.say(*(control(A, SaveOffset(number, "reader", 0)) for number in range(limits.REQUESTS_A_SESSION_MAX)))
    assert bench.clients.told(A) == []


def test_an_oversized_message_is_answered_with_the_limit() -> None:
    bench = Bench()
    bench.hello()
    bench.say(Message(A, [], common_limits.MESSAGE_BYTES_MAX + 1))
    (denied,) = bench.clients.told(A)
    assert isinstance(denied, Denied)
    assert denied.code == "malformed"
    assert f"{common_limits.MESSAGE_BYTES_MAX + 1} bytes" in denied.reason
    assert (
        f"the limits are {common_limits.MESSAGE_BYTES_MAX} bytes and {1 + common_limits.FRAMES_A_MESSAGE_MAX} parts"
        in denied.reason
    )


@pytest.mark.parametrize(
    "asked",
    [
        OpenTopic(3, "no/slash"),
        OpenProducer(3, "", b"i" * 16, 1),
        OpenProducer(3, "p", b"short", 1),
        OpenProducer(3, "p", b"i" * 16, 0),
        SaveOffset(3, "reader", -1),
        SaveOffset(3, "two words", 1),
        Forget(3, ("p",) * (common_limits.DELETE_PRODUCERS_MAX + 1)),
        ChangeRoster(3, "swap", "jfk"),
        ChangeRoster(3, "add", "two words", "127.0.0.1:7400"),
        ChangeRoster(3, "replace", "jfk", incarnation=b"short"),
        Leave(3, "lga"),
        ForceRoster(3, ()),
        ForceRoster(3, ("jfk", "two words")),
    ],
)
def test_wrong_requests_are_denied_by_name(asked: object) -> None:
    bench = Bench()
    bench.hello()
    assert bench.say(control(A, asked)) == []
    (denied,) = bench.clients.told(A)
    assert isinstance(denied, Denied)
    assert (denied.request, denied.code) == (3, "name")


def test_status_is_answered_at_once() -> None:
    bench = Bench()
    bench.hello()
    assert bench.say(control(A, Status(5))) == []
    assert bench.clients.told(A) == [StatusAnswer(5, b'{"state":"primary"}')]


def test_a_fence_is_the_next_epoch_of_no_client_and_is_retried() -> None:
    bench = Bench()
    bench.hello()
    (asked,) = bench.say(control(A, Fence(9, "old")))
    assert asked == EpochAsked(1, 9, "old", b"e" * 16, 5)
    bench.answers = {Persisted: [Reply(1, (EpochFenced(9, 7),))], TimeAdvanced: [Reply(1, (EpochOpened(9, 1, 8, 0, b""),))]}
    assert bench.happen(Persisted(1))[1:] == [EpochAsked(1, 9, "old", b"e" * 16, 8)]
    assert bench.clients.told(A) == []
    bench.happen(TimeAdvanced())
    assert bench.clients.told(A) == [Done(9)]


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_fence_of_a_producer_that_a_gateway_does_not_know_is_refused_for_good_only_when_it_does_not_lag(confirmed: bool) -> None:
    bench = Bench()
    bench.hello()
    bench.answers = {ReadIndexAsked: []}
    assert bench.say(control(A, Fence(10, "nobody"))) == [ReadIndexAsked(1)]
    assert bench.clients.told(A) == [], "the gateway finds out whether it lags"
    bench.answers = {TimeAdvanced: [ReadIndex(1, confirmed)]}
    bench.happen(TimeAdvanced())
    (denied,) = bench.clients.told(A)
    assert isinstance(denied, Denied)
    assert (denied.request, denied.code, denied.retry) == ((10, "unknown", False) if confirmed else (10, "behind", True))


def test_a_producer_that_becomes_known_meanwhile_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.hello()
    bench.answers = {ReadIndexAsked: []}
    bench.say(control(A, Fence(10, "nobody")))
    monkeypatch.setattr(Documents, "epoch_of", lambda *_: 4)
    bench.answers = {TimeAdvanced: [ReadIndex(1, True)]}
    assert bench.happen(TimeAdvanced())[1:] == [EpochAsked(1, 10, "nobody", b"e" * 16, 5)]
    assert bench.clients.told(A) == []


def test_a_fence_that_is_asked_again_while_it_waits_is_one() -> None:
    bench = Bench()
    bench.hello()
    bench.answers = {ReadIndexAsked: []}
    assert bench.say(*[control(A, Fence(10, "nobody"))] * 3) == [ReadIndexAsked(1)]
    bench.answers = {TimeAdvanced: [ReadIndex(1, True)]}
    bench.happen(TimeAdvanced())
    (denied,) = bench.clients.told(A)
    assert isinstance(denied, Denied)
    bench.answers = {ReadIndexAsked: []}
    assert bench.say(control(A, Fence(10, "nobody"))) == [ReadIndexAsked(2)]


def test_a_fence_that_waits_ends_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.hello()
    bench.answers = {ReadIndexAsked: []}
    bench.say(control(A, Fence(10, "nobody")))
    assert bench.say(control(A, Bye())) == [SessionClosed(1)]
    monkeypatch.setattr(Documents, "epoch_of", lambda *_: 4)
    bench.answers = {TimeAdvanced: [ReadIndex(1, True)]}
    assert bench.happen(TimeAdvanced()) == [TimeAdvanced()]


def test_a_change_of_the_roster_is_the_stacks_to_make_and_to_answer() -> None:
    bench = Bench()
    bench.hello()
    (asked,) = bench.say(control(A, ChangeRoster(9, "add", "bos", "10.0.0.7:7400")))
    assert asked == RosterAsked(1, 9, "add", "bos", "10.0.0.7:7400")
    assert bench.clients.told(A) == []
    bench.answers = {Persisted: [Reply(1, (Done(9),))]}
    bench.happen(Persisted(1))
    assert bench.clients.told(A) == [Done(9)]


def test_a_roster_is_forced_by_the_stack() -> None:
    bench = Bench()
    bench.hello()
    (asked,) = bench.say(control(A, ForceRoster(9, ("jfk", "lga"))))
    assert asked == RosterForced(1, 9, ("jfk", "lga"))


def test_an_excluded_gateway_ends_and_a_halted_one_still_serves_reads() -> None:
    for out in (False, True):
        bench = Bench()
        bench.hello()
        bench.answers = {Persisted: [Halt("the group went on", out)]}
        bench.happen(Persisted(1))
        assert bench.driver.halted == "the group went on"
        assert bool(bench.driver.removed) is out


def test_a_leave_request_by_name_reaches_that_gateway() -> None:
    bench = Bench()
    bench.hello()
    assert not bench.driver.leave_requested
    assert bench.say(control(A, Leave(9, "jfk"))) == []  # what runs the driver lets it leave, as with a signal
    assert bench.clients.told(A) == [Done(9)]
    assert bench.driver.leave_requested


def test_a_disconnected_client_is_reported_to_the_stack_once() -> None:
    bench = Bench()
    bench.hello()
    bench.clients.gone.add(A)
    bench.answers = {Persisted: [Reply(1, (Committed(1, 1, 1, 1, 0), Expected(1, 1, 2)))]}
    assert bench.happen(Persisted(1))[1:] == [SessionClosed(1)]
    assert bench.happen(Persisted(2))[1:] == []


def test_a_client_that_does_not_read_loses_answers_and_nothing_else() -> None:
    bench = Bench()
    bench.hello()
    bench.clients.full.add(A)
    bench.answers = {Persisted: [Reply(1, (Committed(1, 1, 1, 1, 0),))]}
    assert bench.happen(Persisted(1))[1:] == []
    assert bench.driver.counters.sends_dropped == 1


def test_goodbyes_long_silences_and_dropped_connections_close_sessions() -> None:
    bench = Bench()
    bench.hello(A)
    assert bench.say(control(A, Bye())) == [SessionClosed(1)]
    bench.hello(A)
    bench.clock.time_us += limits.SESSION_IDLE_US + 1
    bench.hello(B)
    before = len(bench.stack.events)
    bench.driver.sweep()
    assert bench.stack.events[before:] == [TimeAdvanced(), SessionClosed(2)]
    bench.driver.drop_clients()
    assert bench.stack.events[-1] == SessionClosed(3)


def test_places_are_bounded() -> None:
    bench = Bench(sessions_max=1)
    bench.hello(A)
    bench.say(control(B, Hello(PROTOCOL, "second", token())))
    (denied,) = bench.clients.told(B)
    assert isinstance(denied, Denied)
    assert (denied.code, denied.retry) == ("limit", True)


def test_timers_come_when_they_are_due() -> None:
    bench = Bench()
    bench.answers = {Persisted: [SetTimer(bench.clock.time_us + 2000)]}
    bench.happen(Persisted(1))
    bench.answers = {}
    assert bench.driver.wait_us() == 2000
    assert bench.happen() == []
    bench.clock.time_us += 2000
    assert bench.driver.wait_us() == 0
    assert bench.happen() == [TimeAdvanced()]
    assert bench.driver.wait_us() == common_limits.POLL_US_MAX


def test_a_stack_that_set_no_timer_sees_the_clocks_about_once_a_second() -> None:
    """An idle group of one has nothing else that shows it a leap of its wall clock."""
    bench = Bench()
    assert bench.driver.wait_us() == common_limits.POLL_US_MAX
    bench.clock.time_us += 1_000_000
    bench.answers = {TimeAdvanced: [Persist(1, (batch_frame(),))]}
    bench.driver.sweep()
    assert bench.stack.events[-1] == TimeAdvanced()
    assert [action.token for action in bench.disk.queued if isinstance(action, Persist)] == [1], "its actions leave at once"


def test_a_failed_write_halts_the_gateway() -> None:
    bench = Bench()
    bench.answers = {WriteFailed: []}
    bench.happen(WriteFailed("the disk is gone"))
    assert bench.driver.halted == "the disk is gone"


def test_leaving_is_asked_once() -> None:
    bench = Bench()
    bench.answers = {LeaveAsked: [Stopped()], Persisted: [Halt("enough")]}
    bench.driver.leave()
    bench.driver.leave()
    assert bench.stack.events == [LeaveAsked()]
    assert bench.driver.stopped
    bench.happen(Persisted(1))
    assert bench.driver.halted == "enough"
