"""Tests of signals that arrive while the main thread runs client code."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.client.fake_flight_server import ReadableGateway
from tests.unit.client.fake_gateway import FakeGateway, until
from tutti.batching import appender, future
from tutti.errors import UsageError
from tutti.producer import Producer

ROOT = Path(__file__).resolve().parents[3]
HEAR = "import signal, sys, tutti\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whatever was inherited


@pytest.fixture
def readable() -> Iterator[ReadableGateway]:
    with ReadableGateway(10) as fake:
        yield fake


@pytest.mark.parametrize("way", ["for batch in r: pass", "r.poll(60)", "for record in r.records(): pass"])
def test_ctrl_c_ends_a_reader_that_follows_a_quiet_log(readable: ReadableGateway, way: str) -> None:
    """No signal is heard while Flight waits for an answer, and half a minute of waiting was asked of the gateway at once."""
    text = f"{HEAR}with tutti.Reader(sys.argv[1], start='latest', follow=True) as r:\n    {way}\n"
    with subprocess.Popen([sys.executable, "-c", text, readable.url], stderr=subprocess.PIPE, cwd=ROOT) as process:
        try:
            until(lambda: any("beyond" in asked for _, asked in readable.reads.asked))
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=20)
        finally:
            process.kill()
    assert b"KeyboardInterrupt" in told


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as fake:
        yield fake


CALLS: list[Callable[[Producer], object]] = [
    lambda p: p.send("t", b"from the handler"),
    lambda p: p.send_batch("t", pa.record_batch({"value": pa.array([b"y"])})),
    lambda p: p.flush(),
    lambda p: p.resume(),
    lambda p: p.close(),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_handler_that_struck_inside_of_the_lock_is_refused(gateway: FakeGateway, call: Callable[[Producer], object]) -> None:
    with Producer(gateway.url) as p:
        with p._accumulator.lock, pytest.raises(UsageError, match="a signal handler called a producer"):
            call(p)
        assert p.send("t", b"later").result(10) == 0


@pytest.mark.parametrize("call", CALLS)
def test_a_handler_that_struck_while_the_open_batch_was_out_is_refused(
    gateway: FakeGateway, call: Callable[[Producer], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock acts as the signal, because the appender of the open batch reads it."""
    told: list[UsageError] = []

    def clock() -> float:
        running: Any = p._accumulator._appender
        if running is not None and running.gi_running and not told:
            with pytest.raises(UsageError, match="a signal handler called a producer") as caught:
                call(p)
            told.append(caught.value)
        return time.time()

    monkeypatch.setattr(appender, "compiled", None)  # nothing strikes in the middle of what is compiled
    monkeypatch.setattr(appender, "_clock", clock)
    with Producer(gateway.url, linger=0.05) as p:
        p.send("t", b"0")
        receipt = p.send("t", b"1")
        assert told
        assert receipt.result(10) == 1
        assert p.send("t", b"2").result(10) == 2


def test_a_handler_that_struck_in_a_wait_may_wait_too(gateway: FakeGateway) -> None:
    with Producer(gateway.url, linger=0.2) as p:
        receipt = p.send("t", b"0")
        with future.lock:
            with pytest.raises(TimeoutError):
                receipt.result(0.01)
            assert receipt.result(10) == 0


@pytest.mark.slow
def test_a_storm_of_signals_whose_handler_sends_never_hangs(gateway: FakeGateway) -> None:
    text = f"""{HEAR}
import time
sent, refused, busy = [], [], []
with tutti.Producer(sys.argv[1]) as p:
    def strike(number, frame):
        if busy:
            return
        busy.append(1)
        try:
            sent.append(p.send("t", b"from the handler"))
        except tutti.UsageError:
            refused.append(1)
        busy.clear()
    signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        sent.append(p.send("t", b"x", key=b"k" if len(sent) % 3 else None))
    signal.setitimer(signal.ITIMER_REAL, 0)
print(len(sent), len({{receipt.result(0) for receipt in sent}}), len(refused))
"""
    done = subprocess.run(
        [sys.executable, "-c", text, gateway.url], capture_output=True, text=True, timeout=30, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    sent, offsets, _ = map(int, done.stdout.split())
    assert sent == offsets == len(gateway.log.records)
