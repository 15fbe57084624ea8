"""Reserved descriptors for a process's own files. Without them, connections could exhaust the descriptors, which would look like a
disk failure.

Libraries accept connections until the descriptors run out. So a process lowers its soft limit to reserve some descriptors, and
raises the limit for a moment when its own files need one. At the lower limit, the libraries retry after a second.

Ports with this project's own accept loops need no lower limit. The kernel gives a new descriptor the lowest free number. So if
connections must have numbers below a bound, all higher numbers stay free for the rest of the process.
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
_bounds: list[int] = []  # the soft limit without the reserved descriptors, and the soft limit with them


def raise_limit() -> None:
    """Raise the limit of descriptors as far as the system allows, up to `limits.OPEN_FILES`: each connection takes one."""
    import resource  # noqa: PLC0415 - clients also run on systems without it, and never call this

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.OPEN_FILES if hard == resource.RLIM_INFINITY else min(limits.OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def spare_descriptors(soft: int) -> int:
    """Return the size of one share of spare descriptors, for a soft limit that is not infinite."""
    return min(limits.SPARE_FILES, soft // limits.SPARE_FILES_PART)


def descriptor_bound(shares: int) -> int:
    """Return the bound for the descriptors of a port's connections.

    If all connections are below the bound, `shares` shares of spare descriptors stay free.
    """
    import resource  # noqa: PLC0415 - missing on some systems of clients, which never call this

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - shares * spare_descriptors(soft)


def lowest_free_descriptor() -> int:
    """Return the number that the next descriptor gets; a number above all bounds if none is free."""
    try:
        with socket.socket() as probe:
            return probe.fileno()
    except OSError:
        return sys.maxsize


def move_to_lowest_descriptor(connection: socket.socket) -> socket.socket:
    """Return the connection with the lowest free descriptor, or unchanged if none is free."""
    try:
        lower = connection.dup()
    except OSError:
        return connection
    connection.close()
    return lower


def reserve_descriptors() -> None:
    """Reserve descriptors of this process for `with_reserved_descriptor`. Call this once per process."""
    import resource  # noqa: PLC0415 - clients also run on systems without it, and never call this

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        fewer = soft - spare_descriptors(soft)
        resource.setrlimit(resource.RLIMIT_NOFILE, (fewer, hard))
        _bounds[:] = fewer, soft


def with_reserved_descriptor(act: Callable[[], Result]) -> Result:
    """Call a function that needs a descriptor; if none is free, use a reserved one.

    Raises:
        OSError: as `act`.
    """
    try:
        return act()
    except OSError as error:
        if error.errno not in TOO_MANY or not _bounds:
            raise
    import resource  # noqa: PLC0415 - `reserve_descriptors` has imported it, so the import needs no descriptor

    fewer, all_of_them = _bounds
    with _lock:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(all_of_them, hard), hard))
        try:
            return act()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(fewer, hard), hard))


def with_descriptor_wait(act: Callable[[], Result]) -> Result:
    """As `with_reserved_descriptor`; if the reserve is empty too, wait until connections release descriptors.

    Raises:
        OSError: as `act`; also if no descriptor was free for `FILES_WAIT_US_MAX`.
    """
    # Count the attempts instead of the time, so that a suspended process does not use up its wait.
    for _ in range(limits.FILES_WAIT_US_MAX // limits.FILES_RETRY_US):
        try:
            return with_reserved_descriptor(act)
        except OSError as error:
            if error.errno not in TOO_MANY:
                raise
        time.sleep(limits.FILES_RETRY_US / _US)
    return with_reserved_descriptor(act)
