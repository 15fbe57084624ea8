"""Keeps the process small: few allocator arenas, free pages given back after load, and an end to growth that nobody foresaw.

Each call runs in a thread of the Flight library, and glibc gives threads arenas of their own, which keep what was freed in them.
Two arenas are enough here: the work is in Arrow's buffers and in mapped files. The library sets no bound to the size of a request,
so a hostile one can make it grow; `private_bytes` lets the process notice and end, and the gateway starts a new one.
"""

from __future__ import annotations

import functools
import os

import pyarrow as pa

from tutti.runtime import malloc
from tutti_gateway.core import limits

_STATUS = "/proc/self/status"
_STATUS_BYTES_MAX = 8192


def tune() -> bool:
    """Bound the allocator's arenas; call before other threads start. False where the C library has no mallopt."""
    private_bytes()
    return malloc.tune(arenas=limits.MALLOC_ARENAS_MAX)


def trim() -> None:
    """Give free memory back to the system."""
    pa.default_memory_pool().release_unused()
    malloc.give_back()


def private_bytes() -> int:
    """Memory of this process that no file backs, bytes (one small read)."""
    lines = os.pread(_status(), _STATUS_BYTES_MAX, 0).splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"RssAnon:")), 0)


@functools.cache
def _status() -> int:
    """Kept open, because it is wanted also when no descriptor is left."""
    return os.open(_STATUS, os.O_RDONLY | os.O_CLOEXEC)
