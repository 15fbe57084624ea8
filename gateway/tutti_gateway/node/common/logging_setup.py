"""Structured logs on stderr: readable lines on a terminal, otherwise one JSON object per line."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from tutti.runtime.lossy_log_file import LossyLogFile


def set_up(gateway: str, level: Literal["info", "debug"] = "info") -> FilteringBoundLogger:
    """Configure structlog for this process. Return a logger that adds the gateway's name and drops lines below `level`."""
    terminal, file = sys.stderr.isatty(), LossyLogFile(sys.stderr)

    def count(_logger: object, _method: str, event: EventDict) -> EventDict:
        """Add the number of log lines that were lost before this line, if any."""
        if file.lost:
            event["log_lines_lost"] = file.lost
        return event

    renderer: Processor = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            count,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if level == "debug" else logging.INFO),
        # Each line is one write, so that the gateways of `tutti dev`, which share a file, do not mix their lines.
        logger_factory=structlog.WriteLoggerFactory(file),  # type: ignore[arg-type]  # structlog only calls `write` and `flush`
        cache_logger_on_first_use=True,
    )
    logger: FilteringBoundLogger = structlog.get_logger(gateway=gateway)
    return logger
