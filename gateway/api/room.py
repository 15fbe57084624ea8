"""How much memory the batches of all streams may take together.

Batches that are views of the log's files take none. Joined and decompressed ones do, until gRPC has sent them, and a frame of a few
KiB may become 32 MiB: so what Arrow holds is looked at before the next batch is made, and its size is not known before.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from gateway.api.faults import Fault
from gateway.core import limits

US = 1_000_000
_LOOK_S = 0.02  # nobody tells when gRPC lets a batch go


class Room:
    """Lets batches be made while there is room for the largest."""

    def __init__(self, held: Callable[[], int] = pa.total_allocated_bytes) -> None:
        """`held`: bytes that are taken."""
        self._held = held
        self._making = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def for_a_batch(self) -> Iterator[None]:
        """Make a batch within this; waits for room.

        Raises:
            Fault: `busy` when there was none in time.
        """
        deadline = time.monotonic() + limits.BUSY_WAIT_US_MAX / US
        while not self._taken():
            if time.monotonic() >= deadline:
                raise Fault(
                    "busy",
                    f"batches that their readers do not take hold {self._held()} bytes of this gateway's reads process: "
                    "go on later, or at another gateway, from the offset reached",
                )
            time.sleep(_LOOK_S)
        try:
            yield
        finally:
            with self._lock:
                self._making -= 1

    def _taken(self) -> bool:
        with self._lock:
            there = self._held() + (self._making + 1) * limits.READ_MAKING_BYTES <= limits.READ_HELD_BYTES_MAX
            self._making += there
        return there
