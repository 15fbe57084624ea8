"""Hand-off between two threads: a deque, and an eventfd that wakes the taker when it sleeps."""

from __future__ import annotations

import os
import select
from collections import deque
from typing import Generic, TypeVar

from tutti_gateway.core import limits

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Many may put, one thread takes.

    The eventfd is written only while the taker says that it sleeps: a taker that is awake looks again before it lies down,
    which saves a system call per item under load. It may also nap: then it is not woken for what can wait for so short a time.
    A wake-up that is lost all the same costs one poll interval, never more, because every sleep has a time limit.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._sleeping = self._naps = False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> None:
        """Add an item; wakes the taker if it sleeps. Never blocks."""
        self._items.append(item)
        if self._sleeping:
            self.wake()

    def put_lazily(self, item: Item) -> None:
        """Add an item that may wait until a nap of the taker is over; it wakes one who sleeps longer, or for whom much waits."""
        self._items.append(item)
        if self._sleeping and (not self._naps or len(self._items) >= limits.MAILBOX_LAZY_ITEMS_MAX):
            self.wake()

    def wake(self) -> None:
        """Wake the taker though nothing was put; also from a signal handler."""
        self._sleeping = False
        try:
            os.eventfd_write(self.fd, 1)
        except BlockingIOError:
            return  # the counter is full: the taker is awake by now

    def take(self, items_max: int) -> list[Item]:
        """At most `items_max` items in the order they were put; does not wait."""
        items = self._items
        if len(items) == 1:
            return [items.popleft()]
        return [items.popleft() for _ in range(min(len(items), items_max))]

    def sleep_begins(self) -> bool:
        """Say that the taker is about to wait for `fd`; False when there is something to take already."""
        self._sleeping = True
        if self._items:
            self._sleeping = False
            return False
        return True

    def sleep_ended(self, *, signalled: bool) -> None:
        """Say that the taker is awake; `signalled`: the eventfd is readable, and is emptied."""
        self._sleeping = False
        if not signalled:
            return
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return  # it was read before

    def wait(self, timeout_ms: int, *, nap: bool = False) -> bool:
        """Wait until there is something to take, at most `timeout_ms`; whether the time passed. A `nap` is so short that what may
        wait for its end does (`put_lazily`).
        """
        self._naps = nap  # before it is known that somebody sleeps
        if not self.sleep_begins():
            return False
        signalled = bool(self._poll.poll(timeout_ms))
        self.sleep_ended(signalled=signalled)
        return not signalled

    def close(self) -> None:
        """Close the eventfd; nothing may be put afterwards."""
        os.close(self.fd)
