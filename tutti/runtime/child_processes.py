"""Child processes that do not outlive their parent, however that ends and whatever they are busy with."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # looked up here and not between fork and exec


def end_with_parent(parent: int, number: int) -> None:
    """Let the kernel send this process the signal `number` when the *thread* that started it is gone (prctl(2), PR_SET_PDEATHSIG).

    So it is to be started from a thread that lives as long as it shall. If process `parent` is gone already, the signal comes now.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def ending_with_this(number: int = signal.SIGTERM) -> Callable[[], None]:
    """The `preexec_fn` of a child that is to get the signal `number` when this process, which has one thread, is gone."""
    return functools.partial(end_with_parent, os.getpid(), number)
