"""Tests of the fast path of `Producer.send`: it gives the result of the slow path, and threads and signals leave it consistent."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.unit.client.batching.accumulators import closed, deliver, feed_of
from tutti.batching import appender
from tutti.batching.receipt import Receipt
from tutti.data.frames.schema import decode_batch
from tutti.errors import TuttiError
from tutti.producer import Producer


@pytest.fixture(params=["compiled", "python"])
def producer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    """A producer with an accumulator and without a thread; with the compiled code, if it exists, and without."""
    if request.param == "python":
        monkeypatch.setattr(appender, "compiled", None)
    else:
        assert appender.compiled is not None, "setup compiled nothing: apt-get install gcc python3-dev; rm .venv/.ready; make setup"
    with _bare_producer() as bare:
        yield bare


@contextmanager
def _bare_producer() -> Iterator[Producer]:
    bare = Producer.__new__(Producer)
    bare._io, bare._accumulator, bare._topics, bare._closed = None, feed_of(buffer_bytes=1 << 40), set(), False
    bare._spool = None
    bare._appenders = bare._accumulator.appenders
    yield bare


def test_the_short_way_and_the_long_way_are_one(producer: Producer) -> None:
    feed = producer._accumulator
    sent: list[tuple[bytes | None, bytes | None]] = []
    for number in range(2000):
        value = None if number % 31 == 0 else b"v%d" % number
        key = b"k%d" % number if number % 7 == 0 else None
        headers = [("n", b"h")] if number % 53 == 0 else ()
        receipt = producer.send("t", value, key, None, headers)
        sent.append((key, value))
        assert receipt.topic == "t"
    closed(feed)
    batches = [decode_batch(batch.body) for batch in feed.queue]
    assert [pair for batch in batches for pair in zip(*(batch.column(at).to_pylist() for at in (0, 1)), strict=True)] == sent
    with_headers = [row for batch in batches for row in batch.column(3).to_pylist()]
    assert [number for number, row in enumerate(with_headers) if row] == list(range(0, 2000, 53))


def test_many_threads_lose_nothing_and_each_keeps_its_order(producer: Producer) -> None:
    feed = producer._accumulator
    receipts: dict[tuple[int, int], Receipt] = {}

    def work(thread: int) -> None:
        for number in range(3000):
            key = b"k" if number % 5 == 0 else None
            receipts[thread, number] = producer.send("t", b"%d %d" % (thread, number), key)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    closed(feed)
    offset = 0
    values: list[Any] = []
    for batch in feed.queue:
        values += decode_batch(batch.body).column(1).to_pylist()
        batch.resolve(offset)
        batch.finish()
        offset += batch.count
    assert feed.pending_records == len(values) == 18_000
    for (sender, number), receipt in receipts.items():
        assert values[receipt.result(0)] == b"%d %d" % (sender, number)
    for sender in range(6):
        mine = [int(value.split()[1]) for value in values if value.startswith(b"%d " % sender)]
        assert mine == list(range(3000))


class _Struck(Exception):
    """What the signal raises, in place of KeyboardInterrupt."""


def test_a_signal_anywhere_in_send_leaves_the_accumulator_consistent(producer: Producer) -> None:
    feed = producer._accumulator
    receipts: list[Receipt] = []
    awaited: list[Receipt] = []
    heard: list[Receipt] = []
    struck = 0

    def tell(error: TuttiError | None, receipt: Receipt) -> None:
        heard.append(receipt)

    def strike(number: int, frame: object) -> None:
        raise _Struck

    before = signal.signal(signal.SIGALRM, strike)
    until_s = time.monotonic() + 20
    try:
        while struck < 300 and time.monotonic() < until_s:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + (struck % 17) * 0.00003)
                # Python drops an exception that a signal handler raises in a callback of the garbage collector or in a finalizer.
                # Without this bound the loop would then send for ever: the test's timer is also that of the time limit.
                for number in range(len(receipts), len(receipts) + 20_000):
                    told = tell if number % 4 == 0 else None
                    receipts.append(producer.send("t", b"%d" % number, b"k" if number % 3 == 0 else None, on_delivery=told))
                    if told is not None:
                        awaited.append(receipts[-1])
            except _Struck:
                struck += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert struck >= 300
    closed(feed)
    while feed.queue:
        batch = feed.head()
        assert batch is not None
        assert decode_batch(batch.body).num_rows == batch.count
        deliver(feed, 1)
        batch.announce()
    assert feed.undelivered() == 0
    assert len({(id(receipt.batch), receipt.index) for receipt in heard}) == len(heard), "one record, one callback"
    assert {id(receipt) for receipt in awaited} <= {id(receipt) for receipt in heard}
    assert all(receipt.done() for receipt in receipts)


@pytest.mark.parametrize("producer", ["python"], indirect=True)  # nothing strikes in the middle of what is compiled
@pytest.mark.parametrize("fault", [KeyError, TypeError, ValueError, KeyboardInterrupt])
def test_an_exception_of_a_signal_handler_is_raised_and_the_record_removed(
    producer: Producer, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]
) -> None:
    """The clock acts as the signal, because it is read last, in the middle of a record."""
    feed, due = producer._accumulator, [False]

    def clock() -> float:
        if due[0]:
            raise fault
        return 1.0

    monkeypatch.setattr(appender, "_clock", clock)
    for value in (b"0", b"1", b"2"):
        producer.send("t", value)
    due[0] = True
    with pytest.raises(fault):
        producer.send("t", b"3", b"k", on_delivery=lambda *_: None)
    due[0] = False
    producer.send("t", b"4")
    assert closed(feed) == [[b"0"], [b"1", b"2", b"4"]]
    assert not feed.queue[-1].callbacks
