"""Concurrency limits for calls, streams, followers and pages of records, each of which occupies a thread.

Above the limit, a stream, a follower or a page waits a few seconds for a free slot. Actions and `get_flight_info` are refused at
once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tutti_gateway.reads.protocol.flight_errors import ReadError

US = 1_000_000
_POLL_S = 0.25  # interval at which a waiting call checks that its caller is still connected


class Lease:
    """One slot in use, which is released once: by `release`, or when the lease is garbage collected.

    Garbage collection is needed if a caller disconnects before the Flight library requests the first batch of its stream: a
    generator that was never started does not run its `finally`.
    """

    def __init__(self, slots: ConcurrencyLimit) -> None:
        self._slots: ConcurrencyLimit | None = slots

    def release(self) -> None:
        """Release the slot."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots._release()

    def __del__(self) -> None:
        self.release()


class ConcurrencyLimit:
    """A semaphore that hands out leases, at most `most` at the same time."""

    def __init__(self, what: str, most: int, wait_us: int = 0) -> None:
        """Create the limit, with all slots free.

        Args:
            what: plural noun for error messages, as "streams".
            most: number of slots, and largest number of waiting callers.
            wait_us: longest wait for a free slot, us.
        """
        self.what = what
        self.most = most
        self.used = 0
        self.refused = 0
        self._waiting = 0
        self._wait_s = wait_us / US
        # Reentrant, because garbage collection may release a lease in a thread that holds the lock.
        self._freed = threading.Condition(threading.RLock())

    def acquire(self, is_cancelled: Callable[[], bool] = bool) -> Lease:
        """Acquire a slot; wait if none is free.

        Raises:
            ReadError: `busy` if no slot becomes free in time, too many callers wait already, or `is_cancelled` returns True.
        """
        deadline = time.monotonic() + self._wait_s
        with self._freed:
            while self.used >= self.most:
                left = deadline - time.monotonic()
                # A waiting call occupies a thread too, so at most as many calls wait as there are slots.
                if left <= 0 or self._waiting >= self.most or is_cancelled():
                    self.refused += 1
                    raise ReadError(
                        "busy", f"this gateway has reached its limit of {self.most} {self.what}: try later, or another gateway"
                    )
                self._waiting += 1
                self._freed.wait(min(left, _POLL_S))
                self._waiting -= 1
            self.used += 1
        return Lease(self)

    def _release(self) -> None:
        """Release one slot; called by its lease."""
        with self._freed:
            self.used -= 1
            # A call that arrives now may take the slot before the notified call, which then waits for the next free slot.
            self._freed.notify()
