"""Tests of AsyncReader over fake gateways: each record comes once, also after cancelled calls, and closing waits for no record."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.client.fake_flight_server import ReadableGateway, always, error_of, values
from tests.unit.client.fake_gateway import until
from tutti import limits
from tutti.aio import AsyncReader
from tutti.errors import NotAllowed, OffsetOutOfRange, Unavailable, UsageError
from tutti.reader import Reader

WAIT_S = 20.0


@pytest.fixture
def gateway() -> Iterator[ReadableGateway]:
    with ReadableGateway(records=20) as fake:
        yield fake


def reader_threads() -> list[threading.Thread]:
    gc.collect()  # a failed test may have left a reader in a traceback
    return [thread for thread in threading.enumerate() if thread.name.startswith("tutti-reader")]


async def read(reader: AsyncReader) -> list[int]:
    return values([batch async for batch in reader])


def test_a_range_in_batches_and_records(gateway: ReadableGateway) -> None:
    async def run() -> None:
        async with AsyncReader(gateway.url, start=3, end=15) as r:
            assert (r.position, r.end, r.lane) == (3, 15, "")
            assert await read(r) == list(range(3, 15))
            assert (r.position, await r.poll(0), len(r.log)) == (15, None, 32)
            assert await read(r) == []
        async with AsyncReader(gateway.url, topics=["b"], columns=["value"], start=4) as r:
            positions = [(int(record.value or b""), r.position) async for record in r.records()]
            assert positions[:-1] == [(offset, offset + 1) for offset in range(5, 19, 2)]
            assert positions[-1] == (19, 20)
        assert r.position == 20

    asyncio.run(run())


def test_a_range_that_ends_with_records_of_other_topics_ends(gateway: ReadableGateway) -> None:
    async def run() -> None:
        async with AsyncReader(gateway.url, topics=["a"], columns=["value"]) as r:
            assert await asyncio.wait_for(read(r), WAIT_S) == list(range(0, 20, 2))
            assert r.position == 20

    asyncio.run(run())


def test_a_reader_opens_at_its_first_use(gateway: ReadableGateway) -> None:
    async def run() -> None:
        r = AsyncReader(gateway.url)
        with pytest.raises(UsageError, match="is not open: use `async with"):
            _ = r.position
        first = await anext(r)
        assert (r.position, first.num_rows) == (4, 4)
        await r.close()
        await r.close()
        assert r.position == 4
        for call in (r.poll(0), r.save(), r.open(), anext(r)):
            with pytest.raises(UsageError, match="the reader is closed"):
                await call
        never = AsyncReader(gateway.url)
        await never.close()
        with pytest.raises(UsageError, match="the reader is closed"):
            await never.open()

    asyncio.run(run())


def test_errors_of_opening_and_reading(gateway: ReadableGateway) -> None:
    async def run() -> None:
        r = AsyncReader(gateway.url, start=21)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange):
                await r.open()
        await r.close()
        with pytest.raises(Unavailable):
            await AsyncReader("tutti://127.0.0.1:1", connect_timeout=0.05).open()
        with pytest.raises(UsageError, match="exactly one of url and path"):
            await AsyncReader(gateway.url, path="data").open()

        def refuse(what: str) -> None:
            if what == "do_get":
                raise error_of("not_allowed", "this token may not read topic 'a'")

        async with AsyncReader(gateway.url) as r:
            first = await anext(r)
            gateway.reads.fail = refuse
            gateway.reads.cut_after = 4
        async with AsyncReader(gateway.url, start=4) as r:
            with pytest.raises(NotAllowed):
                await anext(r)
            gateway.reads.fail, gateway.reads.cut_after = lambda what: None, None
            assert values([first]) + await read(r) == list(range(20)), "the next call continues at the position"

    asyncio.run(run())


def test_records_that_are_left_come_next(gateway: ReadableGateway) -> None:
    async def run() -> None:
        async with AsyncReader(gateway.url, columns=["value"]) as r:
            async for record in r.records():
                if record.value == b"5":
                    break
            assert r.position == 6
            batch = await r.poll(WAIT_S)
            assert batch is not None
            assert (values([batch]), r.position) == ([6, 7], 8)
            found = r.records()
            assert (await anext(found)).value == b"8"
            batch = await anext(r)
            assert (values([batch]), r.position) == ([9, 10, 11], 12)
            assert [int(record.value or b"") async for record in found] == list(range(12, 20)), "and not the rest of the old batch"

    asyncio.run(run())


def test_follow_waits_without_blocking_and_leaving_is_prompt(gateway: ReadableGateway) -> None:
    async def run() -> float:
        async with AsyncReader(gateway.url, start="latest", follow=True) as r:
            assert await r.poll(0.05) is None
            next_batch = asyncio.create_task(anext(r))
            await asyncio.sleep(0.05)
            assert not next_batch.done()
            gateway.add(1)
            assert values([await next_batch]) == [20]
            await asyncio.sleep(0.05)  # the thread waits for the next record now
            started = time.monotonic()
        return time.monotonic() - started

    assert asyncio.run(run()) < limits.ANSWER_WAIT_US_MAX / 2e6
    until(lambda: not reader_threads())


def test_a_task_that_waits_ends_when_the_reader_is_closed(gateway: ReadableGateway) -> None:
    async def run() -> None:
        r = await AsyncReader(gateway.url, start="latest", follow=True).open()
        waiting = asyncio.create_task(r.poll(60))
        await asyncio.sleep(0.05)
        await r.close()
        with pytest.raises(UsageError, match="the reader is closed"):
            await waiting

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


@pytest.mark.parametrize("seed", range(4))
def test_cancellation_at_any_point_loses_nothing_and_repeats_nothing(gateway: ReadableGateway, seed: int) -> None:
    async def run() -> None:
        found: list[int] = []
        chance = random.Random(seed)
        gateway.add(200)

        async def take(r: AsyncReader, records: bool) -> None:
            if records:
                async for record in r.records():
                    found.append(int(record.value or b""))
                    if chance.random() < 0.1:
                        await asyncio.sleep(0)
            else:
                async for batch in r:
                    found.extend(values([batch]))
                    await asyncio.sleep(0)

        async with AsyncReader(gateway.url, end=220, columns=["value"]) as r:
            while r.position < 220:
                kind = chance.randrange(3)
                if kind == 0:
                    found += values([batch] if (batch := await r.poll(chance.random() / 1000)) else [])
                    continue

                task = asyncio.create_task(take(r, kind == 1))
                for _ in range(chance.randrange(12)):
                    await asyncio.sleep(chance.choice((0, 0, 0.001)))
                task.cancel()
                await asyncio.wait({task})
                assert found == list(range(r.position))
        assert found == list(range(220))

    asyncio.run(asyncio.wait_for(run(), 60))


def test_cancelled_opening_leaves_the_reader_usable(gateway: ReadableGateway) -> None:
    gate = threading.Event()

    def wait(what: str) -> None:
        assert gate.wait(WAIT_S)

    gateway.reads.fail = wait

    async def run() -> None:
        r = AsyncReader(gateway.url)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(r.open(), 0.05)
        gate.set()
        assert await read(r) == list(range(20))
        await r.close()
        gate.clear()
        r = AsyncReader(gateway.url)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(r.open(), 0.05)
        await r.close()
        gate.set()

    asyncio.run(run())
    until(lambda: not reader_threads())


def test_two_tasks_share_a_reader(gateway: ReadableGateway) -> None:
    async def run() -> None:
        async with AsyncReader(gateway.url) as r:
            first, second = await asyncio.gather(read(r), read(r))
        assert sorted(first + second) == list(range(20))

    asyncio.run(run())


def test_save_needs_no_default_executor(gateway: ReadableGateway) -> None:
    """Blocking work of the application may fill the default executor of the event loop."""
    release = threading.Event()

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        blocking = asyncio.create_task(asyncio.to_thread(release.wait, 60))
        await asyncio.sleep(0)
        async with AsyncReader(gateway.url, name="loader") as r:
            await anext(r)
            await asyncio.wait_for(r.save(), 20)
        assert gateway.reads.saved == {"loader": 4}
        assert not blocking.done()
        release.set()
        await blocking

    asyncio.run(run())


def test_save_commits_what_was_returned_and_not_what_was_fetched(gateway: ReadableGateway) -> None:
    async def run() -> None:
        async with AsyncReader(gateway.url, name="loader", follow=True) as r:
            await anext(r)
            await asyncio.sleep(0.05)  # the thread has the next batch
            await r.save()
            assert gateway.reads.saved == {"loader": 4}
            async for record in r.records():
                if record.offset == 5:
                    await r.save()
                    break
            assert gateway.reads.saved == {"loader": 6}
            while r.position < 20:
                await anext(r)
            await asyncio.sleep(0.05)  # the thread waits for a record, and the save does not wait for it
            started = time.monotonic()
            await r.save()
            assert gateway.reads.saved == {"loader": 20}
            assert time.monotonic() - started < limits.ANSWER_WAIT_US_MAX / 2e6
        async with AsyncReader(gateway.url, start=0) as r:
            with pytest.raises(UsageError, match="has no name"):
                await r.save()

    asyncio.run(run())


def test_lanes(gateway: ReadableGateway) -> None:
    lanes = {"1-aa": [("t", b"%d" % number) for number in range(6)], "2-bb": [("t", b"%d" % number) for number in range(10, 13)]}
    gateway.reads.lanes_there = {lane: (f"g{lane[0]}", True, records) for lane, records in lanes.items()}

    async def run() -> None:
        async with AsyncReader(gateway.url, ordering="unordered", columns=["value"]) as r:
            seen: dict[str, list[int]] = {}
            async for record in r.records():
                seen.setdefault(r.lane, []).append(int(record.value or b""))
                assert r.position[r.lane] == len(seen[r.lane])
            assert seen == {"1-aa": list(range(6)), "2-bb": [10, 11, 12]}
            assert r.position == r.end == {"1-aa": 6, "2-bb": 3}

    asyncio.run(run())


def test_a_second_event_loop_gets_an_error(gateway: ReadableGateway) -> None:
    r = AsyncReader(gateway.url)

    async def use() -> Any:
        return await r.poll(WAIT_S)

    with asyncio.Runner() as runner:
        runner.run(use())
        with asyncio.Runner() as other, pytest.raises(UsageError, match="opened in another event loop: create an AsyncReader"):
            other.run(use())
        runner.run(r.close())


def test_a_dropped_reader_ends_its_thread(gateway: ReadableGateway) -> None:
    async def run() -> None:
        r = AsyncReader(gateway.url, start="latest", follow=True)
        assert await r.poll(0.01) is None
        assert reader_threads()

    asyncio.run(run())
    until(lambda: not reader_threads())


def test_many_rows_let_other_coroutines_run(monkeypatch: pytest.MonkeyPatch, gateway: ReadableGateway) -> None:
    monkeypatch.setattr(limits, "ASYNC_RECORDS_A_TURN", 3)
    gateway.reads.batch = 20

    async def run() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with AsyncReader(gateway.url, columns=["value"]) as r:
            assert await r.poll(0) is None
            found = r.records()
            numbers = [int((await anext(found)).value or b"")]
            counting = asyncio.create_task(count())
            await asyncio.sleep(0)
            before = turns
            numbers += [int(record.value or b"") async for record in found]
            counting.cancel()
            assert numbers == list(range(20))
            assert turns - before >= 6

    asyncio.run(run())


def test_the_next_batch_is_fetched_ahead_and_no_more(gateway: ReadableGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    real = Reader._take

    def take(self: Reader, timeout: float) -> Any:
        found = real(self, timeout)
        taken.append(self.position)
        return found

    monkeypatch.setattr(Reader, "_take", take)

    async def run() -> None:
        async with AsyncReader(gateway.url) as r:
            batch: pa.RecordBatch = await anext(r)
            assert values([batch]) == [0, 1, 2, 3]
            await asyncio.sleep(0.1)
            assert (taken, r.position) == ([4, 8], 4)

    asyncio.run(run())


def test_a_cancelled_wait_for_a_record_does_not_end_the_iteration(gateway: ReadableGateway) -> None:
    async def run() -> None:
        async with AsyncReader(gateway.url, start="latest", follow=True) as r:
            records = r.records()
            for number in (20, 21):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(records), 0.02)
                gateway.add(1)
                assert (await asyncio.wait_for(anext(records), WAIT_S)).value == b"%d" % number

    asyncio.run(run())


@pytest.mark.parametrize("over", [True, False])
def test_an_error_that_no_call_waited_for_counts_only_if_the_outage_lasts(gateway: ReadableGateway, over: bool) -> None:
    async def run() -> None:
        async with AsyncReader(gateway.url, start="latest", follow=True, patience=1.5) as r:
            gateway.reads.fail = always("busy")
            while True:  # as a program that does other work between short polls
                assert await r.poll(0.01) is None
                assert r._fetching is not None
                await asyncio.wait({r._fetching})
                if r._fetching.exception() is not None:
                    break
            if over:
                gateway.reads.fail = lambda what: None
                gateway.add(1)
                assert values([await anext(r)]) == [20]
            else:
                with pytest.raises(
                    Unavailable, match=r"no gateway answered a read within \d\.\d s, and every poll has failed: 127"
                ):
                    await r.poll(WAIT_S)

    asyncio.run(run())


def test_a_reader_that_is_dropped_or_closed_while_it_opens_logs_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[object] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        for close in (True, False):
            r = AsyncReader("tutti://127.0.0.1:1", connect_timeout=30)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(r.open(), 0.1)
            if close:
                await r.close()
            caplog.clear()
            del r
            await asyncio.to_thread(until, lambda: not reader_threads())
            await asyncio.sleep(0)
            assert caplog.messages == []
        failed = AsyncReader("tutti://127.0.0.1:1", connect_timeout=0.01)
        opening = asyncio.create_task(failed.open())
        await asyncio.sleep(0)
        opening.cancel()
        pending = failed._opening
        assert pending is not None
        await asyncio.to_thread(until, pending.done)
        del failed, pending
        gc.collect()

    asyncio.run(run())
    assert errors == []


def test_the_description_has_the_position_of_the_returned_records(gateway: ReadableGateway) -> None:
    async def run() -> None:
        r = AsyncReader(gateway.url, name="loader")
        assert repr(r) == "<AsyncReader not open>"
        async with r:
            await anext(r)
            await asyncio.sleep(0.05)  # the thread has the next batch
            address = gateway.url.removeprefix("tutti://")
            assert repr(r) == f"<AsyncReader 'loader' of {gateway.url}, connected to {address}, position 4, end 20>"

    asyncio.run(run())


def test_the_wrong_kind_of_with_and_of_for_is_an_error_with_the_remedy(gateway: ReadableGateway) -> None:
    reader: Any = AsyncReader(gateway.url)
    with pytest.raises(UsageError, match="use `async with AsyncReader"), reader:
        pass
    with pytest.raises(UsageError, match="use `async for batch in reader`"):
        list(reader)

    async def run() -> None:
        with pytest.raises(UsageError, match=r"use `async for record in reader.records\(\)`"):
            await reader.records()
        with Reader(gateway.url) as plain:
            found: Any = plain
            with pytest.raises(UsageError, match="use `with Reader"):
                async with found:
                    pass
            with pytest.raises(UsageError, match="use `for batch in reader`"):
                _ = [batch async for batch in found]

    asyncio.run(run())
