"""Copy state of one Kafka partition: its queued batches, the batches passed to its producer, and the committed offset.

This module has no socket, thread or clock: the connector (`connector.py`) moves messages and opens producers. `TRANSITIONS` below
is the state table.
"""

from __future__ import annotations

import collections
import enum
from functools import partial
from typing import TYPE_CHECKING

from tutti.errors import BufferFull, Fenced, TuttiError
from tutti.runtime.backoff import Backoff
from tutti_connect.kafka import limits
from tutti_connect.kafka.source.batches import FrameBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tutti.batching.receipt import Receipt
    from tutti.producer import Producer


#: Topic and partition number in Kafka.
Key = tuple[str, int]


class State(enum.Enum):
    """State of a partition's copy from Kafka to the log."""

    WAITING = "waiting"  # the partition waits until its retry time
    OPENING = "opening"  # the partition's producer starts an epoch and reads the position
    FLOWING = "flowing"
    REVOKED = "revoked"  # Kafka has assigned the partition to another instance


class Event(enum.Enum):
    """An event that changes the state."""

    OPEN = "open"
    OPENED = "opened"
    FAILED = "failed"
    REVOKED = "revoked"


#: Table of the state transitions. A transition without an entry is illegal.
TRANSITIONS = {
    (State.WAITING, Event.OPEN): State.OPENING,
    (State.WAITING, Event.REVOKED): State.REVOKED,
    (State.OPENING, Event.OPENED): State.FLOWING,
    (State.OPENING, Event.FAILED): State.WAITING,
    (State.OPENING, Event.REVOKED): State.REVOKED,
    (State.FLOWING, Event.FAILED): State.WAITING,
    (State.FLOWING, Event.REVOKED): State.REVOKED,
}


class Partition:
    """One partition, used by the connector's thread; outcomes arrive in the producer's thread (`on_delivery`).

    Outcomes of a replaced producer are ignored.

    Attributes:
        next: offset of the next message to read from Kafka.
        committed: every message below this offset is in the log, in quarantine, or not a record.
        logged: position in the log itself; -1 if it has none.
        high_watermark: last known offset after the last message in Kafka; -1 if unknown.
        full: True if its producer's buffer is full, so that reading must pause.
        retry_at: in state WAITING, the monotonic time at which to open the partition.
    """

    def __init__(self, topic: str, number: int, target: str) -> None:
        """Start in state WAITING; `target` is the topic in the log."""
        self.topic, self.number, self.target = topic, number, target
        self.state = State.WAITING
        self.producer: Producer | None = None
        self.next = 0
        self.committed = 0
        self.logged = -1
        self.high_watermark = -1
        self.records = 0
        self.failures = 0
        self.retry_at = 0.0
        self.trouble = ""
        self._waiting: collections.deque[FrameBatch] = collections.deque()
        self._failures: collections.deque[tuple[Producer, TuttiError]] = collections.deque()
        self._backoff = Backoff(limits.RETRY_S_MIN, limits.RETRY_S_MAX)
        self._fenced_backoff = Backoff(limits.FENCED_S_MIN, limits.FENCED_S_MAX)
        self._sent = self._delivered = 0

    @property
    def key(self) -> Key:
        """Return the topic and the partition number."""
        return self.topic, self.number

    @property
    def source(self) -> str:
        """Return the readable name of the partition."""
        return f"{self.topic}[{self.number}]"

    @property
    def full(self) -> bool:
        """True if a batch waits for free space in the producer's buffer."""
        return bool(self._waiting)

    def transition(self, event: Event) -> None:
        """Change the state."""
        self.state = TRANSITIONS[self.state, event]

    def opened(self, producer: Producer, next_offset: int, logged: int) -> None:
        """Start copying at `next_offset`; `logged` is the position in the log, which may be lower."""
        self.transition(Event.OPENED)
        self.producer, self.next, self.committed, self.logged = producer, next_offset, next_offset, logged
        self._waiting.clear()
        self._failures.clear()
        self._sent = self._delivered = 0

    def failed(self, error: Exception, now: float) -> Producer | None:
        """Handle a failure: wait before the partition is opened again, and return the old producer."""
        self.transition(Event.FAILED)
        self.failures += 1
        delay = (self._fenced_backoff if isinstance(error, Fenced) else self._backoff).next_s()
        self.trouble, self.retry_at = f"{type(error).__name__}: {error}", now + delay
        return self._detach_producer()

    def revoked(self) -> Producer | None:
        """Handle the assignment to another instance; return the producer, which may deliver its records."""
        self.transition(Event.REVOKED)
        return self._detach_producer()

    def _detach_producer(self) -> Producer | None:
        producer, self.producer = self.producer, None
        self._waiting.clear()
        return producer

    def queue(self, batches: Iterable[FrameBatch], end: int) -> None:
        """Queue batches to send, in order; `end` is the offset after the last processed message."""
        self._waiting.extend(batches)
        self.next = max(self.next, end)

    def push(self, progress: Callable[[int], bytes]) -> None:
        """Pass queued batches to the producer until its buffer is full.

        Raises:
            TuttiError: the producer failed, or a frame was not committed. Open the partition again at the committed offset.
        """
        while self._failures:
            producer, error = self._failures.popleft()
            if producer is self.producer:
                raise error
        current = self.producer
        if self.state is not State.FLOWING or current is None:
            return
        while self._waiting:
            batch = self._waiting[0]
            try:
                receipt = current.send_batch(
                    self.target, batch.records, progress(batch.next), partial(self.on_delivery, current, batch.next)
                )
            except BufferFull:
                return
            if receipt.done() and receipt.error is not None:
                raise receipt.error  # stop here, because the progress of a later frame would also cover this frame
            self._waiting.popleft()
            self._sent += 1
        self.advance_if_idle()

    def advance_if_idle(self) -> None:
        """Advance `committed` past messages that produce no frame, if no frame is in flight."""
        if not self._waiting and self._delivered == self._sent:
            self.committed = max(self.committed, self.next)

    def on_delivery(self, producer: Producer, next_offset: int, error: TuttiError | None, receipt: Receipt) -> None:
        """Receive the outcome of one frame, in an I/O thread of the client."""
        if producer is not self.producer:
            return  # the next producer has resumed from the log, which counts this frame if it was committed
        if error is not None:
            # `_delivered` stays below `_sent`, so `advance_if_idle` never passes the failed frame.
            self._failures.append((producer, error))
            return
        self.records += receipt.count
        self.committed = max(self.committed, next_offset)
        self.logged = next_offset
        self._delivered += 1  # update this last: once the counts are equal, the connector's thread treats `committed` as final
        self._backoff.reset()
        self._fenced_backoff.reset()
        self.trouble = ""
