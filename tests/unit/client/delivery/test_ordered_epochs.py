"""Tests of the end of an epoch by aborts, refusals and fences: no record overtakes another, and the next epoch starts correctly."""

from __future__ import annotations

import math

import pytest

from tests.unit.client.delivery.delivery_harness import NUMBER, Rig, in_flight, sequences, values_of
from tutti import limits
from tutti.data import client_protocol
from tutti.delivery.session import State
from tutti.errors import Aborted, Fenced, Refused, TooLarge, Unavailable, Unknown


def test_an_abort_fails_everything_and_the_next_epoch_continues() -> None:
    rig, frames = in_flight(3)
    rig.commit(frames[0], 0)
    unsent = rig.send(b"unsent")
    rig.say(client_protocol.AbortedAnswer(NUMBER, 1, 2, 1, "no space"))
    rig.say(client_protocol.AbortedAnswer(NUMBER, 1, 3, 1, "no space"))
    with pytest.raises(Aborted, match="no space"):
        unsent.result(0)
    assert rig.feed.undelivered() == 0
    later = rig.send(b"later")
    asked = rig.hear(client_protocol.OpenProducer)
    assert (asked.epoch, asked.instance) == (2, b"i" * 16)
    rig.opened(asked, sequence=1)
    (frame,) = rig.frames()
    assert (frame.epoch, frame.first_sequence, values_of(frame)) == (2, 2, [b"later"])
    rig.commit(frame, 1)
    assert later.result(0) == 1


def test_records_committed_before_an_abort_are_committed_although_their_receipt_was_lost() -> None:
    rig = Rig().ready()
    receipts = [rig.send(b"0")]
    rig.topic()
    frames = rig.frames()
    for value in (b"1", b"2"):
        receipts.append(rig.send(value))
        with rig.feed.lock:
            rig.feed.close_open()
        frames += rig.frames()
    rig.say(client_protocol.AbortedAnswer(NUMBER, 1, 3, 1, "no space"))
    assert [receipt.done() for receipt in receipts] == [False, False, True]
    rig.commit(frames[0], 50)  # this one was only late
    rig.opened(rig.hear(client_protocol.OpenProducer), sequence=2)
    assert [receipt.result(0) for receipt in receipts[:2]] == [50, -1]
    assert rig.feed.undelivered() == 0


def test_a_lost_connection_in_the_middle_of_an_abort_changes_nothing() -> None:
    rig, _ = in_flight(2)
    rig.say(client_protocol.AbortedAnswer(NUMBER, 1, 2, 1, "no space"))
    rig.hear(client_protocol.OpenProducer)
    rig.delivery.disconnected()
    asked = rig.connect()
    assert asked.epoch == 2
    rig.opened(asked, sequence=0)
    assert rig.feed.undelivered() == 0
    assert rig.feed.first_failure() is not None
    rig.send()
    assert sequences(rig.frames()) == [(1, 1)]


def test_a_producer_with_progress_stops_after_an_abort_until_it_resumes() -> None:
    rig = Rig().ready()
    rig.send(b"0", progress=b"p0")
    rig.topic()
    (frame,) = rig.frames()
    rig.commit(frame, 0)
    assert rig.committed == (1, b"p0")
    failing = rig.send(b"1", progress=b"p1")
    rig.frames()
    rig.say(client_protocol.AbortedAnswer(NUMBER, 1, 2, 1, "no space"))
    with pytest.raises(Aborted):
        failing.result(0)
    rig.opened(rig.hear(client_protocol.OpenProducer), sequence=1, progress=b"p0")
    with pytest.raises(Aborted, match=r"call resume\(\)"):
        rig.send(b"2", progress=b"p2")
    with pytest.raises(Aborted, match=r"call resume\(\)"):
        rig.send(b"2")
    assert rig.feed.wait_opened(0) == (1, b"p0")
    rig.feed.lift_stop()
    rig.send(b"again", progress=b"p1")
    (frame,) = rig.frames()
    assert (frame.epoch, frame.first_sequence, frame.progress) == (2, 2, b"p1")


def test_a_refused_batch_ends_the_epoch_so_that_no_batch_overtakes_its_replacement() -> None:
    rig, _ = in_flight(3)
    waiting = rig.send(b"behind")
    oldest = list(rig.delivery.window)
    rig.say(client_protocol.RefusedAnswer(NUMBER, 1, 2, "malformed", "no Arrow", retry=False))
    rig.say(client_protocol.Expected(NUMBER, 1, 2))
    with pytest.raises(Aborted, match="no Arrow"):
        waiting.result(0)
    meanwhile = rig.send(b"before anybody was told")
    assert not any(batch.done for batch in oldest)  # another copy of them may be on its way
    rig.opened(rig.hear(client_protocol.OpenProducer), sequence=1)
    assert [type(batch.failure.error) if batch.failure else None for batch in oldest] == [None, Refused, Aborted]
    with pytest.raises(Aborted):
        meanwhile.result(0)
    rig.send(b"after")
    assert [frame.first_sequence for frame in rig.frames()] == [2]


def test_a_refused_copy_of_a_committed_batch_is_committed() -> None:
    rig, _ = in_flight(2)
    oldest = list(rig.delivery.window)
    rig.say(client_protocol.RefusedAnswer(NUMBER, 1, 1, "malformed", "arrived damaged", retry=False))
    rig.opened(rig.hear(client_protocol.OpenProducer), sequence=2)
    assert [(batch.failure, batch.offset) for batch in oldest] == [(None, -1), (None, -1)]
    assert rig.feed.first_failure() is None


def test_a_batch_that_the_gateway_finds_too_large() -> None:
    rig, _ = in_flight(1)
    (batch,) = rig.delivery.window
    rig.say(client_protocol.RefusedAnswer(NUMBER, 1, 1, "too_large", "the limit is 5", retry=False))
    rig.opened(rig.hear(client_protocol.OpenProducer), sequence=0)
    assert batch.failure is not None
    assert isinstance(batch.failure.error, TooLarge)


def test_aborts_that_arrive_out_of_order_let_no_record_overtake() -> None:
    rig, _ = in_flight(2)
    rig.say(client_protocol.AbortedAnswer(NUMBER, 1, 2, 1, "no space"))
    between = rig.send(b"between")
    rig.say(client_protocol.AbortedAnswer(NUMBER, 1, 1, 1, "no space"))
    with pytest.raises(Aborted):
        between.result(0)
    after = rig.send(b"after")
    rig.opened(rig.hear(client_protocol.OpenProducer), sequence=0)
    (frame,) = rig.frames()
    rig.commit(frame, 0)
    assert after.result(0) == 0


def test_a_running_producer_is_fenced(caplog: pytest.LogCaptureFixture) -> None:
    rig, _ = in_flight(2)
    receipt = rig.send()
    rig.say(client_protocol.FencedAnswer(NUMBER, 2, 1))
    # Who is over cannot know which of the three it was: all are named, and what leads on from each.
    with pytest.raises(Fenced, match=r"instance began epoch 2, or an operator fenced it.*open a new Producer"):
        receipt.result(0)
    with pytest.raises(Fenced):
        rig.send()
    with pytest.raises(Fenced):
        rig.feed.wait_opened(0)
    assert rig.delivery.session.state is State.ENDED
    rig.delivery.disconnected()
    assert rig.hears() == []
    (line,) = caplog.messages
    assert line.startswith("producer 'jfk' has ended (number of failed records: 3): producer 'jfk' is fenced: another instance ")


def test_after_an_abort_a_producer_requests_its_next_epoch_and_is_fenced_if_another_took_it() -> None:
    """If it requested an epoch above the named one, two instances of one name would fence each other without end."""
    rig, _ = in_flight(1)
    rig.say(client_protocol.AbortedAnswer(NUMBER, 1, 1, 1, "no space"))
    asked = rig.hear(client_protocol.OpenProducer)
    assert asked.epoch == 2
    rig.say(client_protocol.EpochFenced(asked.request, 2))
    assert rig.delivery.session.state is State.ENDED
    assert isinstance(rig.feed.stopped, Fenced)
    assert rig.hears() == []


def test_a_producer_that_was_away_is_fenced_at_its_return() -> None:
    rig, _ = in_flight(1)
    rig.delivery.disconnected()
    asked = rig.connect()
    rig.say(client_protocol.EpochFenced(asked.request, 9))
    assert rig.delivery.session.state is State.ENDED
    assert isinstance(rig.feed.stopped, Fenced)


def test_a_fence_about_its_own_old_copies_fences_no_producer() -> None:
    rig, _ = in_flight(1)
    rig.say(client_protocol.AbortedAnswer(NUMBER, 1, 1, 1, "no"))
    rig.opened(rig.hear(client_protocol.OpenProducer), sequence=0)
    rig.say(client_protocol.FencedAnswer(NUMBER, 2, 1))
    rig.say(client_protocol.FencedAnswer(NUMBER + 1, 9, 1))
    assert rig.delivery.session.state is State.OPEN


def test_a_starting_producer_tries_above_the_epoch_named() -> None:
    rig = Rig()
    asked = rig.connect()
    rig.say(client_protocol.EpochFenced(asked.request, 6))
    asked = rig.hear(client_protocol.OpenProducer)
    assert asked.epoch == 7
    rig.opened(asked, sequence=12, progress=b"p")
    assert rig.feed.wait_opened(0) == (12, b"p")


def test_a_starting_producer_gives_up_when_others_start_without_end() -> None:
    rig = Rig()
    asked = rig.connect()
    for number in range(limits.EPOCH_TRIES_MAX):
        rig.say(client_protocol.EpochFenced(asked.request, asked.epoch + number))
        asked = rig.hear(client_protocol.OpenProducer)
    rig.say(client_protocol.EpochFenced(asked.request, asked.epoch))
    with pytest.raises(Unavailable, match="starting at once"):
        rig.feed.wait_opened(0)


@pytest.mark.parametrize("code", ["topic", "epoch", "producer"])
def test_names_unknown_to_a_gateway_are_sent_to_it_and_nothing_fails(code: str) -> None:
    rig, frames = in_flight(2)
    waits = []
    for _ in range(5):
        began = rig.now
        rig.say(client_protocol.RefusedAnswer(NUMBER, 1, 1, code, "not known here: open it first", retry=False))
        rig.say(client_protocol.RefusedAnswer(NUMBER, 1, 2, code, "not known here: open it first", retry=False))
        rig.hear(client_protocol.Hello)
        rig.say(rig.welcome())
        rig.opened(rig.hear(client_protocol.OpenProducer))
        while not (heard := rig.hears()):
            at = rig.delivery.next_time(rig.now)
            assert at < math.inf
            rig.now = max(at, rig.now + 0.001)
        (asked,) = heard
        rig.say(client_protocol.TopicOpened(asked.request, 1))
        assert rig.frames() == frames
        waits.append(rig.now - began)
    assert waits == sorted(waits)
    assert waits[-1] > waits[0]
    rig.send(topic="new")
    rig.feed.flush(0)
    rig.topic(9)
    (frame,) = rig.frames()
    assert frame.topic == 9
    for one in (*frames, frame):
        rig.commit(one, one.first_sequence)
    assert rig.feed.undelivered() == 0


def test_an_unnamed_producer_deleted_while_disconnected_starts_again() -> None:
    rig = Rig(name="~abc").ready()
    rig.send()
    rig.topic()
    rig.commit(rig.frames()[0], 0)
    rig.delivery.disconnected()
    asked = rig.connect()
    assert asked.epoch == 1
    rig.say(client_protocol.EpochFenced(asked.request, 3))
    asked = rig.hear(client_protocol.OpenProducer)
    rig.say(client_protocol.EpochOpened(asked.request, NUMBER + 1, 4, 0, b""))
    rig.send()
    (frame,) = rig.frames()
    assert (frame.producer, frame.epoch, frame.first_sequence) == (NUMBER + 1, 4, 1)


def test_a_producer_that_was_forgotten_with_records_in_flight_is_over() -> None:
    rig, _ = in_flight(2)
    sent, unsent = list(rig.delivery.window), rig.send()
    rig.delivery.disconnected()
    asked = rig.connect()
    rig.say(client_protocol.EpochOpened(asked.request, NUMBER + 1, 1, 0, b""))
    assert all(isinstance(batch.failure and batch.failure.error, Unknown) for batch in sent)
    with pytest.raises(Refused, match="deleted the state of producer"):
        unsent.result(0)
    assert rig.delivery.session.state is State.ENDED


def test_unknown_outcomes_after_an_abort_stay_unknown_if_the_producer_was_deleted_since() -> None:
    """Proves it for a committed record whose receipt was lost with the connection."""
    rig, _ = in_flight(2)
    committed, aborted = list(rig.delivery.window)
    rig.say(client_protocol.AbortedAnswer(NUMBER, 1, 2, 1, "no space"))
    rig.delivery.disconnected()
    asked = rig.connect()
    rig.say(client_protocol.EpochOpened(asked.request, NUMBER + 1, asked.epoch, 0, b""))
    assert isinstance(committed.failure and committed.failure.error, Unknown)
    assert isinstance(aborted.failure and aborted.failure.error, Aborted)


def test_no_progress_overtakes_a_topic_that_is_refused() -> None:
    """Proves that later records are not sent, because their progress would claim that all earlier ones are in the log."""
    rig = Rig().ready()
    bad, behind = rig.send(topic="bad", progress=b"1"), rig.send(topic="good", progress=b"2")
    asked = rig.hear(client_protocol.OpenTopic)
    rig.say(client_protocol.Denied(asked.request, "limit", "10000 topics"))
    for receipt in (bad, behind):
        with pytest.raises(Refused, match="10000 topics"):
            receipt.result(0)
    with pytest.raises(Aborted, match=r"call resume\(\)"):
        rig.send(topic="good", progress=b"3")
    assert rig.hears() == []
