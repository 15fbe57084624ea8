"""Directories that hold records: who may read them, how their files are opened, and how names survive a crash of the machine."""

from __future__ import annotations

import errno
import os
import stat
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


_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
}
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)


def open_file(path: str | Path, flags: int, mode: int = 0o644) -> int:
    """Open a regular file, or a link to one; it is an `opener` of `open`, too.

    A plain open of a named pipe waits without limit, and one of a device may read without an end.

    Raises:
        OSError: it cannot be opened, or is not a regular file; it names the path, and says what the file is.
    """
    name = os.path.basename(path)
    try:
        descriptor = os.open(path, flags | _AT_ONCE, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, f"{name} is a named pipe, a socket or a device, not a file", str(path)) from None
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{name} is {_KINDS.get(kind, 'something else')}, not a file", str(path))
    return descriptor


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
