"""Ordered delivery: sends batches to gateways in successive epochs, and returns the outcomes to the accumulator (sans-I/O).

tutti/NOTES.md contains the rules and the failure cases.
"""

from __future__ import annotations

import copy
import logging

from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.receipt import Batch, Failure, Resume
from tutti.data import client_protocol
from tutti.data.gateway_states import CUT_OFF
from tutti.data.names import is_nameless
from tutti.delivery.sender import NOT_KNOWN_YET, BatchSource, Sender, refusal
from tutti.delivery.session import US, Event, Greeting, Identity, State
from tutti.errors import Aborted, Fenced, NotAllowed, Refused, TuttiError, Unavailable, Unknown

LOG = logging.getLogger("tutti.client")
_IDLE = limits.IDLE_PRODUCER_US / US / 2  # half the time after which the log deletes the state of an idle unnamed producer


class OrderedDelivery(Sender):
    """The ordered delivery of one producer. Called by one thread.

    Attributes:
        due_at: monotonic time from which `work` has more to do than to send batches.
    """

    def __init__(self, identity: Identity, accumulator: Accumulator, source: BatchSource | None = None) -> None:
        """Deliver the batches of the accumulator, or of a spool between accumulator and delivery (`source`)."""
        super().__init__(identity, accumulator, source)
        # True at the start and after idle time: if another instance has the requested epoch, this one requests a later epoch.
        self._starting = True
        self._tries = 0
        self._epoch_failure: Failure | None = None  # failure of the batches in the finished epoch that did not commit
        self._refused: tuple[int, Failure] | None = None  # first sequence and failure of the refused batch that ended the epoch
        self._active = 0.0  # time at which this producer last sent a batch or opened an epoch
        self.due_at = 0.0
        self._last_epoch = 0  # epoch to end as soon as none of its batches is in flight; 0 if no epoch must end

    # -- events

    def receive(self, data: bytes, now: float) -> None:
        """See `Sender.receive`."""
        if data[:1] == client_protocol.RECEIPTS:
            self._on_receipts(data, now)
        else:
            super().receive(data, now)
        if self.window.resolved or self.accumulator.rejected:
            self._publish()

    def work(self, now: float) -> None:
        """Perform the actions that are due: send batches, repeat requests, enforce delivery deadlines."""
        queue, window = self.source.queue, self.window
        if self.due_at <= now or self._last_epoch or (queue and queue[0].deadline <= now):
            self._check_times(now)
        if queue and now - self._active > _IDLE and not len(window):
            self._renew_idle(now)
        if (queue or window.has_unsent) and self.session.may_send(now):
            self._send_batches(now)
        if window.resolved or self.accumulator.rejected:
            self._publish()

    def _check_times(self, now: float) -> None:
        """Perform the actions other than sending that are due at `now`."""
        window, session = self.window, self.session
        if session.state is not State.ENDED:
            self.accumulator.expire_linger(now)
            self._expire_batches(now)
            session.check_timeouts(now)
            if self._epoch_ends and not len(window) and session.state is State.OPEN:
                session.request_next_epoch(now)

    def next_time(self, now: float) -> float:
        """See `Sender.next_time`. The caller calls this again after each event that may change the time."""
        due, linger = super().next_time(now), self.accumulator.linger_until
        self.due_at = due if linger is None else min(due, linger)
        return self.due_at

    def may_send(self, now: float) -> bool:
        """Return True if nothing delays the first batch of the queue: no epoch change, full window or missing topic number."""
        queue, session = self.source.queue, self.session
        if not queue or self._epoch_ends or not session.may_send(now):
            return False
        return self.window.has_capacity(queue[0]) and queue[0].topic in session.topics

    def end_epoch_when_idle(self) -> None:
        """Begin the next epoch as soon as no batch of the current epoch is in flight."""
        self._last_epoch = self.session.epoch

    @property
    def _epoch_ends(self) -> bool:
        return self._last_epoch > 0 and self.session.running and self._last_epoch >= self.session.epoch

    @property
    def _has_staged(self) -> bool:
        """True if this epoch may have staged batches, which the log drops when the epoch ends."""
        return self.accumulator.options.staged and self.window.committed.sequence > 0

    def reopen_epoch(self, now: float) -> None:
        """Request the epoch again, because the log of a gateway has no state of the producer."""
        if self.session.state is State.OPEN:
            self.session.repeat_requests(now)

    def end(self, error: TuttiError) -> None:
        """Stop delivering; fail all batches without an outcome with `error`."""
        if self.session.state is not State.ENDED:
            self._log_end(error)
        self.session.transition(Event.END)
        failure = Failure(error)
        # Empty the window first: `drain_unsent` of a spool also returns batches in flight, and each batch must fail only once.
        self.window.fail_from(0, failure)
        for batch in self.source.drain_unsent(error, ended=True):
            self.window.fail(batch, failure)
        self.session.outbox.clear()
        self._publish()
        self.source.set_opened(None)

    def _log_end(self, error: TuttiError) -> None:
        """Log an error that ends a running producer, for applications that never read their receipts.

        Before the first epoch, the constructor raises; the constructor of a producer with a spool does not wait for the epoch.
        `Unknown` reports that the producer was closed, or an internal error, which the I/O thread logs.
        """
        if (self.accepted or self.accumulator.spool is not None) and not isinstance(error, Unknown):
            LOG.error("%s has ended (number of failed records: %d): %s", self.subject, self.waiting, error)

    # -- sending

    def _send_batches(self, now: float) -> None:
        window, source = self.window, self.source
        queue = source.queue
        # A batch without a topic number delays all later batches, because sequences follow the order of `send()`.
        while queue and not (self._last_epoch and self._epoch_ends):
            batch = queue[0] if queue[0].body else source.head()
            # An empty window has capacity for any batch.
            if batch is None or (window.bytes_in_flight and not window.has_capacity(batch)):
                break
            if not self.session.topics.get(batch.topic) and not self.knows_topic(batch):
                break
            window.admit(queue.popleft())
            if batch.deadline < self.due_at:
                self.due_at = batch.deadline
        if self._send_window(now):
            self._active = now

    def _renew_idle(self, now: float) -> None:
        """Begin a new epoch after half an idle hour of an unnamed producer, because the log deletes its state after an hour.

        A producer with staged batches keeps its epoch, because the log drops staged batches when their epoch ends. The log keeps
        the state of a producer with staged batches for a day.
        """
        idle = now - max(self._active, self.session.outcome_at) > _IDLE and self.session.state is State.OPEN
        if idle and is_nameless(self.name) and not self._has_staged:
            self._starting = True
            self.session.request_next_epoch(now)

    def _publish(self) -> None:
        """Publish outcomes to the accumulator, then run the callbacks."""
        window = self.window
        resolved, window.resolved = window.resolved, []
        if resolved:
            self.source.finished(resolved, window.committed)
        while self.accumulator.rejected:
            resolved.append(self.accumulator.rejected.popleft())
        # Run the callbacks last: they may send, and they must see the outcomes of all batches and the new counts.
        for batch in resolved:
            batch.announce()

    # -- answers

    def _on_answer(self, answer: client_protocol.FromGateway, now: float) -> None:
        match answer:
            case client_protocol.Welcome():
                self.window.bytes_max = answer.window_bytes
                self.accumulator.set_limits(answer)
                self._on_welcome(answer, now)
            case client_protocol.EpochOpened():
                self._active = now
                self._on_epoch_opened(answer)
            case client_protocol.EpochFenced():
                self._on_epoch_fenced(answer, now)
            case client_protocol.TopicOpened():
                self.session.on_topic_opened(answer)
            case client_protocol.Denied():
                self._on_denied(answer, now)
            case client_protocol.FencedAnswer():
                # A `Fenced` for the requested epoch or an earlier one concerns an old copy that this instance sent itself.
                if answer.producer == self.session.number and answer.epoch > self.session.requested_epoch:
                    self.fenced(answer.epoch)
            case client_protocol.AbortedAnswer() | client_protocol.RefusedAnswer() | client_protocol.Expected():
                if answer.producer == self.session.number and answer.epoch == self.session.epoch:
                    self._on_batch_answer(answer, now)
            case _:
                LOG.debug("unexpected answer: %r", answer)

    def _on_welcome(self, welcome: client_protocol.Welcome, now: float) -> None:
        session, greeting = self.session, self._greet(welcome)
        if greeting is Greeting.FIRST:
            session.request_epoch(now)
        elif greeting is Greeting.CHANGED and welcome.state in CUT_OFF and len(welcome.gateways) > 1:
            session.leave(f"gateway {welcome.gateway} is {welcome.state}")

    def _on_batch_answer(
        self, answer: client_protocol.AbortedAnswer | client_protocol.RefusedAnswer | client_protocol.Expected, now: float
    ) -> None:
        session = self.session
        if isinstance(answer, client_protocol.Expected):
            if session.running:
                self._on_expected(answer.sequence, now)
            return
        subject = f"records of producer {self.name!r} from sequence {answer.first_sequence}"
        if isinstance(answer, client_protocol.AbortedAnswer):
            failure = Failure(Aborted(f"{subject} were aborted: {answer.reason}. They and all later records are in no log"))
            # Batches below the aborted sequence may have committed; their outcome is known when the next epoch begins.
            failed = self.window.fail_from(answer.first_sequence, failure)
            self._end_epoch(failure, failed, now)
        elif answer.retry or answer.code in NOT_KNOWN_YET:
            session.trouble = f"{answer.reason} ({answer.code})"
            if answer.retry:
                session.back_off(now, answer.code)
            else:
                session.repeat_requests(now)
        elif session.running:
            # Another copy of the refused batch may still commit, so the batch gets its outcome only in `_begin_epoch`.
            text = f"{subject} were refused: {answer.reason}"
            own = refusal(text, answer.code)
            if isinstance(own, NotAllowed) and (batch := self.window.batch_at(answer.first_sequence)) is not None:
                self._log_refusal(batch.topic, own)
            self._refused = answer.first_sequence, Failure(own)
            later = Aborted(f"{text}. These records were sent later, and are in no log")
            self._end_epoch(Failure(later), False, now)

    def _on_refused(self, answer: client_protocol.RefusedAnswer, now: float) -> None:
        self._on_batch_answer(answer, now)

    def _on_expected(self, sequence: int, now: float) -> None:
        window, session = self.window, self.session
        oldest = window.oldest
        if oldest is None or now < session.retry_at:
            return  # no batch is in flight, or an earlier answer about this gap has already queued all batches again
        if not oldest.first_sequence <= sequence <= window.next_sequence:
            text = (
                f"the gateway expects sequence {sequence} of producer {self.name!r}, which has outcomes for all records "
                f"below {oldest.first_sequence} and has sent {window.next_sequence - 1}: "
                "the gateway serves another log, or its log lost committed records"
            )
            if sequence < oldest.first_sequence and session.welcome is not None and len(session.welcome.gateways) > 1:
                # A gateway in a minority may lack records that the group has committed, so try the other gateways.
                session.trouble = f"{text}, or this gateway lags behind its group (sequence)"
                session.back_off(now, "not_primary")
            else:
                self.end(Refused(text, "sequence"))
            return
        window.trim_below(sequence)
        session.back_off(now, "gap")

    # -- epochs

    def _on_epoch_opened(self, answer: client_protocol.EpochOpened) -> None:
        session = self.session
        if answer.epoch != session.requested_epoch or session.state is not State.OPENING:
            return  # an answer to an earlier or repeated request
        session.opened()
        same = session.running and answer.producer == session.number
        renumbered = session.number not in (0, answer.producer)
        session.number = answer.producer
        if same:
            self.window.rewind()
        else:
            self._begin_epoch(answer, renumbered=renumbered)
        # Set the new epoch only after `_begin_epoch`, which uses the previous epoch.
        session.epoch = session.requested_epoch
        self._starting, self._tries = False, 0

    def _on_epoch_fenced(self, answer: client_protocol.EpochFenced, now: float) -> None:
        session = self.session
        if answer.epoch < session.requested_epoch or session.state is not State.OPENING:
            return  # an answer to an earlier request
        self._tries += 1
        # Only one instance has the random name of an unnamed producer, so the log must have deleted its state.
        # The producer then starts again, unless a batch is in flight.
        if not self._starting and not (is_nameless(self.name) and not len(self.window)):
            self.fenced(answer.epoch)
        elif self._tries > limits.EPOCH_TRIES_MAX:
            text = (
                f"producer {self.name!r} found its next epoch taken {self._tries} times, last at {answer.epoch}: "
                "several instances of it are starting at once; run one instance, or use different names"
            )
            self.end(Unavailable(text))
        else:
            session.requested_epoch = max(session.requested_epoch, answer.epoch) + 1
            session.request_epoch(now)

    def _begin_epoch(self, opened: client_protocol.EpochOpened, *, renumbered: bool) -> None:
        """Give all batches of the previous epoch an outcome: those up to sequence `opened.sequence` committed.

        With `renumbered`, the producer has a new number, because the log had deleted its state.
        """
        window = self.window
        # The log deleted the state that contained the last committed sequence, so the outcome of these batches is unknown.
        if len(window) and (renumbered or self._epoch_failure is None):
            text = (
                f"the log deleted the state of producer {self.name!r}, which has a new number now: whether records in "
                "flight committed is not known"
            )
            window.fail_from(0, Failure(Unknown(text)))
            self.end(Refused(text, "forgotten"))
            return
        cause = self._refused[1] if self._refused is not None else self._epoch_failure
        if self._epoch_failure is not None:
            # The log contains all batches up to this sequence, even if their receipts were lost, and will never contain later ones.
            window.commit_upto(opened.sequence)
            if len(window):
                if self._refused is not None:
                    window.fail_at(*self._refused)
                window.fail_from(0, self._epoch_failure)
                # Unsent batches fail too, because the application sent them before it knew of the failure.
                self._fail_unsent(self._epoch_failure)
            self._epoch_failure = self._refused = None
        if self.session.epoch and self._has_staged:
            self.end(self._staged_lost(cause))
            return
        window.next_sequence = opened.sequence + 1
        window.committed = Resume(opened.sequence, opened.progress)
        self._publish()
        self.source.set_opened(window.committed)

    def _staged_lost(self, cause: Failure | None) -> TuttiError:
        """Return the error for a producer whose staged batches were dropped with their epoch; the message begins with the cause."""
        lost = f"the end of epoch {self.session.epoch} of producer {self.name!r} dropped all staged records: stage them again"
        if cause is None:
            return Refused(f"the log opened another epoch: {lost}", "staged")
        error = copy.copy(cause.error)
        error.args = (f"{cause.error}; {lost}",)
        return error

    def fenced(self, epoch: int) -> None:
        """End this instance, because another instance began that epoch or an operator raised the lowest valid epoch."""
        session = self.session
        text = (
            f"producer {self.name!r} is fenced: another instance began epoch {epoch}, or an operator fenced it or deleted "
            f"its state: epoch {session.epoch} is over. Whether records in flight committed is not known. If no other instance "
            "runs, open a new Producer: its `resume()` returns the last committed record; after a deletion, read the log"
        )
        self.end(Fenced(text))

    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        """See `Sender._fail_topic`. If the producer uses progress, all later batches also fail, to keep the progress contiguous."""
        self._log_refusal(topic, error)
        failure = Failure(error)
        queue = self.source.queue
        while queue and queue[0].topic == topic:
            self.window.fail(queue.popleft(), failure)
        if self.accumulator.uses_progress:
            self._fail_unsent(failure)

    def _end_epoch(self, failure: Failure, failed: bool, now: float) -> None:
        """End the current epoch, and request the next one.

        Unsent batches fail, so that they do not overtake a batch that has failed (`failed`) or may fail. `_begin_epoch` resolves
        the batches in flight.
        """
        session = self.session
        if failed or session.running:
            self._fail_unsent(failure)
        if session.running:  # False for a repeated answer, because the first answer has already ended the epoch
            self._epoch_failure = failure
            self.source.set_opened(None)
            session.request_next_epoch(now)

    def _fail_unsent(self, failure: Failure) -> None:
        stop = None
        if self.accumulator.uses_progress:
            stop = Aborted(
                f"{failure.error}. This producer uses progress and is stopped: call resume() and continue from its result"
            )
        for batch in self.source.drain_unsent(stop):
            self.window.fail(batch, failure)

    def _expire_batches(self, now: float) -> None:
        """Enforce the delivery deadline: if the oldest batch is too old, it and all later batches fail, to keep the order."""
        late, session = self._oldest(), self.session
        if late is None or late.deadline > now:
            return
        limit = f"{self.accumulator.options.delivery_timeout:g} s (delivery_timeout)"
        if late.transmitted:
            why = f"has no outcome after {limit}: it may or may not be committed; resume() returns the last committed one"
        else:
            why = f"was not accepted by any gateway within {limit}: it never left this process"
        text = f"a record of producer {self.name!r} to topic {late.topic!r} {why}{session.cause}"
        error = Unknown(text) if late.transmitted else Aborted(text)
        resolved = len(self.window.resolved)
        failure = Failure(error)
        self.window.fail_from(0, failure)
        # A failed batch with a sequence leaves a gap, after which only a new epoch can continue.
        if late.first_sequence and session.running:
            self._end_epoch(failure, True, now)
        else:
            self._fail_unsent(failure)
        failed = self.window.resolved[resolved:]
        unsent, count = sum(batch.count for batch in failed if not batch.transmitted), sum(batch.count for batch in failed)
        LOG.warning("%s (number of records never sent: %s; number of failed records: %s)", error, unsent, count)

    def _oldest(self) -> Batch | None:
        """Return the oldest closed batch. The open batch has a later deadline, and closes before that deadline."""
        return self.window.oldest or (self.source.queue[0] if self.source.queue else None)
