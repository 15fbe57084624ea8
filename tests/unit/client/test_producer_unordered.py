"""Tests of unordered sends: records go into the lane of one gateway or another, in parallel with ordered ones, and receipts are
true.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.client.fake_gateway import Lane, Line, Rule, deliver_within, until
from tests.unit.client.two_gateways import Two, away, send, silent, turning_away, unordered, values
from tutti.batching.receipt import Receipt
from tutti.data import client_protocol
from tutti.data.frames.frame import Frame
from tutti.errors import Aborted, BufferFull, Fenced, Refused, TooLarge, Unknown, UsageError
from tutti.producer import Producer


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    made.close()


def test_records_go_into_the_lane_in_parallel_with_ordered_ones(two: Two) -> None:
    told: list[tuple[Exception | None, int]] = []
    with Producer(two.g1.url, producer="p") as p:
        assert p.send("t", b"0", key=b"k", headers=[("h", b"v")], ordering="unordered").result(10) == 0
        assert p.send("t", b"ordered").result(10) == 0
        receipts = [
            p.send("u", b"%d" % n, ordering="unordered", on_delivery=lambda e, r: told.append((e, r.offset or 0))) for n in (1, 2)
        ]
        assert p.flush(10) == 0
        assert len(p) == 0
        assert [receipt.result(0) for receipt in receipts] == [1, 2]
        batch = pa.record_batch({"value": pa.array([b"3", b"4"], pa.binary())})
        receipt = p.send_batch("t", batch, ordering="unordered")
        assert (receipt.result(10), receipt.count) == (3, 2)
        assert p.resume().sequence == 1, "the ordered one"
    assert sorted(told) == [(None, 1), (None, 2)]
    assert values(two.g1) == [0, 1, 2, 3, 4]
    assert two.log.values() == [b"ordered"]
    assert {frame.epoch for frame in unordered(two.g1)} == {1}
    assert set(two.g1.forms.values()) == {client_protocol.SUBMIT, client_protocol.SUBMIT_UNORDERED}, (
        "a session of its own, or it is denied"
    )


def test_neither_kind_waits_for_the_other(two: Two) -> None:
    def hold(form: str) -> Rule:
        lane = form == "unordered"
        return lambda heard: [] if isinstance(heard, Frame) and (heard.topic == two.log.topics.get("unordered")) is lane else None

    with Producer(two.g1.url, producer="p") as p:
        for held, free in (("total", "unordered"), ("unordered", "total")):
            two.g1.rule = hold(held)
            waits = p.send(held, b"1", ordering=held)
            for _ in range(3):
                p.send(free, b"2", ordering=free).result(10)
            assert not waits.done()
            assert len(p) == 1
            two.g1.rule = None
            waits.result(10)


def test_each_kind_has_a_buffer_of_its_own(two: Two) -> None:
    two.g1.rule = two.g2.rule = lambda heard: [] if isinstance(heard, Frame) else None
    p = Producer(two.g1.url, producer="p", buffer_bytes=1 << 16, batch_bytes=1 << 10, on_full="raise", delivery_timeout=30)
    with pytest.raises(BufferFull):
        [p.send("t", bytes(1000), ordering="unordered") for _ in range(1000)]
    waits = p.send("t", bytes(1000))
    assert not waits.done()
    two.g1.rule = two.g2.rule = None
    p.close()
    waits.result(0)


def test_records_that_the_lane_cannot_accept_are_refused_by_send(two: Two) -> None:
    with Producer(two.g1.url, producer="p") as p:
        for call in (p.send, p.send_batch):
            value: Any = b"x" if call == p.send else pa.record_batch({"value": pa.array([b"x"], pa.binary())})
            with pytest.raises(UsageError, match="progress needs the total order"):
                call("t", value, progress=b"p", ordering="unordered")
        receipt = p.send("t", bytes(5 << 20), ordering="unordered")
        with pytest.raises(TooLarge):
            receipt.result(10)
        assert len(p) == 0
    assert not two.g1.heard or values(two.g1) == []


def test_leaving_the_block_delivers_them_and_raises_the_first_failure(two: Two) -> None:
    with Producer(two.g1.url, producer="p") as p:
        send(p, *range(50))
    assert values(two.g1) == list(range(50))
    two.g1.rule = turning_away("malformed", retry=False)
    with pytest.raises(Refused, match="were refused by gateway g1: it is so"), Producer(two.g1.url, producer="q") as p:
        p.send("t", b"x", ordering="unordered")


def test_sent_batches_wait_for_their_gateway_and_new_ones_go_elsewhere(two: Two) -> None:
    two.g1.rule = silent(two.g1)
    with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
        first = send(p, 1, 2, 3)
        until(lambda: len(unordered(two.g1)) >= 3)
        two.g1.stop()
        until(lambda: away(p))
        assert p.send("t", b"4", ordering="unordered").result(20) == 0, "it does not wait for others that could fill its batch"
        assert send(p, 5)[0].result(20) == 1
        assert not any(receipt.done() for receipt in first)
        two.g1.rule = None
        two.g1.start()
        assert [receipt.result(20) for receipt in first] == [0, 1, 2]
        assert send(p, 6)[0].result(20) == 2, "it stays where it is"
    assert values(two.g1) == [1, 2, 3]
    assert values(two.g2) == [4, 5, 6]


def test_decided_and_unanswered_batches_are_there_once(two: Two) -> None:
    two.g1.rule = silent(two.g1, decides=True)
    with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
        receipts = send(p, 1, 2, 3)
        until(lambda: len(values(two.g1)) == 3)
        two.g1.stop()
        two.g1.rule = None
        two.g1.start()
        assert [receipt.result(20) for receipt in receipts] == [0, 1, 2]
    assert values(two.g1) == [1, 2, 3]


def test_a_gateway_that_stays_away_makes_only_the_batches_sent_to_it_unknown(two: Two) -> None:
    two.g1.rule = silent(two.g1)
    with Producer(two.g1.url, producer="p", delivery_timeout=2) as p:
        lost = send(p, 1, 2)
        deliver_within(p, 60)
        until(lambda: len(unordered(two.g1)) >= 2)
        two.g1.stop()
        for receipt in lost:
            with pytest.raises(
                Unknown, match=r"may or may not be in the lane of gateway g1.* A record that is sent again is a new"
            ):
                receipt.result(20)
        assert send(p, 3)[0].result(20) == 0
    assert values(two.g2) == [3]


def test_a_lane_with_an_unknown_outcome_accepts_more_in_the_next_epoch(two: Two) -> None:
    """Otherwise old copies could be accepted under the sequences of new batches."""
    two.g1.gateways = {"g1": two.g1.url}
    two.g1.rule = silent(two.g1)
    with Producer(two.g1.url, producer="p", delivery_timeout=2) as p:
        lost = send(p, 1, 2)
        deliver_within(p, 60)
        until(lambda: len(unordered(two.g1)) >= 2)
        for receipt in lost:
            with pytest.raises(Unknown):
                receipt.result(20)
        first = unordered(two.g1)[0]
        two.g1.rule = None
        until(lambda: send(p, 3)[0].result(20) == 0)
        assert p.epoch == 2
        assert p.send("t", b"ordered").result(20) == 0
        assert two.g1.take_unordered(first) == [client_protocol.FencedAnswer(first.producer, 2, 1)]
    assert values(two.g1) == [3]


def test_the_loss_of_a_gateways_disk_makes_its_records_unknown_at_once(two: Two) -> None:
    two.g1.rule = silent(two.g1)
    with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
        lost = send(p, 1, 2)
        until(lambda: len(unordered(two.g1)) >= 2)
        two.g1.stop()
        two.g1.rule = None
        two.g1.lane = Lane("1-" + "c" * 32)
        two.g1.start()
        for receipt in lost:
            with pytest.raises(Unknown, match=r"its disk with the lane 1-a+ was lost"):
                receipt.result(20)
        send(p, 3)[0].result(20)


@pytest.mark.parametrize("code", ["not_primary", "leaving", "halted", "lane"])
def test_batches_that_a_gateway_refuses_go_to_another_one_at_once(two: Two, code: str) -> None:
    two.g1.rule = turning_away(code, retry=True)
    with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
        receipts = send(p, *range(20))
        assert [receipt.result(20) for receipt in receipts] == list(range(20))
    assert values(two.g2) == list(range(20))
    assert values(two.g1) == []


@pytest.mark.parametrize("code", ["busy", "space"])
def test_a_batch_refused_for_lack_of_capacity_is_resent_there(two: Two, code: str) -> None:
    count = [0]

    def rule(heard: Any) -> list[Any] | None:
        if isinstance(heard, Frame) and two.g1.judge(heard) == [None]:
            count[0] += 1
            if count[0] % 3:
                return [
                    client_protocol.RefusedAnswer(heard.producer, heard.epoch, heard.first_sequence, code, "it is so", retry=True)
                ]
        return None

    two.g1.rule = rule
    with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
        assert [receipt.result(30) for receipt in send(p, *range(10))] == list(range(10))
    assert values(two.g1) == list(range(10))


@pytest.mark.parametrize("state", ["minority", "leaving", "halted"])
def test_a_gateway_in_a_minority_is_used_if_there_is_no_other(two: Two, state: str) -> None:
    with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
        p.send("t", b"ordered").result(10)
        two.g1.state = state
        assert send(p, 1)[0].result(20) == 0
        two.g2.stop()
        until(lambda: away(p))
        assert send(p, 2)[0].result(20) == 0
    assert values(two.g2) == [1]
    assert values(two.g1) == [2]


def test_a_gateway_without_a_lane_is_passed_by_and_named_when_there_is_no_other(two: Two) -> None:
    two.g1.lane = None
    with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
        assert send(p, 1)[0].result(20) == 0
        two.g2.stop()
        until(lambda: away(p))
        deliver_within(p, 1)
        with pytest.raises(Aborted, match=r"it is in no lane; last error: .*gateway g1 has no lane"):
            send(p, 2)[0].result(20)
    assert values(two.g2) == [1]


def test_an_epoch_that_ends_under_way_costs_no_record_and_doubles_none(two: Two) -> None:
    with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
        assert send(p, 1)[0].result(20) == 0
        two.g1.rule = silent(two.g1)
        receipts = send(p, 2, 3, 4)
        until(lambda: len(unordered(two.g1)) >= 4)
        two.g1.decide(unordered(two.g1)[1])
        line = two.log.lines["p"]
        line.closed = True  # an ordered record is aborted, and the next epoch begins
        two.g1.rule = None
        with pytest.raises(Aborted):
            p.send("t", b"ordered").result(20)
        until(lambda: p.epoch == 2)
        assert [receipt.result(20) for receipt in receipts] == [1, 2, 3]
        assert send(p, 5)[0].result(20) == 4
    assert values(two.g1) == [1, 2, 3, 4, 5]
    assert [frame.epoch for frame, _ in (two.g1.lane.batches if two.g1.lane else [])] == [1, 1, 2, 2, 2]


def test_a_permanent_refusal_fails_and_later_records_are_in_no_lane(two: Two) -> None:
    two.g1.gateways = {"g1": two.g1.url}
    two.g1.rule = silent(two.g1)
    with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
        receipts = send(p, 1, 2, 3)
        until(lambda: len(unordered(two.g1)) >= 3)
        two.g1.rule = turning_away("malformed", retry=False, only=lambda frame: frame.epoch == 1 and frame.first_sequence == 2)
        assert receipts[0].result(20) == 0
        with pytest.raises(Unknown, match="An earlier copy of them may be in the lane"):
            receipts[1].result(20)
        with pytest.raises(Unknown, match="sent later"):
            receipts[2].result(20)
        assert send(p, 4)[0].result(20) == 1
        assert p.epoch == 2
        two.g1.rule = turning_away("malformed", retry=False, only=lambda frame: frame.epoch == 2 and frame.first_sequence == 2)
        with pytest.raises(Refused, match="were refused by gateway g1"):
            send(p, 5)[0].result(20)
        assert send(p, 6)[0].result(20) == 2
        for receipt in receipts:
            receipt.done()
    assert values(two.g1) == [1, 4, 6]


def test_another_instance_fences_both_kinds(two: Two) -> None:
    p = Producer(two.g1.url, producer="p", delivery_timeout=60)
    assert send(p, 1)[0].result(20) == 0
    two.log.lines["p"] = Line(1, b"other".ljust(16), 2)
    with pytest.raises(Fenced):
        send(p, 2)[0].result(20)
    with pytest.raises(Fenced):
        p.send("t", b"x")
    with pytest.raises(Fenced):
        send(p, 3)
    p.close()
    assert values(two.g1) == [1]


def test_a_log_that_lags_by_a_moment_is_waited_for(two: Two) -> None:
    codes = ["producer", "topic", "epoch"]

    def rule(heard: Any) -> list[Any] | None:
        if isinstance(heard, Frame) and codes:
            return [
                client_protocol.RefusedAnswer(
                    heard.producer, heard.epoch, heard.first_sequence, codes.pop(), "not yet", retry=False
                )
            ]
        return None

    two.g1.rule = rule
    with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
        assert [receipt.result(20) for receipt in send(p, 1, 2, 3)] == [0, 1, 2]
    assert values(two.g1) == [1, 2, 3]


def test_several_threads_may_use_it(two: Two) -> None:
    with Producer(two.g1.url, producer="p") as p:
        receipts: list[Receipt] = []

        def work(base: int) -> None:
            receipts.extend(p.send("t", b"%d" % (base + number), ordering="unordered") for number in range(200))

        threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert p.flush(20) == 0
        assert sorted(receipt.result(0) for receipt in receipts) == list(range(800))
    found = values(two.g1)
    for base in range(4):
        assert [value for value in found if value // 1000 == base] == list(range(1000 * base, 1000 * base + 200))


def test_closing_delivers_waiting_records_and_refuses_later_ones(two: Two) -> None:
    p = Producer(two.g1.url, producer="p", linger=5.0)
    receipts = [p.send("t", b"%d" % number, ordering="unordered") for number in range(3)]
    p.close()
    assert [receipt.result(0) for receipt in receipts] == [0, 1, 2]
    with pytest.raises(UsageError, match="closed"):
        p.send("t", b"x", ordering="unordered")
    q = Producer(two.g1.url, producer="q")
    q.close()
    with pytest.raises(UsageError, match="closed"):
        q.send("t", b"x", ordering="unordered")


def test_it_begins_where_the_producers_gateway_does_not_answer_the_lane_yet(two: Two) -> None:
    """News of a lane that is there now: it was left for the other one, and is good enough when that is gone."""
    lane, two.g1.lane = two.g1.lane, None
    with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
        assert send(p, 1)[0].result(20) == 0
        two.g2.stop()
        until(lambda: away(p))
        receipt = send(p, 2)[0]
        two.g1.lane = lane
        assert receipt.result(20) == 0
    assert (values(two.g1), values(two.g2)) == ([2], [1])


def test_a_producer_deleted_while_idle_starts_again(two: Two) -> None:
    """The log gives it another number, so nothing that arrives later belongs to the old one."""
    two.g1.gateways = {"g1": two.g1.url}
    with Producer(two.g1.url, delivery_timeout=60) as p:
        assert send(p, 1)[0].result(20) == 0
        two.log.lines["another"] = two.log.lines.pop(p.name)
        two.log.lines["another"].number = 77
        assert send(p, 2)[0].result(30) == 1
        assert p.send("t", b"ordered").result(20) == 0
        assert send(p, 3)[0].result(20) == 2
    assert values(two.g1) == [1, 2, 3]
    assert two.g1.lane is not None
    assert [frame.producer for frame, _ in two.g1.lane.batches] == [1, 2, 2]


def test_batches_for_one_gateway_go_to_no_other_at_its_address(two: Two) -> None:
    two.g1.gateways = {"g1": two.g1.url}
    two.g1.rule = silent(two.g1)
    own = two.g1.lane
    with Producer(two.g1.url, producer="p", delivery_timeout=60) as p:
        waits = send(p, 1)[0]
        until(lambda: len(unordered(two.g1)) >= 1)
        for name, lane in (("g9", Lane("9-" + "d" * 32)), ("g1", None)):
            two.g1.stop()
            two.g1.name, two.g1.lane, two.g1.rule = name, lane, None
            heard = len(two.g1.requests(client_protocol.Hello))
            two.g1.start()
            until(lambda past=heard: len(two.g1.requests(client_protocol.Hello)) > past + 4)  # type: ignore[misc]  # of a default
            assert not waits.done()
            assert lane is None or lane.values() == []
        two.g1.stop()
        two.g1.lane = own
        two.g1.start()
        assert waits.result(20) == 0
    assert values(two.g1) == [1]
