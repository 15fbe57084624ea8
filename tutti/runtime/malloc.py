"""The C library's allocator, set up for messages of some hundred kilobytes that come and go thousands of times a second.

With glibc's defaults each of them is mapped, faulted in page by page, and unmapped again; kept on the heap they cost a tenth to a
fifth less in all. The price is a heap that stays large after load, which `give_back` returns to the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator

_HUGE_BYTES = 2 << 20  # of one huge page
_PAGES = _HUGE_BYTES // os.sysconf("SC_PAGE_SIZE")
_FULL_PAGES = _PAGES * 3 // 4  # resident, from which on the rest of a huge page is no waste
_ENTRY = struct.Struct("<Q")  # of /proc/self/pagemap, one for each page; the highest bit: it is resident
_MADV_COLLAPSE = 25
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


def collapse() -> int:
    """Have what the process holds already in huge pages, where nearly all of one is there; how many bytes that are. Call it when
    all is loaded.

    Where processes take turns on a processor, each begins with misses in the TLB; with huge pages there are far fewer, above all in
    a virtual machine. Linux 6.1 and later do it at once (madvise(2), MADV_COLLAPSE); elsewhere, and where huge pages are forbidden,
    nothing happens.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    done = 0
    if madvise is not None:
        with contextlib.suppress(OSError, ValueError):  # no /proc here, or another kind of it
            for start in _full():
                if madvise(ctypes.c_void_p(start), ctypes.c_size_t(_HUGE_BYTES), _MADV_COLLAPSE) != 0:
                    break  # not on this system: the next one would be refused, too
                done += _HUGE_BYTES
    return done


def _full() -> Iterator[int]:
    """Addresses of what may be huge pages in this process's own memory: not its stacks, of which little is used."""
    with open("/proc/self/maps", encoding="ascii") as listed, open("/proc/self/pagemap", "rb", buffering=0) as pages:
        for line in listed.read().splitlines():
            place, mode, _, _, inode, *name = line.split(maxsplit=5)
            if mode != "rw-p" or inode != "0" or (name and name[0] != "[heap]"):
                continue
            start, end = (int(address, 16) for address in place.split("-"))
            for address in range(-(-start // _HUGE_BYTES) * _HUGE_BYTES, end - _HUGE_BYTES + 1, _HUGE_BYTES):
                pages.seek(address // _HUGE_BYTES * _PAGES * _ENTRY.size)
                entries = _ENTRY.iter_unpack(pages.read(_PAGES * _ENTRY.size))
                if sum(entry >> 63 for (entry,) in entries) >= _FULL_PAGES:
                    yield address
