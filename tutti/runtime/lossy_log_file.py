"""A file for logs that never stops who writes, whatever becomes of it: threads that move messages log, too."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
import time
import weakref
from typing import TextIO

from tutti import limits

MS = 1000
_WAIT_PART = 100  # of the time is not waited
_BLOCKING_TERMINAL_BYTES = 1  # that surely do not block one that says that it has room: how much, it does not say


class Unfailing:
    """A file whose lines are lost, and counted, on a full disk, or when nobody reads the pipe or the terminal.

    Who reads more slowly than lines come is waited for, `LOG_WAIT_MS_MAX` at most and one hundredth of the time: threads that
    others wait for log too. Thread-safe.

    Attributes:
        lost: how many lines were lost so far.
    """

    def __init__(self, file: TextIO) -> None:
        """Write to `file`."""
        self._file = file
        self._lock = threading.Lock()
        self._held = False  # the lock, for longer than is waited for it: the disk hangs in the thread that has it
        self._pipe, self._piece = _pipe_of(file)
        self._poll = select.poll()
        if self._pipe is not None:
            self._poll.register(self._pipe, select.POLLOUT)
            if self._pipe != file.fileno():
                weakref.finalize(self, os.close, self._pipe).atexit = False
        self._torn = False  # the last line was not written to its end
        self._wait_ms: float = limits.LOG_WAIT_MS_MAX  # that may be spent, which time gives back
        self._waited_at = time.monotonic()
        self.lost = 0

    def write(self, line: str) -> None:
        """Write a line, or lose it."""
        if not self._lock.acquire(timeout=0 if self._held else limits.LOG_WAIT_MS_MAX / MS):
            self._held = True
            self.lost += 1
            return
        try:
            if self._pipe is None or self._file.closed:
                self._file.write(line)
                self._file.flush()
            else:
                self._into_pipe(self._pipe, line.encode("utf-8", "backslashreplace"))
        except (OSError, ValueError):  # ValueError: it is closed
            self.lost += 1
        finally:
            self._held = False
            self._lock.release()

    def _into_pipe(self, pipe: int, data: bytes) -> None:
        """Write in pieces for each of which a pipe has room when it says that it has some; OSError where it has none."""
        left = memoryview(b"\n" + data if self._torn else data)
        whole = len(left)
        try:
            while left:
                if not self._has_room():
                    raise BlockingIOError
                left = left[os.write(pipe, left[: self._piece]) :]
        finally:
            if len(left) < whole:
                self._torn = bool(left)

    def _has_room(self) -> bool:
        """Whether the pipe has room, now or within the time that there is to wait."""
        began = time.monotonic()
        self._wait_ms = min(limits.LOG_WAIT_MS_MAX, self._wait_ms + (began - self._waited_at) * MS / _WAIT_PART)
        has_room = bool(self._poll.poll(self._wait_ms))
        self._waited_at = time.monotonic()
        self._wait_ms = max(0.0, self._wait_ms - (self._waited_at - began) * MS)
        return has_room

    def flush(self) -> None:
        """Nothing waits."""


def _pipe_of(file: TextIO) -> tuple[int | None, int]:
    """The pipe, terminal or socket that a file is, None if it is none; and how much is written at once, bytes.

    A pipe or a terminal is opened anew, so that no write to it blocks and nothing changes for others that have it. One that may not
    be opened so is written to as it is.
    """
    try:
        number = file.fileno()
        mode = os.fstat(number).st_mode
        terminal = os.isatty(number)
    except (OSError, ValueError):  # it is no file of the system, or closed
        return None, 0
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)):
        return None, 0
    if stat.S_ISFIFO(mode) or terminal:
        for name in (f"/proc/self/fd/{number}", *_own_terminal(number)):
            with contextlib.suppress(OSError):
                return os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), select.PIPE_BUF
    return number, _BLOCKING_TERMINAL_BYTES if terminal else select.PIPE_BUF


def _own_terminal(number: int) -> tuple[str, ...]:
    """The name by which a process may open its own terminal, if this is it: also where it belongs to another user (`sudo -u`)."""
    try:
        os.tcgetpgrp(number)
    except OSError:  # no terminal, or not the one that this process was started from
        return ()
    return ("/dev/tty",)
