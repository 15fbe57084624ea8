"""Handlers for producers: allocator settings at the start, and the events fork and interpreter exit."""

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
from tutti.common.stats import records_text
from tutti.delivery.session import State
from tutti.io.producer_io import ProducerIO
from tutti.runtime import malloc

LOG = logging.getLogger("tutti.client")

_producers: weakref.WeakSet[ProducerIO] = weakref.WeakSet()
_lock = threading.Lock()
_watched_pid = 0
_tuned = False


def tune_allocator() -> None:
    """Configure glibc's allocator so that batches stay on the heap, unless environment variables configure it. Runs once."""
    global _tuned  # noqa: PLW0603 - once in a process
    if not _tuned:
        _tuned = True
        if not malloc.tuned_by_user():
            malloc.configure_allocator(mmap=limits.CLIENT_MMAP_BYTES, trim=limits.CLIENT_TRIM_BYTES)


def register(io: ProducerIO) -> None:
    """Register a producer's I/O, so that forks and the interpreter's exit are handled."""
    global _watched_pid  # noqa: PLW0603 - once in a process
    with _lock:
        # Keep only a weak reference, so that a producer ends when the application drops it.
        _producers.add(io)
        if _watched_pid != os.getpid():
            _watched_pid = os.getpid()
            # A child process of `multiprocessing` exits without atexit handlers, but runs the finalizers of `multiprocessing.util`.
            util = sys.modules.get("multiprocessing.util")
            if util is not None:
                util.Finalize(None, flush_at_exit, exitpriority=100)


def flush_at_exit() -> None:
    """At interpreter exit, wait up to `EXIT_FLUSH_US` for open producers to deliver; then log the number of undelivered records."""
    until = time.monotonic() + limits.EXIT_FLUSH_US / 1e6  # one deadline for all producers
    for io in list(_producers):
        # A forked child must not deliver the records of its parent.
        if io.pid != os.getpid() or io.delivery.session.state is State.ENDED:
            continue
        left = io.flush(max(0.0, until - time.monotonic()))
        name = io.name
        if left and io.disk_thread is None:
            LOG.error(
                "producer %r was not closed, and the end of the interpreter left %s undelivered: "
                "use it as `with Producer(...)`, or call close()",
                name,
                records_text(left),
            )
        io.stop()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - the old lock may be held by a thread that only the parent has
    _lock = threading.Lock()
    for io in list(_producers):
        io.orphan()
    _producers.clear()


atexit.register(flush_at_exit)
after_fork(_after_fork)
