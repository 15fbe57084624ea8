"""SIGINT (Ctrl-C) handling of a `tutti` process.

While modules load, Ctrl-C ends the process at once, because nothing needs cleanup yet. A KeyboardInterrupt raised inside a
half-imported module can end as a traceback, as a misleading error, or as a crash in a C extension.

Afterwards the first Ctrl-C raises KeyboardInterrupt. The second one ends the process at once: an exception would interrupt the
cleanup that the first one started.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType

EXIT_INTERRUPTED = 130
INTERRUPTED = "interrupted\n"
#: A terminal and a parent process may both send SIGINT for one Ctrl-C: a second signal within this time is ignored.
_DUPLICATE_S = 0.25


def install_handler() -> None:
    """Install the SIGINT handler, unless the process already handles or ignores SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_first)


def ignore_interrupts() -> None:
    """Ignore SIGINT from here on: the process is about to end with a known exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class ImportGuard:
    """Context manager for a block that imports modules: Ctrl-C ends the process at once."""

    def __enter__(self) -> None:
        """Install the handler that ends the process, unless the caller handles or ignores SIGINT."""
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
