"""Directories that contain records: their mode, safe opening of their files, and fsync of their entries."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: Mode of a new directory for records: only owner and group have access, even if the umask allows more.
DIRECTORY_MODE = 0o750


def make_directory(directory: str | Path, mode: int = DIRECTORY_MODE) -> None:
    """Create a directory for records, and its missing parents. An existing directory keeps its mode.

    Raises:
        OSError: the directory cannot be created, or the path is a file.
    """
    try:
        os.makedirs(directory, mode, exist_ok=True)
    except RecursionError:  # `os.makedirs` recurses for each parent
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
    """Open a regular file, or a link to a regular file. Usable as the `opener` of `open`.

    Other files are rejected, because a plain open of a named pipe blocks without limit, and reads of a device may never end.

    Raises:
        OSError: the path cannot be opened or is not a regular file; the error contains the path and the type of the file.
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
    """Make created, renamed and removed entries of the directory durable, which the fsync of a file does not do.

    Raises:
        OSError: the sync failed, so the names may not be durable.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
