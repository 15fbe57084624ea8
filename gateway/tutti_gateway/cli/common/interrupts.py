"""Ctrl-C in a process of our own.

While modules are loaded it ends the process at once, as nothing is open yet that wants to be put in order. As an exception it
would come out of somebody else's module by half: as a traceback, as an error that says something else, and from some libraries as a
crash.

Later the first one is the exception. The next one ends the process at once, where things are being put in order for the first: as
a second exception it would come out of that, or of whatever reports the first.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType

EXIT_INTERRUPTED = 130
INTERRUPTED = "interrupted\n"
_SAME_S = 0.25  # within which a second one is the same one: a terminal and who started us may both pass it on


def heed() -> None:
    """From now on Ctrl-C is heeded as above, unless somebody else heeds or ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _first)


def heed_no_more() -> None:
    """From now on it changes nothing: the process is about to end, with an exit code that is known."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Loading:
    """A block that loads modules."""

    def __enter__(self) -> None:
        """From now on Ctrl-C ends the process, unless somebody else heeds or ignores it."""
        self._before = signal.getsignal(signal.SIGINT)
        self._ours = self._before in (signal.default_int_handler, _first)
        if self._ours:
            signal.signal(signal.SIGINT, _end)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """From now on it is an exception again."""
        if self._ours:
            signal.signal(signal.SIGINT, self._before)


def _first(number: int, frame: FrameType | None) -> None:
    heard_s = time.monotonic()

    def again(number: int, frame: FrameType | None) -> None:
        if time.monotonic() - heard_s > _SAME_S:
            _end(number, frame)

    signal.signal(signal.SIGINT, again)
    signal.default_int_handler(number, frame)


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, INTERRUPTED.encode())
    os._exit(EXIT_INTERRUPTED)
