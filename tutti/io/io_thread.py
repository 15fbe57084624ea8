"""I/O thread: runs the turns of many producers, and watches their connections with one epoll instance.

A process has at most `IO_THREADS_MAX` of these threads, whatever its number of producers. With more threads, waiting for the
GIL and for each other costs more than the work of a small producer. No turn blocks. An I/O thread ends with its last producer.
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
_WAKE_EVENTS = select.EPOLLIN | select.EPOLLET  # edge-triggered: each write to the eventfd wakes once, and nobody reads it


class Watched(Protocol):
    """A watched connection. The thread sets `stirs` when the connection has an event."""

    stirs: bool

    def fileno(self) -> int:
        """Return the descriptor to watch."""


class ThreadedIO(Protocol):
    """The I/O of one producer.

    Attributes:
        engine: the I/O thread that runs it, once started.
        due: monotonic time of the next turn if nothing arrives before.
        alarm: monotonic time at which the I/O thread checks `due`; set by the I/O thread alone.
    """

    engine: IOThread | None
    due: float
    alarm: float

    @property
    def name(self) -> str:
        """The name of the producer."""

    def turn(self) -> bool:
        """Do what is due, without blocking. Return True if this was the last turn."""

    def broke(self, error: BaseException) -> None:
        """End after an exception in a turn, so that all waiting threads get an error."""


class IOThread:
    """Runs the I/O of producers. Call `watch` and `leave` in its own thread, the other methods in any."""

    def __init__(self, number: int) -> None:
        """Create the thread; `start` runs it.

        Raises:
            OSError: no descriptor is free.
        """
        self._poll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The eventfd stays open after the thread, as other threads may still write to it, and at interpreter exit, which uses it.
        weakref.finalize(self, os.close, self._wake_fd).atexit = False
        self._poll.register(self._wake_fd, _WAKE_EVENTS)
        self._pumps: set[ThreadedIO] = set()
        self._links: dict[int, tuple[Watched, ThreadedIO]] = {}
        self._turn_requests: deque[ThreadedIO] = deque()
        self._alarms: list[tuple[float, int, ThreadedIO]] = []  # a heap; an entry is stale if its time is not the pump's `alarm`
        self._serial = itertools.count()
        self._sleeping = False
        self.thread = threading.Thread(target=self._run, name=f"tutti-io-{number}", daemon=True)

    def __len__(self) -> int:
        """Return the number of producers that it runs."""
        return len(self._pumps)

    def add(self, pump: ThreadedIO) -> None:
        """Run the pump until its last turn."""
        self._pumps.add(pump)
        self.call(pump)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system has no thread for it. Nothing runs.
        """
        self.thread.start()

    def call(self, pump: ThreadedIO) -> None:
        """Request a turn for the pump. Any thread."""
        self._turn_requests.append(pump)
        if self._sleeping:
            self._sleeping = False
            os.eventfd_write(self._wake_fd, 1)

    def watch(self, link: Watched, pump: ThreadedIO) -> None:
        """Give the pump a turn when the connection has an event."""
        self._poll.register(link.fileno(), select.EPOLLIN)
        self._links[link.fileno()] = link, pump

    def leave(self, link: Watched) -> None:
        """Stop watching a connection that is about to be closed."""
        if self._links.pop(link.fileno(), None) is not None:
            self._poll.unregister(link.fileno())

    def abandon(self) -> None:
        """Close the epoll instance: the thread did not start, or it belongs to the parent of this forked child."""
        self._sleeping = False
        self._poll.close()

    # -- the thread

    def _run(self) -> None:
        outcome_thread.here = True
        try:
            while not _ends(self):
                self._round(self._sleep())
        except BaseException as error:  # whatever the error is, waiting threads must get an outcome
            LOG.exception("an I/O thread of the client ended with an internal error")
            _unregister(self)
            for pump in list(self._pumps):
                _fail(pump, error)
        finally:
            self._poll.close()
            for kept in (self._turn_requests, self._alarms, self._links, self._pumps):
                kept.clear()  # no reference cycle remains, so that the eventfd closes with the last producer

    def _sleep(self) -> list[tuple[int, int]]:
        """Wait for events, turn requests or alarms. Return the epoll events."""
        self._sleeping = True  # from here on, `call` wakes the thread
        timeout = limits.POLL_US_MAX / 1e6
        if self._turn_requests:
            timeout = 0.0
        elif self._alarms:
            timeout = min(timeout, max(0.0, self._alarms[0][0] - time.monotonic()))
        events = self._poll.poll(timeout)
        self._sleeping = False
        return events

    def _round(self, events: list[tuple[int, int]]) -> None:
        """Run a turn of each pump that has something to do."""
        ready: dict[ThreadedIO, None] = {}
        for fd, _ in events:
            if fd in self._links:
                link, pump = self._links[fd]
                link.stirs = True
                ready[pump] = None
        called = self._turn_requests
        for _ in range(len(called)):
            ready[called.popleft()] = None
        if self._alarms:
            self._fire_alarms(ready, time.monotonic())
        for pump in ready:
            if pump in self._pumps:
                self._turn(pump)

    def _fire_alarms(self, ready: dict[ThreadedIO, None], now: float) -> None:
        alarms = self._alarms
        while alarms and alarms[0][0] <= now:
            at, _, pump = heapq.heappop(alarms)
            if at == pump.alarm:
                pump.alarm = inf
                if pump.due <= now:
                    ready[pump] = None
                else:
                    self._set_alarm(pump)

    def _set_alarm(self, pump: ThreadedIO) -> None:
        """Set an alarm for the pump's time. A later time gets its alarm when the earlier one fires."""
        if pump.due < pump.alarm:
            pump.alarm = pump.due
            heapq.heappush(self._alarms, (pump.due, next(self._serial), pump))

    def _turn(self, pump: ThreadedIO) -> None:
        try:
            over = pump.turn()
        except BaseException as error:  # as above; the other producers continue
            LOG.exception("the I/O of producer %s ended with an internal error", pump.name)
            _fail(pump, error)
            over = True
        if over:
            self._pumps.discard(pump)
            pump.alarm = inf
        elif pump.due <= 0.0:
            self._turn_requests.append(pump)
        else:
            self._set_alarm(pump)


def _fail(pump: ThreadedIO, error: BaseException) -> None:
    for _ in range(2):  # the error may occur again in `broke`, which continues where it stopped
        try:
            pump.broke(error)
            return
        except BaseException:  # other producers must get their outcomes, too
            LOG.exception("failing the records of producer %s raised an exception", pump.name)


_threads: list[IOThread] = []  # I/O threads that are running
_serial = itertools.count(1)
_lock = threading.RLock()  # reentrant, as a signal handler may open a producer while its thread opens one


def run(pump: ThreadedIO) -> None:
    """Run the pump in an I/O thread of the process: a new one, or the one with the fewest producers if the limit is reached.

    Raises:
        OSError: no descriptor is free for a new thread.
        RuntimeError: the system has no thread.
    """
    with _lock:
        if len(_threads) < limits.IO_THREADS_MAX:
            pump.engine = engine = IOThread(next(_serial))
            engine.add(pump)
            try:
                engine.start()
            except RuntimeError:
                engine.abandon()
                pump.engine = None
                raise
            _threads.append(engine)
        else:
            pump.engine = engine = min(_threads, key=len)
            engine.add(pump)


def _ends(engine: IOThread) -> bool:
    """Return True, and unregister the I/O thread, if it has no producers; it gets none any more."""
    if len(engine):
        return False
    with _lock:
        if len(engine):
            return False
        if engine in _threads:
            _threads.remove(engine)
        return True


def _unregister(engine: IOThread) -> None:
    with _lock:
        if engine in _threads:
            _threads.remove(engine)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - a thread that does not exist in the child may hold the old lock
    _lock = threading.RLock()
    for engine in _threads:
        engine.abandon()
    _threads.clear()


after_fork(_after_fork)
