"""Child processes that end with their parent, even if the parent is killed."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here, because it is not safe to load a library between fork and exec


def end_with_parent(parent: int, number: int) -> None:
    """Make the kernel send signal `number` to this process when the parent *thread* ends (prctl(2), PR_SET_PDEATHSIG).

    The parent must start this process from a thread that lives as long as the parent. If the process `parent` has already ended,
    send the signal now.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def end_with_this_process(number: int = signal.SIGTERM) -> Callable[[], None]:
    """Return a `preexec_fn` for a child that gets signal `number` when this single-threaded process ends."""
    return functools.partial(end_with_parent, os.getpid(), number)
