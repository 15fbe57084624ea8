"""Disks of tests: one counts its operations and fails on request, one stops as after a kill, and one becomes full."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from tutti.data.frames.frame import Buffer
from tutti.log.files.storage import Storage


class Watched(Storage):
    """Counts what is asked, and fails when told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.fail: Callable[[str], None] = lambda what: None
        self.free: int | None = None

    def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
        self.fail("write")
        self.calls.append(("write", at))
        super().write(fd, parts, at)

    def sync(self, fd: int) -> None:
        self.fail("sync")
        self.calls.append(("sync", fd))
        super().sync(fd)

    def sync_directory(self, path: str) -> None:
        self.fail("sync directory")
        self.calls.append(("sync directory", 0))
        super().sync_directory(path)

    def free_bytes(self, path: str) -> int:
        return super().free_bytes(path) if self.free is None else self.free

    def allocate(self, fd: int, size: int) -> None:
        self.fail("allocate")
        super().allocate(fd, size)

    def rename(self, old: str, new: str) -> None:
        self.fail("rename")
        super().rename(old, new)


def failing(what: str, number: int) -> Callable[[str], None]:
    def fail(asked: str) -> None:
        if asked == what:
            raise OSError(number, os.strerror(number))

    return fail


class Mortal(Storage):
    """A disk whose process can be killed: what it asks for then is not done, and what it did stays in the page cache."""

    def __init__(self) -> None:
        self.dead = False

    def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
        if not self.dead:
            super().write(fd, parts, at)

    def rename(self, old: str, new: str) -> None:
        if not self.dead:
            super().rename(old, new)

    def sync(self, fd: int) -> None:
        """Nothing here loses power."""

    def sync_directory(self, path: str) -> None:
        """Nothing here loses power."""


class Filling(Storage):
    """A disk that has room for so many operations, and then for none until somebody frees some."""

    def __init__(self) -> None:
        self.room: int | None = None

    def _take(self) -> None:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.room is not None:
            self.room -= 1

    def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
        self._take()
        super().write(fd, parts, at)

    def allocate(self, fd: int, size: int) -> None:
        self._take()
        super().allocate(fd, size)

    def rename(self, old: str, new: str) -> None:
        self._take()
        super().rename(old, new)
