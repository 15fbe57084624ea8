"""The reserve file and the lock file of a spool's directory."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from tutti import limits
from tutti.errors import DirectoryRefused, WrongDirectory, remedy
from tutti.log.files.disk_space import is_disk_full
from tutti.log.files.storage import Storage
from tutti.runtime.durable_files import open_file

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


def unusable(error: OSError, spool: str) -> DirectoryRefused:
    """Return the error for a spool that cannot be opened: `DirectoryRefused` if a retry may help, or else `WrongDirectory`."""
    kind = WrongDirectory if error.errno in _NO_PLACE else DirectoryRefused
    return kind(f"spool {spool} cannot be used: {error.strerror}; {remedy(error)}")


def replace(storage: Storage, path: str, data: bytes) -> None:
    """See `Storage.replace_file`. On a full disk, remove the incomplete file."""
    try:
        storage.replace_file(path, data)
    except OSError as error:
        if is_disk_full(error):
            with suppress(OSError):
                storage.remove(path + ".tmp")
        raise


def keep_reserve(storage: Storage, path: str) -> None:
    """Create the reserve file, whose space the state file uses on a full disk.

    If the spool itself has filled the disk, only the delivery of records frees space, and `spool.json` must be written before
    records are sent.
    """
    with suppress(OSError):  # the next update of the state tries to create the reserve again
        if os.path.exists(path) and os.path.getsize(path) >= limits.SPOOL_RESERVE_BYTES:
            return
        # Allocate the blocks of the file, because a sparse file reserves no space.
        fd = storage.open(path, create=True)
        try:
            storage.allocate(fd, limits.SPOOL_RESERVE_BYTES)
        finally:
            storage.close(fd)


def take_lock(path: str, spool: str) -> int:
    """Lock the lock file of a spool, and return its descriptor, which keeps the lock until it is closed.

    Raises:
        DirectoryRefused: another process holds the lock.
        OSError: the file cannot be locked.
    """
    import fcntl  # noqa: PLC0415 - clients without a spool also run on systems without `fcntl`

    # The kernel releases the lock when the process ends, so a crash leaves no stale lock.
    lock = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise DirectoryRefused(f"spool {spool} is in use by process {holder}: give each producer its own spool") from None
    with suppress(OSError):  # the pid serves only the error message, and a full disk may have no space for it
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
