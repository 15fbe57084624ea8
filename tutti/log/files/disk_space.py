"""Free disk space: an early low-space state, and a reserve for writes that must succeed on a full disk (design, section 6)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from tutti import limits
from tutti.errors import Damaged, DiskFailed, DiskFull
from tutti.log.files.layout import RESERVE
from tutti.log.files.options import FreeSpace, LogOptions
from tutti.log.files.storage import MediumError, Storage, SyncFailed

# EFBIG is not in the set, because it reports the size limit of a file, so more free space would not help a retry.
_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
_HYSTERESIS = 1.25  # multiple of the limit at which the low-space state ends

Result = TypeVar("Result")


def is_disk_full(error: OSError) -> bool:
    """True if an error means a full disk and a retry is safe. For a failed sync, the result is False, because no retry is safe."""
    return error.errno in _FULL_ERRNOS and not isinstance(error, SyncFailed)


def failure_of(what: str, path: str, error: OSError) -> DiskFull | DiskFailed:
    """Convert an OS error to an error of the log. `what` is the failed operation on the path, for example "writing"."""
    if is_disk_full(error):
        return DiskFull(f"the disk is full: {what} {path} failed ({error.strerror}): free some space")
    return DiskFailed(
        f"{what} {path} failed ({error.strerror}): the gateway writes nothing more until a restart; check the disk first"
    )


def failure_of_start(path: str, error: OSError) -> DiskFull | DiskFailed | Damaged:
    """Convert an OS error during a start to an error of the log. A file that the device cannot read counts as corrupt."""
    if not isinstance(error, MediumError):
        return failure_of("starting the log in", path, error)
    return Damaged(
        f"{error.filename or path} cannot be read ({error.strerror}), and no other file holds the same data: check the disk, and "
        "restore the file, or start the gateway with a new directory"
    )


class DiskSpace:
    """Watches the free space of the disk, and manages the reserve file."""

    def __init__(self, directory: str, options: LogOptions, storage: Storage, *, reserve_used: bool = False) -> None:
        """Allocate the reserve file, if the disk has enough free space.

        Args:
            directory: directory of the log, which determines the file system.
            reserve_used: True if the previous run used the reserve as a segment. In this case, only required writes may use the
                rest of that segment until the disk has space for a new reserve.
        """
        self._directory = directory
        self._options = options
        self._storage = storage
        self._reserve = os.path.join(directory, RESERVE)
        self._low = False
        self.in_reserve = reserve_used  # True if the reserve is in use, so that only required writes are allowed
        self._keep_reserve()

    def space(self) -> FreeSpace:
        """Return the free space, and whether it is low.

        If the free space falls below the limit, new messages must be refused until the free space exceeds the limit by a quarter.
        """
        free = self._storage.free_bytes(self._directory)
        limit = self._options.disk_low_bytes
        self._low = free < (limit * _HYSTERESIS if self._low else limit)
        if not self._low:
            self._keep_reserve()
        low = self._low or self.in_reserve
        reason = (
            f"the disk of {self._directory} has {free >> 20} MiB free, and new records need at least "
            f"{-(-self._bytes_to_end_low() // limits.MIB)} MiB: free some space"
            if low
            else ""
        )
        return FreeSpace(free, low, reason)

    def _bytes_to_end_low(self) -> int:
        """Return the number of free bytes at which the current low-space state ends."""
        limit = self._options.disk_low_bytes
        quarter_more = int(limit * _HYSTERESIS) if self._low else 0
        return max(quarter_more, limit + self._options.reserved_bytes if self.in_reserve else 0)

    def use_reserve(self) -> str | None:
        """Return the path of the reserve file, which the caller makes a segment, or None if the reserve no longer exists.

        After this call, only required writes are allowed until the disk has space for a new reserve.
        """
        if not os.path.exists(self._reserve):
            return None
        self.in_reserve = True
        return self._reserve

    def with_reserve(self, act: Callable[[], Result], what: str) -> Result:
        """Perform a required write. If the disk is full, delete the reserve and retry once.

        Args:
            act: function that performs the write.
            what: description of the write for an error text, for example "the index".

        Raises:
            DiskFull: the disk is still full.
        """
        try:
            return act()
        except OSError as error:
            if not is_disk_full(error) or not os.path.exists(self._reserve):
                raise
        # The freed space is only for required writes. With `in_reserve`, the writer refuses batches until the disk has more space.
        self._storage.remove(self._reserve)
        self.in_reserve = True
        try:
            return act()
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(f"the disk of {self._directory} has no space for {what}: free some space") from error
            raise

    def _keep_reserve(self) -> None:
        size = self._options.reserved_bytes
        if not size or (os.path.exists(self._reserve) and os.path.getsize(self._reserve) >= size):
            self.in_reserve = False
            return
        # The allocation of a new reserve must not reduce the free space below the limit at which new records are refused.
        if self._storage.free_bytes(self._directory) < self._options.disk_low_bytes + size:
            return
        # The file gets its final name only after all blocks are allocated, so that every file with the final name is usable.
        temporary = self._reserve + ".tmp"
        fd = self._storage.open(temporary, create=True)
        try:
            self._storage.allocate(fd, size)
            self._storage.sync(fd)  # not `make_durable`, because a failed sync loses nothing: the file contains no data
        except OSError as error:
            self._storage.remove(temporary)
            if not is_disk_full(error):
                raise
            return  # another process has used the space in the meantime; the next call of `space` tries again
        finally:
            self._storage.close(fd)
        self._storage.rename(temporary, self._reserve)
        self.in_reserve = False
