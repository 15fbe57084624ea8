"""Tests of AsyncProducer and AsyncReader with a real gateway that is killed while both work in one event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
from pathlib import Path

import pytest

from tests.support.gateway_process import GatewayProcess
from tutti import Producer
from tutti.aio import AsyncProducer, AsyncReader

pytestmark = pytest.mark.timeout(180)


def test_tasks_send_and_follow_across_a_restart_of_the_gateway(tmp_path: Path) -> None:
    async def run(gateway: GatewayProcess) -> None:
        async with (
            AsyncReader(gateway.url, topics=["t"], start=0, follow=True, columns=["value"], name="follower") as reader,
            AsyncProducer(gateway.url, producer="p", buffer_bytes=65_536) as producer,
        ):
            found: list[int] = []

            async def follow() -> None:
                nonlocal found
                async for record in reader.records():
                    found += [int((record.value or b"").strip(b"."))]

            async def send(number: int) -> int:
                return await producer.send("t", b"%d" % number + b"." * 1000)

            following = asyncio.create_task(follow())
            offsets = await asyncio.gather(*(send(number) for number in range(500)))
            await asyncio.to_thread(gateway.kill)
            receipts = [producer.send("t", b"%d" % number + b"." * 1000) for number in range(500, 1000)]
            impatient = asyncio.create_task(asyncio.wait_for(receipts[-1], 0.05))
            with pytest.raises(TimeoutError):
                await impatient
            await asyncio.to_thread(gateway.start)
            await producer.drain()
            offsets += await asyncio.gather(*receipts)
            assert offsets == list(range(1000))
            assert await producer.flush(30) == 0
            while len(found) < 1000:
                await asyncio.sleep(0.01)
            assert found == list(range(1000))
            following.cancel()
            await asyncio.wait({following})
            await reader.save()
        async with AsyncReader(gateway.url, topics=["t"], name="follower") as reader:
            assert (reader.position, await reader.poll(1)) == (1000, None)

    with GatewayProcess(tmp_path) as gateway:
        asyncio.run(run(gateway))


def test_plain_receipts_in_wait_and_wrap_future(tmp_path: Path) -> None:
    async def wrapped(producer: Producer) -> list[int]:
        receipts = [producer.send("t", b"%d" % number) for number in range(100)]
        return [*await asyncio.gather(*map(asyncio.wrap_future, receipts)), await producer.send("t", b"last")]

    with GatewayProcess(tmp_path) as gateway, Producer(gateway.url) as producer:
        receipts = [producer.send("t", b"%d" % number) for number in range(5000)]
        done, not_done = concurrent.futures.wait(receipts, timeout=60)
        assert (done, not_done) == (set(receipts), set())
        more = [producer.send("t", b"%d" % number) for number in range(5000)]
        assert sorted(receipt.result() for receipt in concurrent.futures.as_completed(more, timeout=60)) == list(
            range(5000, 10_000)
        )
        assert asyncio.run(wrapped(producer)) == list(range(10_000, 10_101))
