"""Logs on stderr: for people on a terminal, one JSON object a line otherwise, as the gateway's own.

The standard library's logging does it, because uvicorn writes there too and another library would cost this process 4 MB.
"""

from __future__ import annotations

import datetime
import logging
import sys

import msgspec

from tutti.runtime.lossy_log_file import Unfailing


class JsonLines(logging.Formatter):
    """One JSON object a record: event, level, timestamp, process, the record's `fields`, and how many lines `file` lost before."""

    def __init__(self, file: Unfailing) -> None:
        """For lines to `file`."""
        super().__init__()
        self._file = file

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
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
        return msgspec.json.encode(line, enc_hook=str).decode()


class PlainLines(logging.Formatter):
    """One readable line a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = "".join(f" {name}={value}" for name, value in getattr(record, "fields", {}).items())
        text = f"{self.formatTime(record, '%H:%M:%S')} reads {record.levelname.lower()}: {record.getMessage()}{fields}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def set_up() -> None:
    """Write this process's logs to stderr."""
    terminal, file = sys.stderr.isatty(), Unfailing(sys.stderr)  # a thread that serves holds the lock of all while it writes
    handler = logging.StreamHandler(file)
    handler.setFormatter(PlainLines() if terminal else JsonLines(file))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.ERROR)  # strangers on the port are not worth a line each
