"""Parallel fsync: a journalling file system commits concurrent syncs with one journal write.

Measured with three files on ext4: 8 ms in sequence, under 1 ms in parallel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tutti import limits
from tutti.errors import DiskFull


def sync_in_parallel(acts: Sequence[Callable[[], None]]) -> None:
    """Run all functions in parallel and wait for all. Then raise one of their errors; `DiskFull` only if no other error occurred.

    Each sync runs in a daemon thread of its own, so a hanging sync blocks this call but never the exit of the process.
    """
    errors: list[Exception] = []
    for start in range(0, len(acts), limits.PARALLEL_SYNCS_MAX):
        # The calling thread runs one of the functions itself.
        first, *others = acts[start : start + limits.PARALLEL_SYNCS_MAX]
        threads = [thread for act in others if (thread := _start(act, errors)) is not None]
        _run(first, errors)
        for thread in threads:
            thread.join()
    if errors:
        # The caller retries after `DiskFull`, so that error must not hide a fatal one.
        raise next((error for error in errors if not isinstance(error, DiskFull)), errors[0])


def _start(act: Callable[[], None], errors: list[Exception]) -> threading.Thread | None:
    """Start a thread for the function; without a free thread, run it here and return None."""
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
    except Exception as error:  # noqa: BLE001 - `sync_in_parallel` raises it after all have ended
        errors.append(error)
