"""Memory budget for the batches of all streams together.

Batches that are views of the log's files use no memory. Joined and decompressed batches use memory until gRPC has sent them. A
frame of a few KiB may decompress to 32 MiB, and its size is unknown before, so Arrow's allocated bytes are checked before each
batch.
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
_POLL_S = 0.02  # polling interval of the first waiting stream, because gRPC does not report when it frees a batch


class MemoryBudget:
    """Grants memory for a batch while the budget has space for the largest one, first come, first served."""

    def __init__(self, held: Callable[[], int] = pa.total_allocated_bytes) -> None:
        """Begin without waiting streams; `held` returns the allocated bytes."""
        self.held = held
        self.refused = 0
        self._making = 0
        self._lock = threading.Lock()
        self._waiters: deque[threading.Condition] = deque()

    @contextlib.contextmanager
    def for_a_batch(self) -> Iterator[None]:
        """Reserve memory for making one batch within this context; waits until the budget has space.

        Raises:
            Fault: `busy` if the budget had no space in time.
        """
        with self._lock:
            if self._waiters or not self._fits():
                self._wait()
            self._making += 1
        try:
            yield
        finally:
            with self._lock:
                self._making -= 1
                self._wake_next()

    def _wait(self) -> None:
        deadline = time.monotonic() + limits.BUSY_WAIT_US_MAX / US
        turn = threading.Condition(self._lock)
        self._waiters.append(turn)
        try:
            while self._waiters[0] is not turn or not self._fits():
                left = deadline - time.monotonic()
                if left <= 0:
                    self.refused += 1
                    raise ReadError(
                        "busy",
                        f"unsent batches of slow readers hold {self.held()} bytes of memory at this gateway: "
                        "continue later, or at another gateway, from the offset reached",
                    )
                turn.wait(min(left, _POLL_S) if self._waiters[0] is turn else left)
        finally:
            self._waiters.remove(turn)
            self._wake_next()

    def _wake_next(self) -> None:
        if self._waiters:
            self._waiters[0].notify()

    def _fits(self) -> bool:
        return self.held() + (self._making + 1) * limits.READ_MAKING_BYTES <= limits.READ_HELD_BYTES_MAX
