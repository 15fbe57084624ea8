"""Syncs of several files at a time: a file system that keeps a journal makes them durable by one write of it, not by one each.

Measured with three files on ext4: 8 ms one after the other, under 1 ms together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tutti import limits
from tutti.errors import DiskFull


def together(acts: Sequence[Callable[[], None]]) -> None:
    """Do all of these, some at a time, and wait for them. All are tried; then an error of one is raised, a lack of room last.

    The threads are daemons and live for one sync each: one that hangs holds up who waits here, and never the end of the process.
    """
    errors: list[Exception] = []
    for start in range(0, len(acts), limits.SYNCS_TOGETHER_MAX):
        first, *others = acts[start : start + limits.SYNCS_TOGETHER_MAX]
        threads = [thread for act in others if (thread := _started(act, errors)) is not None]
        _do(first, errors)
        for thread in threads:
            thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, DiskFull)), errors[0])


def _started(act: Callable[[], None], errors: list[Exception]) -> threading.Thread | None:
    """A thread that does it; None where no thread could be had and it was done at once."""
    thread = threading.Thread(target=_do, args=(act, errors), name="sync", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        _do(act, errors)
        return None
    return thread


def _do(act: Callable[[], None], errors: list[Exception]) -> None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - it is raised where all are waited for
        errors.append(error)
