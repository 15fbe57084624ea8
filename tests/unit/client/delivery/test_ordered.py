"""Tests of ordered delivery, with a scripted gateway and clock: order, identity, and one outcome for every record."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.delivery.delivery_harness import NUMBER, Rig, in_flight, sequences, values_of
from tutti import limits
from tutti.batching.receipt import Receipt
from tutti.data import client_protocol
from tutti.delivery.ordered import OrderedDelivery
from tutti.delivery.session import TRANSITIONS, Event, State
from tutti.errors import Aborted, ConfigError, FormatError, InvariantViolated, NotAllowed, Refused, Unknown


def test_from_hello_to_a_committed_record() -> None:
    rig = Rig()
    rig.delivery.session.connected(rig.now)
    hello = rig.hear(client_protocol.Hello)
    assert (hello.protocol, hello.session) == (client_protocol.PROTOCOL, b"s" * 16)
    rig.say(rig.welcome())
    asked = rig.hear(client_protocol.OpenProducer)
    assert (asked.name, asked.instance, asked.epoch) == ("jfk", b"i" * 16, 1)
    rig.opened(asked)
    receipt = rig.send(b"hello")
    assert not receipt.done()
    rig.topic(5)
    (frame,) = rig.frames()
    assert (frame.producer, frame.epoch, frame.first_sequence, frame.count, frame.topic) == (NUMBER, 1, 1, 1, 5)
    assert (frame.view, frame.position, frame.origin, frame.header_crc) == (0, 0, 0, 0)
    assert values_of(frame) == [b"hello"]
    rig.commit(frame, 41)
    assert receipt.result(0) == 41
    assert rig.committed == (1, b"")
    assert rig.feed.undelivered() == 0


def test_a_producer_continues_after_its_last_commit() -> None:
    rig = Rig().ready(sequence=100, progress=b"at 100")
    assert rig.committed == (100, b"at 100")
    rig.send()
    rig.topic()
    assert sequences(rig.frames()) == [(101, 1)]


def test_one_order_over_all_topics() -> None:
    rig = Rig().ready()
    for topic in "aab":
        rig.send(topic=topic)
    rig.topic(1)
    assert sequences(rig.frames()) == [(1, 1), (2, 1)]
    rig.send(topic="a")
    (asked,) = rig.hears()
    assert isinstance(asked, client_protocol.OpenTopic)
    assert rig.hears() == []  # the next of "a" does not overtake "b", whose number is not known
    rig.say(client_protocol.TopicOpened(asked.request, 2))
    frames = rig.frames()
    assert [(frame.first_sequence, frame.topic) for frame in frames] == [(3, 2)]
    rig.commit(frames[0], 2)


def test_topics_of_queued_batches_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round trip of the group for each new topic, one after the other, is what 1,000 topics would wait for."""
    monkeypatch.setattr(limits, "TOPICS_AHEAD", 3)
    rig = Rig().ready()
    for topic in "abac":
        rig.send(topic=topic)
    rig.feed.flush(0)
    first, second = rig.hears()
    assert [first.name, second.name] == ["a", "b"], "of the first three batches, each once"
    rig.say(client_protocol.TopicOpened(second.request, 2))
    assert rig.hears() == [], "no batch overtakes the one whose topic has no number yet"
    rig.say(client_protocol.TopicOpened(first.request, 1))
    third, *frames = rig.hears()
    assert [(frame.first_sequence, frame.topic) for frame in frames] == [(1, 1), (2, 2), (3, 1)]
    assert third.name == "c"


@pytest.mark.parametrize("progress", [b"", b"p"])
def test_a_topic_that_is_refused_ahead_of_its_turn_fails_nothing_before_it(progress: bytes) -> None:
    rig = Rig().ready()
    receipts = [rig.send(topic=topic, progress=progress) for topic in ("good", "bad", "other")]
    rig.feed.flush(0)
    good, bad, other = rig.hears()
    assert [asked.name for asked in (good, bad, other)] == ["good", "bad", "other"]
    rig.say(client_protocol.Denied(bad.request, "rights", "may not write it", retry=False))
    assert rig.hears() == [], "it is asked for again when it is its turn, and not before"
    rig.say(client_protocol.TopicOpened(other.request, 3))
    rig.say(client_protocol.TopicOpened(good.request, 1))
    again, frame = rig.hears()
    assert again.name == "bad"
    rig.say(client_protocol.Denied(again.request, "rights", "may not write it", retry=False))
    rig.commit(frame, 7)
    assert receipts[0].result(0) == 7
    with pytest.raises(NotAllowed, match="topic 'bad' was refused: may not write it"):
        receipts[1].result(0)
    if progress:
        assert rig.hears() == [], "progress does not overtake what failed"
        with pytest.raises(NotAllowed):
            receipts[2].result(0)
    else:
        (last,) = rig.frames()
        assert (last.first_sequence, last.topic) == (2, 3)


def test_records_fill_one_batch_while_another_isin_flight() -> None:
    rig = Rig().ready()
    rig.send(b"0")
    rig.topic()
    (first,) = rig.frames()
    receipts = [rig.send(b"%d" % number) for number in range(1, 5)]
    assert rig.frames() == []
    rig.commit(first, 0)
    (second,) = rig.frames()
    assert sequences([second]) == [(2, 4)]
    rig.commit(second, 10)
    assert [receipt.result(0) for receipt in receipts] == [10, 11, 12, 13]


def test_receipts_out_of_order_are_accepted() -> None:
    rig = Rig().ready()
    receipts = [rig.send(b"a"), rig.send(b"b", topic="u"), rig.send(b"c")]
    for number, asked in enumerate(rig.hears(), 1):
        rig.say(client_protocol.TopicOpened(asked.request, number))
    rig.feed.flush(0)
    frames = rig.frames()
    for number in (2, 0, 1):
        rig.commit(frames[number], number * 10)
    assert [receipt.result(0) for receipt in receipts] == [0, 10, 20]
    assert rig.committed == (3, b"")


def test_after_a_reconnect_everything_unanswered_goes_again_in_order_and_as_it_was() -> None:
    rig, frames = in_flight(4)
    rig.commit(frames[0], 0)
    rig.delivery.disconnected()
    asked = rig.connect()
    assert asked.epoch == 1
    rig.opened(asked, sequence=3)
    again = rig.frames()
    assert sequences(again) == [(2, 1), (3, 1), (4, 1)]
    assert again == frames[1:]
    for frame in again:
        rig.commit(frame, frame.first_sequence)
    assert rig.feed.undelivered() == 0


def test_a_gateway_that_forgot_the_session_is_greeted_again() -> None:
    rig, frames = in_flight(2)
    rig.say(client_protocol.Denied(0, "hello", "say Hello first"))
    rig.say(client_protocol.Denied(0, "hello", "say Hello first"))
    rig.hear(client_protocol.Hello)
    rig.say(rig.welcome())
    rig.opened(rig.hear(client_protocol.OpenProducer))
    assert rig.frames() == frames


def test_a_gap_makes_everything_go_again_once() -> None:
    rig, frames = in_flight(5)
    rig.commit(frames[0], 0)
    for _ in range(3):
        rig.say(client_protocol.Expected(NUMBER, 1, 2))
    assert rig.frames() == []  # a little later
    rig.now += 1
    assert rig.frames() == frames[1:]
    assert rig.frames() == []


def test_an_overlapping_batch_is_split_and_sent_from_there() -> None:
    rig = Rig().ready()
    rig.send(b"first")
    rig.topic()
    (first,) = rig.frames()
    receipts = [rig.send(b"%d" % number) for number in range(5)]
    rig.commit(first, 0)
    (batch,) = rig.frames()
    assert sequences([batch]) == [(2, 5)]
    rig.say(client_protocol.Expected(NUMBER, 1, 4))
    rig.now += 1
    (rest,) = rig.frames()
    assert sequences([rest]) == [(4, 3)]
    assert values_of(rest) == [b"2", b"3", b"4"]
    rig.commit(rest, 70)
    assert [receipt.result(0) for receipt in receipts] == [-1, -1, 70, 71, 72]
    assert rig.feed.undelivered() == 0
    assert rig.committed == (6, b"")


@pytest.mark.parametrize("expected", [1, 9])
def test_a_gateway_that_expects_an_impossible_sequence_gets_no_batches(expected: int) -> None:
    rig, frames = in_flight(3)
    rig.commit(frames[0], 0)
    receipt = rig.send()
    rig.say(client_protocol.Expected(NUMBER, 1, expected))
    assert rig.delivery.session.state is State.ENDED
    with pytest.raises(Refused, match=f"expects sequence {expected} .* lost committed records"):
        receipt.result(0)


def test_with_other_gateways_one_that_expects_a_committed_sequence_lags_and_is_left() -> None:
    rig, frames = in_flight(3)
    rig.delivery.session.welcome = rig.welcome(gateways={"g1": "tutti://g1:1", "g2": "tutti://g2:1"})
    rig.commit(frames[0], 0)
    rig.say(client_protocol.Expected(NUMBER, 1, 1))
    assert rig.delivery.session.state is not State.ENDED
    assert "g1 cannot accept batches now" in rig.delivery.session.drop
    assert "behind its group" in rig.delivery.session.drop


def test_a_refusal_for_now_is_followed_by_the_same_again_later_and_later() -> None:
    rig, frames = in_flight(2)
    waits = []
    for _ in range(8):
        rig.say(client_protocol.RefusedAnswer(NUMBER, 1, 1, "space", "the disk is low", retry=True))
        rig.say(client_protocol.Expected(NUMBER, 1, 1))
        began = rig.now
        while not (again := rig.frames()):
            at = rig.delivery.next_time(rig.now)
            assert at < float("inf")
            rig.now = max(at, rig.now + 0.001)
        assert again == frames
        waits.append(rig.now - began)
    assert waits == sorted(waits)
    assert waits[0] < 0.1
    assert 0.9 < waits[-1] < 1.1
    rig.now += 61
    receipt = rig.send()
    rig.delivery.work(rig.now)
    with pytest.raises(Aborted, match="the disk is low"):
        receipt.result(0)


def test_answers_to_old_requests_are_ignored() -> None:
    rig = Rig()
    asked = rig.connect()
    rig.say(client_protocol.EpochFenced(asked.request, 4))
    asked = rig.hear(client_protocol.OpenProducer)
    assert asked.epoch == 5
    rig.say(client_protocol.EpochOpened(asked.request - 1, NUMBER, 1, 3, b""))
    rig.say(client_protocol.EpochFenced(asked.request - 1, 3))
    rig.say(client_protocol.TopicOpened(99, 1))
    assert rig.hears() == []
    assert rig.feed.opened is None
    rig.opened(asked)
    rig.opened(asked)
    rig.say(client_protocol.Done(3))
    assert rig.feed.opened == (0, b"")


def test_a_gateway_that_is_not_primary_yet_is_asked_again() -> None:
    rig = Rig()
    asked = rig.connect()
    rig.say(client_protocol.Denied(asked.request, "not_primary", "no primary view yet", retry=True))
    assert rig.hears() == []
    assert not rig.delivery.session.drop
    rig.now += 1
    asked = rig.hear(client_protocol.OpenProducer)
    rig.opened(asked)
    assert rig.delivery.session.state is State.OPEN


def test_with_other_gateways_one_that_is_not_primary_is_left() -> None:
    rig = Rig()
    asked = rig.connect(gateways={"g1": "tutti://g1:1", "g2": "tutti://g2:1"})
    rig.say(client_protocol.Denied(asked.request, "not_primary", "minority", retry=True))
    assert "gateway g1 cannot accept batches now" in rig.delivery.session.drop


@pytest.mark.parametrize(
    ("denied", "error", "said"),
    [
        (client_protocol.Denied(0, "protocol", "this gateway speaks 9"), ConfigError, "speaks 9"),
        (client_protocol.Denied(1, "limit", "10000 producers"), Refused, "10000 producers"),
        (client_protocol.Denied(1, "name", "bad name"), Refused, "bad name"),
    ],
)
def test_a_refused_producer_gets_the_reason(denied: client_protocol.Denied, error: type[Exception], said: str) -> None:
    rig = Rig()
    asked = rig.connect()
    rig.say(client_protocol.Denied(asked.request if denied.request else 0, denied.code, denied.reason))
    with pytest.raises(error, match=said):
        rig.feed.wait_opened(0)


def test_a_gateway_with_no_place_for_the_session_is_left() -> None:
    rig = Rig()
    rig.delivery.session.connected(rig.now)
    rig.hear(client_protocol.Hello)
    rig.say(client_protocol.Denied(0, "limit", "4096 clients", retry=True))
    assert rig.delivery.session.drop == "4096 clients (limit)"


def test_a_topic_that_is_refused_fails_its_records_alone() -> None:
    rig = Rig().ready()
    bad, good = rig.send(topic="bad"), rig.send(topic="good")
    asked = rig.hear(client_protocol.OpenTopic)
    rig.say(client_protocol.Denied(asked.request, "limit", "10000 topics"))
    with pytest.raises(Refused, match="10000 topics"):
        bad.result(0)
    rig.topic()
    (frame,) = rig.frames()
    assert frame.first_sequence == 1
    rig.commit(frame, 0)
    assert good.result(0) == 0


def test_the_refusal_of_a_topic_is_logged_once_until_the_topic_opens(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig().ready()

    def refuse(topic: str) -> None:
        receipt = rig.send(topic=topic)
        rig.say(client_protocol.Denied(rig.hear(client_protocol.OpenTopic).request, "rights", f"ask for {topic}"))
        with pytest.raises(NotAllowed):
            receipt.result(0)

    for topic in ("a", "a", "b"):
        refuse(topic)
    a = "producer 'jfk': records fail: topic 'a' was refused: ask for a (rights)"
    b = "producer 'jfk': records fail: topic 'b' was refused: ask for b (rights)"
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [("ERROR", a), ("ERROR", b)]
    rig.send(topic="a")
    rig.topic()
    rig.commit(rig.frames()[0], 0)
    rig.delivery.session.topics.clear()
    refuse("a")
    assert caplog.messages == [a, b, a]
    for number in range(limits.FAILURES_KEPT_MAX):
        refuse(f"topic {number}")
    assert len(caplog.messages) == limits.FAILURES_KEPT_MAX + 1, "the set of logged topics is bounded"


def test_a_topic_that_is_refused_with_batches_in_flight_ends_their_epoch() -> None:
    rig, frames = in_flight(2)
    young = rig.send(b"young")
    sent = [Receipt(batch, 0) for batch in rig.delivery.window]
    rig.commit(frames[0], 0)
    rig.say(client_protocol.RefusedAnswer(NUMBER, 1, 2, "producer", "open an epoch", retry=False))
    rig.now += 1
    rig.hear(client_protocol.Hello)
    rig.say(rig.welcome())
    rig.opened(rig.hear(client_protocol.OpenProducer), sequence=1)
    rig.now += 1
    rig.say(client_protocol.Denied(rig.hear(client_protocol.OpenTopic).request, "rights", "ask for a token"))
    asked = rig.hear(client_protocol.OpenProducer)
    assert asked.epoch == 2, "the client does not request the topic again and again"
    rig.opened(asked, sequence=1)
    assert sent[0].result(0) == 0
    with pytest.raises(NotAllowed, match="ask for a token"):
        sent[1].result(0)
    with pytest.raises(Aborted):
        young.result(0)


@pytest.mark.parametrize("accepted", [True, False])
def test_the_end_of_a_running_producer_without_rights_is_logged_once(caplog: pytest.LogCaptureFixture, accepted: bool) -> None:
    rig = Rig()
    rig.opened(rig.connect()) if accepted else rig.connect()
    rig.send()
    for _ in range(2):
        rig.say(client_protocol.Denied(0, "token", "the token was revoked: ask for a new token"))
    end = (
        "producer 'jfk' has ended (number of failed records: 1): producer 'jfk' is not authorised: "
        "the token was revoked: ask for a new token"
    )
    assert caplog.messages == ([end] if accepted else []), "without an epoch, the constructor raises the error"


def test_a_topic_is_asked_for_again_when_the_gateway_could_not() -> None:
    rig = Rig().ready()
    rig.send()
    rig.say(client_protocol.Denied(rig.hear(client_protocol.OpenTopic).request, "not_primary", "not yet", retry=True))
    assert rig.hears() == []
    rig.now += 1
    rig.topic()
    assert len(rig.frames()) == 1


def test_another_log_at_the_same_url_is_refused() -> None:
    rig, _ = in_flight(1)
    receipt = rig.send()
    rig.delivery.disconnected()
    rig.delivery.session.connected(rig.now)
    rig.hear(client_protocol.Hello)
    rig.say(rig.welcome(log="b" * 32))
    with pytest.raises(Refused, match="different groups"):
        receipt.result(0)


def test_a_silent_gateway_is_asked_and_then_left() -> None:
    rig, frames = in_flight(2)
    rig.now += limits.SILENCE_US_MIN / 1e6 + 0.01
    rig.hear(client_protocol.Hello)
    rig.say(rig.welcome())
    assert rig.frames() == frames  # its answers may have been lost
    rig.now += 2 * limits.SILENCE_US_MIN / 1e6 - 0.1
    assert rig.hears() == []  # more patience the second time
    rig.now += 0.2
    rig.hear(client_protocol.Hello)
    rig.now += limits.SILENCE_US_MAX / 1e6
    assert rig.hears() == []
    assert "no answer" in rig.delivery.session.drop


def test_batches_that_a_gateway_holds_for_a_quota_are_not_sent_again() -> None:
    rig, frames = in_flight(4)
    quota: dict[str, Any] = {"records_per_s": 5, "bytes_per_s": 7000}

    def probe() -> None:
        rig.now = rig.delivery.next_time(rig.now)
        rig.hear(client_protocol.Hello)

    probe()
    rig.say(rig.welcome(held_from=3, **quota))
    assert sequences(rig.frames()) == [(1, 1), (2, 1)], "their answers may have been lost"
    assert rig.delivery.session.throttled == "throttled by the quota of its token (5 records/s, 7000 bytes/s)"
    rig.commit(frames[0], 0)
    assert rig.delivery.session.throttled == ""
    probe()
    rig.say(rig.welcome(held_from=2, **quota))
    assert rig.frames() == []
    assert rig.delivery.window.records_resent == 2
    probe()
    rig.say(rig.welcome(**quota))
    assert sequences(rig.frames()) == [(2, 1), (3, 1), (4, 1)], "the gateway holds none of them"
    probe()
    rig.say(rig.welcome(held_from=2, **quota))
    rig.delivery.disconnected()
    assert rig.delivery.session.throttled == ""
    rig.opened(rig.connect(held_from=2, **quota))
    assert sequences(rig.frames()) == [(2, 1), (3, 1), (4, 1)], "the old connection may have lost any of them"


def test_a_gateway_that_never_greets_is_left() -> None:
    rig = Rig()
    rig.delivery.session.connected(rig.now)
    rig.hear(client_protocol.Hello)
    rig.now += limits.ADDRESS_TIMEOUT_US / 1e6 - 0.1
    assert rig.hears() == []
    assert not rig.delivery.session.drop
    rig.now += 0.2
    rig.hears()
    assert "no answer for 2.1 s" in rig.delivery.session.drop


def test_an_idle_producer_sends_no_requests() -> None:
    rig, frames = in_flight(1)
    rig.commit(frames[0], 0)
    rig.now += 1e6
    assert rig.hears() == []
    assert rig.delivery.next_time(rig.now) == float("inf")


def test_the_deadline_makes_everything_unknown_and_ends_the_epoch() -> None:
    rig, frames = in_flight(2, delivery_timeout=5.0)
    sent = list(rig.delivery.window)
    young = rig.send(b"young")
    rig.delivery.disconnected()
    rig.now = rig.delivery.next_time(rig.now)
    rig.delivery.work(rig.now)
    for batch in sent:
        with pytest.raises(Unknown, match="may or may not be committed"):
            Receipt(batch, 0).result(0)
    with pytest.raises(Aborted, match=r"never sent, so it is in no log: a record of .* has no outcome after 5 s"):
        young.result(0)
    assert [Receipt(batch, 0).left for batch in sent] == [True, True]
    assert not young.left
    assert rig.feed.undelivered() == 0
    again = rig.send(b"again")
    asked = rig.connect()
    assert asked.epoch == 2
    rig.opened(asked, sequence=2)
    rig.now += 0.001
    (frame,) = rig.frames()
    assert (frame.epoch, frame.first_sequence, values_of(frame)) == (2, 3, [b"again"])
    rig.commit(frames[0], 0)  # too late: it is known as unknown
    rig.commit(frame, 9)
    assert again.result(0) == 9


def test_the_deadline_of_an_unsent_batch_ends_no_epoch() -> None:
    rig = Rig(delivery_timeout=5.0).ready()
    rig.delivery.disconnected()
    receipt = rig.send()
    rig.now = 1e9
    rig.delivery.work(rig.now)
    with pytest.raises(Aborted, match="it never left this process"):
        receipt.result(0)
    assert not receipt.left
    assert rig.connect().epoch == 1


def test_a_batch_whose_deadline_has_passed_before_the_next_run_is_not_sent() -> None:
    """Proves that the deadline of a new batch counts, although the time of the next action was computed without the batch."""
    rig, frames = in_flight(1, delivery_timeout=5.0)
    rig.commit(frames[0], 0)
    assert rig.delivery.next_time(rig.now) == float("inf")
    late = rig.send(b"late")
    rig.now += 5.1
    assert rig.hears() == []
    with pytest.raises(Aborted, match="it never left this process"):
        late.result(0)


def test_the_deadline_of_a_sent_batch_is_enforced_without_another_look_at_the_time() -> None:
    rig, frames = in_flight(1, delivery_timeout=5.0)
    rig.commit(frames[0], 0)
    assert rig.delivery.next_time(rig.now) == float("inf")
    late = rig.send(b"late")
    assert sequences(rig.frames()) == [(2, 1)]
    assert rig.delivery.due_at == rig.now + 5.0
    rig.now += 5.1
    rig.delivery.work(rig.now)
    with pytest.raises(Unknown, match="may or may not be committed"):
        late.result(0)


def test_an_epoch_that_ends_with_its_last_batch_ends_although_no_time_is_due() -> None:
    rig, frames = in_flight(1)
    rig.delivery.end_epoch_when_idle()
    rig.delivery.next_time(rig.now)
    assert rig.hears() == []
    rig.commit(frames[0], 0)
    assert rig.hear(client_protocol.OpenProducer).epoch == 2


def test_a_receipt_ends_the_idle_time_of_a_nameless_producer() -> None:
    rig = Rig(name="~abc", delivery_timeout=1e6).ready()
    rig.send()
    rig.topic()
    (frame,) = rig.frames()
    rig.now += limits.IDLE_PRODUCER_US / 1e6
    rig.commit(frame, 0)
    rig.send(b"soon")
    assert sequences(rig.frames()) == [(2, 1)]


def test_a_nameless_producer_that_was_idle_begins_another_epoch() -> None:
    rig = Rig(name="~abc").ready()
    rig.send()
    rig.topic()
    rig.commit(rig.frames()[0], 0)
    rig.now += limits.IDLE_PRODUCER_US / 1e6
    rig.send(b"late")
    asked = rig.hear(client_protocol.OpenProducer)
    assert asked.epoch == 2
    rig.say(client_protocol.EpochFenced(asked.request, 5))  # it was forgotten, and first epochs must exceed 5
    asked = rig.hear(client_protocol.OpenProducer)
    assert asked.epoch == 6
    rig.opened(asked)
    assert sequences(rig.frames()) == [(1, 1)]


def test_a_named_producer_keeps_its_epoch_however_idle() -> None:
    rig, frames = in_flight(1)
    rig.commit(frames[0], 0)
    rig.now += 10 * limits.IDLE_PRODUCER_US / 1e6
    rig.send()
    assert sequences(rig.frames()) == [(2, 1)]


def test_the_window_bounds_batches_in_flight() -> None:
    rig = Rig(batch_bytes=2000).ready(window_bytes=10_000)
    for _ in range(40):
        rig.send(b"x" * 900)
    rig.topic()
    frames = rig.frames()
    assert sum(frame.body_length for frame in frames) <= 10_000
    waiting = len(rig.feed.queue)
    assert waiting > 0
    rig.commit(frames[0], 0)
    assert len(rig.frames()) >= 1
    assert len(rig.feed.queue) < waiting


def test_a_batch_larger_than_the_window_is_sent_alone() -> None:
    rig = Rig().ready(window_bytes=1000)
    rig.send(b"x" * 5000)
    rig.send(b"y" * 5000)
    rig.topic()
    (first,) = rig.frames()
    rig.commit(first, 0)
    (second,) = rig.frames()
    assert values_of(second) == [b"y" * 5000]


def test_small_frames_share_a_message_and_large_ones_travel_uncopied() -> None:
    rig = Rig().ready()
    for _ in range(20):
        rig.send(b"s", topic="t")
        with rig.feed.lock:
            rig.feed.close_open()
    rig.topic()
    rig.delivery.work(rig.now)
    assert [len(message) for message in rig.delivery.session.outbox] == [1]
    assert len(rig.frames()) == 20
    rig.send(b"l" * 50_000)
    with rig.feed.lock:
        rig.feed.close_open()
    rig.delivery.work(rig.now)
    assert [len(message) for message in rig.delivery.session.outbox] == [2]


def test_garbage_from_a_gateway_is_reported_as_such() -> None:
    rig = Rig().ready()
    for data in (b"", b"X", b"C\xff", b"R", b"R\0\0\0\xff\0\0\0"):
        with pytest.raises(FormatError):
            rig.delivery.receive(data, rig.now)


def test_a_transition_absent_from_the_table_is_illegal() -> None:
    legal = set(TRANSITIONS)
    for state in State:
        for turn in Event:
            if (state, turn) not in legal:
                rig = Rig()
                rig.delivery.session.state = state
                with pytest.raises(InvariantViolated, match="has no transition"):
                    rig.delivery.session.transition(turn)
    assert set(TRANSITIONS.values()) == set(State)


def test_the_end_gives_every_record_an_outcome() -> None:
    rig, _ = in_flight(2)
    sent = [Receipt(batch, 0) for batch in rig.delivery.window]
    unsent = [rig.send(b"open"), rig.send(b"other", topic="u")]
    rig.delivery.end(Unknown("closed"))
    for receipt in sent:
        with pytest.raises(Unknown, match=r"^closed$"):
            receipt.result(0)
    for receipt in unsent:
        with pytest.raises(Aborted, match=r"^the record was never sent, so it is in no log: closed$"):
            receipt.result(0)
    assert rig.feed.undelivered() == 0
    assert isinstance(rig.delivery, OrderedDelivery)
