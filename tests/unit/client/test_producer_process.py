"""Tests of producers at a fork, in a spawned child and at interpreter exit: nothing hangs, and the error is clear."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import in_child
from tests.unit.client.fake_gateway import FakeGateway, until
from tutti.data import client_protocol
from tutti.data.frames.frame import Frame
from tutti.errors import UsageError
from tutti.io.admin import AdminClient
from tutti.producer import Producer

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as fake:
        yield fake


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_asks_by_a_connection_of_its_own(gateway: FakeGateway) -> None:
    with AdminClient(gateway.url) as control:
        control.status()

        def asks() -> str:
            state = str(control.status()["state"])
            control.close()  # the goodbye is its own, too
            return state

        assert in_child(asks) == "primary"
        assert len(gateway.requests(client_protocol.Hello)) == 2
        assert control.status() == {"state": "primary"}
        assert len(gateway.requests(client_protocol.Hello)) == 2, "the parent's connection stands"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_can_open_its_own(gateway: FakeGateway) -> None:
    gate = threading.Event()
    gateway.rule = lambda heard: [] if isinstance(heard, Frame) and not gate.is_set() else None
    with Producer(gateway.url, producer="parent") as p:
        on_its_way = p.send("t", b"0")
        open_too = p.send("t", b"1")
        waiting = threading.Thread(target=lambda: on_its_way.result(30))
        waiting.start()

        def refused() -> str:
            said = []
            calls = (lambda: p.send("t", b"no"), p.resume, p.flush, lambda: on_its_way.result(5), lambda: open_too.result(5))
            for call in calls:
                try:
                    call()
                    said.append("no error")
                except UsageError as error:
                    said.append(str(error))
            p.close()
            return "\n".join([*said, str(len(p))])

        lines = in_child(refused).splitlines()
        assert all(f"opened in process {os.getpid()} and cannot be used in process" in line for line in lines[:5]), lines
        assert lines[5:] == ["0"]

        gate.set()
        assert waiting.is_alive()

        def opens_its_own() -> str:
            with Producer(gateway.url, producer="child") as own:
                return str(own.send("t", b"from the child").result(10))

        assert in_child(opens_its_own).isdigit()
        assert p.flush(20) == 0
        waiting.join(20)
    assert sorted(value for value in gateway.log.values() if value) == [b"0", b"1", b"from the child"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_of_multiprocessing(gateway: FakeGateway, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    with Producer(gateway.url) as p:
        p.send("t", b"parent").result(10)
        child = context.Process(target=send_without_closing, args=(gateway.url,))
        child.start()
        child.join(40)
        assert child.exitcode == 0
        p.send("t", b"parent").result(10)
    assert gateway.log.values().count(b"child") == 100


def send_without_closing(url: str) -> None:
    """Send in the child: records are delivered although no close follows."""
    p = Producer(url)
    for _ in range(100):
        p.send("t", b"child")


def _script(text: str, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text, url], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)


def test_an_interpreter_that_ends_without_close_delivers(gateway: FakeGateway) -> None:
    done = _script("import sys, tutti; p = tutti.Producer(sys.argv[1]); [p.send('t', b'x') for _ in range(500)]", gateway.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert gateway.log.values() == [b"x"] * 500


def test_an_interpreter_at_exit_reports_undelivered_records(gateway: FakeGateway) -> None:
    gateway.rule = lambda heard: [] if isinstance(heard, Frame) else None
    done = _script(
        "import sys, tutti; p = tutti.Producer(sys.argv[1], producer='lost'); [p.send('t', b'x') for _ in range(7)]", gateway.url
    )
    assert done.returncode == 0
    assert "producer 'lost' was not closed, and the end of the interpreter left 7 records undelivered" in done.stderr


def test_an_interpreter_that_ends_by_an_error_in_a_with_block_does_not_hang(gateway: FakeGateway) -> None:
    gateway.rule = lambda heard: [] if isinstance(heard, Frame) else None
    text = "import sys, tutti\nwith tutti.Producer(sys.argv[1]) as p:\n    p.send('t', b'x')\n    raise SystemExit(5)"
    assert _script(text, gateway.url).returncode == 5


def test_ctrl_c_while_sending_ends_in_order(gateway: FakeGateway) -> None:
    text = (
        "import sys, tutti\n"
        "with tutti.Producer(sys.argv[1], producer='p') as p:\n"
        "    p.send('t', b'first').result(10)\n"
        "    print('sending', flush=True)\n"
        "    while True:\n"
        "        p.send('t', b'x' * 50)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", text, gateway.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        until(lambda: len(gateway.log.records) > 1000)
        process.send_signal(2)
        process.wait(20)
        assert b"KeyboardInterrupt" in process.stderr.read()


def test_producers_that_open_and_close_leak_nothing(gateway: FakeGateway) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    counts: list[tuple[int, int]] = []
    gc.collect()
    gc.disable()  # nothing may wait for a collection, which some applications turn off
    try:
        for _ in range(3):
            for _ in range(10):
                with Producer(gateway.url) as p:
                    p.send("t", b"x")
                del p
            counts.append(until(lambda: held() if not counts or held() <= counts[0] else None))
    finally:
        gc.enable()
    assert max(counts) == counts[0]
