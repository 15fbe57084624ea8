"""Descriptors for a process's own files where connections have used up the others: to have none is no failure of a disk.

Libraries take connections as long as the system gives descriptors. A process that has such sets some aside: the system gives it
fewer than it may have, and asks for more for its own files when it has none. Those libraries ask again a second later.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tutti import limits

TOO_MANY = (errno.EMFILE, errno.ENFILE)
_US = 1_000_000

Result = TypeVar("Result")

_lock = threading.Lock()
_bounds: list[int] = []  # how many descriptors there are for all, and with those set aside


def raise_limit() -> None:
    """Ask the system for as many descriptors as it allows, up to `limits.OPEN_FILES`: each connection takes one."""
    import resource  # noqa: PLC0415 - clients are imported also on systems without it, and raise nothing

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.OPEN_FILES if hard == resource.RLIM_INFINITY else min(limits.OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def set_aside() -> None:
    """From now on some of this process's descriptors are for `spared` alone; once in a process."""
    import resource  # noqa: PLC0415 - clients are imported also on systems without it, and set nothing aside

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        fewer = soft - min(limits.SPARE_FILES, soft // limits.SPARE_FILES_PART)
        resource.setrlimit(resource.RLIMIT_NOFILE, (fewer, hard))
        _bounds[:] = fewer, soft


def spared(act: Callable[[], Result]) -> Result:
    """Do something that takes a descriptor; where none is left, one of those that were set aside is given.

    Raises:
        OSError: as `act`.
    """
    try:
        return act()
    except OSError as error:
        if error.errno not in TOO_MANY or not _bounds:
            raise
    import resource  # noqa: PLC0415 - `set_aside` has brought it: no descriptor is needed

    fewer, all_of_them = _bounds
    with _lock:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(all_of_them, hard), hard))
        try:
            return act()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(fewer, hard), hard))


def patiently(act: Callable[[], Result]) -> Result:
    """As `spared`; where there is none at all one is waited for, as connections that hold them go or are refused.

    Raises:
        OSError: as `act`; also where there was none for long.
    """
    for _ in range(limits.FILES_WAIT_US_MAX // limits.FILES_LOOK_US):  # not by a clock: a process that stands still does not wait
        try:
            return spared(act)
        except OSError as error:
            if error.errno not in TOO_MANY:
                raise
        time.sleep(limits.FILES_LOOK_US / _US)
    return spared(act)
