"""What a full disk means to a spool, and what it needs of the system beside plain files."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from tutti import limits
from tutti.errors import DirectoryRefused, WrongDirectory, remedy
from tutti.log.files.storage import Storage, SyncFailed
from tutti.runtime.fsync import open_file

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_PLACE = frozenset(
    {
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
    }
)


def no_room(error: OSError) -> bool:
    """Whether an error is a lack of room, after which the same may be tried again: never that of a sync."""
    return error.errno in _FULL and not isinstance(error, SyncFailed)


def unusable(error: OSError, spool: str) -> DirectoryRefused:
    """Why a spool cannot be opened: whoever named it has to see to it, unless it passes."""
    kind = WrongDirectory if error.errno in _NO_PLACE else DirectoryRefused
    return kind(f"spool {spool} cannot be used: {error.strerror}; {remedy(error)}")


def replace(storage: Storage, path: str, data: bytes) -> None:
    """As `Storage.replace_file`; half a file is not left where there is no room for all of it."""
    try:
        storage.replace_file(path, data)
    except OSError as error:
        if no_room(error):
            with suppress(OSError):
                storage.remove(path + ".tmp")
        raise


def keep_reserve(storage: Storage, path: str) -> None:
    """Have a file that makes room for the state: a disk that the spool itself has filled becomes free only by what leaves, and
    before anything leaves the state is written.
    """
    with suppress(OSError):  # it is tried again with the next state
        if os.path.exists(path) and os.path.getsize(path) >= limits.SPOOL_RESERVE_BYTES:
            return
        fd = storage.open(path, create=True)
        try:
            storage.allocate(fd, limits.SPOOL_RESERVE_BYTES)
        finally:
            storage.close(fd)


def take_lock(path: str, spool: str) -> int:
    """Lock a spool by its file; the descriptor that holds it.

    Raises:
        DirectoryRefused: another process has it.
        OSError: it cannot be locked.
    """
    import fcntl  # noqa: PLC0415 - clients are imported also on systems without it, and lock nothing

    lock = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise DirectoryRefused(f"spool {spool} is in use by process {holder}: each producer has a spool of its own") from None
    with suppress(OSError):  # it is only told to others, and a full disk may have no room for it
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
