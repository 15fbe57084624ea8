"""Producers and the life of the process: its allocator, its forks, and what its end means for those that are open."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref

from tutti import limits
from tutti.common.fork import after_fork
from tutti.delivery.session import State
from tutti.io.producer_io import Pump
from tutti.runtime import malloc

LOG = logging.getLogger("tutti.client")

_pumps: weakref.WeakSet[Pump] = weakref.WeakSet()
_lock = threading.Lock()
_watched_pid = 0
_tuned = False


def tune() -> None:
    """Keep batches on the heap, once in the process, unless its environment says how glibc's allocator is to work."""
    global _tuned  # noqa: PLW0603 - once a process
    if not _tuned:
        _tuned = True
        if not malloc.tuned_by_user():
            malloc.tune(mmap=limits.CLIENT_MMAP_BYTES, trim=limits.CLIENT_TRIM_BYTES)


def watch(pump: Pump) -> None:
    """Have the pump told of a fork, and flushed when the interpreter ends."""
    global _watched_pid  # noqa: PLW0603 - once a process
    with _lock:
        _pumps.add(pump)
        if _watched_pid != os.getpid():
            _watched_pid = os.getpid()
            # A child of multiprocessing ends without atexit, and runs these instead.
            util = sys.modules.get("multiprocessing.util")
            if util is not None:
                util.Finalize(None, end_all, exitpriority=100)


def end_all() -> None:
    """At the end of the interpreter: give forgotten producers a moment, then say what was not delivered. It never hangs."""
    until = time.monotonic() + limits.EXIT_FLUSH_US / 1e6  # for all of them together
    for pump in list(_pumps):
        if pump.pid != os.getpid() or pump.delivery.state is State.ENDED:
            continue
        left = pump.flush(max(0.0, until - time.monotonic()))
        name = pump.delivery.identity.name
        if left and pump.spooler is None:
            LOG.error(
                "producer %s was not closed and %d records were not delivered when the interpreter ended: "
                "use it as `with Producer(...)`, or call close()",
                name,
                left,
            )
        pump.stop()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - it may have been held by a thread that is not in the child
    _lock = threading.Lock()
    for pump in list(_pumps):
        pump.orphan()
    _pumps.clear()


atexit.register(end_all)
after_fork(_after_fork)
