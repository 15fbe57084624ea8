"""Lock for access to a log's files, which turns OS errors into `DirectoryRefused`."""

from __future__ import annotations

import threading
from types import TracebackType

from tutti.errors import DirectoryRefused, remedy
from tutti.log.files.log_start import read_start
from tutti.log.read.catalog import trimmed_error


class ReaderLock:
    """A lock of a reader.

    The lock of the catalog is held only for short lookups, never during the processing of their results: a scan would otherwise
    block the frontier calls of other threads. Locks for longer work are acquired before it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()
        if isinstance(error, FileNotFoundError) and (start := read_start(self._path)).first > 1:
            raise trimmed_error(start) from error  # trimmed meanwhile: a new call sees the new start
        if isinstance(error, OSError):
            file = f" ({error.filename})" if error.filename else ""
            raise DirectoryRefused(f"{self._path} cannot be read: {error.strerror or error}{file}; {remedy(error)}") from error
