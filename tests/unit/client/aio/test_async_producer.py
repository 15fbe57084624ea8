"""Tests of AsyncProducer over a fake gateway: offsets, back-pressure without a blocked loop, cancellation, failures and the end."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.client.fake_gateway import FakeGateway, deliver_within
from tutti import limits
from tutti.aio import AsyncProducer
from tutti.aio.producer import _OverflowingProducer
from tutti.batching.receipt import Receipt
from tutti.data.frames.frame import Frame
from tutti.errors import Aborted, BufferFull, Fenced, TooLarge, Unavailable, Unknown, UsageError
from tutti.producer import Producer

WAIT_S = 20.0


class HeldGateway(FakeGateway):
    """A gateway that handles no frame before `gate` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        super().__init__(lane="of-g1", rule=self._hold)

    def _hold(self, heard: object) -> None:
        if isinstance(heard, Frame):
            assert self.gate.wait(60)


@pytest.fixture
def held() -> Iterator[HeldGateway]:
    gateway = HeldGateway()
    with gateway:
        yield gateway
        gateway.gate.set()


def small(gateway: FakeGateway, **options: Any) -> AsyncProducer:
    """A producer with the smallest buffer."""
    return AsyncProducer(gateway.url, producer="p", buffer_bytes=limits.BUFFER_BYTES_MIN, **options)


def waits(p: AsyncProducer) -> bool:
    """Return True if records wait for space in the buffer."""
    return p._opened._accumulator.overflows()


def fill(p: AsyncProducer) -> int:
    """Send until a record waits for space; return the number of records, with that one."""
    for count in range(1, 1000):
        p.send("t", b"%d" % count + bytes(1000))
        if waits(p):
            return count
    raise AssertionError("the buffer never filled")


def numbers(gateway: FakeGateway) -> list[int]:
    return [int((value or b"").rstrip(b"\0")) for value in gateway.log.values()]


def test_await_send_gives_the_offset(gateway: FakeGateway) -> None:
    async def run() -> None:
        async with AsyncProducer(gateway.url, producer="p") as p:
            assert await p.send("t", b"0", key=b"k", headers=iter([("a", b"b")]), timestamp=1) == 0
            receipt = p.send("t", b"1", progress=b"at 1")
            assert await receipt == 1
            assert (receipt.offset, receipt.error, receipt.topic, receipt.count, receipt.done()) == (1, None, "t", 1, True)
            batch = p.send_batch("t", pa.record_batch({"value": pa.array([b"2", b"3"])}), progress=b"at 3")
            assert (await batch, batch.count) == (2, 2)
            assert await p.resume() == (4, b"at 3")
            assert (p.name, p.epoch, len(p), bool(p)) == ("p", 1, 0, True)
        assert gateway.log.values() == [b"0", b"1", b"2", b"3"]

    asyncio.run(run())


def test_without_a_url_the_environment_names_the_gateways(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTTI_URL", gateway.url)

    async def run() -> None:
        async with AsyncProducer() as p:
            assert await p.send("t", b"0") == 0
            assert repr(p).startswith(f"<AsyncProducer '{p.name}' of {gateway.url}, connected to ")

    asyncio.run(run())
    with Producer() as p:
        assert p.send("t", b"1").result(WAIT_S) == 1


def test_records_are_sent_without_await_in_the_order_of_the_calls(gateway: FakeGateway) -> None:
    async def run() -> None:
        async with AsyncProducer(gateway.url) as p:
            receipts = [p.send("t", b"%d" % number) for number in range(20_000)]
            assert await p.flush(WAIT_S) == 0
            assert [await receipt for receipt in receipts] == list(range(20_000))
            assert await asyncio.gather(*receipts[:10]) == list(range(10))
        assert numbers(gateway) == list(range(20_000))

    asyncio.run(run())


def test_errors_of_arguments_and_records(gateway: FakeGateway) -> None:
    with pytest.raises(UsageError, match="on_full='wait' is unknown"):
        AsyncProducer(gateway.url, on_full="wait")  # type: ignore[arg-type]  # the mistake under test

    async def run() -> None:
        with pytest.raises(Unavailable):
            await AsyncProducer("tutti://127.0.0.1:1", connect_timeout=0.05).open()
        p = AsyncProducer(gateway.url)
        for call in (lambda: p.send("t", b""), lambda: p.send_batch("t", None), lambda: len(p), lambda: p.name):  # type: ignore[arg-type]  # never reached
            with pytest.raises(UsageError, match="is not open: use `async with"):
                call()
        with pytest.raises(UsageError, match="is not open"):
            await p.flush()
        async with p:

            async def called(error: object, receipt: object) -> None:
                raise AssertionError

            with pytest.raises(UsageError, match="a plain function, not a coroutine function: in a coroutine, await the receipt"):
                p.send("t", b"", on_delivery=called)
            mistakes: list[dict[str, Any]] = [{"on_delivery": 5}, {"value": 5}, {"headers": 5}, {"ordering": "any"}, {"key": "k"}]
            for wrong in mistakes:
                with pytest.raises(UsageError):
                    p.send("t", **{"value": b"", **wrong})
        for call in (lambda: p.send("t", b""), lambda: p.send_batch("t", None)):  # type: ignore[arg-type]  # never reached
            with pytest.raises(UsageError, match="the producer is closed"):
                call()
        with pytest.raises(UsageError, match="open or closed already"):
            await p.open()
        await p.close()

    asyncio.run(run())


def test_a_full_buffer_never_blocks_the_loop_and_keeps_the_order(held: HeldGateway) -> None:
    async def run() -> None:
        async with small(held) as p:
            count = fill(p)

            async def send(number: int) -> int:
                return await p.send("t", b"%d" % number + bytes(1000))

            tasks = [asyncio.create_task(send(number)) for number in range(count + 1, 500)]
            draining = asyncio.create_task(p.drain())
            await asyncio.sleep(0.05)  # the loop runs
            assert not any(task.done() for task in tasks)
            assert not draining.done()
            assert len(p) == 499
            assert await p.flush(0.01) == 499
            held.gate.set()
            assert await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S) == list(range(count, 499))
            await draining
            assert await p.flush(WAIT_S) == 0
        assert numbers(held) == list(range(1, 500))

    asyncio.run(run())


def test_the_receipt_of_a_record_that_waits_is_like_every_other(held: HeldGateway) -> None:
    async def run() -> None:
        async with small(held) as p:
            early = p.send("t", b"early")
            count = fill(p)
            called: list[object] = []
            receipt = p.send(
                "t",
                b"last",
                headers=iter([("name", b"value")]),
                on_delivery=lambda error, delivered: called.append((error, delivered)),
            )
            assert waits(p)
            assert type(receipt) is type(early) is Receipt
            assert (receipt.done(), receipt.running(), receipt.offset, receipt.error) == (False, True, None, None)
            assert (receipt.lane, receipt.topic, receipt.count) == ("", "t", 1)
            for blocking in (receipt.result, receipt.exception, functools.partial(receipt.processed_by, "query")):
                with pytest.raises(TimeoutError):
                    await asyncio.to_thread(blocking, 0.01)
            with pytest.raises(UsageError, match="has no spool"):
                receipt.spooled(0)
            assert not receipt.cancel()
            ended = asyncio.Event()
            receipt.add_done_callback(lambda _: ended.set())
            batch = p.send_batch("t", pa.record_batch({"value": pa.array([b"a", b"b"])}))
            wrapped = asyncio.wrap_future(receipt)
            waiting = asyncio.create_task(asyncio.to_thread(concurrent.futures.wait, [receipt, batch], WAIT_S))
            held.gate.set()
            assert (await receipt, await batch, batch.count) == (count + 1, count + 2, 2)
            assert await asyncio.wait_for(wrapped, WAIT_S) == count + 1
            await asyncio.wait_for(ended.wait(), WAIT_S)
            done, not_done = await waiting
            assert (done, not_done) == ({receipt, batch}, set())
            assert (receipt.done(), receipt.offset, receipt.left, called) == (True, count + 1, True, [(None, receipt)])
            assert called[0][1] is receipt  # type: ignore[index]  # a pair
            assert repr(receipt) == f"<Receipt topic=t offset={count + 1} count=1>"
        assert held.log.values()[-3:] == [b"last", b"a", b"b"]
        assert [frame for frame in held.frames() if b"name" in bytes(frame.body)], "the record keeps its headers"

    asyncio.run(run())


def test_the_loop_may_block_for_the_receipt_of_a_record_that_waits(held: HeldGateway) -> None:
    """The I/O thread sends the record, so a blocked event loop delays other coroutines, but never the record."""

    async def run() -> None:
        async with small(held) as p:
            count = fill(p)
            receipt = p.send("t", b"%d" % (count + 1))
            threading.Timer(0.05, held.gate.set).start()
            assert receipt.result(WAIT_S) == count

    asyncio.run(run())


def test_cancelled_waits_send_nothing_and_harm_nobody(held: HeldGateway) -> None:
    async def run() -> None:
        async with small(held) as p:
            count = fill(p)
            receipt = p.send("t", b"%d" % (count + 1))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(p.drain(), 0.02)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(receipt, 0.02)

            async def wait() -> int:
                return await receipt

            other = asyncio.create_task(wait())
            held.gate.set()
            assert await asyncio.wait_for(other, WAIT_S) == count
            assert await receipt == count
        assert numbers(held) == list(range(1, count + 2))

    asyncio.run(run())


def test_a_full_buffer_raises_on_request_and_the_line_has_a_limit(held: HeldGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_OverflowingProducer, "overflow_bytes", 3 * limits.BUFFER_BYTES_MIN)

    async def run() -> None:
        async with small(held, on_full="raise") as p:
            with pytest.raises(BufferFull, match="on_full is 'raise'"):
                fill(p)
            with pytest.raises(BufferFull, match="on_full is 'raise'"):
                p.send_batch("t", pa.record_batch({"value": pa.array([bytes(60_000)])}))
            await p.drain()
            held.gate.set()
            assert await p.flush(WAIT_S) == 0
            held.gate.clear()
        async with small(held) as p:
            fill(p)
            with pytest.raises(BufferFull, match=r"bytes have no outcome yet, and the limit is .*: call `await producer\.drain"):
                collections.deque((p.send("t", bytes(1000)) for _ in range(1000)), maxlen=0)
            assert p.stats().bytes_buffered <= 4 * limits.BUFFER_BYTES_MIN
            unordered = p.send("t", b"other", ordering="unordered")
            held.gate.set()
            assert await unordered == 0

    asyncio.run(run())


@pytest.mark.parametrize("seen", [False, True])
def test_the_first_failure_that_nobody_saw_is_raised_at_the_end(gateway: FakeGateway, seen: bool) -> None:
    async def run() -> None:
        async with AsyncProducer(gateway.url) as p:
            receipt = p.send("t", bytes(limits.RECORD_BYTES_MAX + 1))
            if seen:
                with pytest.raises(TooLarge):
                    await receipt

    with contextlib.nullcontext() if seen else pytest.raises(TooLarge):
        asyncio.run(run())


def test_a_fenced_producer_fails_its_waiting_records(gateway: FakeGateway) -> None:
    async def run() -> None:
        async with small(gateway) as p:
            fill(p)
            waiting = p.send("t", b"waits")
            with Producer(gateway.url, producer="p"):
                gateway.rule = None
                with pytest.raises(Fenced):
                    await waiting
            with pytest.raises(Fenced):
                p.send("t", b"late")
            with pytest.raises(Fenced):
                await p.drain()

    gateway.rule = lambda heard: [] if isinstance(heard, Frame) else None
    asyncio.run(run())  # the application has seen the failure


def test_the_end_of_a_block_that_raises_fails_what_waits(
    held: HeldGateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EXIT_FLUSH_US", 50_000)
    receipts = []

    async def run() -> None:
        async with small(held) as p:
            fill(p)
            receipts.append(p.send("t", b"waits"))
            raise ZeroDivisionError

    with caplog.at_level(logging.ERROR), pytest.raises(ZeroDivisionError):
        asyncio.run(run())
    assert str(receipts[0].error) == "the producer was closed before the record had an outcome"
    assert "records not delivered" in caplog.text


def test_a_cancelled_end_still_closes(held: HeldGateway) -> None:
    async def run() -> None:
        p = small(held)

        async def use() -> None:
            async with p:
                p.send("t", b"1")

        task = asyncio.create_task(use())
        while not p._producer or not len(p):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        task.cancel()
        threading.Timer(0.1, held.gate.set).start()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(UsageError, match="the producer is closed"):
            p.send("t", b"2")
        assert held.log.values() == [b"1"]

    asyncio.run(run())


def test_close_raises_no_failure(gateway: FakeGateway) -> None:
    async def run() -> None:
        p = await AsyncProducer(gateway.url).open()
        receipt = p.send("t", bytes(limits.RECORD_BYTES_MAX + 1))
        p.send("t", b"fine")
        await p.close()
        await p.close()
        assert isinstance(receipt.error, TooLarge)
        assert gateway.log.values() == [b"fine"]

    asyncio.run(run())


def test_a_producer_works_in_every_event_loop_and_thread(held: HeldGateway) -> None:
    p = small(held)

    async def use(number: int) -> None:
        assert await p.send("t", b"%d" % number) == number
        assert await p.send("t", b"%d" % (number + 1), timestamp=1) == number + 1
        assert await p.send_batch("t", pa.record_batch({"value": pa.array([b"%d" % (number + 2)])})) == number + 2
        await p.drain()
        assert await p.flush() == 0
        assert (await p.resume()).sequence == number + 3

    async def fill_up() -> None:
        held.gate.clear()
        fill(p)

    held.gate.set()
    with asyncio.Runner() as runner:
        runner.run(p.open())
        runner.run(use(0))
    asyncio.run(use(3))
    assert p.send("t", b"without a loop", timestamp=1).result(WAIT_S) == 6
    asyncio.run(fill_up())
    waiting = p.send("t", b"after the end of the loop")
    held.gate.set()
    assert waiting.result(WAIT_S) > 6, "no event loop is needed to send the records that wait for space"
    asyncio.run(p.close())
    with pytest.raises(UsageError, match="is closed"):
        p.send("t", b"")


def test_a_spool_takes_records_while_no_gateway_is_there(spool: Path) -> None:
    async def run() -> None:
        async with AsyncProducer("tutti://127.0.0.1:1", producer="p", spool=spool, delivery_timeout=0.3) as p:
            receipt = p.send("t", b"kept")
            await asyncio.to_thread(receipt.spooled, WAIT_S)
            assert p.spool.records == 1
            assert await p.flush(0.05) == 1

    asyncio.run(run())


def test_at_the_deadline_only_a_record_that_was_sent_is_unknown(gateway: FakeGateway) -> None:
    gateway.window_bytes = 1
    gateway.rule = lambda heard: [] if isinstance(heard, Frame) else None

    async def run() -> list[Any]:
        async with AsyncProducer(gateway.url, producer="p", delivery_timeout=60) as p:
            assert p._producer is not None
            deliver_within(p._producer, 1)
            sent = p.send("t", b"1")
            while not sent.left:
                await asyncio.sleep(0.01)
            return list(await asyncio.gather(sent, p.send("t", b"2"), p.send("t", b"3"), return_exceptions=True))

    assert [type(error) for error in asyncio.run(run())] == [Unknown, Aborted, Aborted]


def test_after_an_abort_resume_continues(gateway: FakeGateway) -> None:
    async def run() -> None:
        async with AsyncProducer(gateway.url, producer="p", delivery_timeout=0.3) as p:
            assert await p.send("t", b"1", progress=b"1") == 0
            gateway.rule = lambda heard: [] if isinstance(heard, Frame) else None
            with pytest.raises(Unknown):
                await p.send("t", b"2", progress=b"2")
            with pytest.raises((Aborted, Unknown)):
                p.send("t", b"3", progress=b"3")
            gateway.rule = None
            assert await p.resume() == (1, b"1")
            assert await p.send("t", b"2", progress=b"2") == 1

    asyncio.run(run())


def test_a_record_that_waits_has_copies_of_its_parts(held: HeldGateway) -> None:
    """The application reuses a bytearray, a list of headers and a progress for each record."""

    async def run() -> None:
        async with small(held) as p:
            value, progress, headers = bytearray(1000), bytearray(3), [("n", b"")]
            sent = []
            for number in range(200):
                value[:3] = progress[:] = b"%03d" % number
                headers[0] = ("n", b"%d" % number)
                sent.append(p.send("t", value, progress=progress, headers=headers))  # type: ignore[arg-type]  # any buffer is accepted
            assert waits(p)
            for wrong in ({"topic": ""}, {"value": "text"}, {"ordering": "nope"}, {"progress": b""}):
                with pytest.raises(UsageError):
                    p.send(**{"topic": "t", "value": b"", **wrong})  # type: ignore[arg-type]  # what is refused
            held.gate.set()
            await asyncio.gather(*sent)
            assert (await p.resume()).progress == b"199"

    asyncio.run(run())
    assert numbers(held) == list(range(200))


def test_drain_with_a_spool_waits_for_the_buffer_only(spool: Path) -> None:
    async def run() -> None:
        p = AsyncProducer("tutti://127.0.0.1:1", producer="p", spool=spool, buffer_bytes=limits.BUFFER_BYTES_MIN)
        await p.open()
        for _ in range(5):
            for _ in range(100):
                p.send("t", bytes(1000))
            await asyncio.wait_for(p.drain(), WAIT_S)
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(p.close(), 0.1)

    asyncio.run(run())


def test_a_cancelled_open_is_continued_by_the_next_one() -> None:
    """A second session would fence the first one, or the first one would fence it."""

    async def run() -> None:
        held = HeldGateway()
        with held:
            p = AsyncProducer(held.url, producer="p")
            opening = asyncio.ensure_future(p.open())
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            with pytest.raises(UsageError, match="not open"):
                len(p)
            await asyncio.wait_for(p.open(), WAIT_S)
            held.gate.set()
            assert await asyncio.wait_for(p.send("t", b"1"), WAIT_S) == 0
            assert p.epoch == 1
            await p.close()

    asyncio.run(run())


def test_asyncio_wait_accepts_receipts(gateway: FakeGateway) -> None:
    async def run() -> None:
        async with AsyncProducer(gateway.url, producer="p") as p:
            receipts = [p.send("t", b"%d" % number) for number in range(3)]
            done, pending = await asyncio.wait_for(asyncio.wait(receipts), WAIT_S)  # type: ignore[type-var]  # a receipt is no asyncio.Future
            assert (len(done), len(pending)) == (3, 0)

    asyncio.run(run())


def test_a_full_spool_is_reported_at_the_end_of_the_block(spool: Path) -> None:
    """Records that the spool has no space for are lost with the process, so the block must not end as if all were safe."""

    async def run() -> None:
        async with AsyncProducer(
            "tutti://127.0.0.1:1", producer="p", spool=spool, spool_bytes=limits.SPOOL_BYTES_MIN, delivery_timeout=1
        ) as p:
            records = limits.SPOOL_BYTES_MIN // 100_000 + 100
            receipts = [p.send("t", bytes(100_000)) for _ in range(records)]
            await asyncio.to_thread(receipts[0].spooled, WAIT_S)
            draining = asyncio.create_task(p.drain())
            while p.spool.used_bytes < limits.SPOOL_BYTES_MIN - 2 * limits.BATCH_BYTES:
                await asyncio.sleep(0.01)
            assert not draining.done(), "the spool is full"
            draining.cancel()
        raise AssertionError("the block ended as if all records were safe")

    with pytest.raises(BufferFull, match="closed while the record waited for space in spool"):
        asyncio.run(run())
    assert sum(file.stat().st_size for file in spool.iterdir()) <= limits.SPOOL_BYTES_MIN
    with FakeGateway() as gateway, Producer(gateway.url, producer="p", spool=spool) as p:
        assert p.flush(WAIT_S) == 0
        assert 100 <= len(gateway.log.values()) <= limits.SPOOL_BYTES_MIN // 100_000, "what is in the spool commits"


def test_a_producer_that_was_closed_before_it_opened_stays_closed(gateway: FakeGateway) -> None:
    async def run() -> None:
        p = AsyncProducer(gateway.url, producer="p")
        await p.close()
        with pytest.raises(UsageError, match="open or closed already"):
            await p.open()

    asyncio.run(run())


def test_drain_waits_for_the_buffer_of_the_ordering_that_was_full(held: HeldGateway) -> None:
    """Ordered and unordered records have a buffer each, and a full one must not hold the other back."""

    async def run() -> None:
        async with small(held) as p:
            unordered = p._opened._unordered()
            unordered.buffered += limits.BUFFER_BYTES_MIN  # as if the gateway of its lane did not answer
            fill(p)
            ordered = p._opened._accumulator
            held.gate.set()
            await asyncio.wait_for(p.drain(), WAIT_S)
            unordered.buffered -= limits.BUFFER_BYTES_MIN
            assert ordered.buffered <= limits.BUFFER_BYTES_MIN * 3 // 4

    asyncio.run(run())


def test_no_call_needs_the_default_executor(gateway: FakeGateway, spool: Path) -> None:
    """Blocking work of the application may fill the default executor of the event loop."""
    release = threading.Event()

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        blocking = asyncio.create_task(asyncio.to_thread(release.wait, 60))
        await asyncio.sleep(0)
        for options in ({}, {"spool": spool}):
            async with asyncio.timeout(WAIT_S):
                async with AsyncProducer(gateway.url, producer="p", **options) as p:  # type: ignore[arg-type]  # keyword arguments
                    p.send("t", b"1", progress=b"1")
                    assert await p.flush() == 0
                    assert (await p.resume()).progress == b"1"
                await (await AsyncProducer(gateway.url).open()).close()
                with contextlib.suppress(ZeroDivisionError):
                    async with AsyncProducer(gateway.url):
                        raise ZeroDivisionError
        assert not blocking.done()
        release.set()
        await blocking

    asyncio.run(run())


def test_cancelled_waits_leave_no_thread_and_no_call(held: HeldGateway) -> None:
    async def run() -> None:
        async with small(held) as p:
            fill(p)
            threads = set(threading.enumerate())
            for wait in (p.flush, p.drain, p.flush):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(wait(), 0.02)
            assert await p.flush(0) > 0
            assert set(threading.enumerate()) <= threads
            assert not p._opened._accumulator.changed.calls
            held.gate.set()
            assert await p.flush(WAIT_S) == 0

    asyncio.run(run())


def test_flush_waits_for_unordered_records_and_closes_open_batches(held: HeldGateway) -> None:
    async def run() -> None:
        async with AsyncProducer(held.url, linger=30) as p:
            receipts = [p.send("t", b"1"), p.send("t", b"2", ordering="unordered")]
            assert await p.flush(0.05) == 2
            held.gate.set()
            assert await p.flush(WAIT_S) == 0
            assert all(receipt.done() for receipt in receipts)

    asyncio.run(run())


def test_resume_waits_for_an_epoch_and_can_be_cancelled(gateway: FakeGateway, spool: Path) -> None:
    async def run() -> None:
        async with AsyncProducer("tutti://127.0.0.1:1", producer="p", spool=spool, delivery_timeout=0.1) as p:
            threads = set(threading.enumerate())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(p.resume(), 0.05)
            with pytest.raises(Unavailable, match=r"no open epoch after 0\.05 s"):
                await p.resume(0.05)
            assert set(threading.enumerate()) <= threads

    asyncio.run(run())


def test_a_batch_that_waits_has_a_copy_of_its_buffers(held: HeldGateway) -> None:
    """The application reuses the memory of a record batch: a bytearray, or an array of numpy."""

    async def run() -> None:
        async with small(held) as p:
            value, offsets = bytearray(2000), np.zeros(3, np.int32)
            batch = pa.RecordBatch.from_arrays(
                [pa.Array.from_buffers(pa.binary(), 2, [None, pa.py_buffer(offsets.data), pa.py_buffer(value)])], ["value"]
            )
            count = 0
            while not waits(p) or count < 200:
                value[:] = b"%04d" % count + bytes(996) + b"%04d" % (count + 1) + bytes(996)
                offsets[:] = (0, 1000, 2000)
                p.send_batch("t", batch)
                value[:], offsets[:] = bytes(2000), 0
                count += 2
            held.gate.set()
        assert numbers(held) == list(range(count))

    asyncio.run(run())


def test_the_wrong_kind_of_with_is_an_error_with_the_remedy(gateway: FakeGateway) -> None:
    wrong: Any = AsyncProducer(gateway.url)
    with pytest.raises(UsageError, match="use `async with AsyncProducer"), wrong:
        pass


def test_the_end_of_a_block_waits_once_for_spooled_records(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    close = Producer._close

    def record(self: Producer, timeout: float | None) -> None:
        waits.append(timeout)
        close(self, timeout)

    monkeypatch.setattr(Producer, "_close", record)

    async def run() -> None:
        async with AsyncProducer("tutti://127.0.0.1:1", producer="p", spool=spool, delivery_timeout=0.1) as p:
            p.send("t", b"1")

    asyncio.run(run())
    assert waits == [0.0]
