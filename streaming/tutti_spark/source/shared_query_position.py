"""Position of a query name that several streams of one driver share (option `queryName`).

The streams of one query, or of a self-join, may have the same name. Each stream is a process that knows only its own position. The
position of the name is the lowest position of all live streams. Retention uses the position of the name, and so do producers that
wait for the query (`processed_by`).

Each stream stores its position in its own file in the driver's scratch directory, and locks the file while it is alive. The
position of the name is unknown until every stream has stored a position. A stream creates its file when Spark requests its read
limit: at the start of a run, Spark requests the limits of all sources before any offset.
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
    """The stored position of one stream, which contributes to the position of the stream's query name."""

    def __init__(self, name: str, directory: Path) -> None:
        """Create and lock this stream's file. All sources of the driver share `directory`."""
        self._directory = directory / "tutti-positions" / hashlib.sha256(name.encode()).hexdigest()[:32]
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(self._directory / f"stream-{uuid.uuid4().hex}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def least(self, log: str, offset: int) -> int | None:
        """Store that this stream has processed all records below `offset` of `log`; return the lowest position of all streams.

        Returns:
            The position of the name. Until every stream has stored its position, the result is None.
        """
        os.pwrite(self._file, f"{log} {offset:020}".encode(), 0)  # with a fixed length, no old digits remain after the new text
        found = [offset]
        for file in self._directory.glob("stream-*"):
            with suppress(FileNotFoundError):  # another stream has removed the file of a stream that ended
                text = _read(file)
                if not is_held(file):
                    if text:  # keep an empty file, because its stream may be about to lock it
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
    """Read a file, again and again until two reads agree, because another process may be writing the file."""
    while (text := file.read_text()) != file.read_text():
        pass
    return text
