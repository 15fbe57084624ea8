"""I/O thread: runs the I/O of many producers, and watches their connections with one epoll instance.

A process has at most `IO_THREADS_MAX` I/O threads for all of its producers. With more threads, waiting for the GIL and for locks
would take longer than the work of a small producer. A *run* performs the due I/O of one producer, and never blocks. An I/O thread
ends with its last producer.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from math import inf
from typing import Protocol

from tutti import limits
from tutti.batching.receipt import outcome_thread
from tutti.common.fork import after_fork

LOG = logging.getLogger("tutti.client")
# Edge-triggered, so each write to the eventfd wakes the thread once, and the thread need not read the eventfd.
_WAKE_EVENTS = select.EPOLLIN | select.EPOLLET


class Watched(Protocol):
    """A watched connection. The I/O thread sets `is_ready` when the connection has an event."""

    is_ready: bool

    def fileno(self) -> int:
        """Return the descriptor to watch."""


class ThreadedIO(Protocol):
    """The I/O of one producer.

    Attributes:
        io_thread: the I/O thread that runs this I/O; set at the start.
        due: monotonic time of the next run if nothing arrives before.
        alarm: monotonic time at which the I/O thread checks `due`; only the I/O thread sets it.
    """

    io_thread: IOThread | None
    due: float
    alarm: float

    @property
    def name(self) -> str:
        """The name of the producer."""

    def run_once(self) -> bool:
        """Perform the actions that are due, without blocking. Return True if the producer has ended."""

    def fail(self, error: BaseException) -> None:
        """End the producer after an exception in `run_once`, so that all waiting threads get an error."""


class IOThread:
    """Runs the I/O of producers. Only the thread itself may call `watch` and `unwatch`; any thread may call the other methods."""

    def __init__(self, number: int) -> None:
        """Create the thread; `start` runs it.

        Raises:
            OSError: no descriptor is free.
        """
        self._poll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Keep the eventfd open after the thread has ended and at interpreter exit, because other threads may still write to it.
        weakref.finalize(self, os.close, self._wake_fd).atexit = False
        self._poll.register(self._wake_fd, _WAKE_EVENTS)
        self._producers: set[ThreadedIO] = set()
        self._connections: dict[int, tuple[Watched, ThreadedIO]] = {}
        self._run_requests: deque[ThreadedIO] = deque()
        # A heap of (time, serial, producer); an entry is stale if its time differs from the producer's `alarm`.
        self._alarms: list[tuple[float, int, ThreadedIO]] = []
        self._serial = itertools.count()
        self._sleeping = False
        self.thread = threading.Thread(target=self._run, name=f"tutti-io-{number}", daemon=True)

    def __len__(self) -> int:
        """Return the number of producers that this thread runs."""
        return len(self._producers)

    def add(self, producer: ThreadedIO) -> None:
        """Run the producer in this thread until the producer ends."""
        self._producers.add(producer)
        self.request_run(producer)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system cannot start a thread. Nothing runs.
        """
        self.thread.start()

    def request_run(self, producer: ThreadedIO) -> None:
        """Request a run of the producer. May be called in any thread."""
        self._run_requests.append(producer)
        if self._sleeping:
            self._sleeping = False
            os.eventfd_write(self._wake_fd, 1)

    def watch(self, connection: Watched, producer: ThreadedIO) -> None:
        """From now on, run the producer when the connection has an event."""
        self._poll.register(connection.fileno(), select.EPOLLIN)
        self._connections[connection.fileno()] = connection, producer

    def unwatch(self, connection: Watched) -> None:
        """Stop watching a connection that is about to be closed."""
        if self._connections.pop(connection.fileno(), None) is not None:
            self._poll.unregister(connection.fileno())

    def abandon(self) -> None:
        """Close the epoll instance of a thread that did not start, or that only the parent of this forked child has."""
        self._sleeping = False
        self._poll.close()

    # -- the thread

    def _run(self) -> None:
        outcome_thread.here = True
        try:
            while self._producers or not _unregister_if_idle(self):
                self._run_ready(self._sleep())
        except BaseException as error:  # includes SystemExit: threads that wait for outcomes must get an error
            LOG.exception("an I/O thread of the client ended with an internal error")
            _unregister(self)
            for producer in list(self._producers):
                _fail_producer(producer, error)
        finally:
            self._poll.close()
            for kept in (self._run_requests, self._alarms, self._connections, self._producers):
                # break the reference cycles, so that the eventfd is closed as soon as no producer refers to the thread
                kept.clear()

    def _sleep(self) -> list[tuple[int, int]]:
        """Wait for events, run requests or alarms. Return the epoll events."""
        self._sleeping = True  # from here on, `request_run` wakes the thread
        timeout = limits.POLL_US_MAX / 1e6
        if self._run_requests:
            timeout = 0.0
        elif self._alarms:
            timeout = min(timeout, max(0.0, self._alarms[0][0] - time.monotonic()))
        events = self._poll.poll(timeout)
        self._sleeping = False
        return events

    def _run_ready(self, events: list[tuple[int, int]]) -> None:
        """Run each producer that has something to do."""
        ready: dict[ThreadedIO, None] = {}
        for fd, _ in events:
            watched = self._connections.get(fd)
            if watched is not None:
                connection, producer = watched
                connection.is_ready = True
                ready[producer] = None
        called = self._run_requests
        # Take only the requests that exist now, so that a producer that requests run after run does not delay the others.
        for _ in range(len(called)):
            ready[called.popleft()] = None
        if self._alarms:
            self._fire_alarms(ready, time.monotonic())
        for producer in ready:
            # The producer may have ended since it requested this run.
            if producer in self._producers:
                try:
                    ended = producer.run_once()
                except BaseException as error:  # only this producer fails; the other producers of the thread continue
                    LOG.exception("the I/O of producer %s ended with an internal error", producer.name)
                    _fail_producer(producer, error)
                    ended = True
                if ended:
                    self._producers.discard(producer)
                    producer.alarm = inf
                elif producer.due <= 0.0:
                    self._run_requests.append(producer)
                elif producer.due < producer.alarm:  # an earlier alarm checks `due` again
                    self._set_alarm(producer)

    def _fire_alarms(self, ready: dict[ThreadedIO, None], now: float) -> None:
        alarms = self._alarms
        while alarms and alarms[0][0] <= now:
            at, _, producer = heapq.heappop(alarms)
            # Skip a stale entry: an earlier alarm has replaced it.
            if at == producer.alarm:
                producer.alarm = inf
                if producer.due <= now:
                    ready[producer] = None
                else:
                    self._set_alarm(producer)

    def _set_alarm(self, producer: ThreadedIO) -> None:
        """Set an alarm at the producer's `due`."""
        producer.alarm = producer.due
        heapq.heappush(self._alarms, (producer.due, next(self._serial), producer))


def _fail_producer(producer: ThreadedIO, error: BaseException) -> None:
    for _ in range(2):  # `fail` may raise the same error; a second call continues with the remaining batches
        try:
            producer.fail(error)
            return
        except BaseException:  # do not raise, because the caller still has to fail or run the other producers
            LOG.exception("failing the records of producer %s raised an exception", producer.name)


_threads: list[IOThread] = []  # I/O threads that are running
_serial = itertools.count(1)
_lock = threading.RLock()  # reentrant, because a signal handler may open a producer while its thread is opening another


def run(producer: ThreadedIO) -> None:
    """Run the producer in a new I/O thread; at the limit of threads, in the I/O thread with the fewest producers.

    Raises:
        OSError: no descriptor is free for a new thread.
        RuntimeError: the system cannot start a thread.
    """
    with _lock:
        # Hold the same lock as `_unregister_if_idle`, so that a thread that is about to end gets no producer.
        if len(_threads) < limits.IO_THREADS_MAX:
            producer.io_thread = thread = IOThread(next(_serial))
            thread.add(producer)
            try:
                thread.start()
            except RuntimeError:
                thread.abandon()
                producer.io_thread = None
                raise
            _threads.append(thread)
        else:
            producer.io_thread = thread = min(_threads, key=len)
            thread.add(producer)


def _unregister_if_idle(thread: IOThread) -> bool:
    """If the I/O thread has no producers, unregister the thread, so that it gets no producers any more, and return True."""
    if len(thread):
        return False
    with _lock:
        if len(thread):
            return False
        if thread in _threads:
            _threads.remove(thread)
        return True


def _unregister(thread: IOThread) -> None:
    with _lock:
        if thread in _threads:
            _threads.remove(thread)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - the old lock may be held by a thread that only the parent has
    _lock = threading.RLock()
    for thread in _threads:
        thread.abandon()
    _threads.clear()


after_fork(_after_fork)
