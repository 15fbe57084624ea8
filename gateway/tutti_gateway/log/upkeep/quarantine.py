"""Copies corrupt parts of the log to quarantine files before they are overwritten, so that an operator can examine them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from tutti.log.files.layout import LOG, index_path, segment_path
from tutti.log.files.storage import WRITE_BYTES, Storage
from tutti.log.format.hard_state import HardStateFile
from tutti.log.format.vote_mark import VoteMark
from tutti.runtime.reserved_fds import with_descriptor_wait
from tutti_gateway.core import limits
from tutti_gateway.log.write.segment import Segment
from tutti_gateway.log.write.truncate import erase_extents, write_mark_to_hard_state

_DAMAGED = ".damaged-"


def quarantine_tail(
    directory: str, storage: Storage, hard_state_file: HardStateFile, mark: VoteMark, segment: Segment, later: Sequence[int]
) -> None:
    """Copy the bytes after the valid frames of a segment to a quarantine file, then erase them in the segment.

    Each step is durable before the next step. A shortened segment file is extended to its original size.

    Args:
        mark: mark that still covers the corrupt end. The function writes it to the hard state and to the erased segment.
        later: first positions of the segments after this one, which are renamed to quarantine names.

    Raises:
        OSError: the disk is full, or it failed.
    """
    # Marks in renamed segments are no longer read, so the hard state must contain a mark for the corrupt end before the rename.
    write_mark_to_hard_state(hard_state_file, mark, segment.first)
    copy_segment(directory, storage, segment.first)
    erase_extents(storage, segment, mark, [(segment.file_position, segment.size - segment.file_position)])
    _quarantine_segments(directory, storage, later)


def copy_segment(directory: str, storage: Storage, first: int) -> str:
    """Copy a segment durably to `<segment>.damaged-N`, and return that path. Unreadable blocks and blocks of zeros are omitted.

    Args:
        first: first position of the segment.

    Raises:
        OSError: the disk is full, or it failed.
    """
    file = segment_path(directory, first)
    copy = _free_name(file, storage)
    source, target = storage.open(file), storage.open(copy + ".tmp", create=True)
    done = False
    try:
        storage.truncate(target, 0)  # a crash may have left the file
        for at in range(0, storage.size(source), WRITE_BYTES):
            data = _readable(storage, source, at)
            # A block of zeros is not written, so the copy of a nearly empty segment takes little disk space.
            if any(data):
                storage.write(target, [data], at)
        storage.make_durable(target)
        done = True
    finally:
        storage.close(source)
        storage.close(target)
        if not done:
            storage.remove(copy + ".tmp")
    # The copy must be durable now, because the caller overwrites the original next.
    storage.rename(copy + ".tmp", copy)
    storage.make_names_durable(os.path.join(directory, LOG))
    return copy


def _quarantine_segments(directory: str, storage: Storage, firsts: Sequence[int]) -> None:
    """Rename segments durably to quarantine names, which recovery ignores, and remove the indexes of these segments."""
    # The last segment is renamed first, so that a crash never leaves a gap between segments.
    for first in reversed(firsts):
        file = segment_path(directory, first)
        with contextlib.suppress(FileNotFoundError):
            storage.rename(file, _free_name(file, storage))
        with contextlib.suppress(FileNotFoundError):
            storage.remove(index_path(directory, first))
    storage.make_names_durable(os.path.join(directory, LOG))


def is_zero_after_frames(storage: Storage, segment: Segment) -> bool:
    """True if a segment file has its full size and only zeros after its valid frames. An unreadable block counts as data."""
    size = storage.size(segment.fd)
    return size >= segment.size and not any(
        any(_readable(storage, segment.fd, at, b"?")) for at in range(segment.file_position, size, WRITE_BYTES)
    )


def restore_size(storage: Storage, segment: Segment) -> None:
    """Extend a shortened segment file to its original size, durably. The added bytes read as zeros.

    Raises:
        OSError: the disk is full, or it failed.
    """
    if storage.size(segment.fd) < segment.size:
        storage.allocate(segment.fd, segment.size)
        storage.make_durable(segment.fd)


def _readable(storage: Storage, fd: int, at: int, otherwise: bytes = b"") -> bytes:
    try:
        return storage.read(fd, WRITE_BYTES, at)
    except OSError:
        return otherwise  # a bad sector must not stop the copy of the other blocks


def _free_name(file: str, storage: Storage) -> str:
    """Return an unused quarantine name. First remove the oldest quarantine files, so that the new one stays within the limit."""
    existing = quarantined_files(os.path.dirname(file))
    for path in existing[: max(0, len(existing) + 1 - limits.SEGMENTS_QUARANTINED_MAX)]:
        storage.remove(path)
    number = 1
    while os.path.exists(f"{file}{_DAMAGED}{number}"):
        number += 1
    return f"{file}{_DAMAGED}{number}"


def quarantined_files(folder: str) -> list[str]:
    """Return the paths of the quarantine files in a folder, oldest first."""
    found = [
        os.path.join(folder, name)
        for name in with_descriptor_wait(lambda: os.listdir(folder))
        if _DAMAGED in name and not name.endswith(".tmp")
    ]
    # The change time gives the order, because a rename into quarantine leaves the modification time unchanged.
    return sorted(found, key=lambda path: (os.stat(path).st_ctime_ns, path))


def remove_older(directory: str, storage: Storage, before: float) -> int:
    """Remove quarantine files older than `before` (s since 1970), and return the number of removed files.

    The caller must have found the whole log valid in a scrub round that began at `before`.
    """
    old = [path for path in quarantined_files(os.path.join(directory, LOG)) if os.stat(path).st_ctime < before]
    for path in old:
        storage.remove(path)
    return len(old)
