"""Position of a query name that several streams of one driver share (option `queryName`).

The streams of one query, or of a self-join, may have the same name. Each stream is a process that knows only its own position.
Retention, and producers that wait for the query (`processed_by`), use the position of the name. This is the lowest position of all
live streams.

Each stream keeps its position in its own file in the driver's scratch directory, and locks the file while it is alive. The position
of the name is unknown until every stream has stored a position. A stream joins when Spark requests its limit: Spark requests the
limits of all sources of a run before it requests any offset.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from contextlib import suppress
from pathlib import Path

from tutti_spark.common.file_locks import is_held


class SharedPosition:
    """The position of one stream among all streams with the same query name."""

    def __init__(self, name: str, directory: Path) -> None:
        """Create and lock this stream's file; all sources of the driver share `directory`."""
        self._directory = directory / "tutti-positions" / hashlib.sha256(name.encode()).hexdigest()[:32]
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(self._directory / f"stream-{uuid.uuid4().hex}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def least(self, log: str, offset: int) -> int | None:
        """Store that this stream has processed all records below `offset` of `log`; return the lowest position of all streams.

        Returns:
            The position of the name; None while a stream has not stored its position yet.
        """
        os.pwrite(self._file, f"{log} {offset:020}".encode(), 0)  # the length is fixed, so that no old digits remain
        found = [offset]
        for file in self._directory.glob("stream-*"):
            with suppress(FileNotFoundError):  # the stream ended, and another stream removed its file
                text = _read(file)
                if not is_held(file):
                    if text:  # an empty file may belong to a stream that has not yet locked the file
                        file.unlink()
                    continue
                if not text:
                    return None
                position_log, position = text.split()
                if position_log == log:
                    found.append(int(position))
        return min(found)

    def leave(self) -> None:
        """Release this stream's lock, so that its position no longer counts. The end of the process does the same."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _read(file: Path) -> str:
    """Read a file; repeat while a concurrent write changes it."""
    while (text := file.read_text()) != file.read_text():
        pass
    return text
