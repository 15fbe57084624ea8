"""Hand-off between two threads: a deque, and an eventfd that wakes the taker when it sleeps."""

from __future__ import annotations

import os
import select
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Many may put, one thread takes.

    The eventfd is written only while the taker says that it sleeps: a taker that is awake looks again before it lies down, which
    saves a system call per item under load. A wake-up that is lost all the same costs one poll interval, never more, because every
    sleep has a time limit.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._sleeping = False
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

    def wait(self, timeout_ms: int) -> None:
        """Wait until there is something to take, at most `timeout_ms`."""
        if self.sleep_begins():
            self.sleep_ended(signalled=bool(self._poll.poll(timeout_ms)))

    def close(self) -> None:
        """Close the eventfd; nothing may be put afterwards."""
        os.close(self.fd)
