"""Sender: owns a session and a window, and sends batches to a gateway. `OrderedDelivery` and `LaneSender` are senders."""

from __future__ import annotations

import abc
import itertools
import logging
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
from tutti.errors import ConfigError, FormatError, NotAllowed, Refused, TooLarge, TuttiError

LOG = logging.getLogger("tutti.client")
#: Codes of refusals for a topic, epoch or producer that another gateway has registered and this gateway's log lacks so far.
NOT_KNOWN_YET = frozenset({"topic", "epoch", "producer"})


def refusal(text: str, code: str) -> Refused:
    """Return the error for a permanent refusal of a batch."""
    if code == "too_large":
        return TooLarge(text)
    return NotAllowed(text, code) if code in NOT_ALLOWED else Refused(text, code)


class BatchSource(Protocol):
    """Source of a sender's batches: an accumulator, or a spool between accumulator and sender.

    Attributes:
        queue: batches to send, in order.
    """

    queue: deque[Batch]

    def head(self) -> Batch | None:
        """Return the first batch of the queue with its encoded body; None if the queue is empty."""

    def finished(self, batches: Iterable[Batch], committed: Resume | None = None) -> None:
        """Record the outcomes of resolved batches and publish them."""

    def set_opened(self, opened: Resume | None) -> None:
        """Record that an epoch has opened after the committed records up to `opened`; None records the end of the epoch."""

    def drain_unsent(self, stop: TuttiError | None, ended: bool = False) -> list[Batch]:
        """Remove and return all unsent batches. With `stop`, reject new records."""

    def orphan(self, batches: Iterable[Batch], parent: int) -> None:
        """In a forked child, fail all records, because only the parent delivers."""


class Sender(abc.ABC):
    """The common part of `OrderedDelivery` and `LaneSender`. Called by one thread.

    Attributes:
        name: name of the producer.
        accumulator: the accumulator to which the application adds records.
        source: provides the batches and gets their outcomes: the accumulator, or a spool between accumulator and sender.
        window: batches that have sequences and no outcome yet.
        session: the session with the gateway.
        answered: True if a message other than receipts has arrived; the caller resets it.
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
        self.answered = False
        # Topics that were requested early and refused, before one of their batches was first in the queue.
        self._refused_ahead: set[str] = set()

    @abc.abstractmethod
    def end(self, error: TuttiError) -> None:
        """End the producer; fail all batches without an outcome with `error`."""

    @abc.abstractmethod
    def _on_answer(self, answer: client_protocol.FromGateway, now: float) -> None:
        """Handle an answer other than a receipt."""

    @abc.abstractmethod
    def _on_refused(self, answer: client_protocol.RefusedAnswer, now: float) -> None:
        """Handle the permanent refusal of a batch in flight."""

    @abc.abstractmethod
    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        """Fail the batches of a topic at the head of the queue. No gateway can still accept a queued batch."""

    # -- for the session connection

    @property
    def accepted(self) -> bool:
        """True if a gateway has ever accepted the producer."""
        return self.session.epoch > 0

    @property
    def subject(self) -> str:
        """The subject of log lines about the connection."""
        return f"producer {self.name!r}"

    @property
    def pending(self) -> int:
        """The number of records without an outcome, in closed batches, that this sender has to deliver."""
        return self.accumulator.pending_records

    @property
    def waiting(self) -> int:
        """The number of all records without an outcome that this sender has to deliver."""
        return self.pending + self.accumulator.open_records()

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
        if data[:1] == client_protocol.RECEIPTS:
            self._on_receipts(data, now)
        elif data[:1] == client_protocol.CONTROL:
            self.session.received_at = now
            self.answered = True
            message = client_protocol.decode_from_gateway(data)
            if self.session.state is not State.ENDED:
                self._on_answer(message, now)
        else:
            raise FormatError(f"the gateway sent an unknown message that starts with {data[:1]!r}")

    # -- answers

    def _on_receipts(self, data: bytes, now: float) -> None:
        """Handle receipts of committed batches."""
        progressed, session, window = False, self.session, self.window
        session.received_at = now
        for producer, first_sequence, offset, epoch, count in client_protocol.decode_receipts(data):
            # Ignore receipts of an earlier epoch, because its batches got their outcomes when the current epoch began.
            if producer == session.number and epoch == session.epoch:
                progressed = window.commit(first_sequence, count, offset) or progressed
        if progressed:
            session.reset_timeouts(now)

    def _greet(self, welcome: client_protocol.Welcome) -> Greeting | None:
        """Pass a Welcome to the session, and return why the gateway sent it.

        If the gateway serves a different log, end the producer and return None.
        """
        try:
            return self.session.on_welcome(welcome)
        except Refused as error:
            self.end(error)
            return None

    def _on_denied(self, answer: client_protocol.Denied, now: float) -> None:
        """Handle the refusal of a request, or of the whole session (`answer.request` is 0)."""
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
            # The gateway refused the session, which another gateway may accept.
            session.leave(text)
        elif answer.retry:
            session.trouble = text
            self._back_off(now, answer.code)
            if is_epoch:
                session.delay_epoch_request()
        elif topic is not None:
            kind = NotAllowed if answer.code in NOT_ALLOWED else Refused
            self._on_topic_refused(topic, kind(f"topic {topic!r} was refused: {text}", answer.code, topic), now)
        elif is_epoch:
            self.end(Refused(f"producer {self.name!r} was refused: {text}", answer.code))

    def _back_off(self, now: float, code: str) -> None:
        """Send all batches again after a delay; see `Session.back_off`."""
        self.session.back_off(now, code)

    # -- topics

    def knows_topic(self, batch: Batch) -> bool:
        """Return True if the session knows the topic number of `batch`, the first batch of the queue.

        If the number is unknown, request it together with the unknown numbers of the next batches, which saves round trips.
        """
        session = self.session
        if session.topics.get(batch.topic, 0):
            return True
        # An early refusal of this topic may be outdated, so request the topic again now that its batch is first.
        self._refused_ahead.discard(batch.topic)
        # Iterate under the lock, because other threads append to the queue, and an append would break the iteration.
        with self.accumulator.lock:
            topics = dict.fromkeys(one.topic for one in itertools.islice(self.source.queue, limits.TOPICS_AHEAD))
        # Forget topics that are no longer at the head of the queue, so that the set stays small.
        self._refused_ahead &= topics.keys()
        for topic in topics:
            if topic not in self._refused_ahead:
                session.topic_number(topic)
        return False

    def _on_topic_refused(self, topic: str, error: Refused, now: float) -> None:
        """Fail the batches of a refused topic, if one of them is in flight or first in the queue.

        If batches of other topics come first, remember the refusal, and request the topic again after those batches are sent.
        """
        queue, session = self.source.queue, self.session
        sent = next((batch for batch in self.window if batch.topic == topic and not batch.resolved), None)
        if sent is not None:
            # The topic was open when the batch was sent first, so the token has lost the right, or the group is another one.
            sequence, text = sent.first_sequence, str(error)
            self._on_refused(
                client_protocol.RefusedAnswer(session.number, session.epoch, sequence, error.code, text, retry=False), now
            )
        elif queue and queue[0].topic == topic:
            self._fail_topic(topic, error)
        else:
            self._refused_ahead.add(topic)

    def _log_refusal(self, topic: str, error: TuttiError) -> None:
        """Log once that a topic is refused, for applications that never read their receipts."""
        logged = self.session.refused_topics
        if topic not in logged and len(logged) < limits.FAILURES_KEPT_MAX:
            logged.add(topic)
            LOG.error("%s: records fail: %s", self.subject, error)

    # -- sending

    def _send_window(self, now: float) -> list[list[Buffer]]:
        """Put messages with the queued batches of the window into the outbox, and return these messages."""
        session, window = self.session, self.window
        awaited = window.awaits_answer
        messages = window.messages(session.number, session.epoch, session.topics, session.topic_number)
        session.outbox.extend(messages)
        if messages and not awaited:
            session.received_at = now  # the first unanswered batch starts the silence timeout
        return messages

    def next_time(self, now: float) -> float:
        """Return the monotonic time of the next action if no event occurs before; infinity if no action is planned."""
        session, oldest = self.session, self._oldest()
        due = session.due()
        if oldest is not None and oldest.deadline < due:
            due = oldest.deadline
        # The end of the retry delay matters only if a batch is waiting for it.
        if now < session.retry_at < due and session.state is State.OPEN and (self.window.has_unsent or self.source.queue):
            due = session.retry_at
        return due

    def _oldest(self) -> Batch | None:
        """Return the batch with the earliest delivery deadline, or None."""
        return self.window.oldest
