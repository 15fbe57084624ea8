"""SIGINT (Ctrl-C) handling of a `tutti` process.

While modules load, Ctrl-C ends the process at once, because nothing needs cleanup yet. A KeyboardInterrupt raised inside a
half-imported module could cause a traceback, a misleading error, or a crash in a C extension.

When a command runs, the first Ctrl-C raises KeyboardInterrupt, which starts the cleanup. A second Ctrl-C ends the process at once,
because a second exception would interrupt the cleanup at an arbitrary line.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType

EXIT_INTERRUPTED = 130
INTERRUPTED = "interrupted\n"
#: Time after a SIGINT in which another one is ignored, because a terminal and a parent process may both send one for one Ctrl-C.
_DUPLICATE_S = 0.25


def install_handler() -> None:
    """Install the SIGINT handler, unless the process ignores SIGINT or has already installed another handler."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_first)


def ignore_interrupts() -> None:
    """Ignore SIGINT until the process ends, so that a late Ctrl-C cannot change the exit code of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class ImportGuard:
    """Context manager for a block that only imports modules: within the block, Ctrl-C ends the process at once."""

    def __enter__(self) -> None:
        """Let SIGINT end the process, unless the program that called `tutti` handles or ignores SIGINT itself."""
        self._before = signal.getsignal(signal.SIGINT)
        self._ours = self._before in (signal.default_int_handler, _on_first)
        if self._ours:
            signal.signal(signal.SIGINT, _exit_now)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the previous handler."""
        if self._ours:
            signal.signal(signal.SIGINT, self._before)


def _on_first(number: int, frame: FrameType | None) -> None:
    first_s = time.monotonic()

    def on_second(number: int, frame: FrameType | None) -> None:
        if time.monotonic() - first_s > _DUPLICATE_S:
            _exit_now(number, frame)

    signal.signal(signal.SIGINT, on_second)
    signal.default_int_handler(number, frame)


def _exit_now(_number: int, _frame: FrameType | None) -> None:
    os.write(2, INTERRUPTED.encode())
    os._exit(EXIT_INTERRUPTED)
