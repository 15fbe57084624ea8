"""The carrier: a session with a window, whose batches it carries to a gateway. Deliveries and lanes are carriers."""

from __future__ import annotations

import abc
import itertools

from tutti import limits
from tutti.batching.accumulator import Feed
from tutti.batching.receipt import Batch
from tutti.data import client_protocol
from tutti.data.frames.frame import Buffer
from tutti.delivery.session import Identity, Session, State
from tutti.delivery.window import Window
from tutti.errors import FormatError, TuttiError

#: What a gateway whose log is a moment behind refuses as not known, though another one has opened it.
NOT_KNOWN_YET = frozenset({"topic", "epoch", "producer"})


class Carrier(Session):
    """What deliveries and lanes have in common. Called by one thread.

    Attributes:
        feed: where batches come from.
        window: those that were given their sequences and have no outcome yet.
    """

    def __init__(self, identity: Identity, feed: Feed, *, unordered: bool) -> None:
        """Begin with an empty window."""
        super().__init__(identity)
        self.feed = feed
        self._refused_ahead: set[str] = set()  # topics that were refused before a batch of theirs was the first of the queue
        self.window = Window(feed.options.compression, unordered, feed.options.staged)

    @abc.abstractmethod
    def _on_answer(self, answer: client_protocol.FromGateway, now: float) -> None:
        """What the gateway says beside receipts."""

    def _oldest(self) -> Batch | None:
        """The batch whose deadline comes next."""
        return self.window.oldest

    def receive(self, data: bytes, now: float) -> None:
        """As `Session.receive`."""
        self._heard = now
        if data[:1] == client_protocol.RECEIPTS:
            self._on_receipts(data, now)
        elif data[:1] == client_protocol.CONTROL:
            message = client_protocol.decode_from_gateway(data)
            if self.state is not State.ENDED:
                self._on_answer(message, now)
        else:
            raise FormatError(f"the gateway sent a message that starts with {data[:1]!r}")

    def _on_receipts(self, data: bytes, now: float) -> bool:
        """Batches that committed; whether there is one that waited for it."""
        progressed = False
        for producer, first_sequence, offset, epoch, count in client_protocol.decode_receipts(data):
            if producer == self.number and epoch == self.epoch:
                progressed = self.window.commit(first_sequence, count, offset) or progressed
        if progressed:
            self._heard_well()
        return progressed

    def _may_send(self, now: float) -> bool:
        """Whether the gateway takes batches at this moment."""
        return self.state is State.OPEN and self._retry_at <= now and not self.drop

    def knows_topic(self, batch: Batch) -> bool:
        """Return whether the topic of the queue's first batch has its number.

        If not, ask for it and for the topics of the batches after it: one by one, each costs a round trip.
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
        """Fail the batches of a refused topic once one of them is the first of the queue: those before it are still sent.

        What was asked for ahead of its turn is asked for again then.
        """
        queue = self.feed.queue
        if queue and queue[0].topic == topic:
            self._fail_topic(topic, error)
        else:
            self._refused_ahead.add(topic)

    @abc.abstractmethod
    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        """Fail the batches of a topic that are first in the queue; nothing of them was sent."""

    def _send_window(self, now: float) -> list[list[Buffer]]:
        """Send what has a sequence and is to be sent (again); what was sent."""
        waited = self.window.waits
        messages = list(self.window.messages(self.number, self.epoch, self.topic_number))
        self.outbox.extend(messages)
        if self.window.waits and not waited:
            self._heard = now  # the silence begins now
        return messages

    def next_time(self, now: float) -> float:
        """When it has something to do, if nothing happens before (monotonic); infinity when nothing."""
        due = self._due()
        oldest = self._oldest()
        if oldest is not None and oldest.deadline < due:
            due = oldest.deadline
        if now < self._retry_at < due and self.state is State.OPEN and (self.window.has_unsent or self.feed.queue):
            due = self._retry_at
        return due

    def resend(self) -> None:
        """Everything unanswered is sent again, in order."""
        self.window.rewind()

    def waits_for_batches(self) -> bool:
        """Whether batches were sent on this connection that have no answer."""
        return self.window.waits

    def forgettable(self) -> bool:
        """Whether nothing was sent that has no outcome."""
        return not len(self.window)
