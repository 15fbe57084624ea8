"""Wake-ups of an event loop by another thread: one wake-up serves all waits that end at about the same time."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import weakref
from collections.abc import Callable, Generator
from typing import Any, Protocol


class Event(Protocol):
    """An event that another thread publishes: the outcome of a batch, or a change of an accumulator."""

    def call_once(self, call: Callable[[], object]) -> None:
        """Make a call at the event, in any thread; at once if the event has happened."""

    def forget_call(self, call: Callable[[], object]) -> bool:
        """Drop a call."""


class LoopWakeups:
    """Ends the waits in one event loop. A wake-up costs a system call and a pass of the loop, so waits share wake-ups."""

    def __init__(self) -> None:
        self._ended: collections.deque[asyncio.Future[None]] = collections.deque()
        self._scheduled = False

    def end(self, wait: asyncio.Future[None]) -> None:
        """End a wait. May be called in any thread."""
        self._ended.append(wait)
        # No wait is lost: this thread appends and then reads `_scheduled`; the loop resets `_scheduled` and then takes the waits.
        if not self._scheduled:
            self._scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no coroutine waits any more
                wait.get_loop().call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._scheduled = False
        for _ in range(len(self._ended)):
            wait = self._ended.popleft()
            if not wait.done():  # a cancelled wait is done
                wait.set_result(None)


_wakeups: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWakeups] = weakref.WeakKeyDictionary()


def wait_for_call(event: Event) -> Generator[Any, None, None]:
    """Wait in the running event loop until `event` makes its calls. A cancelled wait leaves nothing behind."""
    loop = asyncio.get_running_loop()
    wakeups = _wakeups.get(loop)
    if wakeups is None:
        wakeups = _wakeups[loop] = LoopWakeups()
    wait: asyncio.Future[None] = loop.create_future()
    call = functools.partial(wakeups.end, wait)
    event.call_once(call)
    try:
        yield from wait.__await__()
    finally:
        event.forget_call(call)
