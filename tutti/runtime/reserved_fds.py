"""Reserved descriptors for a process's own files. Without a reserve, connections could use all descriptors, and a file that cannot
be opened would look like a disk failure.

Libraries accept connections until no descriptor is free. So a process lowers its soft limit to reserve some descriptors, and raises
the limit for a moment when one of its own files needs a descriptor. A library that reaches the lower limit retries after a second.

Ports with Tutti's own accept loops need no lower limit. The kernel gives a new descriptor the lowest free number. So if a port
accepts only connections with numbers below a bound, the higher numbers stay free for the rest of the process.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tutti import limits

TOO_MANY = (errno.EMFILE, errno.ENFILE)
_US = 1_000_000

Result = TypeVar("Result")

_lock = threading.Lock()
_bounds: list[int] = []  # two soft limits, without and with the reserved descriptors; empty if none are reserved


def raise_limit() -> None:
    """Raise the soft limit of descriptors up to `limits.OPEN_FILES`, as far as the system allows: each connection takes one."""
    import resource  # noqa: PLC0415 - only gateways call this; clients also run on systems without `resource`

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.OPEN_FILES if hard == resource.RLIM_INFINITY else min(limits.OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def spare_descriptors(soft: int) -> int:
    """Return the number of descriptors in one share of spare descriptors, for a finite soft limit."""
    return min(limits.SPARE_FILES, soft // limits.SPARE_FILES_PART)


def descriptor_bound(shares: int) -> int:
    """Return the bound for the descriptor numbers of a port's connections.

    If all connections have numbers below the bound, descriptors stay free for other files: `shares` times the number that
    `spare_descriptors` returns.
    """
    import resource  # noqa: PLC0415 - only servers call this; clients also run on systems without `resource`

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - shares * spare_descriptors(soft)


def lowest_free_descriptor() -> int:
    """Return the lowest free descriptor number, which the next descriptor gets; `sys.maxsize` if no descriptor is free."""
    try:
        with socket.socket() as probe:
            return probe.fileno()
    except OSError:
        return sys.maxsize


def move_to_lowest_descriptor(connection: socket.socket) -> socket.socket:
    """Move the connection to the lowest free descriptor number and return it. If no descriptor is free, return it unchanged."""
    try:
        lower = connection.dup()
    except OSError:
        return connection
    connection.close()
    return lower


def reserve_descriptors() -> None:
    """Reserve descriptors of this process for `with_reserved_descriptor`. Call this once per process."""
    import resource  # noqa: PLC0415 - only servers call this; clients also run on systems without `resource`

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        fewer = soft - spare_descriptors(soft)
        resource.setrlimit(resource.RLIMIT_NOFILE, (fewer, hard))
        _bounds[:] = fewer, soft


def with_reserved_descriptor(act: Callable[[], Result]) -> Result:
    """Call a function that needs a descriptor; if no descriptor is free, let the function use a reserved one.

    Raises:
        OSError: as `act`.
    """
    try:
        return act()
    except OSError as error:
        if error.errno not in TOO_MANY or not _bounds:
            raise
    import resource  # noqa: PLC0415 - `reserve_descriptors` has imported `resource`, so this import opens no file

    fewer, all_of_them = _bounds
    with _lock:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(all_of_them, hard), hard))
        try:
            return act()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(fewer, hard), hard))


def with_descriptor_wait(act: Callable[[], Result]) -> Result:
    """Call `act` as `with_reserved_descriptor` does. If the reserve is empty too, wait until connections release descriptors.

    Raises:
        OSError: as `act`; also if no descriptor became free within `FILES_WAIT_US_MAX`.
    """
    # Count attempts instead of time, so that the time during which the process is suspended does not count.
    for _ in range(limits.FILES_WAIT_US_MAX // limits.FILES_RETRY_US):
        try:
            return with_reserved_descriptor(act)
        except OSError as error:
            if error.errno not in TOO_MANY:
                raise
        time.sleep(limits.FILES_RETRY_US / _US)
    return with_reserved_descriptor(act)
