"""Places for what takes a thread: calls, streams, followers. Each kind has its bound; who finds none free waits a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tutti_gateway.reads.protocol.flight_errors import Fault

US = 1_000_000
_LOOK_S = 0.25  # a waiting caller that went away is noticed this soon


class Lease:
    """One place taken. It is given back once, by `release` or when the lease is dropped.

    Dropping matters: the Flight library may never ask a stream for its first batch (the caller went away meanwhile), and what was
    not begun cannot run a `finally`.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots: Slots | None = slots

    def release(self) -> None:
        """Give the place back."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.give_back()

    def __del__(self) -> None:
        self.release()


class Slots:
    """At most `most` leases at a time."""

    def __init__(self, what: str, most: int, wait_us: int = 0) -> None:
        """Make `most` places for `what` (as "streams"); who finds none free waits up to `wait_us`, and at most `most` wait."""
        self.what = what
        self.most = most
        self.used = 0
        self.refused = 0
        self._waiting = 0
        self._wait_s = wait_us / US
        self._freed = threading.Condition(threading.RLock())  # a lease may be dropped by the collector, anywhere

    def take(self, given_up: Callable[[], bool] = bool) -> Lease:
        """A place.

        Raises:
            Fault: `busy` when none became free in time, or the caller has given up.
        """
        deadline = time.monotonic() + self._wait_s
        with self._freed:
            while self.used >= self.most:
                left = deadline - time.monotonic()
                if left <= 0 or self._waiting >= self.most or given_up():
                    self.refused += 1
                    raise Fault("busy", f"all {self.most} {self.what} of this gateway are in use: try later, or another gateway")
                self._waiting += 1
                self._freed.wait(min(left, _LOOK_S))
                self._waiting -= 1
            self.used += 1
        return Lease(self)

    def give_back(self) -> None:
        """Free one place (called by its lease)."""
        with self._freed:
            self.used -= 1
            self._freed.notify()
