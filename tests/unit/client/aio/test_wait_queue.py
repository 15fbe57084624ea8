"""Tests of the queue of an AsyncProducer: order, turns of the event loop, and records that the producer refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tutti import limits
from tutti.aio.wait_queue import WaitingReceipt, WaitQueue
from tutti.batching.accumulator import do_nothing
from tutti.batching.receipt import Batch, Receipt
from tutti.errors import Aborted, BufferFull


def receipt_of(offset: int) -> Receipt:
    batch = Batch("t", 0, 0.0)
    batch.resolve(offset)
    batch.finish()
    return Receipt(batch, 0)


def waiting(send: Callable[[], Receipt]) -> WaitingReceipt:
    return WaitingReceipt("t", 1, 1000, send)


def test_a_long_line_moves_in_turns_so_that_other_coroutines_run() -> None:
    async def run() -> None:
        queue = WaitQueue(do_nothing)
        sent: list[int] = []

        def send() -> Receipt:
            sent.append(len(sent))
            return receipt_of(len(sent) - 1)

        receipts = [waiting(send) for _ in range(5 * limits.ASYNC_RECORDS_A_TURN)]
        for receipt in receipts:
            queue.append(receipt)
        seen = set()
        while queue.records:
            seen.add(len(sent))
            await asyncio.sleep(0)
        assert len(seen) == 5
        await queue.empty.wait()
        assert (queue.size, queue.waiting()) == (0, 0)
        assert [await receipt for receipt in receipts] == list(range(len(receipts)))

    asyncio.run(run())


def test_a_full_buffer_is_tried_again_and_the_order_holds() -> None:
    async def run() -> None:
        queue, tries = WaitQueue(do_nothing), 0

        def full_twice() -> Receipt:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise BufferFull("full")
            return receipt_of(0)

        def second() -> Receipt:
            assert tries == 3
            return receipt_of(1)

        first, last = waiting(full_twice), waiting(second)
        queue.append(first)
        queue.append(last)
        assert (await last, await first) == (1, 0)

    asyncio.run(run())


def test_a_refused_record_fails_alone_and_is_remembered_until_it_is_seen() -> None:
    async def run() -> None:
        queue = WaitQueue(do_nothing)

        def refuse() -> Receipt:
            raise Aborted("stopped")

        refused, fine = waiting(refuse), waiting(lambda: receipt_of(7))
        queue.append(refused)
        queue.append(fine)
        assert await fine == 7
        assert queue.first_refused is refused
        assert refused.refused
        assert (refused.done(), str(refused.error), refused.left) == (True, "stopped", False)
        for _ in range(2):
            with pytest.raises(Aborted, match="stopped"):
                await refused
        assert not refused.refused

    asyncio.run(run())
