"""Logs on stderr in the gateway's format: readable lines on a terminal, one JSON object a line otherwise.

This module uses the standard library's logging, because uvicorn uses that too, and structlog would cost this process 4 MB.
"""

from __future__ import annotations

import datetime
import logging
import sys

import msgspec

from tutti.runtime.lossy_log_file import LossyLogFile


class JsonLines(logging.Formatter):
    """Formats each record as one JSON object: event, level, timestamp, process, `fields`, and the number of lost lines."""

    def __init__(self, file: LossyLogFile) -> None:
        """Format lines for `file`, which counts lost lines."""
        super().__init__()
        self._file = file

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line: dict[str, object] = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "timestamp": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(),
            "process": "reads",
        }
        line.update(getattr(record, "fields", {}))
        if self._file.lost:
            line["log_lines_lost"] = self._file.lost
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # A field of an unknown type becomes text, because an exception in a formatter would lose the log line.
        return msgspec.json.encode(line, enc_hook=str).decode()


class PlainLines(logging.Formatter):
    """One readable line a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        fields = "".join(f" {name}={value}" for name, value in getattr(record, "fields", {}).items())
        text = f"{self.formatTime(record, '%H:%M:%S')} reads {record.levelname.lower()}: {record.getMessage()}{fields}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def set_up() -> None:
    """Write this process's logs to stderr."""
    # drops lines instead of blocking, because writes hold the logging lock
    terminal, file = sys.stderr.isatty(), LossyLogFile(sys.stderr)
    handler = logging.StreamHandler(file)
    handler.setFormatter(PlainLines() if terminal else JsonLines(file))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.ERROR)  # at lower levels, these libraries would log each malformed request
