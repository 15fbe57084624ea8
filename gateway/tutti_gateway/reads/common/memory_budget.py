"""Memory budget for the batches of all streams together.

Batches that are views of the log's files use no memory. Joined and decompressed batches use memory until gRPC has sent them. A
frame of a few KiB may decompress to 32 MiB, and the decompressed size is unknown before the decompression. Therefore each batch
first waits until the largest possible batch fits into the budget.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa

from tutti_gateway.core import limits
from tutti_gateway.reads.protocol.flight_errors import ReadError

US = 1_000_000
_POLL_S = 0.02  # the first waiting stream polls at this interval, because gRPC does not report when it frees a batch


class MemoryBudget:
    """Grants memory for batches in order of arrival. Each batch waits until the largest possible batch fits into the budget."""

    def __init__(self, allocated: Callable[[], int] = pa.total_allocated_bytes) -> None:
        """Begin without waiting streams; `allocated` returns the bytes that Arrow has allocated."""
        self.allocated = allocated
        self.refused = 0
        self._reserved = 0
        self._lock = threading.Lock()
        self._waiters: deque[threading.Condition] = deque()

    @contextlib.contextmanager
    def reserve_batch(self) -> Iterator[None]:
        """Reserve memory for one batch within this context. Wait until the batch fits into the budget.

        Raises:
            ReadError: `busy` if the batch does not fit in time.
        """
        with self._lock:
            # A new batch also waits while others wait, even if it fits, because overtaking could starve the first waiter.
            if self._waiters or not self._fits():
                self._wait()
            self._reserved += 1
        try:
            yield
        finally:
            with self._lock:
                self._reserved -= 1
                self._wake_next()

    def _wait(self) -> None:
        deadline = time.monotonic() + limits.BUSY_WAIT_US_MAX / US
        waiter = threading.Condition(self._lock)
        self._waiters.append(waiter)
        try:
            while self._waiters[0] is not waiter or not self._fits():
                left = deadline - time.monotonic()
                if left <= 0:
                    self.refused += 1
                    raise ReadError(
                        "busy",
                        f"unsent batches of slow readers hold {self.allocated()} bytes of memory at this gateway: "
                        "continue later, or at another gateway, from the offset reached",
                    )
                waiter.wait(min(left, _POLL_S) if self._waiters[0] is waiter else left)
        finally:
            # A stream that gives up may have been the first waiter, which polls, so the next waiter must begin to poll.
            self._waiters.remove(waiter)
            self._wake_next()

    def _wake_next(self) -> None:
        if self._waiters:
            self._waiters[0].notify()

    def _fits(self) -> bool:
        # Reserved batches are not allocated yet, so each counts with the largest possible size.
        return self.allocated() + (self._reserved + 1) * limits.READ_MAKING_BYTES <= limits.READ_HELD_BYTES_MAX
