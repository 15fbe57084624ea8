"""A disk that remembers what it was asked, and shows what it may hold after the power went.

What is promised is kept: what was written before a sync of its file is there, and names made before a sync of their directory. Of
everything else any part may be there: each write whole, not at all, or some of its sectors; file sizes; and of the names of a
directory the changes up to some point, as a journal keeps them. One sector of a write may be torn at any byte: few disks do that,
but nothing here rests on sectors being whole.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tutti.data.frames.frame import Buffer
from tutti.log.files.storage import Storage

SECTOR = 512


@dataclass(frozen=True)
class Op:
    """Something asked of a file (`inode`) or a directory."""

    what: str
    inode: int = 0
    at: int = 0
    data: bytes = b""
    path: str = ""
    other: str = ""


#: Chooses what becomes of an unsynced write: the parts of its data (from, to) that are on the disk.
Choose = Callable[[Op], list[tuple[int, int]]]
#: Chooses how many of some unsynced changes of names are on the disk.
Count = Callable[[int], int]


class Unsynced(Storage):
    """Storage that never waits for a disk: what a test does with it need not outlive the test."""

    def sync(self, fd: int) -> None:
        assert fd >= 0

    def sync_directory(self, path: str) -> None:
        assert os.path.isdir(path)


@dataclass
class Recorder(Unsynced):
    """The storage of a real directory that also keeps a journal of what it did. `inodes` gives files that are known from before
    the numbers that they are to have in it.
    """

    ops: list[Op] = field(default_factory=list)
    inodes: dict[int, int] = field(default_factory=dict)
    _files: dict[int, int] = field(default_factory=dict)  # descriptor: inode
    _made: int = 0

    def open(self, path: str, *, create: bool = False) -> int:
        new = create and not os.path.exists(path)
        fd = super().open(path, create=create)
        inode = os.fstat(fd).st_ino
        if new:  # it may have the number of a file that was removed
            self._made += 1
            self.inodes[inode] = (self._made << 32) + inode
        self._files[fd] = self.inodes.get(inode, inode)
        if new:
            self.ops.append(Op("create", self._files[fd], path=path))
        return fd

    def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
        super().write(fd, parts, at)
        self.ops.append(Op("write", self._files[fd], at, b"".join(bytes(part) for part in parts)))

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.ops.append(Op("sync", self._files[fd]))

    def allocate(self, fd: int, size: int) -> None:
        super().allocate(fd, size)
        self.ops.append(Op("allocate", self._files[fd], size))

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self.ops.append(Op("truncate", self._files[fd], size))

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.ops.append(Op("rename", path=old, other=new))

    def remove(self, path: str) -> None:
        super().remove(path)
        self.ops.append(Op("remove", path=path))

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self.ops.append(Op("sync directory", path=path))


@dataclass
class Filling(Recorder):
    """A disk that has no room for the operation after so many others (`after`), once."""

    after: int | None = None

    def _take(self) -> None:
        if self.after is not None:
            self.after -= 1
            if self.after < 0:
                self.after = None
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, path: str, *, create: bool = False) -> int:
        if create and not os.path.exists(path):
            self._take()
        return super().open(path, create=create)

    def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
        try:
            self._take()
        except OSError:
            data = b"".join(bytes(part) for part in parts)
            super().write(fd, [data[: len(data) // 2]], at)
            raise
        super().write(fd, parts, at)

    def sync(self, fd: int) -> None:
        self._take()
        super().sync(fd)

    def allocate(self, fd: int, size: int) -> None:
        self._take()
        super().allocate(fd, size)

    def truncate(self, fd: int, size: int) -> None:
        self._take()
        super().truncate(fd, size)

    def rename(self, old: str, new: str) -> None:
        self._take()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._take()
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self._take()
        super().sync_directory(path)


def image(ops: Sequence[Op], root: Path, target: Path, choose: Choose, count: Count) -> None:
    """Build in `target` what the disk under `root` may hold after `ops`, and then no power."""
    names = names_of(ops, count)
    contents = contents_of(ops, choose)
    for path, inode in names.items():
        file = target / Path(path).relative_to(root)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(contents.get(inode, b""))
    (target / "log").mkdir(parents=True, exist_ok=True)


def contents_of(ops: Sequence[Op], choose: Choose) -> dict[int, bytes]:
    """What the files hold then, by their numbers."""
    synced = {op.inode: number for number, op in enumerate(ops) if op.what == "sync"}
    found: dict[int, bytearray] = {}
    for number, op in enumerate(ops):
        data = found.setdefault(op.inode, bytearray())
        durable = number < synced.get(op.inode, -1)
        if op.what == "write":
            for low, high in [(0, len(op.data))] if durable else choose(op):
                data.extend(bytes(max(op.at + high - len(data), 0)))
                data[op.at + low : op.at + high] = op.data[low:high]
        elif op.what in {"allocate", "truncate"} and (durable or choose(op)):
            if len(data) < op.at:
                data.extend(bytes(op.at - len(data)))
            elif op.what == "truncate":
                del data[op.at :]
    return {inode: bytes(data) for inode, data in found.items()}


def names_of(ops: Sequence[Op], count: Count) -> dict[str, int]:
    """Which file each name stands for then."""
    changes: dict[str, list[tuple[int, Op]]] = {}
    synced: dict[str, int] = {}
    for number, op in enumerate(ops):
        if op.what in {"create", "rename", "remove"}:
            changes.setdefault(os.path.dirname(op.path), []).append((number, op))
        elif op.what == "sync directory":
            synced[op.path] = number
    names: dict[str, int] = {}
    kept: list[tuple[int, Op]] = []
    for directory, some in changes.items():
        durable = [change for change in some if change[0] < synced.get(directory, -1)]
        loose = some[len(durable) :]
        kept += durable + loose[: count(len(loose))]
    for _, op in sorted(kept, key=lambda change: change[0]):
        if op.what == "create":
            names[op.path] = op.inode
        elif op.what == "rename":
            names[op.other] = names.pop(op.path)
        else:
            names.pop(op.path)
    return names


def sectors(op: Op, chance: random.Random, share: float) -> list[tuple[int, int]]:
    """About that share of the sectors of a write, one of them torn now and then."""
    if op.what != "write":
        return [(0, 0)] if chance.random() < share else []
    found = []
    first, last = op.at // SECTOR, (op.at + len(op.data) - 1) // SECTOR
    torn = chance.randint(first, last) if chance.random() < (0.7 if first == last else 0.3) else -1
    for sector in range(first, last + 1):
        low, high = max(sector * SECTOR - op.at, 0), min((sector + 1) * SECTOR - op.at, len(op.data))
        if sector == torn:
            found.append((low, chance.randint(low, high)))
        elif chance.random() < share:
            found.append((low, high))
    return found


def chosen(chance: random.Random, seed: int) -> tuple[Choose, Count]:
    """What is there of what was not synced: nothing (seed 0), all of it (1), or for each write and name one of these or parts."""

    def choose(op: Op) -> list[tuple[int, int]]:
        kind = chance.randrange(4) if seed > 1 else seed
        return [[], [(0, len(op.data))]][kind] if kind < 2 else sectors(op, chance, 0.5 if kind == 2 else 0.9)

    def count(most: int) -> int:
        return (0, most)[seed] if seed < 2 else chance.randint(0, most)

    return choose, count


def files_of(directory: Path) -> list[Path]:
    return sorted(file for file in directory.rglob("*") if file.is_file())


def standing(directory: Path) -> list[Op]:
    """Operations after which the files of a directory are as they are, durably."""
    ops: list[Op] = []
    for number, file in enumerate(files_of(directory), 1):
        ops += [Op("create", number, path=str(file)), Op("write", number, 0, file.read_bytes()), Op("sync", number)]
        ops.append(Op("sync directory", path=str(file.parent)))
    return ops
