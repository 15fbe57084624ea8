"""Sender: owns a session and a window, and sends batches to a gateway. `OrderedDelivery` and `LaneSender` are senders."""

from __future__ import annotations

import abc
import itertools
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.receipt import Batch, Resume
from tutti.data import client_protocol
from tutti.data.frames.frame import Buffer
from tutti.delivery.session import NOT_ALLOWED, Greeting, Identity, Session, State
from tutti.delivery.window import Window
from tutti.errors import ConfigError, FormatError, NotAllowed, Refused, TuttiError

#: Codes of refusals for ids that this gateway's log does not have yet. Another gateway may already have registered them.
NOT_KNOWN_YET = frozenset({"topic", "epoch", "producer"})


class BatchSource(Protocol):
    """Source of a sender's batches: an accumulator, or the spool that takes the accumulator's batches.

    Attributes:
        queue: batches to send, in order.
    """

    queue: deque[Batch]

    def head(self) -> Batch | None:
        """Return the first batch of the queue, encoded."""

    def finished(self, batches: Iterable[Batch], committed: Resume | None = None) -> None:
        """Record the outcomes of resolved batches and publish them."""

    def set_opened(self, opened: Resume | None) -> None:
        """Set the current epoch, or None when it ends."""

    def drain_unsent(self, stop: TuttiError | None, ended: bool = False) -> list[Batch]:
        """Remove and return all unsent batches. With `stop`, reject new records."""

    def orphan(self, batches: Iterable[Batch], parent: int) -> None:
        """In a forked child, fail all records, because only the parent delivers."""


class Sender(abc.ABC):
    """The common part of `OrderedDelivery` and `LaneSender`. Called by one thread.

    Attributes:
        name: name of the producer.
        accumulator: the accumulator to which the application adds records.
        source: provides the batches and gets their outcomes: the accumulator, or the spool that takes the accumulator's batches.
        window: batches that have sequences and no outcome yet.
        session: the session with the gateway.
    """

    def __init__(
        self, identity: Identity, accumulator: Accumulator, source: BatchSource | None = None, *, unordered: bool = False
    ) -> None:
        """Create a sender with an empty window and an offline session."""
        options = accumulator.options
        self.name = identity.name
        self.accumulator = accumulator
        self.source: BatchSource = source or accumulator
        self.window = Window(options.compression, unordered, options.staged)
        self.session = Session(identity, self.window)
        self._refused_ahead: set[str] = set()  # topics whose refusal arrived before a batch of the topic was first in the queue

    @abc.abstractmethod
    def end(self, error: TuttiError) -> None:
        """Stop delivering; fail everything with `error`."""

    @abc.abstractmethod
    def _on_answer(self, answer: client_protocol.FromGateway, now: float) -> None:
        """Handle an answer that is not a receipt."""

    @abc.abstractmethod
    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        """Fail the batches of a topic at the head of the queue. None of them was sent."""

    # -- for the session connection

    @property
    def accepted(self) -> bool:
        """True if a gateway accepted the producer before."""
        return self.session.epoch > 0

    @property
    def only_gateway(self) -> tuple[str, str]:
        """Name and url ("" if unknown) of the only gateway that the session may use; an empty name allows any gateway."""
        return "", ""

    def disconnected(self) -> None:
        """Handle the loss of the connection and of everything queued in it."""
        self.session.lost()

    def receive(self, data: bytes, now: float) -> None:
        """Handle a message from the gateway.

        Raises:
            FormatError: the message does not belong to this protocol.
        """
        self.session.received(now)
        if data[:1] == client_protocol.RECEIPTS:
            self._on_receipts(data, now)
        elif data[:1] == client_protocol.CONTROL:
            message = client_protocol.decode_from_gateway(data)
            if self.session.state is not State.ENDED:
                self._on_answer(message, now)
        else:
            raise FormatError(f"the gateway sent an unknown message that starts with {data[:1]!r}")

    # -- answers

    def _on_receipts(self, data: bytes, now: float) -> bool:
        """Handle committed batches. Return True if one of them was in flight."""
        progressed, session, window = False, self.session, self.window
        for producer, first_sequence, offset, epoch, count in client_protocol.decode_receipts(data):
            # Receipts of an earlier epoch are ignored: their batches got their outcomes when the current epoch began.
            if producer == session.number and epoch == session.epoch:
                progressed = window.commit(first_sequence, count, offset) or progressed
        if progressed:
            session.reset_timeouts()
        return progressed

    def _greet(self, welcome: client_protocol.Welcome) -> Greeting | None:
        """Pass a Welcome to the session. If the gateway serves a different log, end the producer and return None."""
        try:
            return self.session.on_welcome(welcome)
        except Refused as error:
            self.end(error)
            return None

    def _on_denied(self, answer: client_protocol.Denied, now: float) -> None:
        """Handle the refusal of a request; `request` is 0 for a refusal of the session."""
        session = self.session
        if answer.code == "hello":
            session.on_unknown(now)
            return
        topic = session.pop_topic_request(answer.request)
        is_epoch = session.is_epoch_request(answer.request)
        text = f"{answer.reason} ({answer.code})"
        if answer.code == "protocol":
            self.end(ConfigError(f"the gateway does not speak this client's protocol: {answer.reason}"))
        elif answer.code in NOT_ALLOWED and topic is None and (answer.request == 0 or is_epoch):
            self.end(NotAllowed(f"producer {self.name!r} is not authorised: {answer.reason}", answer.code))
        elif answer.request == 0:
            # The gateway refused the session; another gateway may accept it.
            session.leave(text)
        elif answer.retry:
            session.trouble = text
            self._back_off(now, answer.code)
            if is_epoch:
                session.delay_epoch_request()
        elif topic is not None:
            kind = NotAllowed if answer.code in NOT_ALLOWED else Refused
            self._on_topic_refused(topic, kind(f"topic {topic!r} was refused: {text}", answer.code, topic))
        elif is_epoch:
            self.end(Refused(f"producer {self.name!r} was refused: {text}", answer.code))

    def _back_off(self, now: float, code: str) -> None:
        """Queue everything again after a delay; see `Session.back_off`."""
        self.session.back_off(now, code)

    # -- topics

    def knows_topic(self, batch: Batch) -> bool:
        """Return True if the topic of the queue's first batch has its number.

        If the number is missing, request it together with the missing numbers of the next batches. Separate requests would take a
        round trip each.
        """
        session = self.session
        if session.topics.get(batch.topic, 0):
            return True
        # The batch is first in the queue now, and the early refusal may be outdated, so request the topic again.
        self._refused_ahead.discard(batch.topic)
        # Take the lock, because other threads append to the queue and an append would break the iteration.
        with self.accumulator.lock:
            topics = dict.fromkeys(one.topic for one in itertools.islice(self.source.queue, limits.TOPICS_AHEAD))
        # Keep only topics that are still in the queue, so that the set stays small.
        self._refused_ahead &= topics.keys()
        for topic in topics:
            if topic not in self._refused_ahead:
                session.topic_number(topic)
        return False

    def _on_topic_refused(self, topic: str, error: TuttiError) -> None:
        """Fail the batches of a rejected topic once one of them is first in the queue. Earlier batches of other topics are sent
        first.

        If the topic was requested early, it is requested again at that time.
        """
        queue = self.source.queue
        if queue and queue[0].topic == topic:
            self._fail_topic(topic, error)
        else:
            self._refused_ahead.add(topic)

    # -- sending

    def _send_window(self, now: float) -> list[list[Buffer]]:
        """Send queued batches of the window, and return their messages."""
        session, window = self.session, self.window
        awaited = window.awaits_answer
        messages = list(window.messages(session.number, session.epoch, session.topic_number))
        session.outbox.extend(messages)
        if window.awaits_answer and not awaited:
            session.received(now)  # the gateway must answer from now on, so the silence timeout starts now
        return messages

    def next_time(self, now: float) -> float:
        """Return the monotonic time of the next action if no event occurs before; infinity if no action is planned."""
        session, oldest = self.session, self._oldest()
        due = session.due()
        if oldest is not None and oldest.deadline < due:
            due = oldest.deadline
        # A delay counts only if something is waiting for its end.
        if now < session.retry_at < due and session.state is State.OPEN and (self.window.has_unsent or self.source.queue):
            due = session.retry_at
        return due

    def _oldest(self) -> Batch | None:
        """Return the batch with the earliest deadline."""
        return self.window.oldest
