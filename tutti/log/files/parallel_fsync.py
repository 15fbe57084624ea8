"""Parallel fsync: a journalling file system commits concurrent syncs with one journal write.

Measured with three files on ext4: 8 ms in sequence, under 1 ms in parallel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tutti import limits
from tutti.errors import DiskFull


def sync_in_parallel(acts: Sequence[Callable[[], None]]) -> None:
    """Run all functions in parallel and wait for them. Then raise one of their errors; `DiskFull` only if no other error occurred.

    The syncs run in daemon threads, so a sync that hangs blocks this call, but does not prevent the end of the process.
    """
    errors: list[Exception] = []
    for start in range(0, len(acts), limits.PARALLEL_SYNCS_MAX):
        # The calling thread runs one of the functions itself, which saves the start of a thread.
        first, *others = acts[start : start + limits.PARALLEL_SYNCS_MAX]
        threads = [thread for act in others if (thread := _start(act, errors)) is not None]
        _run(first, errors)
        for thread in threads:
            thread.join()
    if errors:
        # The caller retries after `DiskFull`, so `DiskFull` must not hide a fatal error.
        raise next((error for error in errors if not isinstance(error, DiskFull)), errors[0])


def _start(act: Callable[[], None], errors: list[Exception]) -> threading.Thread | None:
    """Run the function in a new thread and return the thread. If no thread can start, run the function here and return None."""
    thread = threading.Thread(target=_run, args=(act, errors), name="sync", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the thread limit is reached
        _run(act, errors)
        return None
    return thread


def _run(act: Callable[[], None], errors: list[Exception]) -> None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - `sync_in_parallel` raises the error after all functions have ended
        errors.append(error)
