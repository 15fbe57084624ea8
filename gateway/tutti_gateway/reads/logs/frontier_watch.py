"""Waits for the frontier, with one thread for all waiting callers.

The gateway writes a byte into a pipe when its frontier moves. One thread reads the pipe, checks the live page and wakes all waiting
callers. While no caller waits, the thread sleeps and does not read the pipe, so a commit does not wake this process. While a caller
waits, the thread also checks the live page every half second, in case a byte is lost. The end of the pipe means that the gateway
has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from tutti_gateway.core import limits

US = 1_000_000
LOG = logging.getLogger("tutti.reads")
_PIPE_BYTES = 65_536


class HasOffset(Protocol):
    """A frontier: the end of the committed log."""

    @property
    def offset(self) -> int:
        """Return the offset that the next record will get."""
        ...


Frontier = TypeVar("Frontier", bound=HasOffset)
Other = TypeVar("Other", bound=HasOffset)
Seen_co = TypeVar("Seen_co", bound=HasOffset, covariant=True)


class FrontierWaiter(Protocol[Seen_co]):
    """Waits for the frontier of one log."""

    @property
    def stopping(self) -> bool:
        """True if this process is stopping, which ends every wait."""

    @property
    def silent(self) -> bool:
        """True if the gateway's heartbeat has stopped, which ends every wait."""

    def now(self) -> Seen_co:
        """Return the current frontier."""

    def wait(self, beyond: int, timeout_us: int, is_cancelled: Callable[[], bool] = bool) -> Seen_co:
        """Wait until the frontier is above `beyond`. Return the frontier.

        The wait also ends at the timeout, when the caller disconnects, when this process stops, or when the gateway stalls.
        """


class LaneWatch(Generic[Frontier]):
    """Waits for the frontier of a lane, through the watch of the ordered log, because one pipe signals the frontiers of both."""

    def __init__(self, read_frontier: Callable[[], Frontier], watch: FrontierWatch[Any]) -> None:
        """Create a watch; `read_frontier` reads the lane's frontier, which never moves back, at low cost."""
        self.now = read_frontier
        self._watch = watch

    @property
    def stopping(self) -> bool:
        """True if the process stops."""
        return self._watch.stopping

    @property
    def silent(self) -> bool:
        """True if the gateway has stalled."""
        return self._watch.silent

    def wait(self, beyond: int, timeout_us: int, is_cancelled: Callable[[], bool] = bool) -> Frontier:
        """Wait as `FrontierWatch.wait` does."""
        return self._watch.wait_on(self.now, beyond, timeout_us, is_cancelled)


class FrontierWatch(Generic[Frontier]):
    """Waits for the frontier of the ordered log, for many threads at the same time. The reported frontier never moves back."""

    def __init__(self, read_frontier: Callable[[], Frontier], notify_fd: int | None, on_gateway_exit: Callable[[], None]) -> None:
        """Start watching.

        Args:
            read_frontier: reads the frontier at low cost.
            notify_fd: read end of the gateway's pipe, or None to poll every half second instead.
            on_gateway_exit: called once, in the watcher's thread, when the gateway has ended.
        """
        self._read_frontier = read_frontier
        self._on_gateway_exit = on_gateway_exit
        self._notify_fd = notify_fd
        self._changed = threading.Condition()
        self._waiting = self._waiting_on_others = 0
        self._signals = 0  # number of checks by the watcher thread while callers waited
        self._last = read_frontier()
        self.stopping = False
        self.silent = False  # set by the gateway's liveness check; waits notice it within half a second
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # `_drain` reads until the pipe is empty, which must raise BlockingIOError instead of blocking the thread.
        if notify_fd is not None:
            os.set_blocking(notify_fd, False)
        self._thread = threading.Thread(target=self._run, name="frontier-watch", daemon=True)
        self._thread.start()

    def now(self) -> Frontier:
        """Return the current frontier, and wake all waiting callers if it moved."""
        frontier = self._read_frontier()
        with self._changed:
            last = self._last
            # Of two threads, the one with the older frontier may get the lock last, and must not replace the newer frontier (C7).
            if frontier.offset >= last.offset:
                self._last = frontier
                if frontier.offset > last.offset:
                    self._changed.notify_all()
            return self._last

    def wait(self, beyond: int, timeout_us: int, is_cancelled: Callable[[], bool] = bool) -> Frontier:
        """Wait until the frontier is above `beyond`.

        The wait also ends at the timeout, when the caller disconnects, when this process stops, or when the gateway stalls.

        Args:
            beyond: offset that the frontier must exceed.
            timeout_us: longest wait, us.
            is_cancelled: returns True if the caller has disconnected; checked at least every half second.

        Returns:
            The frontier at the end of the wait, which may still be at or below `beyond`.
        """
        deadline = time.monotonic() + timeout_us / US
        with self._counted():
            while True:
                frontier = self.now()  # read after `_counted` has counted this caller, so that any later move wakes it
                left = deadline - time.monotonic()
                if frontier.offset > beyond or left <= 0 or self.stopping or self.silent or is_cancelled():
                    return frontier
                with self._changed:
                    if self._last.offset <= beyond and not self.stopping:
                        self._changed.wait(min(left, limits.WATCH_POLL_US / US))

    def wait_on(
        self, read_other: Callable[[], Other], beyond: int, timeout_us: int, is_cancelled: Callable[[], bool] = bool
    ) -> Other:
        """Wait as `wait` does, but for the frontier that `read_other` returns, whose moves the same pipe must signal."""
        deadline = time.monotonic() + timeout_us / US
        with self._counted(others=1):
            while True:
                signals = self._signals
                frontier = read_other()  # read after `_signals`, so that a move between the two reads is noticed
                left = deadline - time.monotonic()
                if frontier.offset > beyond or left <= 0 or self.stopping or self.silent or is_cancelled():
                    return frontier
                with self._changed:
                    if signals == self._signals and not self.stopping:
                        self._changed.wait(min(left, limits.WATCH_POLL_US / US))

    @contextlib.contextmanager
    def _counted(self, others: int = 0) -> Iterator[None]:
        """Count one waiting caller within this context. `others` is 1 if the caller waits for the frontier of a lane."""
        with self._changed:
            self._waiting += 1
            self._waiting_on_others += others
            first = self._waiting == 1
        if first:
            # The watcher thread sleeps without a timeout and ignores the pipe until the first caller wakes it.
            self._wake()
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1
                self._waiting_on_others -= others

    def stop(self) -> None:
        """End every wait and the thread."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()
        self._wake()
        # A thread cannot join itself, and `on_gateway_exit` runs in the watcher thread.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the eventfd's counter is full, so the thread wakes anyway
            os.eventfd_write(self._wake_fd, 1)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        notify_fd = self._notify_fd
        trouble = ""
        while not self.stopping:
            # A caller that begins to wait after this line writes to the eventfd, so the next turn counts that caller.
            waiting = self._waiting > 0
            if notify_fd is not None:
                poll.register(notify_fd, select.POLLIN if waiting else 0)  # poll always reports the pipe's end
            events = dict(poll.poll(limits.WATCH_POLL_US // 1000 if waiting else None))
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
            if notify_fd is not None and notify_fd in events and not self._drain(notify_fd):
                # `poll` reports the end of a pipe at every call, so a pipe that stays registered would make this loop spin.
                poll.unregister(notify_fd)
                notify_fd = None
                if not self.stopping:
                    self._on_gateway_exit()
            if waiting:
                self._notify_others()
                try:
                    self.now()
                    trouble = ""
                except Exception as error:  # noqa: BLE001 - this thread must stay alive to notice the gateway's end
                    if repr(error) != trouble:  # log a lasting error once, not after each commit
                        trouble = repr(error)
                        LOG.error("the frontier cannot be read", extra={"fields": {"error": trouble}})

    def _notify_others(self) -> None:
        with self._changed:
            self._signals += 1
            if self._waiting_on_others:
                self._changed.notify_all()

    def _drain(self, fd: int) -> bool:
        """Empty the pipe; return False if it has ended."""
        try:
            while True:
                data = os.read(fd, _PIPE_BYTES)
                # A short read has emptied the pipe, so a second read, which would only fail with EAGAIN, is not needed.
                if len(data) < _PIPE_BYTES:
                    return bool(data)
        except BlockingIOError:
            return True
