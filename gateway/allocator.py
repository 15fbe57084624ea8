"""The C library's allocator, set up for messages of some hundred kilobytes that come and go thousands of times a second.

With glibc's defaults each of them is mapped, faulted in page by page, and unmapped again; kept on the heap they cost a tenth to a
fifth less in all. The price is a heap that stays large after load, which `give_back` returns to the system.
"""

from __future__ import annotations

import ctypes
import os

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _TOP_PAD, _ARENA_MAX = -3, -1, -2, -8


def tune(*, mmap: int | None = None, trim: int | None = None, top_pad: int | None = None, arenas: int | None = None) -> bool:
    """Set the allocator up; what is None stays as it is. False where the C library has no mallopt, or refuses a value.

    Args:
        mmap: blocks of so many bytes and more are mapped and unmapped, smaller ones live on the heap.
        trim: so many free bytes at the heap's end go back to the system.
        top_pad: bytes that the heap grows by beyond what is asked.
        arenas: heaps of the process; call before other threads start.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = ((_MMAP_THRESHOLD, mmap), (_TRIM_THRESHOLD, trim), (_TOP_PAD, top_pad), (_ARENA_MAX, arenas))
    if mallopt is None:
        return False
    taken = [mallopt(which, value) for which, value in settings if value is not None]
    return all(taken)


def tuned_by_user() -> bool:
    """Whether the environment sets glibc's allocator up already."""
    return "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ)


def give_back() -> bool:
    """Return free heap pages to the system; takes a millisecond or so for each 100 MB."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return bool(malloc_trim and malloc_trim(0))
