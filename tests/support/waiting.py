"""Waiting for an effect that arrives some time after its cause."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

WAIT_S = 90.0
_POLL_S = 0.005

T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], what: str | Callable[[], object] = "", *, seconds: float = WAIT_S) -> T:
    """Poll until the condition is true, and return its value.

    Args:
        what: the text of the AssertionError at the deadline, or a function that returns it.
        seconds: the deadline. It only ends a test that hangs, so a long one costs nothing.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"the condition was not met within {seconds:g} s: {what() if callable(what) else what}")
        time.sleep(_POLL_S)
    return value


def wait_while_running(
    process: subprocess.Popen[bytes], log: Path, condition: Callable[[], T | None], *, seconds: float = WAIT_S
) -> T:
    """Poll until the condition is true; AssertionError with the end of the log if the process ends before."""

    def checked() -> T | None:
        assert process.poll() is None, log.read_text()[-3000:]
        return condition()

    return wait_until(checked, lambda: log.read_text()[-3000:], seconds=seconds)
