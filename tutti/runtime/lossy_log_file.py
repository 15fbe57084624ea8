"""Lossy log file: a log output that never blocks a writing thread for long, because I/O threads also write log lines."""

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
_WAIT_PART = 100  # divisor of the total time: all waits for the reader together take at most one hundredth of it
_BLOCKING_TERMINAL_BYTES = 1  # the free space of a writable blocking terminal is unknown, but one byte always fits


class LossyLogFile:
    """A file that drops and counts lines if the disk is full, or if no process reads the pipe or terminal. Thread-safe.

    A write waits at most `LOG_WAIT_MS_MAX` for a slow reader. All waits together take at most one hundredth of the total time,
    because the writing threads have other work to do.

    Attributes:
        lost: number of dropped lines.
    """

    def __init__(self, file: TextIO) -> None:
        """Write to `file`."""
        self._file = file
        self._lock = threading.Lock()
        self._stuck = False  # True if a thread that holds the lock hangs in a write
        self._pipe, self._chunk_bytes = _pipe_of(file)
        self._poll = select.poll()
        if self._pipe is not None:
            self._poll.register(self._pipe, select.POLLOUT)
            if self._pipe != file.fileno():
                weakref.finalize(self, os.close, self._pipe).atexit = False
        self._torn = False  # True if the last line is incomplete
        self._wait_ms: float = limits.LOG_WAIT_MS_MAX  # remaining budget for waits, which grows with time
        self._waited_at = time.monotonic()
        self.lost = 0

    def write(self, line: str) -> None:
        """Write a line; drop the line if it cannot be written soon."""
        if not self._lock.acquire(timeout=0 if self._stuck else limits.LOG_WAIT_MS_MAX / MS):
            self._stuck = True
            self.lost += 1
            return
        try:
            if self._pipe is None or self._file.closed:
                self._file.write(line)
                self._file.flush()
            else:
                self._write_pipe(self._pipe, line.encode("utf-8", "backslashreplace"))
        except (OSError, ValueError):  # ValueError: the file is closed
            self.lost += 1
        finally:
            self._stuck = False
            self._lock.release()

    def _write_pipe(self, pipe: int, data: bytes) -> None:
        """Write in chunks that always fit into a writable pipe. Raise OSError if the pipe is full."""
        remaining = memoryview(b"\n" + data if self._torn else data)
        size = len(remaining)
        try:
            while remaining:
                if not self._wait_writable():
                    raise BlockingIOError
                remaining = remaining[os.write(pipe, remaining[: self._chunk_bytes]) :]
        finally:
            if len(remaining) < size:
                self._torn = bool(remaining)

    def _wait_writable(self) -> bool:
        """Return True if the pipe is writable now or becomes writable within the remaining budget."""
        began = time.monotonic()
        self._wait_ms = min(limits.LOG_WAIT_MS_MAX, self._wait_ms + (began - self._waited_at) * MS / _WAIT_PART)
        writable = bool(self._poll.poll(self._wait_ms))
        self._waited_at = time.monotonic()
        self._wait_ms = max(0.0, self._wait_ms - (self._waited_at - began) * MS)
        return writable

    def flush(self) -> None:
        """Do nothing: no line is buffered."""


def _pipe_of(file: TextIO) -> tuple[int | None, int]:
    """Return the descriptor of a pipe, terminal or socket (None for other files), and the number of bytes per write.

    For a pipe or terminal, open a second descriptor in non-blocking mode, so that the mode of the original one does not change. If
    the system does not permit a second descriptor, return the original one.
    """
    try:
        number = file.fileno()
        mode = os.fstat(number).st_mode
        terminal = os.isatty(number)
    except (OSError, ValueError):  # the file has no descriptor, or is closed
        return None, 0
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)):
        return None, 0
    if stat.S_ISFIFO(mode) or terminal:
        for name in (f"/proc/self/fd/{number}", *_own_terminal(number)):
            with contextlib.suppress(OSError):
                return os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), select.PIPE_BUF
    return number, _BLOCKING_TERMINAL_BYTES if terminal else select.PIPE_BUF


def _own_terminal(number: int) -> tuple[str, ...]:
    """Return /dev/tty if the descriptor is the process's own terminal: /dev/tty opens even if another user owns the terminal."""
    try:
        os.tcgetpgrp(number)
    except OSError:  # not a terminal, or not the controlling one
        return ()
    return ("/dev/tty",)
