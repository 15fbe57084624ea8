"""A log that cannot be written stops nobody, and says later how much of it is missing."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import select
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr

import pytest
import structlog

from gateway.node import logs


@pytest.fixture(autouse=True)
def _for_this_test_alone() -> Iterator[None]:
    """What `set_up` configures holds for the process: tests that look at lines would see none."""
    yield
    structlog.reset_defaults()


class Disk(io.StringIO):
    """A file whose disk may be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)


def test_lines_that_cannot_be_written_are_counted_in_those_that_can() -> None:
    disk = Disk()
    with redirect_stderr(disk):
        log = logs.set_up("g1")
        log.info("one")
        disk.full = True
        log.error("two")
        log.error("three")
        disk.full = False
        log.info("four")
    lines = [json.loads(line) for line in disk.getvalue().splitlines()]
    assert [(line["event"], line.get("log_lines_lost")) for line in lines] == [("one", None), ("four", 2)]


def test_a_file_that_is_closed_stops_nobody() -> None:
    file = io.StringIO()
    with redirect_stderr(file):
        log = logs.set_up("g1")
    file.close()
    log.info("nobody hears this")


def test_a_pipe_that_nobody_reads_stops_nobody() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb", buffering=0) as reader, os.fdopen(into, "w") as file:
        with redirect_stderr(file):
            log = logs.set_up("g1")
        size = fcntl.fcntl(into, fcntl.F_GETPIPE_SZ)
        for number in range(size // 50):  # a line has more bytes than that
            log.info("somebody should read this", number=number)
        told = reader.read(size)
        log.info("read again")
        last = json.loads(reader.read(size).splitlines()[-1])
    assert last["event"] == "read again"
    assert last["log_lines_lost"] == size // 50 - len(told.splitlines()) > 0


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
        unfailing = logs.Unfailing(file)

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
def test_a_line_for_which_a_pipe_has_no_room_is_lost(opened_anew: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the longest of all, and what is written of it is told from the next line."""
    out, into = os.pipe()
    with os.fdopen(out, "rb", buffering=0) as reader, os.fdopen(into, "w") as file:
        with monkeypatch.context() as patched:
            if not opened_anew:  # a pipe of somebody else
                patched.setattr(os, "open", lambda *args: (_ for _ in ()).throw(PermissionError()))
            unfailing = logs.Unfailing(file)
        full(into, but=select.PIPE_BUF)
        thread = threading.Thread(target=unfailing.write, args=("y" * 9000 + "\n",), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        assert unfailing.lost == 1
        reader.read(1 << 20)
        unfailing.write("next\n")
        assert reader.read(1 << 20) == b"\nnext\n"


def test_others_that_fill_the_pipe_first_stop_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways of `tutti dev` share one: what has room when it is asked has none a moment later."""
    out, into = os.pipe()
    with os.fdopen(out, "rb", buffering=0), os.fdopen(into, "w") as file:
        unfailing = logs.Unfailing(file)
        full(into, but=0)
        monkeypatch.setattr(unfailing, "_has_room", lambda: True)
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
        unfailing = logs.Unfailing(file)
        for _ in range(1000):
            unfailing.write("x\n")
            clock.now_s += 0.1
    assert 200 < sum(clock.waited_ms) <= 250 + clock.now_s * 10
    assert 0 < unfailing.lost < 1000
