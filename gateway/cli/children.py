"""Child processes that do not outlive their parent."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: int = signal.SIGTERM) -> Callable[[], None]:
    """What a child runs before exec, so that it gets the signal `number` when its parent's thread is gone.

    For `preexec_fn` of a process that has one thread: the C library is looked up here, before the fork.
    """
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number)

    return ask
