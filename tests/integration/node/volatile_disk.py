"""A disk that knows what is durable: writes and names count only after their sync, as after a power loss. Files are in the file
system as usual, and each write is also recorded until its file is synced. `image` builds the directory after a power loss at this
moment, without all unsynced data.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from tutti.data.frames.frame import HEADER_SIZE, MAGIC, Buffer
from tutti.log.files.storage import Storage

_IDENTITY = struct.Struct("<QQ")  # producer, first sequence, from byte 24 of a header

Write = tuple[int, bytes]


class Inode:
    """The content of a file: the durable part, and unsynced writes."""

    def __init__(self) -> None:
        self.durable: list[Write] = []
        self.pending: list[Write] = []
        self.size = 0
        self.durable_size = 0
        self.frames: list[tuple[int, int]] = []


class Platter(Storage):
    """Storage that knows the state after a power loss. `frames` are the (producer, first sequence) of durable frames."""

    def __init__(self, *, honest: bool = True) -> None:
        """Create an empty disk. A dishonest one skips syncs, and tests of durability must fail with it."""
        self._honest = honest
        self._open: dict[int, Inode] = {}
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self.frames: set[tuple[int, int]] = set()
        self.syncs = 0

    def open(self, path: str, *, create: bool = False) -> int:
        fd = super().open(path, create=create)
        self._open[fd] = self._names.setdefault(path, Inode())
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        del self._open[fd]

    def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
        super().write(fd, parts, at)
        inode = self._open[fd]
        data = b"".join(parts)
        inode.pending.append((at, data))
        inode.size = max(inode.size, at + len(data))
        inode.frames += [_IDENTITY.unpack_from(part, 24) for part in parts if len(part) == HEADER_SIZE and bytes(part[:4]) == MAGIC]

    def sync(self, fd: int) -> None:
        if not self._honest:
            return
        super().sync(fd)
        inode = self._open[fd]
        inode.durable += inode.pending
        inode.pending = []
        inode.durable_size = inode.size
        self.frames.update(inode.frames)
        inode.frames = []
        self.syncs += 1

    def allocate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)  # sparse: the test does not need the blocks
        self._open[fd].size = max(self._open[fd].size, size)

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        inode = self._open[fd]
        inode.pending = [(at, data[: max(0, size - at)]) for at, data in inode.pending if at < size]
        inode.size = size

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self._names[new] = self._names.pop(old)

    def remove(self, path: str) -> None:
        super().remove(path)
        self._names.pop(path, None)

    def sync_directory(self, path: str) -> None:
        if not self._honest:
            return
        super().sync_directory(path)
        kept = {name: inode for name, inode in self._durable_names.items() if os.path.dirname(name) != path}
        here = {name: inode for name, inode in self._names.items() if os.path.dirname(name) == path}
        self._durable_names = {**kept, **here}

    def image(self, source: Path, target: Path) -> None:
        """Build the state of the directory `source` after a power loss under `target`."""
        (target / "log").mkdir(parents=True)
        for name, inode in self._durable_names.items():
            path = target / Path(name).relative_to(source)
            with path.open("wb") as file:
                file.truncate(inode.durable_size)
                for at, data in inode.durable:
                    file.seek(at)
                    file.write(data)
                file.truncate(inode.durable_size)
