"""Sender: a session with a window, which sends batches to a gateway. `Delivery` and `Lane` are senders."""

from __future__ import annotations

import abc
import itertools

from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.receipt import Batch
from tutti.data import client_protocol
from tutti.data.frames.frame import Buffer
from tutti.delivery.session import Identity, Session, State
from tutti.delivery.window import Window
from tutti.errors import FormatError, TuttiError

#: Codes of refusals for ids that this gateway's log does not have yet, although another gateway may have registered them.
NOT_KNOWN_YET = frozenset({"topic", "epoch", "producer"})


class Sender(Session):
    """The common part of `Delivery` and `Lane`. Called by one thread.

    Attributes:
        feed: the accumulator.
        window: batches that have sequences and no outcome yet.
    """

    def __init__(self, identity: Identity, feed: Accumulator, *, unordered: bool) -> None:
        """Create a sender with an empty window."""
        super().__init__(identity)
        self.feed = feed
        self._refused_ahead: set[str] = set()  # topics whose refusal arrived before a batch of the topic was first in the queue
        self.window = Window(feed.options.compression, unordered, feed.options.staged)

    @abc.abstractmethod
    def _on_answer(self, answer: client_protocol.FromGateway, now: float) -> None:
        """Handle an answer that is not a receipt."""

    def _oldest(self) -> Batch | None:
        """Return the batch with the earliest deadline."""
        return self.window.oldest

    def receive(self, data: bytes, now: float) -> None:
        """See `Session.receive`."""
        self._received_at = now
        if data[:1] == client_protocol.RECEIPTS:
            self._on_receipts(data, now)
        elif data[:1] == client_protocol.CONTROL:
            message = client_protocol.decode_from_gateway(data)
            if self.state is not State.ENDED:
                self._on_answer(message, now)
        else:
            raise FormatError(f"the gateway sent an unknown message that starts with {data[:1]!r}")

    def _on_receipts(self, data: bytes, now: float) -> bool:
        """Handle committed batches. Return True if one of them was in flight."""
        progressed = False
        for producer, first_sequence, offset, epoch, count in client_protocol.decode_receipts(data):
            if producer == self.number and epoch == self.epoch:
                progressed = self.window.commit(first_sequence, count, offset) or progressed
        if progressed:
            self._reset_timeouts()
        return progressed

    def _may_send(self, now: float) -> bool:
        """Return True if the gateway accepts batches now."""
        return self.state is State.OPEN and self._retry_at <= now and not self.drop

    def knows_topic(self, batch: Batch) -> bool:
        """Return True if the topic of the queue's first batch has its number.

        If the number is missing, request it together with those of the next batches: single requests would cost a round trip each.
        """
        if self.topics.get(batch.topic, 0):
            return True
        self._refused_ahead.discard(batch.topic)
        with self.feed.lock:
            topics = dict.fromkeys(one.topic for one in itertools.islice(self.feed.queue, limits.TOPICS_AHEAD))
        self._refused_ahead &= topics.keys()
        for topic in topics:
            if topic not in self._refused_ahead:
                self.topic_number(topic)
        return False

    def topic_refused(self, topic: str, error: TuttiError) -> None:
        """Fail the batches of a rejected topic once one of them is first in the queue; earlier batches are sent first.

        A topic that was requested early is requested again then.
        """
        queue = self.feed.queue
        if queue and queue[0].topic == topic:
            self._fail_topic(topic, error)
        else:
            self._refused_ahead.add(topic)

    @abc.abstractmethod
    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        """Fail the batches of a topic at the head of the queue. None of them was sent."""

    def _send_window(self, now: float) -> list[list[Buffer]]:
        """Send queued batches of the window, and return their messages."""
        waited = self.window.waits
        messages = list(self.window.messages(self.number, self.epoch, self.topic_number))
        self.outbox.extend(messages)
        if self.window.waits and not waited:
            self._received_at = now  # the silence timeout starts now
        return messages

    def next_time(self, now: float) -> float:
        """Return the monotonic time of the next action if nothing happens before; infinity if there is none."""
        due = self._due()
        oldest = self._oldest()
        if oldest is not None and oldest.deadline < due:
            due = oldest.deadline
        if now < self._retry_at < due and self.state is State.OPEN and (self.window.has_unsent or self.feed.queue):
            due = self._retry_at
        return due

    def resend(self) -> None:
        """Queue all unanswered batches again, in order."""
        self.window.rewind()

    def waits_for_batches(self) -> bool:
        """Return True if batches that were sent on this connection have no answer."""
        return self.window.waits

    def forgettable(self) -> bool:
        """Return True if no sent batch lacks an outcome."""
        return not len(self.window)
