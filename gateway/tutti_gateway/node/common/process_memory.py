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
    """Keep messages on the heap. Call this before other threads start. Return False if the C library lacks mallopt."""
    resident_bytes()  # opens the file while file descriptors are available
    return malloc.configure_allocator(
        mmap=limits.MALLOC_MMAP_BYTES,
        trim=limits.MALLOC_TRIM_BYTES,
        top_pad=limits.MALLOC_TOP_PAD_BYTES,
        arenas=limits.MALLOC_ARENAS_MAX,
    )


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, by one small read."""
    return int(os.pread(_statm(), _STATM_BYTES_MAX, 0).split()[1]) * _PAGE_BYTES


@functools.cache
def _statm() -> int:
    """Open the file once and keep it open, so that it can be read when no file descriptor is available."""
    return os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
