"""Memory control of the reads process: few allocator arenas, release of free pages after load, and a limit on private memory.

Each call runs in a thread of the Flight library. glibc gives threads separate arenas, and each arena keeps its freed memory. Two
arenas suffice, because most memory is in Arrow's buffers and in mapped files. The Flight library does not limit the size of a
request, so a hostile request can use much memory. Above the limit, the process ends, and the gateway starts a new reads process.
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
    """Limit the number of the allocator's arenas; call this before other threads start. Return False without mallopt."""
    private_bytes()  # called now to open /proc/self/status while file descriptors are available
    return malloc.configure_allocator(arenas=limits.MALLOC_ARENAS_MAX)


def trim() -> None:
    """Release free memory to the system."""
    # Arrow's pool is released first, because glibc can return only memory that Arrow has freed.
    pa.default_memory_pool().release_unused()
    malloc.release_free_memory()


def private_bytes() -> int:
    """Return the anonymous memory of this process, bytes."""
    # A read from byte 0 makes the kernel compute the content of the open file again.
    lines = os.pread(_status(), _STATUS_BYTES_MAX, 0).splitlines()
    # Mapped segments count as RssFile and not as RssAnon: the kernel can drop their pages at any time.
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"RssAnon:")), 0)


@functools.cache
def _status() -> int:
    """Open /proc/self/status once and keep it open, because later the process may have no free file descriptor."""
    return os.open(_STATUS, os.O_RDONLY | os.O_CLOEXEC)
