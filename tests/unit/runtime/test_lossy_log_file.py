"""Tests of the lossy log file: it blocks no writer, with a pipe or terminal that nobody reads, and with parallel threads."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stderr

import pytest

from tutti.runtime import lossy_log_file as logs
from tutti_gateway.reads.common import logging_setup as reads_logs


def full(into: int, but: int) -> None:
    """Fill a pipe, but for so many bytes."""
    os.set_blocking(into, False)
    size = fcntl.fcntl(into, fcntl.F_GETPIPE_SZ)
    assert os.write(into, bytes(size - but)) == size - but
    os.set_blocking(into, True)


def test_threads_that_log_at_once_write_whole_lines_and_none_is_stopped() -> None:
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 1 << 20)
    errors: list[BaseException] = []
    with os.fdopen(out, "rb", buffering=0) as reader, os.fdopen(into, "w") as file:
        unfailing = logs.LossyLogFile(file)

        def work(name: str) -> None:
            try:
                for _ in range(5000):
                    unfailing.write(name * 50 + "\n")
            except Exception as error:  # noqa: BLE001 - it is what is looked for
                errors.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        told = reader.read(1 << 20).decode().splitlines()
    assert errors == []
    assert len(told) + unfailing.lost == 15000
    assert set(told) <= {name * 50 for name in "abc"}


@pytest.mark.parametrize("opened_anew", [True, False])
def test_a_line_without_space_in_the_pipe_is_lost(opened_anew: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the longest of all, and what is written of it is told from the next line."""
    out, into = os.pipe()
    with os.fdopen(out, "rb", buffering=0) as reader, os.fdopen(into, "w") as file:
        with monkeypatch.context() as patched:
            if not opened_anew:  # a pipe of somebody else
                patched.setattr(os, "open", lambda *args: (_ for _ in ()).throw(PermissionError()))
            unfailing = logs.LossyLogFile(file)
        full(into, but=select.PIPE_BUF)
        thread = threading.Thread(target=unfailing.write, args=("y" * 9000 + "\n",), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        assert unfailing.lost == 1
        reader.read(1 << 20)
        unfailing.write("next\n")
        assert reader.read(1 << 20) == b"\nnext\n"


def test_other_writers_that_fill_the_pipe_block_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways of `tutti dev` share one: what has room when it is asked has none a moment later."""
    out, into = os.pipe()
    with os.fdopen(out, "rb", buffering=0), os.fdopen(into, "w") as file:
        unfailing = logs.LossyLogFile(file)
        full(into, but=0)
        monkeypatch.setattr(unfailing, "_wait_writable", lambda: True)
        thread = threading.Thread(target=unfailing.write, args=("x\n",), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        assert unfailing.lost == 1


class Clock:
    """A poll of a pipe that has room for a line only after 200 ms, and the time that it takes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waited_ms: list[float] = []

    def register(self, fd: int, events: int) -> None:
        assert fd >= 0 <= events

    def poll(self, wait_ms: float) -> list[int]:
        took_ms = min(200, wait_ms)
        self.waited_ms.append(took_ms)
        self.now_s += took_ms / 1000
        return [1] if took_ms == 200 else []

    def monotonic(self) -> float:
        return self.now_s


def test_a_reader_that_is_always_slow_costs_one_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(select, "poll", lambda: clock)
    monkeypatch.setattr(logs, "time", clock)
    out, into = os.pipe()
    with os.fdopen(out, "rb", buffering=0), os.fdopen(into, "w") as file:
        unfailing = logs.LossyLogFile(file)
        for _ in range(1000):
            unfailing.write("x\n")
            clock.now_s += 0.1
    assert 200 < sum(clock.waited_ms) <= 250 + clock.now_s * 10
    assert 0 < unfailing.lost < 1000


@pytest.fixture
def own_level() -> Iterator[None]:
    """What `set_up` of the reads process configures holds for this process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    quiet = {name: logging.getLogger(name).level for name in ("uvicorn.error", "uvicorn.access", "asyncio")}
    yield
    root.handlers[:], root.level = handlers, level
    for name, was in quiet.items():
        logging.getLogger(name).setLevel(was)


def ended(work: threading.Thread) -> bool:
    """Whether it ends; it is stuck if not."""
    work.start()
    work.join(60)
    return not work.is_alive()


def read_until(terminal: int, word: bytes) -> None:
    """Read what a terminal shows until it shows this."""
    seen = b""
    while word not in seen:
        seen = seen[-len(word) :] + os.read(terminal, 1 << 16)


@pytest.mark.parametrize("opened_anew", [True, False])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_terminal_without_a_reader_blocks_nothing(opened_anew: bool, stopped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-S, a window that hangs, a connection that is gone: what has room for a letter has none for a line."""
    window, into = os.openpty()
    with os.fdopen(window, "rb", buffering=0), os.fdopen(into, "w") as file:
        with monkeypatch.context() as patched:
            if not opened_anew:  # a terminal of somebody else
                patched.setattr(os, "open", lambda *args: (_ for _ in ()).throw(PermissionError()))
            unfailing = logs.LossyLogFile(file)
        if stopped:
            os.write(window, b"\x13")

        def work() -> None:
            for number in range(1000):
                unfailing.write(f"{number} {'x' * 200}\n")

        assert ended(threading.Thread(target=work, daemon=True))
        assert 0 < unfailing.lost <= 1000
        if stopped:
            os.write(window, b"\x11")
        reader = threading.Thread(target=read_until, args=(window, b"read again"), daemon=True)
        reader.start()
        deadline = time.monotonic() + 60
        while reader.is_alive() and time.monotonic() < deadline:
            unfailing.write("read again\n")
            reader.join(0.01)
        assert not reader.is_alive()


OWN_TERMINAL = """
import fcntl, os, select, sys, termios
from tutti.runtime import lossy_log_file as unfailing
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
truly = os.open
def refused(name, *how):
    if name.startswith("/proc"):
        raise PermissionError(name)
    return truly(name, *how)
os.open = refused
file = unfailing.LossyLogFile(sys.stdout)
file.write("in lines\\n")
sys.exit(file.lost or file._chunk_bytes != select.PIPE_BUF)
"""


def test_a_terminal_of_another_user_is_opened_by_the_name_that_is_for_all() -> None:
    """As after `sudo -u tutti`."""
    window, into = os.openpty()
    with os.fdopen(window, "rb", buffering=0), os.fdopen(into, "w") as file:
        command = [sys.executable, "-c", OWN_TERMINAL]
        ended = subprocess.run(
            command, stdin=file, stdout=file, stderr=subprocess.PIPE, start_new_session=True, timeout=100, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, b"")
        read_until(window, b"in lines")


def test_the_reads_process_is_not_blocked_either(own_level: None) -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb", buffering=0) as reader, os.fdopen(into, "w") as file:
        with redirect_stderr(file):
            reads_logs.set_up()
        log = logging.getLogger("tutti.reads")
        size = fcntl.fcntl(into, fcntl.F_GETPIPE_SZ)

        def work() -> None:
            for number in range(size // 50):  # a line has more bytes than that
                log.info("somebody should read this", extra={"fields": {"number": number}})

        assert ended(threading.Thread(target=work, daemon=True))
        told = reader.read(size)
        log.info("read again")
        last = json.loads(reader.read(size).splitlines()[-1])
    assert last["event"] == "read again"
    assert last["log_lines_lost"] == size // 50 - len(told.splitlines()) > 0
