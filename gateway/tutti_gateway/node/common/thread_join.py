"""Bounded wait for the end of a disk thread: a hanging disk must not block the stop of its gateway."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tutti import limits as common_limits
from tutti_gateway.core import limits

US = 1_000_000


def join_bounded(thread: threading.Thread, hurried: Callable[[], bool]) -> bool:
    """Wait for a thread that is ending. Return False after the time limit, or soon after `hurried` returns True.

    An abandoned thread is a daemon, so the process ends without waiting for the thread, as in a crash. No acknowledged record is
    lost.
    """
    by = time.monotonic() + limits.DISK_STOP_US_MAX / US
    while True:
        # The wait has parts of half a second, because a second signal must end the wait early.
        thread.join(common_limits.POLL_US_MAX / US)
        if not thread.is_alive():
            return True
        if hurried() or time.monotonic() >= by:
            return False
