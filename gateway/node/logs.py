"""Structured logs on stderr: for people on a terminal, one JSON object a line otherwise."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import FilteringBoundLogger, Processor


def set_up(gateway: str, level: Literal["info", "debug"] = "info") -> FilteringBoundLogger:
    """Configure structlog for this process and return a logger that names the gateway, and is silent below `level`."""
    terminal = sys.stderr.isatty()
    renderer: Processor = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if level == "debug" else logging.INFO),
        # A line in one write: gateways that share a file, as those of `tutti dev` do, must not write into each other's lines.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logger: FilteringBoundLogger = structlog.get_logger(gateway=gateway)
    return logger
