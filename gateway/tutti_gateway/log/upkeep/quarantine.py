"""What cannot be read is kept before it is written over: somebody may want to look at it, or find something in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from tutti.log.files.layout import LOG, index_path, segment_path
from tutti.log.files.storage import WRITE_BYTES, Storage
from tutti.log.format.hard_state import ScalarsFile
from tutti.log.format.vote_mark import Mark
from tutti.runtime.reserved_fds import patiently
from tutti_gateway.core import limits
from tutti_gateway.log.write.segment import Segment
from tutti_gateway.log.write.truncate import erase, state_mark

_DAMAGED = ".damaged-"


def set_aside(directory: str, storage: Storage, scalars: ScalarsFile, mark: Mark, segment: Segment, later: Sequence[int]) -> None:
    """Keep what stands behind the good frames of a segment under other names, and then erase it; each step durable before the next.
    The segment has the size then that it was made with, whatever its file was cut to.

    Args:
        mark: names the damaged end, as the marks before it, which go with the segments that they stand in.
        later: first positions of the segments behind it.

    Raises:
        OSError: there is no room, or the disk failed.
    """
    state_mark(scalars, mark, segment.first)
    keep_copy(directory, storage, segment.first)
    erase(storage, segment, mark, [(segment.place, segment.size - segment.place)])
    _move_aside(directory, storage, later)


def keep_copy(directory: str, storage: Storage, first: int) -> str:
    """Copy a segment (its first position) durably to `<segment>.damaged-N`; returns that path. What the device cannot read, and the
    zeros at its end, are left out.

    Raises:
        OSError: there is no room for it, or the disk failed.
    """
    file = segment_path(directory, first)
    copy = _free_name(file, storage)
    source, target = storage.open(file), storage.open(copy + ".tmp", create=True)
    done = False
    try:
        storage.truncate(target, 0)  # left over from a crash
        for at in range(0, storage.size(source), WRITE_BYTES):
            data = _readable(storage, source, at)
            if any(data):
                storage.write(target, [data], at)
        storage.make_durable(target)
        done = True
    finally:
        storage.close(source)
        storage.close(target)
        if not done:
            storage.remove(copy + ".tmp")
    storage.rename(copy + ".tmp", copy)
    storage.make_names_durable(os.path.join(directory, LOG))
    return copy


def _move_aside(directory: str, storage: Storage, firsts: Sequence[int]) -> None:
    """Give segments names that no start looks at, durably; their indexes, which can be made again, go."""
    for first in reversed(firsts):
        file = segment_path(directory, first)
        with contextlib.suppress(FileNotFoundError):
            storage.rename(file, _free_name(file, storage))
        with contextlib.suppress(FileNotFoundError):
            storage.remove(index_path(directory, first))
    storage.make_names_durable(os.path.join(directory, LOG))


def blank_behind(storage: Storage, segment: Segment) -> bool:
    """Whether a segment is all there and holds nothing but zeros behind its good frames; one that was cut short is not."""
    size = storage.size(segment.fd)
    return size >= segment.size and not any(
        any(_readable(storage, segment.fd, at, b"?")) for at in range(segment.place, size, WRITE_BYTES)
    )


def lengthen(storage: Storage, segment: Segment) -> None:
    """Give a segment whose file was cut short the size that it was made with, durably; what is added reads as zeros.

    Raises:
        OSError: there is no room, or the disk failed.
    """
    if storage.size(segment.fd) < segment.size:
        storage.allocate(segment.fd, segment.size)
        storage.make_durable(segment.fd)


def _readable(storage: Storage, fd: int, at: int, otherwise: bytes = b"") -> bytes:
    try:
        return storage.read(fd, WRITE_BYTES, at)
    except OSError:
        return otherwise  # a bad sector: the rest is worth keeping


def _free_name(file: str, storage: Storage) -> str:
    """A name for what is kept; of too many the oldest go."""
    kept = copies(os.path.dirname(file))
    for path in kept[: max(0, len(kept) + 1 - limits.DAMAGED_KEPT_MAX)]:
        storage.remove(path)
    number = 1
    while os.path.exists(f"{file}{_DAMAGED}{number}"):
        number += 1
    return f"{file}{_DAMAGED}{number}"


def copies(folder: str) -> list[str]:
    """Paths of what is kept, the oldest first."""
    found = [
        os.path.join(folder, name)
        for name in patiently(lambda: os.listdir(folder))
        if _DAMAGED in name and not name.endswith(".tmp")
    ]
    return sorted(found, key=lambda path: (os.stat(path).st_ctime_ns, path))


def discard(directory: str, storage: Storage, before: float) -> int:
    """Remove what was kept before a time (s since 1970): all of the log was looked at since, and is whole. How many they were."""
    old = [path for path in copies(os.path.join(directory, LOG)) if os.stat(path).st_ctime < before]
    for path in old:
        storage.remove(path)
    return len(old)
