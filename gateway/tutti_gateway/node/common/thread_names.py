"""Names of threads in Python's and the kernel's lists."""

from __future__ import annotations

import contextlib
import threading


def name_thread(name: str) -> None:
    """Name the calling thread by its present role, for stack traces, `top -H` and profilers."""
    threading.current_thread().name = name
    # The kernel's list is only for people, so a missing /proc is not an error.
    with contextlib.suppress(OSError), open(f"/proc/self/task/{threading.get_native_id()}/comm", "w", encoding="ascii") as file:
        file.write(name)
