"""Ordered delivery: sends batches to gateways, and returns outcomes to the accumulator. Sans-I/O, on top of the session.

Theory of operation and failure cases: NOTES.md.
"""

from __future__ import annotations

import copy
import logging

from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.receipt import Batch, Failure, Resume
from tutti.data import client_protocol
from tutti.data.names import is_nameless
from tutti.delivery.sender import NOT_KNOWN_YET, Sender
from tutti.delivery.session import US, Event, Identity, State
from tutti.errors import Aborted, Fenced, Refused, TooLarge, TuttiError, Unknown

LOG = logging.getLogger("tutti.client")
_IDLE = limits.IDLE_PRODUCER_US / US / 2  # well before the log deletes the state of an idle unnamed producer


class OrderedDelivery(Sender):
    """The ordered delivery of one producer. Called by one thread."""

    def __init__(self, identity: Identity, feed: Accumulator) -> None:
        """Deliver the batches of the accumulator."""
        super().__init__(identity, feed, unordered=False)
        self._epoch_failure: Failure | None = None  # the failure of batches of the finished epoch that did not commit
        self._refused: tuple[int, Failure] | None = None  # the sequence whose refusal ended the epoch, and the failure of its batch
        self._active = 0.0
        self._due_at = 0.0  # when an action is due without a batch to send
        self._ending_epoch = 0  # the epoch that ends once none of its batches is in flight

    # -- events

    def receive(self, data: bytes, now: float) -> None:
        """See `Session.receive`."""
        super().receive(data, now)
        self._publish()

    def work(self, now: float) -> None:
        """Do what is due: send batches, repeat requests, enforce delivery deadlines."""
        feed, window = self.feed, self.window
        if self._due_at <= now or feed.queue or window.has_unsent or self._ending_epoch:
            self._work(now)
        if window.settled or feed.born_failed:
            self._publish()

    def _work(self, now: float) -> None:
        feed, window = self.feed, self.window
        if self.state is not State.ENDED:
            feed.expire_linger(now)
            self._expire_batches(now)
            self._check_timeouts(now)
            if feed.queue and not len(window):
                self._renew_idle(now)
            if self._ending and not len(window) and self.state is State.OPEN:
                self._request_next_epoch(now)
            if (feed.queue or window.has_unsent) and self._may_send(now):
                self._send_batches(now)

    def next_time(self, now: float) -> float:
        """See `Sender.next_time`. The caller asks again after each event that may change the time."""
        due, linger = super().next_time(now), self.feed.linger_until
        self._due_at = due if linger is None else min(due, linger)
        return self._due_at

    def may_send(self, now: float) -> bool:
        """Return True if the next batch of the queue could be sent at once."""
        queue = self.feed.queue
        if not queue or self._ending or not self._may_send(now):
            return False
        return self.window.has_room(queue[0]) and queue[0].topic in self.topics

    def renew(self) -> None:
        """Begin the next epoch as soon as no batch of this one is in flight."""
        self._ending_epoch = self.epoch

    @property
    def _ending(self) -> bool:
        return self._ending_epoch > 0 and self.running and self._ending_epoch >= self.epoch

    @property
    def _has_staged(self) -> bool:
        """True if staged batches may wait for a transaction. The end of their epoch drops them."""
        return self.feed.options.staged and self.window.committed.sequence > 0

    def introduce(self, now: float) -> None:
        """Request the epoch again, because the log of a gateway does not know the producer."""
        if self.state is State.OPEN:
            self._repeat_requests(now)

    def end(self, error: TuttiError) -> None:
        """Deliver nothing more; fail all batches without an outcome with `error`."""
        self._transition(Event.END)
        failure = Failure(error)
        seized = self.feed.seize(error, ended=True)
        self.window.fail_from(0, failure)
        for batch in seized:
            self.window.fail(batch, failure)
        self.outbox.clear()
        self._publish()
        self.feed.set_opened(None)

    # -- sending

    def _send_batches(self, now: float) -> None:
        window, queue = self.window, self.feed.queue
        while not self._ending and (batch := self.feed.head()) is not None:
            if not window.has_room(batch) or not self.knows_topic(batch):
                break
            window.admit(queue.popleft())
        if self._send_window(now):
            self._active = now

    def _renew_idle(self, now: float) -> None:
        """Begin a new epoch if an unnamed producer was idle, before the log could delete its state after an hour.

        A producer with staged batches keeps its epoch, whose end would drop them; the log keeps its state for a day.
        """
        idle = now - self._active > _IDLE and self.state is State.OPEN
        if idle and is_nameless(self.identity.name) and not self._has_staged:
            self._starting = True
            self._request_next_epoch(now)

    def _publish(self) -> None:
        """Publish outcomes to the accumulator, then run the callbacks."""
        settled = self.window.take_settled()
        if settled:
            self.feed.finished(settled, self.window.committed)
        while self.feed.born_failed:
            settled.append(self.feed.born_failed.popleft())
        for batch in settled:
            batch.announce()

    # -- answers

    def _on_receipts(self, data: bytes, now: float) -> bool:
        progressed = super()._on_receipts(data, now)
        if progressed:
            self._active = now
        return progressed

    def _on_answer(self, answer: client_protocol.FromGateway, now: float) -> None:
        match answer:
            case client_protocol.Welcome():
                self.window.bytes_max = answer.window_bytes
                self.feed.frame_bytes_max = min(answer.frame_bytes_max, limits.BODY_BYTES_MAX)
                self.feed.raw_bytes_max = min(answer.raw_bytes_max, limits.RAW_BYTES_MAX)
                self._on_welcome(answer, now)
            case client_protocol.EpochOpened():
                self._active = now
                self._on_epoch_opened(answer, now)
            case client_protocol.EpochFenced():
                self._on_epoch_fenced(answer, now)
            case client_protocol.TopicOpened():
                self._on_topic_opened(answer, now)
            case client_protocol.Denied():
                self._on_denied(answer, now)
            case client_protocol.FencedAnswer():
                # An answer for the requested epoch or an earlier one concerns an old copy, which this instance sent before.
                if answer.producer == self.number and answer.epoch > self.wanted:
                    self.fenced(answer.epoch)
            case client_protocol.AbortedAnswer() | client_protocol.RefusedAnswer() | client_protocol.Expected():
                if answer.producer == self.number and answer.epoch == self.epoch:
                    self._on_batch_answer(answer, now)
            case _:
                LOG.debug("unexpected answer: %r", answer)

    def _on_batch_answer(
        self, answer: client_protocol.AbortedAnswer | client_protocol.RefusedAnswer | client_protocol.Expected, now: float
    ) -> None:
        if isinstance(answer, client_protocol.Expected):
            if self.running:
                self._on_expected(answer.sequence, now)
            return
        whose = f"records of producer {self.identity.name!r} from sequence {answer.first_sequence}"
        if isinstance(answer, client_protocol.AbortedAnswer):
            failure = Failure(Aborted(f"{whose} were aborted: {answer.reason}. They and all later records are in no log"))
            failed = self.window.fail_from(answer.first_sequence, failure)
            self._epoch_over(failure, failed, now)
        elif answer.retry or answer.code in NOT_KNOWN_YET:
            self.trouble = f"{answer.reason} ({answer.code})"
            if answer.retry:
                self._back_off(now, answer.code)
            else:
                self._repeat_requests(now)
        elif self.running:
            # The refusal concerns this copy. As another copy may be in flight, the begin of the next epoch settles the batch.
            text = f"{whose} were refused: {answer.reason}"
            own = TooLarge(text) if answer.code == "too_large" else Refused(text, answer.code)
            self._refused = answer.first_sequence, Failure(own)
            behind = Aborted(f"{text}. These records were sent later, and are in no log")
            self._epoch_over(Failure(behind), False, now)

    def _on_expected(self, sequence: int, now: float) -> None:
        oldest = self.window.oldest
        if oldest is None or now < self._retry_at:
            return  # nothing to send, or a further answer to one gap: the first answer queued everything again
        if not oldest.first_sequence <= sequence <= self.window.next_sequence:
            text = (
                f"the gateway expects sequence {sequence} of producer {self.identity.name!r}, which has outcomes for all records "
                f"below {oldest.first_sequence} and has sent {self.window.next_sequence - 1}: "
                "the gateway serves another log, or its log lost committed records"
            )
            if sequence < oldest.first_sequence and self.welcome is not None and len(self.welcome.gateways) > 1:
                # A gateway in a minority can lag behind what another gateway acknowledged, so try the others.
                self.trouble = f"{text}, or this gateway lags behind its group (sequence)"
                self._back_off(now, "not_primary")
            else:
                self.end(Refused(text, "sequence"))
            return
        self.window.cut_at(sequence)
        self._back_off(now, "gap")

    # -- epochs

    def epoch_began(self, opened: client_protocol.EpochOpened, *, renumbered: bool) -> None:
        """Settle the batches of the previous epoch, according to the sequence at which the new epoch begins."""
        if len(self.window) and (renumbered or self._epoch_failure is None):
            text = (
                f"the log deleted the state of producer {self.identity.name!r}, which has a new number now: whether records in "
                "flight committed is not known"
            )
            self.window.fail_from(0, Failure(Unknown(text)))
            self.end(Refused(text, "forgotten"))
            return
        cause = self._refused[1] if self._refused is not None else self._epoch_failure
        if self._epoch_failure is not None:
            self.window.commit_upto(opened.sequence)
            if len(self.window):
                if self._refused is not None:
                    self.window.fail_at(*self._refused)
                self.window.fail_from(0, self._epoch_failure)
                self._fail_unsent(self._epoch_failure)  # the application could not know of the failure before
            self._epoch_failure = self._refused = None
        if self.epoch and self._has_staged:
            self.end(self._staged_lost(cause))
            return
        self.window.next_sequence = opened.sequence + 1
        self.window.committed = Resume(opened.sequence, opened.progress)
        self._publish()
        self.feed.set_opened(self.window.committed)

    def _staged_lost(self, cause: Failure | None) -> TuttiError:
        """Return the error of a producer whose epoch ended with its staged batches; the message begins with the cause."""
        lost = f"the end of epoch {self.epoch} of producer {self.identity.name!r} dropped all staged records: stage them again"
        if cause is None:
            return Refused(f"the log opened another epoch: {lost}", "staged")
        error = copy.copy(cause.error)
        error.args = (f"{cause.error}; {lost}",)
        return error

    def fenced(self, epoch: int) -> None:
        """End this instance: another instance began that epoch, or an operator raised the lowest valid epoch."""
        text = (
            f"producer {self.identity.name!r} is fenced: another instance began epoch {epoch}, or an operator fenced it or deleted "
            f"its state: epoch {self.epoch} is over. Whether records in flight committed is not known. `resume()` of the "
            "current or a new instance returns the last committed record; after a deletion, read the log"
        )
        self.end(Fenced(text))

    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        """See `Sender._fail_topic`. If the producer uses progress, all later batches fail, too."""
        failure = Failure(error)
        queue = self.feed.queue
        while queue and queue[0].topic == topic:
            self.window.fail(queue.popleft(), failure)
        if self.feed.uses_progress:
            self._fail_unsent(failure)

    def _epoch_over(self, failure: Failure, failed: bool, now: float) -> None:
        """End the epoch.

        Unsent batches fail, so that they do not overtake a failed batch (`failed`) or one that may fail. Batches in flight are
        settled when the next epoch begins.
        """
        if failed or self.running:
            self._fail_unsent(failure)
        if self.running:  # if not running, this is a further answer about the same end
            self._epoch_failure = failure
            self.feed.set_opened(None)
            self._request_next_epoch(now)

    def _fail_unsent(self, failure: Failure) -> None:
        stop = None
        if self.feed.uses_progress:
            stop = Aborted(
                f"{failure.error}. This producer uses progress and is stopped: call resume() and continue from its result"
            )
        for batch in self.feed.seize(stop):
            self.window.fail(batch, failure)

    def _expire_batches(self, now: float) -> None:
        """Enforce the delivery deadline: the oldest batch fails with `Unknown`, and so do later ones, which may not overtake it."""
        late = self._oldest()
        if late is None or late.deadline > now:
            return
        limit = f"{self.feed.options.delivery_timeout:g} s (delivery_timeout)"
        if late.transmitted:
            why = f"has no outcome after {limit}: it may or may not be committed; resume() returns the last committed one"
        else:
            why = f"was not accepted by any gateway within {limit}: it never left this process"
        trouble = f"; last error: {self.trouble}" if self.trouble else ""
        error = Unknown(f"a record of producer {self.identity.name!r} to topic {late.topic!r} {why}{trouble}")
        LOG.warning("%s", error)
        failure = Failure(error)
        self.window.fail_from(0, failure)
        if late.first_sequence and self.running:
            self._epoch_over(failure, True, now)
        else:
            self._fail_unsent(failure)

    def _oldest(self) -> Batch | None:
        """Return the oldest closed batch. (An open batch is newer, or waits for its linger, which is shorter.)"""
        return self.window.oldest or (self.feed.queue[0] if self.feed.queue else None)
