"""Signal handlers that call the producer which their own thread is in the middle of using: they would wait for themselves."""

from __future__ import annotations

import inspect
from typing import Any

from tutti.errors import UsageError


def apart(lock: Any, taker: Any) -> None:
    """Refuse what comes from a signal handler whose thread has the lock (an `RLock`), or is within that taker, if it can be: if it
    is a generator.

    Raises:
        UsageError: it does. Nothing has changed.
    """
    if lock._is_owned() or (getattr(taker, "gi_running", False) and _is_within(taker)):  # as threading.Condition asks
        raise UsageError(
            "a signal handler called a producer that its own thread was in the middle of using: let the handler set a flag, or "
            "hand the record to another thread"
        )


def _is_within(taker: Any) -> bool:
    """Whether it is this thread that runs it, and not another one for a moment."""
    running, frame = taker.gi_frame, inspect.currentframe()
    while frame is not None:
        if frame is running:
            return True
        frame = frame.f_back
    return False


def is_from_call(error: BaseException) -> bool:
    """Whether what was called raised it, which is a function or a generator of C's, and no signal handler that came in between."""
    return error.__traceback__ is None or error.__traceback__.tb_next is None
