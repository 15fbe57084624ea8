"""Structured logs on stderr: for people on a terminal, one JSON object a line otherwise."""

from __future__ import annotations

import logging
import select
import sys
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from gateway.core import limits


class Unfailing:
    """A file for logs that never stops who writes: on a full disk, or when nobody reads the pipe, lines are lost and counted, and
    the gateway goes on. Each later line carries the count, `log_lines_lost`.

    Who reads a pipe more slowly than it is filled is waited for, once: `LOG_WAIT_MS_MAX`, and not again until there is room.
    """

    def __init__(self, file: TextIO) -> None:
        """Write to `file`."""
        self._file = file
        self._room: select.poll | None = select.poll()
        try:
            self._room.register(file.fileno(), select.POLLOUT)
        except OSError:  # it is no file of the system
            self._room = None
        self._wait_ms = limits.LOG_WAIT_MS_MAX
        self.lost = 0

    def write(self, line: str) -> None:
        """Write a line, or lose it."""
        if self._room is not None:
            has_room = bool(self._room.poll(self._wait_ms))  # for 4 KiB, if it is a pipe
            self._wait_ms = limits.LOG_WAIT_MS_MAX if has_room else 0
            if not has_room:
                self.lost += 1
                return
        try:
            self._file.write(line)
            self._file.flush()
        except (OSError, ValueError):  # ValueError: it is closed
            self.lost += 1

    def flush(self) -> None:
        """Nothing waits."""

    def count(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        """Say in a line how many were lost before it, if any were."""
        if self.lost:
            event["log_lines_lost"] = self.lost
        return event


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
