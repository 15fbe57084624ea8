"""What a crash of the machine must not take back: a file's name is in its directory, which has to be synced as the file has."""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(directory: str | Path) -> None:
    """Make names made, changed or taken away in the directory durable.

    Raises:
        OSError: they may not be.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
