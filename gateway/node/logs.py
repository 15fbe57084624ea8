"""Structured logs on stderr: for people on a terminal, one JSON object a line otherwise."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import stat
import sys
import threading
import time
import weakref
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from gateway.core import limits

MS = 1000
_WAIT_PART = 100  # of the time is not waited


class Unfailing:
    """A file for logs that never stops who writes: on a full disk, or when nobody reads the pipe, lines are lost and counted, and
    the gateway goes on. Each later line carries the count, `log_lines_lost`.

    Who reads a pipe more slowly than it is filled is waited for, `LOG_WAIT_MS_MAX` at most and one hundredth of the time: threads
    that others wait for log too. Thread-safe.
    """

    def __init__(self, file: TextIO) -> None:
        """Write to `file`."""
        self._file = file
        self._lock = threading.Lock()
        self._held = False  # the lock, for longer than is waited for it: the disk hangs in the thread that has it
        self._pipe = _pipe_of(file)
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
                left = left[os.write(pipe, left[: select.PIPE_BUF]) :]
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

    def count(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        """Say in a line how many were lost before it, if any were."""
        if self.lost:
            event["log_lines_lost"] = self.lost
        return event


def _pipe_of(file: TextIO) -> int | None:
    """The pipe, terminal or socket that a file is; None if it is none.

    A pipe is opened anew, so that no write to it blocks and nothing changes for others that have it. One that may not be opened so
    is written to as it is.
    """
    try:
        number = file.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError):  # it is no file of the system, or closed
        return None
    if stat.S_ISFIFO(mode):
        with contextlib.suppress(OSError):
            return os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
    return number if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) else None


def set_up(gateway: str, level: Literal["info", "debug"] = "info") -> FilteringBoundLogger:
    """Configure structlog for this process and return a logger that names the gateway, and is silent below `level`."""
    terminal, file = sys.stderr.isatty(), Unfailing(sys.stderr)
    renderer: Processor = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            file.count,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if level == "debug" else logging.INFO),
        # A line in one write: gateways that share a file, as those of `tutti dev` do, must not write into each other's lines.
        logger_factory=structlog.WriteLoggerFactory(file),  # type: ignore[arg-type]  # it needs no more of a file than to write
        cache_logger_on_first_use=True,
    )
    logger: FilteringBoundLogger = structlog.get_logger(gateway=gateway)
    return logger
