"""Directories that hold records: who may read them, and how names in them survive a crash of the machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

#: Of a directory for records: its account and group, whatever the umask leaves to all others. What exists keeps its mode.
DIRECTORY_MODE = 0o750


def make_directory(directory: str | Path, mode: int = DIRECTORY_MODE) -> None:
    """Make a directory for records, and those above it, where there is none. `mode` is for one that holds no records.

    Raises:
        OSError: it cannot be made, or is a file.
    """
    try:
        os.makedirs(directory, mode, exist_ok=True)
    except RecursionError:  # it calls itself for each directory above
        raise OSError(errno.ENAMETOOLONG, "the path has too many directories", str(directory)) from None


def sync_directory(directory: str | Path) -> None:
    """Make names that were added, changed or removed in the directory durable: a file's own sync does not.

    Raises:
        OSError: they may not be.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
