"""Tests of the accumulator: which records share a batch, what the buffer bounds, and how it stops."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import pytest

from tests.unit.client.batching.accumulators import closed, deliver, feed_of, send
from tests.unit.client.fake_gateway import FakeGateway, until
from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.options import BatchingOptions
from tutti.batching.receipt import Batch, Failure, Receipt, Resume, outcome_thread
from tutti.data.frames.schema import decode_batch
from tutti.errors import Aborted, BufferFull, TooLarge, TuttiError, Unknown, UsageError


def test_a_lone_record_leaves_at_once_and_the_next_ones_gather() -> None:
    feed = feed_of()
    send(feed, b"0")
    assert len(feed.queue) == 1
    for value in (b"1", b"2", b"3"):
        send(feed, value)
    assert len(feed.queue) == 1
    deliver(feed)
    assert closed(feed) == [[b"1", b"2", b"3"]]


def test_a_batch_is_closed_when_it_is_full() -> None:
    feed = feed_of(batch_bytes=1024)
    for number in range(100):
        send(feed, bytes([number]) * 100)
    batches = closed(feed)
    assert [value for batch in batches for value in batch] == [bytes([number]) * 100 for number in range(100)]
    assert {len(batch) for batch in batches[1:-1]} == {1024 // 121}
    assert all(batch.size <= 1024 + 1024 for batch in feed.queue)


def test_a_record_larger_than_a_batch_goes_alone() -> None:
    feed = feed_of(batch_bytes=1024)
    for size in (10, 5000, 10):
        send(feed, b"x" * size)
    assert [len(batch) for batch in closed(feed)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("quotas", "counts"),
    [
        ({"records_per_s": 100}, [1, 10, 10, 10, 9]),
        ({"records_per_s": 5}, [1] * 40),
        ({"bytes_per_s": 1210}, [1] * 40),
        ({"bytes_per_s": 12_100}, [1, 10, 10, 10, 9]),
        ({"bytes_per_s": 12_100, "records_per_s": 50}, [1, *[5] * 7, 4]),
        ({}, [1, 39]),
    ],
)
def test_a_quota_limits_the_records_of_a_batch(quotas: dict[str, int], counts: list[int]) -> None:
    feed = feed_of()
    with FakeGateway() as gateway:
        feed.set_limits(msgspec.structs.replace(gateway.welcome(), **quotas))
    for _ in range(40):
        send(feed, b"x" * 100)  # 121 bytes with the overhead of a record
    assert [len(batch) for batch in closed(feed)] == counts


def test_another_topic_closes_the_batch() -> None:
    feed = feed_of()
    for topic in "aabba":
        send(feed, topic=topic)
    closed(feed)
    assert [(batch.topic, batch.count) for batch in feed.queue] == [("a", 1), ("a", 1), ("b", 2), ("a", 1)]


def test_progress_belongs_to_the_last_record_of_its_batch() -> None:
    feed = feed_of()
    send(feed, b"0")
    send(feed, b"1")
    send(feed, b"2", progress=b"p2")
    send(feed, b"3", progress=b"p3")
    send(feed, b"4")
    send(feed, b"5", progress=b"p5")
    send(feed, b"6", progress=b"p6")
    assert closed(feed) == [[b"0"], [b"1", b"2", b"3"], [b"4", b"5", b"6"]]
    assert [batch.progress for batch in feed.queue] == [b"", b"p3", b"p6"]


def test_a_corked_accumulator_keeps_a_lone_record_until_it_is_uncorked() -> None:
    feed = feed_of()
    feed.cork()
    for value in (b"0", b"1"):
        send(feed, value)
    deliver(feed)
    assert not feed.queue
    feed.uncork()
    assert [batch.count for batch in feed.queue] == [2]
    send(feed, b"2")
    feed.cork()
    feed.uncork()
    assert [batch.count for batch in feed.queue] == [2], "it waits behind what is in flight"
    deliver(feed)
    assert [batch.count for batch in feed.queue] == [1]
    lingers = feed_of(linger=1000.0)
    lingers.cork()
    send(lingers)
    lingers.uncork()
    assert not lingers.queue


def test_records_that_callbacks_send_gather_in_one_batch_with_an_appender_from_the_second_one_on() -> None:
    feed = feed_of()
    feed.cork()
    send(feed, b"1")
    assert not feed.appenders
    send(feed, b"2")
    assert feed.appenders["t"](b"3") is not None
    feed.uncork()
    assert not feed.appenders
    assert closed(feed) == [[b"1", b"2", b"3"]]


def test_with_linger_a_batch_waits_for_it_and_no_longer() -> None:
    now = 100.0
    feed = Accumulator(BatchingOptions(linger=5.0), lambda: now)
    send(feed, b"0")
    send(feed, b"1")
    assert not feed.queue
    assert feed.linger_until == now + 5.0
    feed.expire_linger(104.9)
    assert not feed.queue
    feed.expire_linger(105.0)
    assert [batch.count for batch in feed.queue] == [2]
    deliver(feed)
    feed.expire_linger(1e9)
    assert not feed.queue
    send(feed, b"2")
    assert feed.linger_until == 105.0


def test_flush_sends_lingering_records() -> None:
    feed = feed_of(linger=1000.0)
    send(feed, b"0")
    assert feed.flush(0.0) == 1
    assert len(feed.queue) == 1
    deliver(feed)
    assert feed.flush(0.0) == 0


@pytest.mark.parametrize("whole", [False, True])
def test_a_full_buffer_raises_on_request(whole: bool) -> None:
    feed = feed_of(batch_bytes=10_000, buffer_bytes=65_536, block=False)
    with pytest.raises(BufferFull, match="buffer_bytes=65536"):
        _fill(feed, whole)
    assert 40_000 < feed.buffered <= 65_536
    deliver(feed)
    assert feed.buffered == 0
    send(feed)


def _fill(feed: Accumulator, whole: bool) -> None:
    for number in range(1000):
        if whole:
            _send_whole(feed, 5000)
        else:
            send(feed, b"x" * 500, topic=f"t{number % 2}")


def _send_whole(feed: Accumulator, size: int) -> Receipt:
    import pyarrow as pa

    from tutti.batching.encoder import validated_batch

    records = validated_batch(pa.record_batch({"value": pa.array([b"v" * size], pa.binary())}), 1)
    return feed.add_batch("t", records, b"", None)


def test_a_full_buffer_blocks_senders_until_it_has_free_space() -> None:
    feed = feed_of(batch_bytes=10_000, buffer_bytes=65_536)
    sent = []

    def work() -> None:
        for number in range(500):
            send(feed, b"%d" % number + b"x" * 500)
            sent.append(number)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    values: list[Any] = []
    while len(values) < 500:
        until(lambda: feed.queue or not thread.is_alive())
        assert feed.buffered <= 65_536
        if not feed.queue:
            closed(feed)
        batch = feed.head()
        assert batch is not None
        values += decode_batch(batch.body).column(1).to_pylist()
        deliver(feed, 1)
    thread.join()
    assert [int(value.rstrip(b"x")) for value in values] == list(range(500))


def test_a_record_larger_than_the_whole_buffer_passes_when_it_is_empty() -> None:
    feed = feed_of(batch_bytes=1024, buffer_bytes=65_536, block=False)
    send(feed, b"x" * 100_000)
    with pytest.raises(BufferFull):
        send(feed, b"y")


def test_no_waiting_where_outcomes_are_brought() -> None:
    feed = feed_of(batch_bytes=1024, buffer_bytes=65_536)
    receipt = send(feed, b"x" * 100_000)
    outcome_thread.here = True
    try:
        with pytest.raises(BufferFull, match="on_delivery"):
            send(feed, b"y")
        with pytest.raises(UsageError, match="on_delivery"):
            receipt.result(1)
        with pytest.raises(UsageError, match="on_delivery"):
            feed.flush(1)
    finally:
        outcome_thread.here = False


def test_a_record_over_a_limit_has_a_failed_receipt_and_affects_no_other() -> None:
    feed = feed_of()
    told: list[tuple[TuttiError | None, Receipt]] = []
    receipt = send(feed, b"x" * (limits.RECORD_BYTES_MAX + 1), on_delivery=lambda *outcome: told.append(outcome))
    with pytest.raises(TooLarge, match=r"4194305 bytes.*4194304 bytes for a record"):
        receipt.result(0)
    assert feed.undelivered() == 0
    feed.frame_bytes_max = 100_000
    with pytest.raises(TooLarge, match="100000 bytes for one batch"):
        send(feed, b"x" * 100_000).result(0)
    with pytest.raises(TooLarge, match="the limit of 100000 bytes for one batch: slice it"):
        _send_whole(feed, 100_000).result(0)
    feed.frame_bytes_max = limits.BODY_BYTES_MAX
    with pytest.raises(TooLarge, match="4194304 bytes for a record"):
        _send_whole(feed, limits.RECORD_BYTES_MAX + 1).result(0)
    send(feed, b"fine")
    assert closed(feed) == [[b"fine"]]
    for batch in feed.rejected:
        batch.announce()
    ((error, announced),) = told
    assert isinstance(error, TooLarge)
    assert announced is receipt


def test_a_stop_takes_everything_and_accepts_no_more() -> None:
    feed = feed_of()
    send(feed, b"0")
    send(feed, b"1")
    taken = feed.drain_unsent(Aborted("stop"))
    assert [batch.count for batch in taken] == [1, 1]
    for call in (send, lambda feed: _send_whole(feed, 10)):
        with pytest.raises(Aborted, match="stop"):
            call(feed)
    for batch in taken:
        batch.resolve(-1, Failure(Aborted("stop")))
    feed.finished(taken)
    feed.lift_stop()
    send(feed, b"2")
    feed.drain_unsent(Unknown("over"), ended=True)
    feed.lift_stop()
    with pytest.raises(Unknown, match="over"):
        send(feed)


def test_a_stop_wakes_a_waiting_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "POLL_US_MAX", 60_000_000)  # looking again cannot be what lets it hear
    feed = feed_of(batch_bytes=1024, buffer_bytes=65_536)
    waits = threading.Event()
    wait = feed.space_freed.wait

    def told_wait(timeout: float | None = None) -> bool:
        waits.set()
        return wait(timeout)

    monkeypatch.setattr(feed.space_freed, "wait", told_wait)
    send(feed, b"x" * 100_000)
    caught: list[BaseException] = []

    def work() -> None:
        try:
            send(feed, b"y")
        except TuttiError as error:
            caught.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert waits.wait(5)  # it holds the lock from here until it waits, and `seize` takes it
    feed.drain_unsent(Aborted("stop"))
    thread.join(5)
    assert [type(error) for error in caught] == [Aborted]


def test_failures_are_remembered_until_they_are_seen() -> None:
    feed = feed_of()
    failures = [Failure(Aborted(str(number))) for number in range(limits.FAILURES_KEPT_MAX + 10)]
    for failure in failures:
        send(feed)
        deliver(feed, 1, failure)
        failure.seen = failure is not failures[3] and failure is not failures[-1]
    assert feed.first_failure() is failures[3]
    failures[3].seen = True
    assert feed.first_failure() is failures[-1]
    assert len(feed.failures) <= limits.FAILURES_KEPT_MAX


def test_an_error_is_raised_as_a_copy_each_time() -> None:
    batch = Batch("t", 10, 0.0)
    batch.resolve(-1, Failure(Aborted("gone")))
    batch.finish()
    receipt = Receipt(batch, 0)
    caught = []
    for _ in range(2):
        with pytest.raises(Aborted, match="gone") as info:
            receipt.result(0)
        caught.append(info.value)
    assert caught[0] is not caught[1]
    assert caught[0].code == "aborted"
    assert isinstance(receipt.error, Aborted)
    assert receipt.offset is None


def test_many_wait_for_one_outcome() -> None:
    feed = feed_of()
    receipt = send(feed)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(receipt.result(10))) for _ in range(8)]
    for thread in threads:
        thread.start()
    with pytest.raises(TimeoutError, match=r"after 0\.01 s: the record is still in flight"):
        receipt.result(0.01)
    assert not receipt.done()
    deliver(feed)
    for thread in threads:
        thread.join(10)
    assert found == [0] * 8
    assert receipt.done()


def test_callbacks_are_called_once_each_and_their_errors_are_theirs(caplog: pytest.LogCaptureFixture) -> None:
    feed = feed_of()
    told: list[tuple[TuttiError | None, Receipt]] = []

    def bad(error: TuttiError | None, receipt: Receipt) -> None:
        raise RuntimeError("in the callback")

    send(feed, b"0")
    receipts = [send(feed, on_delivery=on_delivery) for on_delivery in (bad, lambda *outcome: told.append(outcome))]
    closed(feed)
    batch = feed.queue[-1]
    batch.resolve(7)
    batch.finish()
    batch.announce()
    batch.announce()
    assert told == [(None, receipts[1])]
    assert receipts[1].offset == 8
    assert "in the callback" in caplog.text


def test_waiting_for_an_epoch() -> None:
    feed = feed_of()
    assert feed.wait_opened(time.monotonic() + 0.01) is None
    threading.Timer(0.02, lambda: feed.set_opened(Resume(5, b"p"))).start()
    assert feed.wait_opened(time.monotonic() + 10) == (5, b"p")
