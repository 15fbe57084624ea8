"""Queue between two threads: a deque, and an eventfd that wakes the consumer when it sleeps."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from tutti_gateway.core import limits

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """A queue with many producer threads and one consumer thread.

    Producers write the eventfd only while the consumer sleeps, because a consumer that is awake checks the queue before it sleeps.
    Under load, adding an item therefore needs no system call. During a short sleep (a nap), items that are added with `put_lazily`
    do not wake the consumer. Every sleep has a time limit, so a lost wake-up costs at most one poll interval.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._sleeping = self._naps = False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The consumer thread has its own poll object, because the socket thread polls `fd` together with its sockets.
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> None:
        """Add an item, and wake the consumer if it sleeps. Never blocks."""
        self._items.append(item)
        if self._sleeping:
            self.wake()

    def put_lazily(self, item: Item) -> None:
        """Add an item that may wait for the end of a nap.

        Wake the consumer if it is in a longer sleep or if many items are queued.
        """
        self._items.append(item)
        if self._sleeping and (not self._naps or len(self._items) >= limits.MAILBOX_LAZY_ITEMS_MAX):
            self.wake()

    def put_quietly(self, item: Item) -> None:
        """Add an item without waking the consumer. The caller then calls `rouse`, or drains the item itself."""
        self._items.append(item)

    def rouse(self, *, from_nap: bool) -> None:
        """Wake the consumer if it sleeps; from a nap only if `from_nap`."""
        if self._sleeping and (from_nap or not self._naps):
            self.wake()

    def wake(self) -> None:
        """Wake the consumer without adding an item. Safe in a signal handler."""
        self._sleeping = False  # cleared before the write to the eventfd, so that further items cause no further write
        try:
            os.eventfd_write(self.fd, 1)
        except BlockingIOError:
            return  # the eventfd's counter is full, so the consumer is already being woken

    def drain(self, items_max: int) -> list[Item]:
        """Return at most `items_max` items, in the order they were put, without waiting."""
        items = self._items  # deque operations are atomic, and only this thread removes items
        if not items:
            return []
        return [items.popleft() for _ in range(min(len(items), items_max))]

    def begin_sleep(self) -> bool:
        """Announce that the consumer is about to wait for `fd`. Return False if items are already queued."""
        self._sleeping = True
        # The queue is checked after the flag is set: a producer that saw the flag unset had already added its item.
        if self._items:
            self._sleeping = False
            return False
        return True

    def end_sleep(self, *, signalled: bool) -> None:
        """Announce that the consumer is awake; if `signalled`, reset the eventfd, which is readable then."""
        self._sleeping = False
        if not signalled:
            return
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return  # an earlier call has reset the eventfd

    def wait(self, timeout_ms: int, *, nap: bool = False, needed: Callable[[], bool] = bool) -> bool:
        """Wait for an item, for at most `timeout_ms`.

        Return True on a timeout. During a `nap`, `put_lazily` does not end the wait. Do not wait if `needed` returns True: another
        thread sets its cause before it calls `rouse`, so either this call sees the cause or `rouse` sees the sleep.
        """
        self._naps = nap  # set before `_sleeping`, because producers read `_sleeping` before `_naps`
        if not self.begin_sleep():
            return False
        if needed():
            self.end_sleep(signalled=False)
            return False
        signalled = bool(self._poll.poll(timeout_ms))
        self.end_sleep(signalled=signalled)
        return not signalled

    def close(self) -> None:
        """Close the eventfd. No item may be added afterwards."""
        os.close(self.fd)
