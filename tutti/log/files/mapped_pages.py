"""Pages of mapped files, read in before they are touched: a bad sector is an error here, and not a signal that ends the process."""

from __future__ import annotations

import contextlib
import mmap

from tutti.runtime.reserved_fds import patiently

MADV_POPULATE_READ = 22  # Linux 5.14
_NOT_KNOWN = frozenset({22, 38})  # EINVAL, ENOSYS


def map_file(fd: int, size: int) -> mmap.mmap:
    """Map the first bytes of a file to be read; it takes another descriptor, for as long as it is mapped.

    Raises:
        OSError: it cannot be mapped.
    """
    return patiently(lambda: mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ))


def advise(mapped: mmap.mmap, start: int, length: int) -> None:
    """Have bytes of a file read, from the beginning of a page on, while this process goes on; nothing but them.

    A page that is missed has the kernel read what lies around it, too: megabytes on some disks, which suits who goes on from there,
    and nobody else.
    """
    with contextlib.suppress(OSError):  # advice: without it the same is read, and more
        mapped.madvise(mmap.MADV_WILLNEED, start, length)


def populate(mapped: mmap.mmap, start: int, length: int) -> None:
    """Read bytes of a file in, from the beginning of a page on.

    Raises:
        OSError: the device cannot read them, or the file ends before.
    """
    try:
        mapped.madvise(MADV_POPULATE_READ, start, length)
    except OSError as error:
        if error.errno not in _NOT_KNOWN:  # an older kernel: the pages come one by one
            raise
