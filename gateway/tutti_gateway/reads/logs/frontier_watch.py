"""One watcher of the frontier for everybody who waits on it.

The gateway writes a byte into a pipe when its frontier moved; one thread here reads it, looks at the live page and wakes all who
wait. While nobody waits it sleeps and leaves the bytes in the pipe (the gateway's write then does nothing), so that a log that
nobody follows costs the committing side no second process that wakes up. Should a byte ever be missing, the page is looked at every
half second all the same. The pipe's end means that the gateway is gone.
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
    """A frontier: how far the committed log goes."""

    @property
    def offset(self) -> int:
        """The offset that the next record will get."""
        ...


Frontier = TypeVar("Frontier", bound=HasOffset)
Other = TypeVar("Other", bound=HasOffset)
Seen_co = TypeVar("Seen_co", bound=HasOffset, covariant=True)


class Watching(Protocol[Seen_co]):
    """Waits for the frontier of one log."""

    @property
    def stopping(self) -> bool:
        """Whether the process stops: every wait ends."""

    @property
    def silent(self) -> bool:
        """Whether the gateway stands still, so that nothing comes: every wait ends."""

    def now(self) -> Seen_co:
        """The frontier of this moment."""

    def wait(self, beyond: int, timeout_us: int, given_up: Callable[[], bool] = bool) -> Seen_co:
        """Wait until the frontier is above `beyond`, the time has passed, the caller has given up, the process stops, or the
        gateway is silent.
        """


class LaneWatch(Generic[Frontier]):
    """Waits for the frontier of a lane, by the watch of the ordered log: the gateway tells by one pipe that something moved."""

    def __init__(self, look: Callable[[], Frontier], watch: FrontierWatch[Any]) -> None:
        """`look` reads the frontier (cheap), which never moves back."""
        self.now = look
        self._watch = watch

    @property
    def stopping(self) -> bool:
        """Whether the process stops."""
        return self._watch.stopping

    @property
    def silent(self) -> bool:
        """Whether the gateway stands still."""
        return self._watch.silent

    def wait(self, beyond: int, timeout_us: int, given_up: Callable[[], bool] = bool) -> Frontier:
        """Wait; as `FrontierWatch.wait`."""
        return self._watch.wait_beside(self.now, beyond, timeout_us, given_up)


class FrontierWatch(Generic[Frontier]):
    """Waits for the frontier, for many threads at once. A frontier that was shown never moves back."""

    def __init__(self, look: Callable[[], Frontier], notify_fd: int | None, gone: Callable[[], None]) -> None:
        """Start watching.

        Args:
            look: reads the frontier (cheap).
            notify_fd: read end of the gateway's pipe; without one only the slow poll is left.
            gone: called once, in the watcher's thread, when the gateway is gone.
        """
        self._look = look
        self._gone = gone
        self._notify_fd = notify_fd
        self._changed = threading.Condition()
        self._waiting = self._beside = 0
        self._told = 0  # how often the gateway was looked at because it said that something moved
        self._last = look()
        self.stopping = False
        self.silent = False  # set by who looks at the gateway; a wait sees it within half a second
        self._poke_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        if notify_fd is not None:
            os.set_blocking(notify_fd, False)
        self._thread = threading.Thread(target=self._run, name="frontier-watch", daemon=True)
        self._thread.start()

    def now(self) -> Frontier:
        """The frontier of this moment; whoever finds that it moved wakes all who wait."""
        seen = self._look()
        with self._changed:
            last = self._last
            if seen.offset >= last.offset:
                self._last = seen
                if seen.offset > last.offset:
                    self._changed.notify_all()
            return self._last

    def wait(self, beyond: int, timeout_us: int, given_up: Callable[[], bool] = bool) -> Frontier:
        """Wait until the frontier is above `beyond`, the time has passed, the caller has given up, the process stops, or the
        gateway is silent.

        Returns the frontier of that moment: the caller compares. `given_up` is asked at least each half second.
        """
        deadline = time.monotonic() + timeout_us / US
        with self._waits():
            while True:
                frontier = self.now()  # after the watcher knows of us: a move from here on wakes us
                left = deadline - time.monotonic()
                if frontier.offset > beyond or left <= 0 or self.stopping or self.silent or given_up():
                    return frontier
                with self._changed:
                    if self._last.offset <= beyond and not self.stopping:
                        self._changed.wait(min(left, limits.WATCH_POLL_US / US))

    def wait_beside(self, look: Callable[[], Other], beyond: int, timeout_us: int, given_up: Callable[[], bool] = bool) -> Other:
        """As `wait`, for a frontier beside this one of which the same pipe tells; `look` reads it."""
        deadline = time.monotonic() + timeout_us / US
        with self._waits(beside=1):
            while True:
                told = self._told
                frontier = look()  # a move from here on is told
                left = deadline - time.monotonic()
                if frontier.offset > beyond or left <= 0 or self.stopping or self.silent or given_up():
                    return frontier
                with self._changed:
                    if told == self._told and not self.stopping:
                        self._changed.wait(min(left, limits.WATCH_POLL_US / US))

    @contextlib.contextmanager
    def _waits(self, beside: int = 0) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            self._beside += beside
            first = self._waiting == 1
        if first:
            self._poke()
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1
                self._beside -= beside

    def stop(self) -> None:
        """Let every wait end now, and the thread too."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()
        self._poke()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the counter is full: the thread is about to look
            os.eventfd_write(self._poke_fd, 1)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._poke_fd, select.POLLIN)
        notify_fd = self._notify_fd
        trouble = ""
        while not self.stopping:
            waiting = self._waiting > 0
            if notify_fd is not None:
                poll.register(notify_fd, select.POLLIN if waiting else 0)  # the pipe's end is told either way
            events = dict(poll.poll(limits.WATCH_POLL_US // 1000 if waiting else None))
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._poke_fd)
            if notify_fd is not None and notify_fd in events and not self._drain(notify_fd):
                poll.unregister(notify_fd)
                notify_fd = None
                if not self.stopping:
                    self._gone()
            if waiting:
                self._tell_beside()
                try:
                    self.now()
                    trouble = ""
                except Exception as error:  # noqa: BLE001 - who waits meets it too; without this thread nobody sees the gateway go
                    if repr(error) != trouble:  # once, and not with each message that commits
                        trouble = repr(error)
                        LOG.error("the frontier cannot be read", extra={"fields": {"error": trouble}})

    def _tell_beside(self) -> None:
        with self._changed:
            self._told += 1
            if self._beside:
                self._changed.notify_all()

    def _drain(self, fd: int) -> bool:
        """Empty the pipe; False when it has ended."""
        try:
            while True:
                data = os.read(fd, _PIPE_BYTES)
                if len(data) < _PIPE_BYTES:
                    return bool(data)
        except BlockingIOError:
            return True
