"""What the node's process asks of the allocator, and what it takes. See `gateway.allocator`."""

from __future__ import annotations

import os
from pathlib import Path

from gateway import allocator
from gateway.core import limits

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")

trim = allocator.give_back


def tune() -> bool:
    """Keep messages on the heap; call before other threads start. False where the C library has no mallopt."""
    return allocator.tune(
        mmap=limits.MALLOC_MMAP_BYTES,
        trim=limits.MALLOC_TRIM_BYTES,
        top_pad=limits.MALLOC_TOP_PAD_BYTES,
        arenas=limits.MALLOC_ARENAS_MAX,
    )


def resident_bytes() -> int:
    """Resident memory of this process, bytes (cheap: one small read)."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
