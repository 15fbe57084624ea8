"""One partition of Kafka on its way into the log: what was handed to its producer, what is committed, what waits.

No socket, thread or clock: the connector (`inflow.py`) moves messages and opens producers. The states are the table below.
"""

from __future__ import annotations

import collections
import enum
from functools import partial
from typing import TYPE_CHECKING

from tutti.errors import BufferFull, Fenced, TuttiError
from tutti.runtime.backoff import Doubling
from tutti_connect.kafka import limits
from tutti_connect.kafka.source.batches import Cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tutti.batching.receipt import Receipt
    from tutti.producer import Producer


#: Topic and number in Kafka.
Key = tuple[str, int]


class State(enum.Enum):
    """Where a partition stands."""

    WAITING = "waiting"  # for its time to be opened
    OPENING = "opening"  # its producer begins an epoch, and learns where to go on
    FLOWING = "flowing"
    GONE = "gone"  # another instance has it by Kafka's word


class Turn(enum.Enum):
    """What changes the state."""

    OPEN = "open"
    OPENED = "opened"
    FAILED = "failed"
    TAKEN = "taken"


#: What is absent is illegal.
TRANSITIONS = {
    (State.WAITING, Turn.OPEN): State.OPENING,
    (State.WAITING, Turn.TAKEN): State.GONE,
    (State.OPENING, Turn.OPENED): State.FLOWING,
    (State.OPENING, Turn.FAILED): State.WAITING,
    (State.OPENING, Turn.TAKEN): State.GONE,
    (State.FLOWING, Turn.FAILED): State.WAITING,
    (State.FLOWING, Turn.TAKEN): State.GONE,
}


class Partition:
    """Used by the connector's thread; outcomes come in the producer's (`settle`). Those of a producer that was left are not heard.

    Attributes:
        next: offset of the next message to take from Kafka.
        committed: all below it is in the log, or in quarantine, or no record.
        logged: the place that the log itself says; -1 while it says none.
        high: the offset behind the last message that Kafka has, as far as it was heard; -1 before.
        full: whether its producer has no room, so that Kafka is to wait.
        retry_at: when it is opened (monotonic), while it waits.
    """

    def __init__(self, topic: str, number: int, target: str) -> None:
        """Begin to wait; `target` is the topic in the log."""
        self.topic, self.number, self.target = topic, number, target
        self.state = State.WAITING
        self.producer: Producer | None = None
        self.next = 0
        self.committed = 0
        self.logged = -1
        self.high = -1
        self.records = 0
        self.failures = 0
        self.retry_at = 0.0
        self.trouble = ""
        self._waiting: collections.deque[Cut] = collections.deque()
        self._failures: collections.deque[tuple[Producer, TuttiError]] = collections.deque()
        self._waits = Doubling(limits.RETRY_S_MIN, limits.RETRY_S_MAX)
        self._fenced = Doubling(limits.FENCED_S_MIN, limits.FENCED_S_MAX)
        self._sent = self._settled = 0

    @property
    def key(self) -> Key:
        """Its topic and number."""
        return self.topic, self.number

    @property
    def source(self) -> str:
        """Its name, for people."""
        return f"{self.topic}[{self.number}]"

    @property
    def full(self) -> bool:
        """Whether something waits for room in the producer's buffer."""
        return bool(self._waiting)

    def turn(self, turn: Turn) -> None:
        """Change the state."""
        self.state = TRANSITIONS[self.state, turn]

    def opened(self, producer: Producer, next_offset: int, logged: int) -> None:
        """Flow from there on; `logged` is what the log says, which may lie before it."""
        self.turn(Turn.OPENED)
        self.producer, self.next, self.committed, self.logged = producer, next_offset, next_offset, logged
        self._waiting.clear()
        self._failures.clear()
        self._sent = self._settled = 0

    def failed(self, error: Exception, now: float) -> Producer | None:
        """Wait before it is opened again; returns the producer that is of no use any more."""
        self.turn(Turn.FAILED)
        self.failures += 1
        delay = (self._fenced if isinstance(error, Fenced) else self._waits).next_s()
        self.trouble, self.retry_at = f"{type(error).__name__}: {error}", now + delay
        return self._left()

    def taken(self) -> Producer | None:
        """Kafka gave it to another instance; returns the producer, which may deliver what it has."""
        self.turn(Turn.TAKEN)
        return self._left()

    def _left(self) -> Producer | None:
        producer, self.producer = self.producer, None
        self._waiting.clear()
        return producer

    def take(self, cuts: Iterable[Cut], end: int) -> None:
        """Records to send, in order; `end` is the offset behind all that was looked at for them."""
        self._waiting.extend(cuts)
        self.next = max(self.next, end)

    def push(self, progress: Callable[[int], bytes]) -> None:
        """Hand to the producer what it has room for.

        Raises:
            TuttiError: the producer is of no use any more, or a frame was not committed: open it again, and begin behind what is.
        """
        while self._failures:
            producer, error = self._failures.popleft()
            if producer is self.producer:
                raise error
        current = self.producer
        if self.state is not State.FLOWING or current is None:
            return
        while self._waiting:
            cut = self._waiting[0]
            try:
                receipt = current.send_batch(self.target, cut.records, progress(cut.next), partial(self.settle, current, cut.next))
            except BufferFull:
                return
            if receipt.done() and receipt.error is not None:
                raise receipt.error  # before anything is sent whose progress lies behind it
            self._waiting.popleft()
            self._sent += 1
        self.settled()

    def settled(self) -> None:
        """Where nothing is on its way, all that was looked at is done: also what is no record, which no frame tells of."""
        if not self._waiting and self._settled == self._sent:
            self.committed = max(self.committed, self.next)

    def settle(self, producer: Producer, next_offset: int, error: TuttiError | None, receipt: Receipt) -> None:
        """The outcome of one frame, in an I/O thread of the client."""
        if producer is not self.producer:
            return
        if error is not None:
            self._failures.append((producer, error))
            return
        self.records += receipt.count
        self.committed = max(self.committed, next_offset)
        self.logged = next_offset
        self._settled += 1
        self._waits.reset()
        self._fenced.reset()
        self.trouble = ""
