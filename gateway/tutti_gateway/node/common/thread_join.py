"""Threads that wait for the disk, seen from the end: a disk that hangs must not hold up the stop of its gateway."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tutti import limits as common_limits
from tutti_gateway.core import limits

US = 1_000_000


def ended(thread: threading.Thread, hurried: Callable[[], bool]) -> bool:
    """Wait for a thread that was told to end; False if it did not within its time, or within a moment once `hurried`.

    One that is left so is a daemon: the process ends without it, as by a crash, and nothing that was promised depends on it.
    """
    by = time.monotonic() + limits.DISK_STOP_US_MAX / US
    while True:
        thread.join(common_limits.POLL_US_MAX / US)
        if not thread.is_alive():
            return True
        if hurried() or time.monotonic() >= by:
            return False
