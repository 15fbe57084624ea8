"""The engine: a thread that runs the pumps of many producers, and watches their connections by one epoll.

A process has few of them (`IO_THREADS_MAX`), however many producers it opens: threads that wait for the interpreter's lock and for
each other cost more than what they do for a small producer. What each of its producers is to do is done in turns, none of which
waits. An engine ends with its last producer.
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
from tutti.batching.receipt import bringer
from tutti.common.fork import after_fork

LOG = logging.getLogger("tutti.client")
_WOKEN = select.EPOLLIN | select.EPOLLET  # told of each writing, once: nobody needs to read it


class Link(Protocol):
    """What is watched. `stirs` is set when something happened at it."""

    stirs: bool

    def fileno(self) -> int:
        """What the kernel knows it by."""


class Pump(Protocol):
    """What is run.

    Attributes:
        engine: what runs it, once it was started.
        due: when it wants its next turn though nothing comes (monotonic).
        alarm: the engine's own: when it looks whether that time has come.
    """

    engine: Engine | None
    due: float
    alarm: float

    @property
    def name(self) -> str:
        """Its producer's."""

    def turn(self) -> bool:
        """Do what is to be done, without waiting; whether that was the last time."""

    def broke(self, error: BaseException) -> None:
        """A turn ended by a fault: end, so that who waits is told."""


class Engine:
    """Runs pumps. `watch` and `leave` are called in its own thread, the others by any."""

    def __init__(self, number: int) -> None:
        """Make it; it runs from `start` on.

        Raises:
            OSError: no descriptor is left for it.
        """
        self._poll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Not when the thread ends, as somebody may be about to write to it; nor at the interpreter's end, which has work for it.
        weakref.finalize(self, os.close, self._wake_fd).atexit = False
        self._poll.register(self._wake_fd, _WOKEN)
        self._pumps: set[Pump] = set()
        self._links: dict[int, tuple[Link, Pump]] = {}
        self._called: deque[Pump] = deque()
        self._alarms: list[tuple[float, int, Pump]] = []  # a heap; one that is not its pump's `alarm` counts no more
        self._serial = itertools.count()
        self._sleeping = False
        self.thread = threading.Thread(target=self._run, name=f"tutti-io-{number}", daemon=True)

    def __len__(self) -> int:
        """How many pumps it runs."""
        return len(self._pumps)

    def add(self, pump: Pump) -> None:
        """Run the pump from now on, until it is over."""
        self._pumps.add(pump)
        self.call(pump)

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: there is no thread for it. Nothing runs.
        """
        self.thread.start()

    def call(self, pump: Pump) -> None:
        """Give the pump a turn soon."""
        self._called.append(pump)
        if self._sleeping:
            self._sleeping = False
            os.eventfd_write(self._wake_fd, 1)

    def watch(self, link: Link, pump: Pump) -> None:
        """Give the pump a turn when something happens at the link."""
        self._poll.register(link.fileno(), select.EPOLLIN)
        self._links[link.fileno()] = link, pump

    def leave(self, link: Link) -> None:
        """The link is about to be closed."""
        if self._links.pop(link.fileno(), None) is not None:
            self._poll.unregister(link.fileno())

    def abandon(self) -> None:
        """There is no such thread, or not in this forked child: what it watches is the parent's."""
        self._sleeping = False
        self._poll.close()

    # -- the thread

    def _run(self) -> None:
        bringer.here = True
        try:
            while not _ends(self):
                self._round(self._sleep())
        except BaseException as error:  # whatever it was, nobody else tells those who wait
            LOG.exception("an I/O thread of the client ended")
            _forget(self)
            for pump in list(self._pumps):
                _break(pump, error)
        finally:
            self._poll.close()
            for kept in (self._called, self._alarms, self._links, self._pumps):
                kept.clear()  # no circle is left: the descriptor goes with the last who holds a producer

    def _sleep(self) -> list[tuple[int, int]]:
        """Wait until there is something to do; what the kernel tells."""
        self._sleeping = True  # who calls from here on wakes
        timeout = limits.POLL_US_MAX / 1e6
        if self._called:
            timeout = 0.0
        elif self._alarms:
            timeout = min(timeout, max(0.0, self._alarms[0][0] - time.monotonic()))
        told = self._poll.poll(timeout)
        self._sleeping = False
        return told

    def _round(self, told: list[tuple[int, int]]) -> None:
        """A turn for each pump that has something to do."""
        ready: dict[Pump, None] = {}
        for fd, _ in told:
            if fd in self._links:
                link, pump = self._links[fd]
                link.stirs = True
                ready[pump] = None
        called = self._called
        for _ in range(len(called)):
            ready[called.popleft()] = None
        if self._alarms:
            self._alarmed(ready, time.monotonic())
        for pump in ready:
            if pump in self._pumps:
                self._turn(pump)

    def _alarmed(self, ready: dict[Pump, None], now: float) -> None:
        alarms = self._alarms
        while alarms and alarms[0][0] <= now:
            at, _, pump = heapq.heappop(alarms)
            if at == pump.alarm:
                pump.alarm = inf
                if pump.due <= now:
                    ready[pump] = None
                else:
                    self._expect(pump)

    def _expect(self, pump: Pump) -> None:
        """Have an alarm for the pump's time; a later one is made when the earlier went off."""
        if pump.due < pump.alarm:
            pump.alarm = pump.due
            heapq.heappush(self._alarms, (pump.due, next(self._serial), pump))

    def _turn(self, pump: Pump) -> None:
        try:
            over = pump.turn()
        except BaseException as error:  # as above; the others go on
            LOG.exception("the I/O of producer %s ended", pump.name)
            _break(pump, error)
            over = True
        if over:
            self._pumps.discard(pump)
            pump.alarm = inf
        elif pump.due <= 0.0:
            self._called.append(pump)
        else:
            self._expect(pump)


def _break(pump: Pump, error: BaseException) -> None:
    for _ in range(2):  # it may meet what broke it; what it did until then need not be done again
        try:
            pump.broke(error)
            return
        except BaseException:  # there are others to be told
            LOG.exception("telling those who wait for producer %s failed", pump.name)


_engines: list[Engine] = []  # whose threads run
_serial = itertools.count(1)
_lock = threading.RLock()  # a signal handler may open a producer while its thread opens one


def run(pump: Pump) -> None:
    """Have the pump run by an engine of the process: a new one, or the one with the fewest where there are enough.

    Raises:
        OSError: no descriptor is left for a new one.
        RuntimeError: no thread is.
    """
    with _lock:
        if len(_engines) < limits.IO_THREADS_MAX:
            pump.engine = engine = Engine(next(_serial))
            engine.add(pump)
            try:
                engine.start()
            except RuntimeError:
                engine.abandon()
                pump.engine = None
                raise
            _engines.append(engine)
        else:
            pump.engine = engine = min(_engines, key=len)
            engine.add(pump)


def _ends(engine: Engine) -> bool:
    """Whether nothing is left to be run; nothing more comes then."""
    if len(engine):
        return False
    with _lock:
        if len(engine):
            return False
        if engine in _engines:
            _engines.remove(engine)
        return True


def _forget(engine: Engine) -> None:
    with _lock:
        if engine in _engines:
            _engines.remove(engine)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - it may have been held by a thread that is not in the child
    _lock = threading.RLock()
    for engine in _engines:
        engine.abandon()
    _engines.clear()


after_fork(_after_fork)
