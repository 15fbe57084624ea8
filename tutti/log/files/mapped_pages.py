"""Mapped files with explicit page reads. At a bad sector, an explicit read raises an error, but an access raises SIGBUS."""

from __future__ import annotations

import contextlib
import mmap

from tutti.runtime.reserved_fds import with_descriptor_wait

MADV_POPULATE_READ = 22  # advice that reads pages into memory, of Linux 5.14 and later
_NOT_KNOWN = frozenset({22, 38})  # EINVAL and ENOSYS, the errors of a kernel that lacks an advice or the call


def map_file(fd: int, size: int) -> mmap.mmap:
    """Map the first `size` bytes of a file for reading. The mapping keeps a duplicate of the descriptor open.

    Raises:
        OSError: the mapping failed.
    """
    return with_descriptor_wait(lambda: mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ))


def advise(mapped: mmap.mmap, start: int, length: int) -> None:
    """Start to read exactly these bytes of a mapped file in the background. `start` must be at a page boundary.

    Without this call, the first access to a page reads up to megabytes around the page, which helps only sequential readers.
    """
    with contextlib.suppress(OSError):  # the call is only a hint, so reads also work if it fails
        mapped.madvise(mmap.MADV_WILLNEED, start, length)


def populate(mapped: mmap.mmap, start: int, length: int) -> None:
    """Read these bytes of a mapped file into memory, and return when the read is complete. `start` must be at a page boundary.

    Raises:
        OSError: the device cannot read the bytes, or the bytes lie after the end of the file.
    """
    try:
        mapped.madvise(MADV_POPULATE_READ, start, length)
    except OSError as error:
        if error.errno not in _NOT_KNOWN:  # an older kernel lacks this call, but reads each page at its first access
            raise
