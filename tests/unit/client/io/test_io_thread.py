"""Tests of the I/O threads: many producers share few threads, none waits for another, and an error ends only its own producer."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.fake_gateway import FakeGateway, until
from tutti import limits
from tutti.batching.receipt import Receipt
from tutti.errors import Aborted, Unavailable, Unknown, UsageError
from tutti.io import io_thread as engines
from tutti.io.producer_io import ProducerIO
from tutti.io.session_connection import SessionConnection
from tutti.producer import Producer


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """All producers of a test have one thread."""
    monkeypatch.setattr(limits, "IO_THREADS_MAX", 1)


def _io_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("tutti-io-")}


def _pump(producer: Producer) -> ProducerIO:
    assert producer._io is not None
    return producer._io


@contextlib.contextmanager
def _silent() -> Iterator[str]:
    """The URL of a listener that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"tutti://127.0.0.1:{listener.getsockname()[1]}"


def test_many_producers_share_few_threads_which_end_with_the_last(gateway: FakeGateway) -> None:
    until(lambda: not _io_threads())  # of earlier tests
    with contextlib.ExitStack() as opened:
        producers = [opened.enter_context(Producer(gateway.url)) for _ in range(3 * limits.IO_THREADS_MAX)]
        assert len(_io_threads()) == limits.IO_THREADS_MAX
        running = [engine for producer in producers if (engine := _pump(producer).io_thread) is not None]
        assert {running.count(engine) for engine in running} == {3}
        receipts = [producer.send("t", b"%d" % number) for number in range(50) for producer in producers]
        assert sorted(receipt.result(20) for receipt in receipts) == list(range(len(receipts)))
    until(lambda: not _io_threads())
    with Producer(gateway.url) as producer:
        producer.send("t", b"again").result(20)


def test_each_record_of_many_producers_sends_the_next_one(gateway: FakeGateway, one_thread: None) -> None:
    over = threading.Event()
    left = [20] * 30
    with contextlib.ExitStack() as opened:
        producers = [opened.enter_context(Producer(gateway.url)) for _ in left]

        def send(number: int) -> None:
            producers[number].send("t", b"%d" % number, on_delivery=lambda error, _: told(error, number))

        def told(error: Exception | None, number: int) -> None:
            assert error is None
            left[number] -= 1
            if left[number]:
                send(number)
            elif not any(left):
                over.set()

        for number in range(len(left)):
            send(number)
        assert over.wait(30)
    assert len(gateway.log.values()) == 20 * len(left)


def test_a_producer_that_searches_for_a_gateway_delays_no_other(
    gateway: FakeGateway, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADDRESS_TIMEOUT_US", 50_000)
    monkeypatch.setattr(limits, "PROBE_TIMEOUT_US", 60_000_000)  # a look lasts longer than the test
    with _silent() as silent, Producer(gateway.url) as producer:
        trying = threading.Thread(target=_fails, args=(silent,))
        trying.start()
        until(lambda: any(thread.name == "tutti-probe" for thread in threading.enumerate()))
        for number in range(20):
            assert producer.send("t", b"x").result(10) == number
        trying.join(30)
        assert not trying.is_alive()


def _fails(url: str) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        Producer(url, connect_timeout=1.0)


def test_many_probes_of_one_address_are_one_probe(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADDRESS_TIMEOUT_US", 50_000)
    monkeypatch.setattr(limits, "PROBE_TIMEOUT_US", 500_000)
    with _silent() as silent:
        trying = [threading.Thread(target=_fails, args=(silent,)) for _ in range(12)]
        for thread in trying:
            thread.start()
        most = 0
        while any(thread.is_alive() for thread in trying):
            most = max(most, sum(thread.name == "tutti-probe" for thread in threading.enumerate()))
            time.sleep(0.01)
    assert most == 1


def test_the_result_of_a_probe_is_reported(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADDRESS_TIMEOUT_US", 50_000)
    monkeypatch.setattr(limits, "PROBE_TIMEOUT_US", 50_000)
    with _silent() as silent, pytest.raises(Unavailable, match="the port accepts connections and sent nothing"):
        Producer(silent, connect_timeout=2.0)


def test_a_fault_ends_its_producer_alone(
    gateway: FakeGateway, one_thread: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hear = SessionConnection.receive
    with Producer(gateway.url) as good, contextlib.closing(Producer(gateway.url)) as bad:
        broken = _pump(bad).delivery

        def faulty(channel: SessionConnection, now: float) -> None:
            if channel.sender is broken:
                raise RuntimeError("a defect")
            hear(channel, now)

        monkeypatch.setattr(SessionConnection, "receive", faulty)
        receipt = bad.send("t", b"x")
        with pytest.raises(Aborted, match="a defect"):
            receipt.result(10)
        with pytest.raises(Unknown, match="a defect"):
            bad.send("t", b"y")
        assert good.send("t", b"z").result(10) == 0
    assert "a defect" in caplog.text


def test_a_broken_thread_fails_all_waiting_callers(
    gateway: FakeGateway, one_thread: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def hold(heard: Any) -> list[Any] | None:
        return [] if not hasattr(heard, "request") and not hasattr(heard, "protocol") else None

    with contextlib.closing(Producer(gateway.url)) as first, contextlib.closing(Producer(gateway.url)) as second:
        gateway.rule = hold
        receipts = [first.send("t", b"x"), second.send("t", b"y")]

        def broken(engine: engines.IOThread, told: list[tuple[int, int]]) -> None:
            raise RuntimeError("the kernel is mad")

        monkeypatch.setattr(engines.IOThread, "_run_ready", broken)
        for receipt in receipts:
            with pytest.raises((Aborted, Unknown), match="the kernel is mad"):
                receipt.result(10)
        monkeypatch.undo()
        gateway.rule = None
        with Producer(gateway.url) as producer:  # by a new thread
            producer.send("t", b"z").result(10)
    assert "an I/O thread of the client ended" in caplog.text


def test_closing_without_any_gateway_delays_no_other(gateway: FakeGateway, one_thread: None) -> None:
    with FakeGateway() as stuck, Producer(gateway.url) as producer:
        fillers = [Producer(stuck.url, delivery_timeout=1.0, connect_timeout=10) for _ in range(4)]
        for filler in fillers:
            filler.send("t", b"up").result(10)
        stuck.stop()
        closing = [threading.Thread(target=_close, args=(filler,)) for filler in fillers]
        for thread in closing:
            thread.start()
        for number in range(50):
            assert producer.send("t", b"x").result(10) == number
        for thread in closing:
            thread.join(20)
            assert not thread.is_alive()


def _close(producer: Producer) -> None:
    with contextlib.suppress(Unknown):
        producer.send("t", b"never")
        producer.close()


@pytest.mark.parametrize("spool", [False, True])
def test_a_failed_thread_start_is_reported_and_nothing_is_blocked(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spool: bool
) -> None:
    def none_left(number: int) -> engines.IOThread:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    place = tmp_path / "spool" if spool else None
    until(lambda: not _io_threads())
    monkeypatch.setattr(engines, "IOThread", none_left)
    with pytest.raises(Unavailable, match="raise the limit of open files"):
        Producer(gateway.url, producer="p", spool=place)
    monkeypatch.undo()
    with Producer(gateway.url, producer="p", spool=place) as producer:
        producer.send("t", b"x").result(10)


@pytest.mark.parametrize(("spool", "kind"), [(False, "tutti-io"), (True, "tutti-io"), (True, "tutti-spool")])
def test_a_system_without_free_threads_is_reported_and_nothing_is_blocked(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spool: bool, kind: str
) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith(kind):
            raise RuntimeError("can't start new thread")
        start(thread)

    place = tmp_path / "spool" if spool else None
    until(lambda: not _io_threads())
    monkeypatch.setattr(threading.Thread, "start", limited)
    for _ in range(2 * limits.IO_THREADS_MAX):
        with pytest.raises(Unavailable, match="raise the thread limit"):
            Producer(gateway.url, producer="p", spool=place)
    monkeypatch.undo()
    with Producer(gateway.url, producer="p", spool=place) as producer:
        producer.send("t", b"x").result(10)


def test_calls_that_wait_for_a_gateway_are_refused_in_on_delivery(gateway: FakeGateway) -> None:
    met: list[BaseException | None] = []

    def heard(error: object, receipt: object) -> None:
        try:
            Producer(gateway.url)
        except UsageError as refused:
            met.append(refused)

    def closes(error: object, receipt: object) -> None:
        late.append(producer.send("t", b"z"))
        try:
            producer.close()
        except UsageError as refused:
            met.append(refused)

    late: list[Receipt] = []
    with Producer(gateway.url) as producer:
        producer.send("t", b"x", on_delivery=heard).result(10)
        producer.send("t", b"y", on_delivery=closes).result(10)
        producer.flush()
        producer.send("t", b"it goes on").result(10)
    assert "cannot be opened inside on_delivery" in str(met)
    assert "close() cannot be called inside on_delivery" in str(met)
    assert late[0].done()


def test_a_producer_with_slow_notifications_delays_no_other(
    gateway: FakeGateway, one_thread: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What strikes may strike again while those who wait are told."""
    turn, broke, struck = ProducerIO.run_once, ProducerIO.fail, [0]

    def turned(pump: ProducerIO) -> bool:
        if pump.name == "first":
            raise MemoryError("no room")
        return turn(pump)

    def told(pump: ProducerIO, error: BaseException) -> None:
        struck[0] += 1
        if struck[0] == 1:
            raise MemoryError("no room here either")
        broke(pump, error)

    with Producer(gateway.url, producer="other") as other:
        first = Producer(gateway.url, producer="first")
        monkeypatch.setattr(ProducerIO, "run_once", turned)
        monkeypatch.setattr(ProducerIO, "fail", told)
        receipt = first.send("t", b"never")
        with pytest.raises(Aborted, match="no room"):
            receipt.result(10)
        other.send("t", b"x").result(10)
    assert "failing the records of producer first raised an exception" in caplog.text
    first.close()


def test_a_wake_up_during_the_end_of_an_iteration_is_not_lost() -> None:
    """Whichever thread checks first sees the other's write."""

    class Ending:
        """A pump whose turn ends just when who wakes it has looked whether it sleeps."""

        io_thread = None
        _run_requested = False
        due = 60.0

        @property
        def _asleep(self) -> bool:
            self.due = 0.0 if self._run_requested else 60.0
            return False

    ending: Any = Ending()
    ProducerIO.wake(ending)
    assert ending.due == 0.0


def test_events_between_the_work_of_an_iteration_and_its_sleep_do_not_wait(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic new to the producer causes a request: the next iteration must run at once, and not at the next timer."""
    with Producer(gateway.url) as producer:
        producer.send("t", b"x").result(10)
        pump = producer._opened_io
        sent: list[Receipt] = []
        wanted: list[float] = []
        work, turn = pump.delivery.work, pump.run_once

        def late(now: float) -> None:
            work(now)
            if not sent:
                thread = threading.Thread(target=lambda: sent.append(producer.send("new", b"y")))
                thread.start()
                thread.join()

        def turned() -> bool:
            over = turn()
            if sent:
                wanted.append(pump.due)
            return over

        monkeypatch.setattr(pump.delivery, "work", late)
        monkeypatch.setattr(pump, "run_once", turned)
        pump.wake()
        until(lambda: sent)
        sent[0].result(10)
    assert wanted[0] == 0.0
