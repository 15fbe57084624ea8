"""File locks as a liveness check: the kernel releases a lock when its process ends, even after a kill."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tutti.runtime.durable_files import open_file


def is_held(file: Path) -> bool:
    """Return True if a process holds the lock (flock) of a file; False if the file does not exist."""
    try:
        found = open_file(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(found)
