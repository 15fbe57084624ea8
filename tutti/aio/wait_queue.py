"""WaitQueue: records of an asynchronous producer that wait for space in the buffer, in the order of `send`."""

from __future__ import annotations

import asyncio
import collections
import copy
from collections.abc import Callable, Generator
from typing import Any

from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.receipt import Receipt
from tutti.errors import BufferFull, TuttiError, UsageError

_RETRY_S = limits.ASYNC_RETRY_US / 1e6


class WaitingReceipt:
    """The receipt of a record that waits for space in the buffer of the producer.

    Args:
        topic, count: as in `AsyncReceipt`.
        size: bytes of the record.
        send: sends the record and returns its receipt; raises `BufferFull` while the buffer is full.
    """

    def __init__(self, topic: str, count: int, size: int, send: Callable[[], Receipt]) -> None:
        """Create the receipt in the event loop of the producer."""
        self.topic = topic
        self.count = count
        self.size = size
        self.seen = False  # True once the application has seen the error of a record that was not sent
        self._send = send
        self._receipt: Receipt | None = None
        self._error: Exception | None = None
        self._left_queue = asyncio.get_running_loop().create_future()

    def send(self) -> bool:
        """Send the record. Return False if the buffer is still full. If the producer refuses the record, the receipt fails."""
        try:
            self._receipt = self._send()
        except BufferFull:
            return False
        except Exception as error:  # noqa: BLE001 - `await` raises the error
            self._error = error
        self._left_queue.set_result(None)
        return True

    def fail(self, error: Exception) -> None:
        """Fail the receipt: the record was not sent."""
        self._error = error
        self._left_queue.set_result(None)

    def throw(self) -> None:
        """Raise a copy of the error of a refused record; do nothing for other records."""
        if self._error is not None:
            self.seen = True
            raise copy.copy(self._error)

    @property
    def refused(self) -> bool:
        """True if the record was not sent, and the application has not seen the error."""
        return self._error is not None and not self.seen

    @property
    def offset(self) -> int | None:
        """See `AsyncReceipt.offset`."""
        return None if self._receipt is None else self._receipt.offset

    @property
    def error(self) -> TuttiError | None:
        """See `AsyncReceipt.error`."""
        if self._receipt is not None:
            return self._receipt.error
        return self._error if isinstance(self._error, TuttiError) else None

    @property
    def lane(self) -> str:
        """See `AsyncReceipt.lane`."""
        return "" if self._receipt is None else self._receipt.lane

    @property
    def left(self) -> bool:
        """See `AsyncReceipt.left`."""
        return self._receipt is not None and self._receipt.left

    def done(self) -> bool:
        """See `AsyncReceipt.done`."""
        return self._error is not None or (self._receipt is not None and self._receipt.done())

    def spooled(self, timeout: float | None = None) -> None:
        """See `AsyncReceipt.spooled`."""
        self._sent().spooled(timeout)

    def processed_by(self, query: str, timeout: float | None = None) -> int:
        """See `AsyncReceipt.processed_by`."""
        return self._sent().processed_by(query, timeout)

    def _sent(self) -> Receipt:
        self.throw()
        if self._receipt is None:
            raise UsageError("the record still waits for space in the buffer: await the receipt first")
        return self._receipt

    def __await__(self) -> Generator[Any, None, int]:
        """Wait for space, and then for the outcome."""
        if not self._left_queue.done():
            # `shield`, because a cancelled `await` must not cancel the future on which others wait.
            yield from asyncio.shield(self._left_queue).__await__()
        return (yield from self._sent().__await__())

    def __repr__(self) -> str:
        """Return a one-line description."""
        if self._receipt is not None:
            return repr(self._receipt)
        state = "waits for space" if self._error is None else f"failed: {self._error}"
        return f"<Receipt topic={self.topic} {state}>"


class WaitQueue:
    """The records of one ordering that wait for space. The event loop sends them when the buffer has space.

    The plain producer has no notification of free space, so the loop tries the first record every few milliseconds. `records` is
    empty if no record waits.

    Args:
        emptied: called when the last record leaves the queue.
    """

    def __init__(self, emptied: Callable[[], None]) -> None:
        """Create an empty queue in the event loop of the producer."""
        self._emptied = emptied
        self.size = 0  # bytes
        self.empty = asyncio.Event()
        self.empty.set()
        self.first_refused: WaitingReceipt | None = None  # the first record that was not sent
        self.accumulator: Accumulator | None = None  # the buffer for which the records wait
        self._waiting = 0  # number of records
        self._loop = asyncio.get_running_loop()
        self.records: collections.deque[WaitingReceipt] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None

    def waiting(self) -> int:
        """Return the number of records in the queue."""
        return self._waiting

    def append(self, record: WaitingReceipt) -> None:
        """Add a record.

        Raises:
            BufferFull: the queue has reached its limit.
        """
        if self.size + record.size > limits.ASYNC_QUEUE_BYTES:
            raise BufferFull(
                f"the buffer is full, and {self.waiting()} more records already wait for space, which is the limit: call "
                "`await producer.drain()` between records, or await the receipts"
            )
        self.records.append(record)
        self.size += record.size
        self._waiting += record.count
        self.empty.clear()
        if self._timer is None:
            self._timer = self._loop.call_later(_RETRY_S, self._retry)

    def _retry(self) -> None:
        self._timer = None
        # Few records at a time, so that other coroutines can run in between.
        full = self.move(limits.ASYNC_RECORDS_A_TURN)
        if self.records:
            self._timer = self._loop.call_later(_RETRY_S if full else 0.0, self._retry)

    def move(self, count: int) -> bool:
        """Send the first `count` records of the queue. Return True if the buffer is full."""
        for _ in range(min(count, len(self.records))):
            if not self.records[0].send():
                return True
            self._remove_first()
        return False

    def fail(self, error: Exception) -> int:
        """Fail all records of the queue. Return the number of records."""
        count = self.waiting()
        while self.records:
            self.records[0].fail(error)
            self._remove_first()
        return count

    def _remove_first(self) -> None:
        record = self.records.popleft()
        self.size -= record.size
        self._waiting -= record.count
        if record.refused and self.first_refused is None:
            self.first_refused = record
        if not self.records:
            self.empty.set()
            self._emptied()
