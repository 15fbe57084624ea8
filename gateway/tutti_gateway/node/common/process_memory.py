"""Allocator settings and resident memory of the node's process (see `tutti.runtime.malloc`)."""

from __future__ import annotations

import functools
import os

from tutti.runtime import malloc
from tutti_gateway.core import limits

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = "/proc/self/statm"
_STATM_BYTES_MAX = 200


def tune() -> bool:
    """Make the allocator keep messages on the heap; call this before other threads start. Return False without mallopt."""
    resident_bytes()  # called now to open /proc/self/statm while file descriptors are available
    return malloc.configure_allocator(
        mmap=limits.MALLOC_MMAP_BYTES,
        trim=limits.MALLOC_TRIM_BYTES,
        top_pad=limits.MALLOC_TOP_PAD_BYTES,
        arenas=limits.MALLOC_ARENAS_MAX,
    )


def resident_bytes() -> int:
    """Return the resident memory of this process, bytes."""
    # A read at offset 0 makes the kernel compute the numbers again, so the descriptor can stay open.
    return int(os.pread(_statm(), _STATM_BYTES_MAX, 0).split()[1]) * _PAGE_BYTES


@functools.cache
def _statm() -> int:
    """Open /proc/self/statm once and keep it open, because later the process may have no free file descriptor."""
    return os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
