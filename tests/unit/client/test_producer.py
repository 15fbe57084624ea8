"""Tests of the producer over real connections to a fake gateway that drops, delays, restarts and sends any answer."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.client.fake_gateway import FakeGateway, deliver_within, until
from tutti import limits
from tutti.batching.encoder import Compression
from tutti.batching.receipt import Receipt
from tutti.data import client_protocol
from tutti.data.frames.frame import Frame
from tutti.errors import Aborted, BufferFull, Fenced, TooLarge, TuttiError, Unknown, UsageError
from tutti.producer import Producer

HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as fake:
        yield fake


def test_send_and_result(gateway: FakeGateway) -> None:
    with Producer(gateway.url, producer="jfk-departures") as p:
        receipt = p.send("flights", b"value", key=b"k", headers=[("a", b"b")])
        assert receipt.result(timeout=10) == 0
        assert p.send("flights", None).result(timeout=10) == 1
        assert (receipt.offset, receipt.count, receipt.topic, receipt.done()) == (0, 1, "flights", True)
        assert len(p) == 0
        assert bool(p)
    assert gateway.log.values() == [b"value", None]
    until(lambda: gateway.requests(client_protocol.Bye))


def test_many_records_keep_their_order_and_get_dense_offsets(gateway: FakeGateway) -> None:
    with Producer(gateway.url) as p:
        receipts = [p.send("t", b"%d" % number) for number in range(20_000)]
        assert p.flush(timeout=20) == 0
        assert [receipt.result(0) for receipt in receipts] == list(range(20_000))
        assert p.name.startswith("~")
    assert gateway.log.values() == [b"%d" % number for number in range(20_000)]
    assert len(gateway.frames()) < 200


def test_send_batch_is_one_frame_and_one_receipt(gateway: FakeGateway) -> None:
    batch = pa.record_batch({"value": pa.array([b"a", b"b", b"c"]), "key": pa.array([None, b"k", None], pa.binary())})
    with Producer(gateway.url, producer="p") as p:
        p.send("t", b"before")
        receipt = p.send_batch("t", batch, progress=b"at 3")
        assert (receipt.result(timeout=10), receipt.count) == (1, 3)
        assert p.resume() == (4, b"at 3")
        with pytest.raises(UsageError, match="must be binary"):
            p.send_batch("t", pa.record_batch({"value": pa.array(["text"])}))
    assert [frame.count for frame in gateway.frames()] == [1, 3]
    assert gateway.log.values() == [b"before", b"a", b"b", b"c"]


def test_a_restarted_producer_continues(gateway: FakeGateway) -> None:
    with Producer(gateway.url, producer="p") as p:
        assert p.resume() == (0, b"")
        p.send("t", b"1")
        p.send("t", b"2", progress=b"two")
    with Producer(gateway.url, producer="p") as p:
        assert p.epoch == 2
        sequence, progress = p.resume()
        assert (sequence, progress) == (2, b"two")
        p.send("t", b"3")
    assert [record.sequence for record in gateway.log.records] == [1, 2, 3]


def test_the_older_self_is_fenced(gateway: FakeGateway) -> None:
    old = Producer(gateway.url, producer="p")
    old.send("t", b"old").result(10)
    with Producer(gateway.url, producer="p") as new:
        new.send("t", b"new").result(10)
        with pytest.raises(Fenced, match="another instance began epoch 2"):
            old.send("t", b"too late").result(10)
        with pytest.raises(Fenced):
            old.send("t", b"later still")
        with pytest.raises(Fenced):
            old.resume()
        old.close()
    assert gateway.log.values() == [b"old", b"new"]


def test_a_restart_of_the_gateway_is_only_a_pause(gateway: FakeGateway) -> None:
    with Producer(gateway.url, producer="p") as p:
        receipts: list[Receipt] = []
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                receipts.append(p.send("t", b"%d" % len(receipts)))
                time.sleep(0.0005)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(5):
            before = len(gateway.log.records)
            until(partial(_holds_more, gateway, before + 20))
            gateway.stop()
            gateway.start()
        stop.set()
        thread.join()
        assert p.flush(30) == 0
        assert [receipt.result(0) for receipt in receipts] == list(range(len(receipts)))
        assert p.epoch == 1
    assert gateway.log.values() == [b"%d" % number for number in range(len(receipts))]


def _holds_more(gateway: FakeGateway, records: int) -> bool:
    return len(gateway.log.records) > records


def test_lost_answers_are_asked_for_and_nothing_commits_twice(gateway: FakeGateway) -> None:
    lost: list[Frame] = []

    def lose(heard: Any) -> list[Any] | None:
        if isinstance(heard, Frame) and not lost:
            lost.append(heard)
            if heard.first_sequence > gateway.log.lines["p"].sequence:
                gateway.commit(heard)
            return []
        return None

    gateway.rule = lose
    with Producer(gateway.url, producer="p") as p:
        receipts = [p.send("t", b"%d" % number) for number in range(3)]
        assert [receipt.result(20) for receipt in receipts] == [0, 1, 2]
    assert gateway.log.values() == [b"0", b"1", b"2"]


def test_lost_frames_are_sent_again(gateway: FakeGateway) -> None:
    lost: list[Frame] = []

    def lose(heard: Any) -> list[Any] | None:
        if isinstance(heard, Frame) and len(lost) < 1:
            lost.append(heard)
            return []
        return None

    gateway.rule = lose
    with Producer(gateway.url, producer="p") as p:
        receipts = [p.send(f"t{number % 2}", b"%d" % number) for number in range(5)]
        assert [receipt.result(20) for receipt in receipts] == [0, 1, 2, 3, 4]
    assert gateway.log.values() == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("headers", [False, True])
def test_a_resent_batch_does_not_change_with_the_buffers_of_the_application(
    gateway: FakeGateway, compression: Compression, headers: bool
) -> None:
    """The application reuses the memory of a record batch: a bytearray for the values, an array of numpy for times and offsets."""
    lost: list[Frame] = []

    def lose(heard: Any) -> list[Any] | None:
        if isinstance(heard, Frame) and not lost:
            lost.append(heard)
            return []
        return None

    value, offsets, times = bytearray(b"onetwo"), np.array([0, 3, 6], np.int32), np.array([1, 2])
    columns: dict[str, pa.Array[Any]] = {
        "value": pa.Array.from_buffers(pa.binary(), 2, [None, pa.py_buffer(offsets.data), pa.py_buffer(value)]),
        "timestamp": pa.Array.from_buffers(pa.timestamp("us", "UTC"), 2, [None, pa.py_buffer(times.data)]),
    }
    if headers:
        columns["headers"] = pa.array([[("a", b"b")], []], pa.list_(HEADER))
    gateway.rule = lose
    with Producer(gateway.url, producer="p", compression=compression) as p:
        receipt = p.send_batch("t", pa.record_batch(columns))
        value[:], offsets[:], times[:] = b"\xff" * 6, -1, -1
        assert receipt.result(20) == 0
    assert lost, "the batch was sent twice"
    assert gateway.log.values() == [b"one", b"two"]
    frame = gateway.frames()[-1]
    assert (frame.min_timestamp, frame.max_timestamp) == (1, 2)


def test_a_refusal_for_now_is_waited_out(gateway: FakeGateway) -> None:
    refused: list[Frame] = []

    def refuse(heard: Any) -> list[Any] | None:
        if isinstance(heard, Frame) and len(refused) < 4:
            refused.append(heard)
            return [
                client_protocol.RefusedAnswer(
                    heard.producer, heard.epoch, heard.first_sequence, "space", "the disk is low", retry=True
                )
            ]
        return None

    gateway.rule = refuse
    with Producer(gateway.url) as p:
        receipts = [p.send("t", b"%d" % number) for number in range(100)]
        assert [receipt.result(10) for receipt in receipts] == list(range(100))


def test_an_abort_is_reported_and_the_producer_continues(gateway: FakeGateway) -> None:
    all_sent = threading.Event()

    def abort(heard: Any) -> list[Any] | None:
        if isinstance(heard, Frame) and heard.epoch == 1 and heard.first_sequence > 1:
            all_sent.wait(10)
            gateway.log.lines["p"].closed = True
            return [client_protocol.AbortedAnswer(heard.producer, 1, heard.first_sequence, heard.count, "g2 has no space")]
        return None

    gateway.rule = abort
    with pytest.raises(Aborted, match="g2 has no space"), Producer(gateway.url, producer="p") as p:  # noqa: PT012 - leaving the block is what raises
        assert p.send("t", b"good").result(10) == 0
        receipts = [p.send("t", b"%d" % number) for number in range(3)]
        all_sent.set()
        until(lambda: p.epoch == 2)
        assert all(receipt.done() for receipt in receipts)
        assert p.send("t", b"next").result(10) == 1
        assert p.epoch == 2
    assert gateway.log.values() == [b"good", b"next"]


def test_a_producer_with_progress_resumes_after_an_abort(gateway: FakeGateway) -> None:
    def abort(heard: Any) -> list[Any] | None:
        if isinstance(heard, Frame) and heard.epoch == 1 and heard.first_sequence > 1:
            gateway.log.lines["p"].closed = True
            return [client_protocol.AbortedAnswer(heard.producer, 1, heard.first_sequence, heard.count, "no space")]
        return None

    gateway.rule = abort
    source = [b"%d" % number for number in range(10)]
    with Producer(gateway.url, producer="p") as p:
        at = 0
        aborts = 0
        while at < len(source):
            try:
                receipt = p.send("t", source[at], progress=b"%d" % (at + 1))
                at += 1
                if at == len(source):
                    receipt.result(10)
            except Aborted:
                aborts += 1
                _, progress = p.resume()
                at = int(progress or b"0")
        assert p.resume() == (10, b"10")
    assert aborts == 1
    assert gateway.log.values() == source


@pytest.mark.parametrize("in_flight", [True, False])
def test_the_log_counts_the_records_that_fail_at_the_deadline(
    gateway: FakeGateway, caplog: pytest.LogCaptureFixture, in_flight: bool
) -> None:
    gateway.rule = lambda heard: [] if isinstance(heard, Frame) or not in_flight else None
    p = Producer(gateway.url, producer="p", delivery_timeout=1, linger=0.2) if in_flight else None
    if p is None:
        gateway.rule = None
        p = Producer(gateway.url, producer="p", delivery_timeout=1, linger=0.2)
        gateway.__exit__(None, None, None)  # the records stay in the queue
    receipts = [p.send("t", b"x") for _ in range(5)]
    for receipt in receipts:
        with pytest.raises(Unknown if in_flight else Aborted):
            receipt.result(30)
    p.close()
    counts = [int(line.rpartition(": ")[2].rstrip(")")) for line in caplog.messages if "number of failed records" in line]
    assert sum(counts) == 5


def test_no_answer_until_the_deadline_is_unknown(gateway: FakeGateway) -> None:
    gateway.rule = lambda heard: [] if isinstance(heard, Frame) else None
    p = Producer(gateway.url, producer="p", delivery_timeout=2)
    receipt = p.send("t", b"x")
    with pytest.raises(TimeoutError, match="still in flight"):
        receipt.result(timeout=0.05)
    with pytest.raises(Unknown, match=re.escape("no outcome after 2 s (delivery_timeout)")):
        receipt.result(timeout=30)
    deliver_within(p, 60)
    gateway.rule = None
    assert p.send("t", b"y").result(10) == 0
    p.close()
    assert gateway.log.values() == [b"y"]
    assert p.epoch == 2


def test_leaving_with_delivers_and_raises_the_first_failure(gateway: FakeGateway) -> None:
    gateway.frame_bytes_max = 10_000
    with pytest.raises(TooLarge, match="10000 bytes"), Producer(gateway.url) as p:  # noqa: PT012 - leaving the block is what raises
        p.send("t", b"x" * 20_000)
        p.send("t", b"fine")
    assert gateway.log.values() == [b"fine"]


def test_a_failure_that_was_raised_is_not_raised_again(gateway: FakeGateway) -> None:
    gateway.frame_bytes_max = 10_000
    with Producer(gateway.url) as p, pytest.raises(TooLarge):
        p.send("t", b"x" * 20_000).result(10)


def test_an_error_of_the_block_is_the_one_that_is_seen(gateway: FakeGateway) -> None:
    gateway.frame_bytes_max = 10_000
    with pytest.raises(ZeroDivisionError), Producer(gateway.url) as p:  # noqa: PT012 - leaving the block is what raises
        p.send("t", b"x" * 20_000)
        p.send("t", b"fine")
        raise ZeroDivisionError
    assert gateway.log.values() == [b"fine"]


def test_closed_is_closed(gateway: FakeGateway) -> None:
    p = Producer(gateway.url)
    p.send("t", b"x")
    p.close()
    p.close()
    assert gateway.log.values() == [b"x"]
    batch = pa.record_batch({"value": pa.array([b"y"])})
    calls: list[Callable[[], object]] = [lambda: p.send("t", b"y"), lambda: p.send_batch("t", batch)]
    for call in calls:
        with pytest.raises(UsageError, match="closed"):
            call()


def test_on_delivery_is_called_in_order_and_may_send(gateway: FakeGateway, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[TuttiError | None, int | None, str]] = []
    with Producer(gateway.url) as p:

        def on_delivery(error: TuttiError | None, receipt: Receipt) -> None:
            told.append((error, receipt.offset, threading.current_thread().name))
            if receipt.offset == 0:
                p.send("t", b"from the callback", on_delivery=on_delivery)
            if receipt.offset == 1:
                raise RuntimeError("of the application")

        p.send("t", b"0", on_delivery=on_delivery)
        until(lambda: len(told) == 2)
        p.send("t", b"2", on_delivery=on_delivery).result(10)
        until(lambda: len(told) == 3)
    assert [(error, offset) for error, offset, _ in told] == [(None, 0), (None, 1), (None, 2)]
    assert len({thread for _, _, thread in told}) == 1
    assert told[0][2].startswith("tutti-io-")
    assert "of the application" in caplog.text


def test_on_delivery_gets_failures(gateway: FakeGateway) -> None:
    gateway.frame_bytes_max = 10_000
    told: list[TuttiError | None] = []
    p = Producer(gateway.url)
    p.send("t", b"x" * 20_000, on_delivery=lambda error, receipt: told.append(error))
    until(lambda: told)
    assert isinstance(told[0], TooLarge)
    p.close()


def test_a_full_buffer_raises_or_waits(gateway: FakeGateway) -> None:
    gate = threading.Event()
    held: list[Frame] = []

    def hold(heard: Any) -> list[Any] | None:
        if isinstance(heard, Frame) and not gate.is_set():
            held.append(heard)
            return []
        return None

    gateway.rule = hold
    with Producer(gateway.url, buffer_bytes=65_536, on_full="raise") as p:
        with pytest.raises(BufferFull, match="65536"):
            _fill(p)
        gate.set()
        assert p.flush(20) == 0
        p.send("t", b"again").result(10)
    gate.clear()
    with Producer(gateway.url, buffer_bytes=65_536) as p:
        thread = threading.Thread(target=_fill, args=(p,))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        gate.set()
        thread.join(20)
        assert not thread.is_alive()
        assert p.flush(20) == 0


def _fill(p: Producer) -> None:
    for _ in range(300):
        p.send("t", b"x" * 1000)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_compression(gateway: FakeGateway, compression: Any) -> None:
    with Producer(gateway.url, compression=compression) as p:
        for _ in range(3):
            p.send("t", b"a" * 5000)
    assert gateway.log.values() == [b"a" * 5000] * 3
    assert all((frame.body_length < 5000) == (compression is not None) for frame in gateway.frames())


def test_another_gateway_is_used_when_one_goes_away(gateway: FakeGateway) -> None:
    with FakeGateway(gateway.log) as other, Producer(f"{gateway.url},127.0.0.1:{other.port}", producer="p") as p:
        p.send("t", b"0").result(10)
        gateway.stop()
        assert p.send("t", b"1").result(10) == 1
        assert [frame.first_sequence for frame in other.frames()] == [2]
        assert p.epoch == 1
    assert gateway.log.values() == [b"0", b"1"]


def test_a_gateway_that_was_not_named_is_found_out(gateway: FakeGateway) -> None:
    with FakeGateway(gateway.log) as other:
        gateway.gateways = {"fake": gateway.url, "other": other.url}
        with Producer(gateway.url, producer="p") as p:
            p.send("t", b"0").result(10)
            gateway.stop()
            assert p.send("t", b"1").result(10) == 1


def test_the_first_address_may_be_dead(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADDRESS_TIMEOUT_US", 60_000_000)  # it refuses: nobody waits for its turn to end
    with Producer(f"tutti://127.0.0.1:1,127.0.0.1:{gateway.port}", connect_timeout=30) as p:
        assert p.send("t", b"0").result(30) == 0


def test_a_gateway_that_starts_late_is_waited_for(gateway: FakeGateway) -> None:
    gateway.stop()
    threading.Timer(0.5, gateway.start).start()
    with Producer(gateway.url, connect_timeout=10) as p:
        assert p.send("t", b"0").result(10) == 0


def test_a_dropped_producer_still_delivers(gateway: FakeGateway) -> None:
    p = Producer(gateway.url)
    receipts = [p.send("t", b"%d" % number) for number in range(100)]
    engine = p._io.io_thread if p._io else None
    del p
    assert [receipt.result(10) for receipt in receipts] == list(range(100))
    assert engine is not None
    engine.thread.join(5)
    assert not engine.thread.is_alive()


def test_several_threads_share_a_producer(gateway: FakeGateway) -> None:
    with Producer(gateway.url) as p:
        threads = [threading.Thread(target=_send_many, args=(p, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    for number in range(4):
        mine = [value for value in gateway.log.values() if value and value.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, count) for count in range(500)]


def _send_many(p: Producer, thread: int) -> None:
    for count in range(500):
        p.send("t", b"%d:%d" % (thread, count)).result(30)


def test_a_gateway_that_sends_garbage_is_left(gateway: FakeGateway, caplog: pytest.LogCaptureFixture) -> None:
    garbage = [b"", b"X", b"C\xff\xff", b"R\0\0\0\xff\xff\xff\xff", b"C"]

    def spit(heard: Any) -> list[Any] | None:
        return [garbage.pop()] if isinstance(heard, Frame) and garbage else None

    gateway.rule = spit
    with caplog.at_level(logging.WARNING), Producer(gateway.url) as p:
        assert p.send("t", b"x").result(20) == 0
    assert not garbage
    assert gateway.log.values() == [b"x"]
    assert "127.0.0.1" in caplog.text
