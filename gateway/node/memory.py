"""The C library's allocator as the hot path needs it, and what the processes take.

Messages of 64 to 256 KiB come and go thousands of times a second. With glibc's defaults each of them is mapped, faulted in and
unmapped again; keeping them on the heap gained 13 to 30% in a trial. The price is a heap that stays large after load, which
`trim` gives back when the gateway is idle.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from gateway.core import limits

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


def tune() -> bool:
    """Set the allocator up; call before other threads start. False where the C library has no mallopt."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = (
        (_M_MMAP_THRESHOLD, limits.MALLOC_MMAP_BYTES),
        (_M_TRIM_THRESHOLD, limits.MALLOC_TRIM_BYTES),
        (_M_TOP_PAD, limits.MALLOC_TOP_PAD_BYTES),
        (_M_ARENA_MAX, limits.MALLOC_ARENAS_MAX),
    )
    return all(mallopt(which, value) for which, value in settings)


def trim() -> bool:
    """Give free heap pages back to the system; takes a millisecond or so for each 100 MB."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return bool(malloc_trim and malloc_trim(0))


def resident_bytes() -> int:
    """Resident memory of this process, bytes (cheap: one small read)."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
