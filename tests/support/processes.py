"""Processes that are not children of the test: whether they run, and their end."""

from __future__ import annotations

import time
from pathlib import Path

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
