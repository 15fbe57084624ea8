"""Parallel fsync: a journalling file system commits concurrent syncs with one journal write.

With three files on ext4, syncs in sequence took 8 ms, and parallel syncs took less than 1 ms.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tutti import limits
from tutti.errors import DiskFull


def sync_in_parallel(acts: Sequence[Callable[[], None]]) -> None:
    """Run all functions in parallel, wait for all of them, and then raise one of their errors, if any failed.

    The functions run in groups of at most `limits.PARALLEL_SYNCS_MAX`. The calling thread runs the first function of each group,
    and the functions for which no thread can be started. Daemon threads run all other functions. If a sync hangs in a daemon
    thread, this call waits for it, but the process can still exit.

    Raises:
        Exception: the error of one function. `DiskFull` is raised only if no function raised another error.
    """
    errors: list[Exception] = []
    for start in range(0, len(acts), limits.PARALLEL_SYNCS_MAX):
        # The calling thread runs the first function, which saves the start of a thread.
        first, *others = acts[start : start + limits.PARALLEL_SYNCS_MAX]
        threads = [thread for act in others if (thread := _start(act, errors)) is not None]
        _run(first, errors)
        for thread in threads:
            thread.join()
    if errors:
        # `DiskFull` must not hide another error, which is fatal, because callers retry after `DiskFull`.
        raise next((error for error in errors if not isinstance(error, DiskFull)), errors[0])


def _start(act: Callable[[], None], errors: list[Exception]) -> threading.Thread | None:
    """Run `act` in a new thread, and return the thread. If no thread can start, run `act` in this thread, and return None."""
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
