"""Tests of receipts as futures: `concurrent.futures` and `asyncio` wait for them, in any thread and at any time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import random
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future

import pytest

from tutti.batching.receipt import Batch, Failure, Receipt
from tutti.errors import Aborted, TuttiError


def opened(count: int = 3) -> tuple[Batch, list[Receipt]]:
    """A batch in flight and its receipts."""
    batch = Batch("t", 0, 0.0)
    batch.count = count
    return batch, [Receipt(batch, index) for index in range(count)]


def publish(batch: Batch, offset: int = 10, error: TuttiError | None = None) -> None:
    """Do what the I/O thread does with an outcome."""
    batch.resolve(offset, Failure(error) if error else None)
    batch.finish()
    batch.announce()


def test_a_receipt_is_a_future_and_stays_small() -> None:
    _, (receipt, *_) = opened()
    assert isinstance(receipt, Future)
    assert isinstance(receipt, Receipt)
    assert type(receipt) is Receipt
    assert sys.getsizeof(receipt) == 32
    assert not gc.is_tracked(receipt)
    assert (receipt.cancel(), receipt.cancelled(), receipt.running()) == (False, False, True)


def test_wait_returns_when_all_have_an_outcome() -> None:
    (first, early), (second, late) = opened(), opened()
    publish(first)
    timer = threading.Timer(0.05, publish, [second, -1, Aborted("lost")])
    timer.start()
    done, not_done = concurrent.futures.wait([*late, *early], timeout=20)
    assert (done, not_done) == ({*early, *late}, set())
    assert [receipt.exception() for receipt in early] == [None] * 3
    assert [str(receipt.exception()) for receipt in late] == ["lost"] * 3


def test_wait_returns_at_its_timeout_and_at_the_first_outcome_or_error() -> None:
    (first, early), (second, late) = opened(), opened(2)
    assert concurrent.futures.wait(early, timeout=0.01) == (set(), set(early))
    threading.Timer(0.05, publish, [first]).start()
    done, not_done = concurrent.futures.wait([*early, *late], timeout=20, return_when=FIRST_COMPLETED)
    assert done
    assert done <= set(early)
    assert not_done >= set(late)
    threading.Timer(0.05, publish, [second, -1, Aborted("lost")]).start()
    done, _ = concurrent.futures.wait([*early, *late], timeout=20, return_when=FIRST_EXCEPTION)
    assert done & set(late)


def test_as_completed_gives_each_receipt_once() -> None:
    batches = [opened() for _ in range(4)]
    receipts = [receipt for _, found in batches for receipt in found]
    for number, (batch, _) in enumerate(batches):
        threading.Timer(0.02 * number, publish, [batch, 10 * number]).start()
    given = list(concurrent.futures.as_completed(receipts, timeout=20))
    assert len(given) == len(receipts)
    assert {receipt.result() for receipt in given} == {10 * number + index for number in range(4) for index in range(3)}


def test_threads_that_wait_for_the_same_batches_in_any_order_end() -> None:
    """With a lock for each batch, two threads that take the locks in different orders would wait for each other."""
    batches = [opened(20) for _ in range(20)]
    receipts = [receipt for _, found in batches for receipt in found]
    counts = []

    def wait() -> None:
        for _ in range(5):
            chosen = random.sample(receipts, 200)
            counts.append(len(concurrent.futures.wait(chosen, timeout=60).done))

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for batch, _ in batches:
        publish(batch)
    for thread in threads:
        thread.join(60)
    assert counts == [200] * 20


def test_callbacks_run_once_before_and_after_the_outcome(caplog: pytest.LogCaptureFixture) -> None:
    batch, (receipt, other, _) = opened()
    called: list[Receipt] = []
    receipt.add_done_callback(called.append)
    receipt.add_done_callback(called.append)
    other.add_done_callback(lambda _: sys.exit(1))
    other.add_done_callback(called.append)
    assert called == []
    publish(batch)
    assert called == [receipt, receipt, other]
    receipt.add_done_callback(called.append)
    assert called == [receipt, receipt, other, receipt]
    assert "a callback of a record to topic t raised" in caplog.text
    assert not batch.calls


def test_a_callback_that_races_with_the_outcome_runs_once() -> None:
    for _ in range(300):
        batch, (receipt, *_) = opened()
        called: list[Receipt] = []
        thread = threading.Thread(target=publish, args=(batch,))
        thread.start()
        receipt.add_done_callback(called.append)
        thread.join()
        assert called == [receipt]


def test_await_and_wrap_future() -> None:
    async def run() -> None:
        batch, receipts = opened()
        wrapped = asyncio.wrap_future(receipts[1])
        threading.Timer(0.02, publish, [batch]).start()
        assert await asyncio.wait_for(asyncio.gather(*receipts, wrapped), 20) == [10, 11, 12, 11]
        assert await receipts[2] == 12
        batch, receipts = opened()
        threading.Timer(0.02, publish, [batch, -1, Aborted("lost")]).start()
        for receipt in receipts:
            with pytest.raises(Aborted, match="lost"):
                await receipt
        with pytest.raises(Aborted, match="lost"):
            await asyncio.wrap_future(receipts[0])

    asyncio.run(run())


def test_a_cancelled_await_changes_nothing_for_others() -> None:
    async def run() -> None:
        batch, (receipt, *_) = opened()

        async def wait() -> int:
            return await receipt

        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        wrapped = asyncio.wrap_future(receipt)
        await asyncio.sleep(0)
        tasks[0].cancel()
        wrapped.cancel()
        await asyncio.wait({tasks[0]})
        assert batch.calls is not None
        assert len(batch.calls) == 3, "of two tasks and of the wrapped future"
        threading.Timer(0.02, publish, [batch]).start()
        assert await asyncio.gather(*tasks[1:]) == [10, 10]
        assert await receipt == 10
        assert tasks[0].cancelled()

    asyncio.run(run())


def test_thousands_of_waits_share_few_wakeups(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> int:
        loop, count = asyncio.get_running_loop(), 0
        real = loop.call_soon_threadsafe

        def counted(*args: object) -> object:
            nonlocal count
            count += 1
            return real(*args)  # type: ignore[arg-type]  # passed on as they came

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        batch, receipts = opened(5000)
        waiting = asyncio.gather(*receipts)
        await asyncio.sleep(0)
        thread = threading.Thread(target=publish, args=(batch,))
        thread.start()
        assert await waiting == list(range(10, 5010))
        thread.join()
        return count

    assert asyncio.run(run()) <= 500


def test_an_outcome_after_the_end_of_the_loop_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    batch, (receipt, other, _) = opened()

    async def run() -> None:
        for waited in (receipt, other):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waited, 0.01)
        asyncio.get_running_loop().create_task(asyncio.wait_for(receipt, 60))
        receipt.add_done_callback(called.append)  # in a loop that has ended when the outcome comes
        await asyncio.sleep(0)

    called: list[object] = []
    asyncio.run(run())
    publish(batch)
    assert receipt.result(0) == 10
    assert (called, caplog.records) == ([], [])
