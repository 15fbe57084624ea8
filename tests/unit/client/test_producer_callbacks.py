"""Tests of `on_delivery` callbacks: what a callback may do to the thread that calls it."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.client.fake_gateway import FakeGateway, until
from tutti.batching.receipt import Receipt
from tutti.data.frames.frame import Frame
from tutti.errors import Aborted, BufferFull, TuttiError, UsageError
from tutti.producer import Producer


def test_a_callback_that_exits_stops_no_outcome(caplog: pytest.LogCaptureFixture) -> None:
    """`sys.exit()` does not raise an `Exception`: it would end the producer's thread silently, and no record
    would get its outcome.
    """
    called = []

    def leave(error: TuttiError | None, receipt: Receipt) -> None:
        called.append(receipt.offset)
        sys.exit(1)

    with FakeGateway() as gateway, Producer(gateway.url) as p:
        assert p.send("t", b"0", on_delivery=leave).result(10) == 0
        assert p.send("t", b"1", on_delivery=leave).result(10) == 1
        assert p.send("t", b"2").result(10) == 2
        assert p.flush(10) == 0
    assert called == [0, 1]
    assert "on_delivery of a record to topic t raised" in caplog.text


@pytest.mark.parametrize("fault", [SystemExit(1), ValueError("a defect")])
def test_any_end_of_the_thread_is_reported_to_waiting_callers(fault: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeGateway() as gateway, Producer(gateway.url) as p:
        assert p.send("t", b"0").result(10) == 0

        def fail(now: float) -> None:
            raise fault

        monkeypatch.setattr(p._delivery, "work", fail)
        with pytest.raises(Aborted, match="ended with an internal error"):
            p.send("t", b"1").result(10)


class _Held(FakeGateway):
    """Decides nothing before `gate` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        super().__init__(lane="of-g1", rule=self._hold)

    def _hold(self, heard: object) -> None:
        if isinstance(heard, Frame):
            assert self.gate.wait(30)

    def __enter__(self) -> _Held:
        return self

    def counts(self) -> list[int]:
        return [frame.count for frame in self.frames()]


@pytest.mark.parametrize("ordering", ["total", "unordered"])
def test_records_sent_by_the_callbacks_of_one_notification_leave_as_one_batch(
    ordering: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Receipt] = []
    with _Held() as gateway, Producer(gateway.url) as p:
        how: dict[str, Any] = {"ordering": ordering}

        def again(error: TuttiError | None, receipt: Receipt) -> None:
            told.append(receipt)
            number = len(told) - 1
            p.send("t", b"again %d" % number, **(how if number % 3 else {**how, "key": b"k", "headers": [("h", b"")]}))
            if number % 7 == 0:
                raise RuntimeError("of the application")

        p.send("t", b"alone", **how)
        sent = [p.send("t", b"%d" % number, on_delivery=again, **how) for number in range(100)]
        gateway.gate.set()
        until(lambda: len(told) == 100 and not len(p))
        assert gateway.counts() == [1, 100, 100]
        there = gateway.log.values() if ordering == "total" else gateway.lane.values() if gateway.lane else []
        assert there == [b"alone", *(b"%d" % number for number in range(100)), *(b"again %d" % number for number in range(100))]
        assert told == sent
        assert caplog.text.count("of the application") > 0


def test_records_sent_by_callbacks_leave_without_another_call() -> None:
    told: list[int | None] = []
    with FakeGateway() as gateway, Producer(gateway.url) as p:

        def again(error: TuttiError | None, receipt: Receipt) -> None:
            told.append(receipt.offset)
            if len(told) <= 2000 - 20:
                p.send("t", b"x", on_delivery=again)

        for _ in range(20):
            p.send("t", b"x", on_delivery=again)
        until(lambda: len(told) == 2000)
        assert p.flush(10) == 0
        assert told == list(range(2000))
        assert len(gateway.frames()) < 2000 // 5


def test_callbacks_get_an_error_for_a_full_buffer_and_the_others_run() -> None:
    taken: list[Receipt] = []
    full: list[BufferFull] = []
    with _Held() as gateway, Producer(gateway.url, buffer_bytes=65_536, batch_bytes=8192, on_full="raise") as p:

        def fill(error: TuttiError | None, receipt: Receipt) -> None:
            try:
                taken.append(p.send("t", b"y" * 2000))
            except BufferFull as lack:
                full.append(lack)

        p.send("t", b"alone")
        for _ in range(60):
            p.send("t", b"x" * 50, on_delivery=fill)
        gateway.gate.set()
        assert p.flush(30) == 0
        assert full
        assert len(full) + len(taken) == 60
        assert all(receipt.done() for receipt in taken)
        assert gateway.log.values().count(b"y" * 2000) == len(taken)


def test_records_of_another_thread_leave_with_those_of_callbacks() -> None:
    sent: list[Receipt] = []
    inside, outside = threading.Event(), threading.Event()
    with FakeGateway() as gateway, Producer(gateway.url) as p:

        def wait(error: TuttiError | None, receipt: Receipt) -> None:
            sent.append(p.send("t", b"of the callback"))
            inside.set()
            assert outside.wait(10)

        p.send("t", b"0", on_delivery=wait)
        assert inside.wait(10)
        late = p.send("t", b"of another thread", progress=b"p")
        outside.set()
        assert late.result(10) == 2
        assert sent[0].result(10) == 1
        assert gateway.log.records[-1].progress == b"p"


class _Asynchronous:
    """A callable object whose call returns a coroutine."""

    async def __call__(self, *_: object) -> None:
        raise AssertionError("nobody awaits this call")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("first", [True, False], ids=["opens a batch", "joins an open batch"])
def test_a_coroutine_function_is_refused_as_a_callback(compiled: bool, first: bool) -> None:
    async def function(*_: object) -> None:
        raise AssertionError("nobody awaits this call")

    async def generator(*_: object) -> AsyncIterator[None]:
        yield

    wrong: list[Any] = [function, functools.partial(function, 1), _Asynchronous(), _Asynchronous().__call__, "no function"]
    wrong += [generator, functools.partial(generator, 1)]
    called: list[Receipt] = []
    with FakeGateway() as gateway, Producer(gateway.url, linger=30) as p:
        receipt = p.send("t", b"0")
        if first:
            p.flush()
        send = p.send if compiled else functools.partial(getattr(Producer.send, "__wrapped__", Producer.send), p)
        for callback in wrong:
            with pytest.raises(UsageError, match="on_delivery must be a "):
                send("t", b"1", on_delivery=callback)
            with pytest.raises(UsageError, match="the callback of a receipt must be a "):
                receipt.add_done_callback(callback)
        for plain in (lambda _, receipt: called.append(receipt), functools.partial(lambda _, receipt: called.append(receipt))):
            send("t", b"2", on_delivery=plain)
        assert p.flush(30) == 0
        assert [record.value for record in gateway.log.records] == [b"0", b"2", b"2"]
    assert [receipt.offset for receipt in called] == [1, 2]


def test_the_wrong_kind_of_with_is_an_error_with_the_remedy() -> None:
    with FakeGateway() as gateway, Producer(gateway.url) as p:
        wrong: Any = p
        with pytest.raises(UsageError, match="use `with Producer"):
            wrong.__aenter__()
