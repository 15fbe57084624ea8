"""Locks that are held where files of a log are looked at; what the system refuses there is told as a refusal of the directory."""

from __future__ import annotations

import threading
from types import TracebackType

from tutti.errors import DirectoryRefused, remedy
from tutti.log.files.log_start import read_start
from tutti.log.read.catalog import trimmed


class Looking:
    """One lock of a reader. The one that all share is held for a look alone, never while what was found is worked through: else one
    caller's scan would stop every other's frontier. Others, for what takes longer, are taken before it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()
        if isinstance(error, FileNotFoundError) and (start := read_start(self._path)).first > 1:
            raise trimmed(start) from error  # whoever looks again sees what is there
        if isinstance(error, OSError):
            file = f" ({error.filename})" if error.filename else ""
            raise DirectoryRefused(f"{self._path} cannot be read: {error.strerror or error}{file}; {remedy(error)}") from error
