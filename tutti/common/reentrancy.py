"""Protection against deadlock when a signal handler calls the producer that it has interrupted in the same thread."""

from __future__ import annotations

import inspect
from typing import Any

from tutti.errors import UsageError


def apart(lock: Any, taker: Any) -> None:
    """Reject a call by a signal handler that interrupted code which holds `lock` (an `RLock`), or runs the generator `taker`.

    Raises:
        UsageError: a signal handler makes the call. The state is unchanged.
    """
    # `_is_owned` is a private method of `RLock`, but `threading.Condition` depends on it too.
    if lock._is_owned() or (getattr(taker, "gi_running", False) and _runs_in_this_thread(taker)):
        raise UsageError(
            "a signal handler called a producer that it interrupted in its own thread: set a flag in the handler, or pass the "
            "record to another thread"
        )


def _runs_in_this_thread(taker: Any) -> bool:
    """Return True if the generator is running in the current thread."""
    running, frame = taker.gi_frame, inspect.currentframe()
    while frame is not None:
        if frame is running:
            return True
        frame = frame.f_back
    return False


def is_from_call(error: BaseException) -> bool:
    """Return True if a called C function or generator raised the error, False if an interrupting signal handler raised it."""
    return error.__traceback__ is None or error.__traceback__.tb_next is None
