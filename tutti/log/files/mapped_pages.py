"""Mapped files with explicit page reads, so that a bad sector raises an error instead of killing the process with SIGBUS."""

from __future__ import annotations

import contextlib
import mmap

from tutti.runtime.reserved_fds import with_descriptor_wait

MADV_POPULATE_READ = 22  # Linux 5.14
_NOT_KNOWN = frozenset({22, 38})  # EINVAL, ENOSYS


def map_file(fd: int, size: int) -> mmap.mmap:
    """Map the first `size` bytes of a file for reading. The mapping uses one more file descriptor of the process.

    Raises:
        OSError: the mapping failed.
    """
    return with_descriptor_wait(lambda: mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ))


def advise(mapped: mmap.mmap, start: int, length: int) -> None:
    """Start reading these bytes of a file in the background, and no others. `start` must be at a page boundary.

    In contrast, a page fault reads up to megabytes around the page, which helps only sequential readers.
    """
    with contextlib.suppress(OSError):  # a hint only: reads also work without it
        mapped.madvise(mmap.MADV_WILLNEED, start, length)


def populate(mapped: mmap.mmap, start: int, length: int) -> None:
    """Read bytes of a file into memory, and return when they are there. `start` must be at a page boundary.

    Raises:
        OSError: the device cannot read the bytes, or the file ends before them.
    """
    try:
        mapped.madvise(MADV_POPULATE_READ, start, length)
    except OSError as error:
        if error.errno not in _NOT_KNOWN:  # an older kernel lacks this call, and reads the pages at the first access
            raise
