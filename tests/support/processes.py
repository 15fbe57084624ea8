"""Processes that are not children of the test: whether they run, and their end."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

END_WAIT_S = 60.0


def alive(pid: int) -> bool:
    """True if a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it had ended, or ended while the file was open
        return False


def expect_end(*pids: int) -> None:
    """Wait until processes have ended: after SIGKILL a process ends only when the scheduler runs it."""
    deadline = time.monotonic() + END_WAIT_S
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < deadline, f"processes {left} still run"
        time.sleep(0.01)


def in_child(work: Any) -> str:
    """Run `work` in a forked child, and return its result."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001 - told to the parent
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    deadline = time.monotonic() + 20
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.005)
    with os.fdopen(read) as pipe:
        return pipe.read()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
