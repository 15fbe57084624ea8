"""The position of a query name, which the streams of a driver share (option `queryName`).

A query of several streams, or a stream that is joined with itself, may have one name for all of them. Each stream is a process and
knows its own position only. A producer that waits for the query (`processed_by`), and retention, go by the position of the name: it
is the least of the positions of all streams that live.

Each stream keeps its position in a file of its own in the driver's scratch directory, and holds a lock on the file while it lives.
While the position of a stream is not known yet, that of the name is not either: streams join when Spark asks them for their limit,
which it does with all sources of a run before it asks one of them for an offset.
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
    """One stream's part in the position of a name."""

    def __init__(self, name: str, directory: Path) -> None:
        """Join; `directory` is one that all sources of the driver share."""
        self._home = directory / "tutti-positions" / hashlib.sha256(name.encode()).hexdigest()[:32]
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(self._home / f"stream-{uuid.uuid4().hex}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def least(self, log: str, offset: int) -> int | None:
        """Note that this stream has processed what lies below `offset` of log `log`, and return what all have; None: one has not
        said yet.
        """
        os.pwrite(self._file, f"{log} {offset:020}".encode(), 0)
        found = [offset]
        for file in self._home.glob("stream-*"):
            with suppress(FileNotFoundError):  # ended, and removed by another stream
                text = _read(file)
                if not is_held(file):
                    if text:  # else it may be about to take its lock
                        file.unlink()
                    continue
                if not text:
                    return None
                of, position = text.split()
                if of == log:
                    found.append(int(position))
        return min(found)

    def leave(self) -> None:
        """Hold nothing back any more. The end of the process does the same."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _read(file: Path) -> str:
    """What a file says, read again if it was written meanwhile."""
    while (text := file.read_text()) != file.read_text():
        pass
    return text
