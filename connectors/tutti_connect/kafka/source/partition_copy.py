"""State of one partition's copy to the log: its queued batches, its frames in flight, and the committed offset.

This module has no socket, thread or clock, and gets messages, producers and times from `connector.py`. The table `TRANSITIONS`
lists the state transitions.
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
    OPENING = "opening"  # a thread opens the partition's producer, which starts an epoch and reads the position in the log
    FLOWING = "flowing"
    REVOKED = "revoked"  # Kafka has taken the partition from this instance


class Event(enum.Enum):
    """An event that changes the state."""

    OPEN = "open"
    OPENED = "opened"
    FAILED = "failed"
    REVOKED = "revoked"


#: (state, event) -> next state. A pair without an entry is illegal.
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
    """One partition. An I/O thread of the producer calls `on_delivery`; the connector's thread calls all other methods.

    Attributes:
        next: offset of the next message to read from Kafka.
        committed: offset below which every message is in the log or in quarantine, or is not a record.
        logged: position in the log, which is the offset after the last committed record; -1 without one.
        high_watermark: last known end offset of the partition in Kafka; -1 if unknown.
        retry_at: time (monotonic) at which to open a partition in state WAITING.
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
        """Return the name of the partition for messages, such as `orders[3]`."""
        return f"{self.topic}[{self.number}]"

    @property
    def full(self) -> bool:
        """True if a batch waits for space in the producer's buffer, so that reading must pause."""
        return bool(self._waiting)

    def transition(self, event: Event) -> None:
        """Change the state."""
        self.state = TRANSITIONS[self.state, event]

    def opened(self, producer: Producer, next_offset: int, logged: int) -> None:
        """Start copying at `next_offset`. The position in the log, `logged`, is lower if no message between the two is a record."""
        self.transition(Event.OPENED)
        self.producer, self.next, self.committed, self.logged = producer, next_offset, next_offset, logged
        self._waiting.clear()
        self._failures.clear()
        self._sent = self._delivered = 0

    def failed(self, error: Exception, now: float) -> Producer | None:
        """Change to state WAITING after a failure, set the retry time, and return the producer, which the caller closes."""
        self.transition(Event.FAILED)
        self.failures += 1
        delay = (self._fenced_backoff if isinstance(error, Fenced) else self._backoff).next_s()
        self.trouble, self.retry_at = f"{type(error).__name__}: {error}", now + delay
        return self._detach_producer()

    def revoked(self) -> Producer | None:
        """Change to state REVOKED, and return the producer; closing it delivers its records in flight."""
        self.transition(Event.REVOKED)
        return self._detach_producer()

    def _detach_producer(self) -> Producer | None:
        producer, self.producer = self.producer, None
        self._waiting.clear()
        return producer

    def queue(self, batches: Iterable[FrameBatch], end: int) -> None:
        """Queue batches to send; `end` is the offset after the messages that these batches and the rejected messages come from."""
        self._waiting.extend(batches)
        self.next = max(self.next, end)

    def push(self, progress: Callable[[int], bytes]) -> None:
        """Pass queued batches to the producer until its buffer is full.

        Raises:
            TuttiError: the producer failed, or a frame was not committed; the caller must open the partition again.
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
                # a later frame must not be sent: its progress would mark the records of this frame as copied, too
                raise receipt.error
            self._waiting.popleft()
            self._sent += 1
        self.advance_if_idle()

    def advance_if_idle(self) -> None:
        """Set `committed` to `next` if no frame is in flight, because the messages between them produced no frame."""
        if not self._waiting and self._delivered == self._sent:
            self.committed = max(self.committed, self.next)

    def on_delivery(self, producer: Producer, next_offset: int, error: TuttiError | None, receipt: Receipt) -> None:
        """Process the outcome of one frame; the producer calls this in an I/O thread."""
        if producer is not self.producer:
            return  # outcome of an old producer: its successor has read from the log whether the frame is committed
        if error is not None:
            # Do not count the frame as delivered, so that `advance_if_idle` cannot move `committed` past it.
            self._failures.append((producer, error))
            return
        self.records += receipt.count
        self.committed = max(self.committed, next_offset)
        self.logged = next_offset
        self._delivered += 1  # changed last, because the connector's thread may change `committed` when all frames are delivered
        self._backoff.reset()
        self._fenced_backoff.reset()
        self.trouble = ""
