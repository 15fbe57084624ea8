"""Room on the disk: told early, and a reserve for what must be written even when there is none (design, section 6)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from tutti import limits
from tutti.errors import Damaged, DiskFailed, DiskFull
from tutti.log.files.layout import RESERVE
from tutti.log.files.options import LogOptions, Space
from tutti.log.files.storage import Storage, SyncFailed, Unreadable

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_ENOUGH = 1.25  # so much more than the limit ends a low; else it would come and go with every file

Result = TypeVar("Result")


def no_room(error: OSError) -> bool:
    """Whether an error is a lack of room, after which the same can be tried again: never that of a sync."""
    return error.errno in _NO_ROOM and not isinstance(error, SyncFailed)


def failure_of(what: str, path: str, error: OSError) -> DiskFull | DiskFailed:
    """What an error of the system, met at `what` of a path, means for a log."""
    if no_room(error):
        return DiskFull(f"no room on the disk for {what} {path} ({error.strerror}): free some space")
    return DiskFailed(
        f"{what} {path} failed ({error.strerror}): nothing more is written until the gateway is started again; check the disk first"
    )


def failure_of_start(path: str, error: OSError) -> DiskFull | DiskFailed | Damaged:
    """What an error means that a start of a log met: a file that the device cannot read is damage, as one that fails its CRC is."""
    if not isinstance(error, Unreadable):
        return failure_of("starting the log in", path, error)
    return Damaged(
        f"{error.filename or path} cannot be read ({error.strerror}), and what it holds is told nowhere else: check the disk, and "
        "restore the file, or start the gateway with a new directory"
    )


class Room:
    """Looks after free space and the reserve."""

    def __init__(self, directory: str, options: LogOptions, storage: Storage, *, given_up: bool = False) -> None:
        """Look at the file system of `directory`, and set the reserve aside if there is room.

        `given_up`: the run before wrote into the reserve last; unless there is room for another one, what is left of it is still
        for what must be written.
        """
        self._directory = directory
        self._options = options
        self._storage = storage
        self._reserve = os.path.join(directory, RESERVE)
        self._low = False
        self.in_reserve = given_up  # the reserve was given up: only what must be written is
        self._keep_reserve()

    def space(self) -> Space:
        """How much room there is. Below the limit new messages are to be refused; with a quarter more it is over."""
        free = self._storage.free_bytes(self._directory)
        limit = self._options.disk_low_bytes
        self._low = free < (limit * _ENOUGH if self._low else limit)
        if not self._low:
            self._keep_reserve()
        low = self._low or self.in_reserve
        reason = (
            f"{free >> 20} MiB are free on the disk of {self._directory} and new records are taken from "
            f"{-(-self._enough() // limits.MIB)} MiB on: free some space"
            if low
            else ""
        )
        return Space(free, low, reason)

    def _enough(self) -> int:
        """So many free bytes end the low of this moment."""
        limit = self._options.disk_low_bytes
        quarter_more = int(limit * _ENOUGH) if self._low else 0
        return max(quarter_more, limit + self._options.reserved_bytes if self.in_reserve else 0)

    def take_reserve(self) -> str | None:
        """Path of the reserve, to be used as a segment; None if it is gone. From then on only what must be written is taken."""
        if not os.path.exists(self._reserve):
            return None
        self.in_reserve = True
        return self._reserve

    def with_room(self, act: Callable[[], Result], what: str) -> Result:
        """Do something that must be done; the reserve makes room for it once.

        Raises:
            DiskFull: there is no room even so.
        """
        try:
            return act()
        except OSError as error:
            if not no_room(error) or not os.path.exists(self._reserve):
                raise
        self._storage.remove(self._reserve)
        self.in_reserve = True
        try:
            return act()
        except OSError as error:
            if no_room(error):
                raise DiskFull(f"no room on the disk of {self._directory} for {what}: free some space") from error
            raise

    def _keep_reserve(self) -> None:
        size = self._options.reserved_bytes
        if not size or (os.path.exists(self._reserve) and os.path.getsize(self._reserve) >= size):
            self.in_reserve = False
            return
        if self._storage.free_bytes(self._directory) < self._options.disk_low_bytes + size:
            return
        temporary = self._reserve + ".tmp"
        fd = self._storage.open(temporary, create=True)
        try:
            self._storage.allocate(fd, size)
            self._storage.sync(fd)  # nothing is in it yet: where that says that there is no room, no more is lost than the reserve
        except OSError as error:
            self._storage.remove(temporary)
            if not no_room(error):
                raise
            return  # somebody else was faster; the next look tries again
        finally:
            self._storage.close(fd)
        self._storage.rename(temporary, self._reserve)
        self.in_reserve = False
