"""Ctrl-C while modules are loaded: the process ends at once, as nothing is open yet that wants to be put in order.

As an exception it would come out of somebody else's module by half: as a traceback, as an error that says something else, and from
some libraries as a crash.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType

EXIT_INTERRUPTED = 130
INTERRUPTED = "interrupted\n"


class Loading:
    """A block that loads modules."""

    def __enter__(self) -> None:
        """From now on Ctrl-C ends the process, unless somebody else heeds or ignores it."""
        self._ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._ours:
            signal.signal(signal.SIGINT, _end)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """From now on it is an exception again."""
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, INTERRUPTED.encode())
    os._exit(EXIT_INTERRUPTED)
