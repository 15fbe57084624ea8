"""Quarantine: files for records and messages that cannot be delivered.

`Quarantine` writes one file for each record. The file name identifies the record, so writing a record twice has no effect. A full
`Quarantine` stops the connector, which therefore loses no record.

`QuarantineLog` writes many messages to one file, for connectors that accept data from any peer. A full `QuarantineLog` drops and
counts messages, so that a flood of invalid messages cannot stop the connector.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from tutti.errors import TuttiError
from tutti.runtime.durable_files import sync_directory
from tutti_connect import limits
from tutti_connect.config import writable_directory

LOG = logging.getLogger("tutti.quarantine")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


class QuarantineFull(TuttiError):
    """The quarantine is full: an operator must move files away."""


class Quarantine:
    """A directory of quarantined records with reasons. One thread writes; other threads may read `count`."""

    def __init__(self, directory: str) -> None:
        """Open the directory, or create it.

        Raises:
            ConfigError: the directory is not writable.
        """
        self._directory = writable_directory("quarantine", directory)
        self.count, self._bytes = self._scan()

    def put(self, label: str, source: Sequence[str], reason: str, record: Mapping[str, Any]) -> bool:
        """Write a record durably; return False if the directory already has it. `label` and `source` together identify a record.

        Args:
            label: origin of the record for people: its source and the position there, such as "orders-0-17".
            source: ids of the source, which distinguish it from other sources with one name.
            reason: reason why the record cannot be delivered.
            record: all fields of the record as JSON values, bytes in the form of `as_base64`.

        Raises:
            QuarantineFull: the quarantine is full.
            OSError: the disk write failed.
        """
        digest = hashlib.sha256("\0".join((label, *source)).encode()).hexdigest()[:12]
        path = self._directory / f"{_NOT_IN_NAMES.sub('_', label)[: limits.LABEL_CHARACTERS]}-{digest}.json"
        if path.exists():
            return False
        if self._full:
            self.count, self._bytes = self._scan()  # an operator may have moved files away
        if self._full:
            raise QuarantineFull(
                f"{label}: {self.count} records ({self._bytes} bytes) are in quarantine in {self._directory}, which is the limit: "
                f"check the reasons in the files, and move the files away"
            )
        data = orjson.dumps({"reason": reason, **record}, option=orjson.OPT_APPEND_NEWLINE)
        partial = path.with_suffix(".part")
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        sync_directory(self._directory)
        self.count += 1
        self._bytes += len(data)
        return True

    @property
    def _full(self) -> bool:
        return self.count >= limits.QUARANTINED_MAX or self._bytes >= limits.QUARANTINED_BYTES_MAX

    def _scan(self) -> tuple[int, int]:
        """Return the number of files and their total size in bytes."""
        sizes = []
        for path in self._directory.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # the file was moved away during the scan
                sizes.append(path.stat().st_size)
        return len(sizes), sum(sizes)


class QuarantineLog:
    """Files of messages that the log rejects, with the reasons. One thread appends; other threads may read the counters.

    Each line is a JSON object with the fields `reason` and `time`, and those of the connector. An operator may move or remove any
    file at any time. A `QuarantineLog` whose files are all full drops and counts messages.

    Attributes:
        dropped: number of messages that were dropped because all files were full or a disk write failed.
    """

    def __init__(self, directory: str, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Open or create the directory; continue the newest file whose name begins with `name`.

        Raises:
            ConfigError: the directory is not writable.
        """
        self._directory, self._name, self._clock = writable_directory("quarantine", directory), name, clock
        self.dropped = 0
        self._messages = {path: path.read_bytes().count(b"\n") for path in self._files()}
        self._file = max(self._messages, default=None)
        if self._file is not None and not self._file.read_bytes().endswith(b"\n"):
            self._file = None  # the last line is incomplete after a crash, so continue in a new file
        self._check_at = self._report_at = 0.0
        self._unreported = 0

    @property
    def count(self) -> int:
        """Return the number of messages in the files that are still in the directory."""
        return sum(count for path, count in list(self._messages.items()) if path.exists())

    def append(self, messages: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Append messages, each with a reason and JSON fields; before the call returns, write or drop all of them."""
        now, form = datetime.now(UTC).isoformat(timespec="milliseconds"), orjson.OPT_APPEND_NEWLINE
        lines = [orjson.dumps({"reason": reason, "time": now, **message}, option=form) for reason, message in messages]
        trouble, kept = "", 0
        try:
            while kept < len(lines) and (file := self._open_file()) is not None:
                kept += self._write(file, lines[kept:])
        except OSError as error:
            trouble = f"{error.strerror}: free some space there"
            self._check_at = self._clock() + limits.QUARANTINE_LOG_CHECK_S
        self.dropped += len(lines) - kept
        self._unreported += len(lines)
        self._report(messages[-1][0], trouble)

    def _files(self) -> list[Path]:
        return list(self._directory.glob(f"{self._name}-{'[0-9]' * 8}T*.jsonl"))

    def _open_file(self) -> Path | None:
        """Return a file with space for more messages, or None if all files are full or the pause after a failure still lasts."""
        if self._clock() < self._check_at:
            return None
        file = self._file
        if file is not None and (not file.exists() or file.stat().st_size < limits.QUARANTINE_LOG_FILE_BYTES):
            return file
        files = self._files()
        self._messages = {path: count for path, count in self._messages.items() if path in files}
        if len(files) >= limits.QUARANTINE_LOG_FILES:
            self._check_at = self._clock() + limits.QUARANTINE_LOG_CHECK_S
            return None
        self._file = self._directory / f"{self._name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.jsonl"
        return self._file

    def _write(self, file: Path, lines: Sequence[bytes]) -> int:
        """Append lines until the file is full, at least one line; return the number of written lines."""
        old_size = file.stat().st_size if file.exists() else -1
        size, count = max(old_size, 0), 0
        while count < len(lines) and size < limits.QUARANTINE_LOG_FILE_BYTES:
            size += len(lines[count])
            count += 1
        try:
            with file.open("ab") as appended:
                appended.write(b"".join(lines[:count]))
                appended.flush()
                os.fsync(appended.fileno())
            if old_size < 0:
                sync_directory(self._directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(file, max(old_size, 0))  # remove an incomplete line, which the next append would continue
            raise
        self._messages[file] = count + (self._messages.get(file, 0) if old_size >= 0 else 0)
        return count

    def _report(self, reason: str, trouble: str) -> None:
        """Log the counts, at most once in `QUARANTINE_LOG_REPORT_S`, so that peers cannot flood the connector's own log."""
        now = self._clock()
        if now < self._report_at:
            return
        self._report_at = now + limits.QUARANTINE_LOG_REPORT_S
        full = f"{limits.QUARANTINE_LOG_FILES} files of {limits.QUARANTINE_LOG_FILE_BYTES} bytes are full: move them away"
        lost = f"; {self.dropped} were dropped so far ({trouble or full})" if self.dropped else ""
        LOG.warning(
            "%s: rejected messages since the last report: %d, see %s%s; the last reason: %s",
            self._name, self._unreported, self._directory, lost, reason,
        )  # fmt: skip
        self._unreported = 0


def as_base64(data: bytes | str | None) -> str | None:
    """Return bytes as base64 text for JSON; None stays None."""
    if data is None:
        return None
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
