"""Processes that are not a test's own children: whether one runs still, and its end."""

from __future__ import annotations

import time
from pathlib import Path

END_WAIT_S = 60.0


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it was gone, or went while the file was open
        return False


def expect_end(*pids: int) -> None:
    """Wait until they have ended: who was sent SIGKILL ends when it is its turn to run."""
    deadline = time.monotonic() + END_WAIT_S
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < deadline, f"processes {left} run on"
        time.sleep(0.01)
