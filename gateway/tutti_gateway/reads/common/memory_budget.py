"""How much memory the batches of all streams may take together.

Batches that are views of the log's files take none. Joined and decompressed ones do, until gRPC has sent them, and a frame of a few
KiB may become 32 MiB: so what Arrow holds is looked at before the next batch is made, and its size is not known before.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa

from tutti_gateway.core import limits
from tutti_gateway.reads.protocol.flight_errors import Fault

US = 1_000_000
_LOOK_S = 0.02  # nobody tells when gRPC lets a batch go: whose turn it is looks this often


class Room:
    """Lets batches be made while there is room for the largest: who waits is let in first who came first."""

    def __init__(self, held: Callable[[], int] = pa.total_allocated_bytes) -> None:
        """`held`: bytes that are taken."""
        self.held = held
        self.refused = 0
        self._making = 0
        self._lock = threading.Lock()
        self._turns: deque[threading.Condition] = deque()

    @contextlib.contextmanager
    def for_a_batch(self) -> Iterator[None]:
        """Make a batch within this; waits for room.

        Raises:
            Fault: `busy` when there was none in time.
        """
        with self._lock:
            if self._turns or not self._fits():
                self._wait()
            self._making += 1
        try:
            yield
        finally:
            with self._lock:
                self._making -= 1
                self._call_next()

    def _wait(self) -> None:
        deadline = time.monotonic() + limits.BUSY_WAIT_US_MAX / US
        turn = threading.Condition(self._lock)
        self._turns.append(turn)
        try:
            while self._turns[0] is not turn or not self._fits():
                left = deadline - time.monotonic()
                if left <= 0:
                    self.refused += 1
                    raise Fault(
                        "busy",
                        f"batches that their readers do not take hold {self.held()} bytes of this gateway's reads process: "
                        "go on later, or at another gateway, from the offset reached",
                    )
                turn.wait(min(left, _LOOK_S) if self._turns[0] is turn else left)
        finally:
            self._turns.remove(turn)
            self._call_next()

    def _call_next(self) -> None:
        if self._turns:
            self._turns[0].notify()

    def _fits(self) -> bool:
        return self.held() + (self._making + 1) * limits.READ_MAKING_BYTES <= limits.READ_HELD_BYTES_MAX
