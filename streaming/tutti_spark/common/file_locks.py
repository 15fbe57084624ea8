"""Locks of files as marks of life: the kernel lets go of them when their process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tutti.runtime.fsync import open_file


def is_held(file: Path) -> bool:
    """Whether somebody has the lock (flock) of a file; of one that is not there nobody has it."""
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
