"""Structured logs on stderr: for people on a terminal, one JSON object a line otherwise."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from tutti.runtime.lossy_log_file import Unfailing


def set_up(gateway: str, level: Literal["info", "debug"] = "info") -> FilteringBoundLogger:
    """Configure structlog for this process and return a logger that names the gateway, and is silent below `level`."""
    terminal, file = sys.stderr.isatty(), Unfailing(sys.stderr)

    def count(_logger: object, _method: str, event: EventDict) -> EventDict:
        """Say in a line how many were lost before it, if any were."""
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
        # A line in one write: gateways that share a file, as those of `tutti dev` do, must not write into each other's lines.
        logger_factory=structlog.WriteLoggerFactory(file),  # type: ignore[arg-type]  # it needs no more of a file than to write
        cache_logger_on_first_use=True,
    )
    logger: FilteringBoundLogger = structlog.get_logger(gateway=gateway)
    return logger
