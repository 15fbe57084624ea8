"""Delivery: batches to gateways, outcomes to the feed. On top of the session, and as free of sockets, threads and clocks.

Theory of operation and failure cases: NOTES.md.
"""

from __future__ import annotations

import copy
import logging

from tutti import limits
from tutti.batching.accumulator import Feed
from tutti.batching.receipt import Batch, Failure, Resume
from tutti.data import client_protocol
from tutti.data.names import is_nameless
from tutti.delivery.sender import NOT_KNOWN_YET, Carrier
from tutti.delivery.session import US, Identity, State, Turn
from tutti.errors import Aborted, Fenced, Refused, TooLarge, TuttiError, Unknown

LOG = logging.getLogger("tutti.client")
_IDLE = limits.IDLE_PRODUCER_US / US / 2  # well before a nameless producer is forgotten


class Delivery(Carrier):
    """The protocol of one producer. Called by one thread."""

    def __init__(self, identity: Identity, feed: Feed) -> None:
        """Deliver what the feed holds."""
        super().__init__(identity, feed, unordered=False)
        self._after: Failure | None = None  # what befalls batches of the epoch that is over and did not commit
        self._refused: tuple[int, Failure] | None = None  # the sequence that ended it, and what befalls that batch
        self._active = 0.0
        self._look_at = 0.0  # when something is due though nothing is to be sent
        self._renews = 0  # the epoch that is to end when nothing of it is in flight

    # -- what happens to it

    def receive(self, data: bytes, now: float) -> None:
        """As `Session.receive`."""
        super().receive(data, now)
        self._tell()

    def work(self, now: float) -> None:
        """Do what is due: send what may be sent, ask again, give up what is too old."""
        feed, window = self.feed, self.window
        if self._look_at <= now or feed.queue or window.has_unsent or self._renews:
            self._work(now)
        if window.settled or feed.born_failed:
            self._tell()

    def _work(self, now: float) -> None:
        feed, window = self.feed, self.window
        if self.state is not State.ENDED:
            feed.expire_linger(now)
            self._give_up_old(now)
            self._mind_time(now)
            if feed.queue and not len(window):
                self._renew_idle(now)
            if self._ending and not len(window) and self.state is State.OPEN:
                self._want_next_epoch(now)
            if (feed.queue or window.has_unsent) and self._may_send(now):
                self._send_batches(now)

    def next_time(self, now: float) -> float:
        """As `Carrier.next_time`. It is asked again behind all that may change it."""
        due, linger = super().next_time(now), self.feed.linger_until
        self._look_at = due if linger is None else min(due, linger)
        return self._look_at

    def may_send(self, now: float) -> bool:
        """Whether the next batch of the queue could leave at once."""
        queue = self.feed.queue
        if not queue or self._ending or not self._may_send(now):
            return False
        return self.window.has_room(queue[0]) and queue[0].topic in self.topics

    def renew(self) -> None:
        """Go on to the next epoch as soon as nothing of this one is in flight."""
        self._renews = self.epoch

    @property
    def _ending(self) -> bool:
        return self._renews > 0 and self.running and self._renews >= self.epoch

    @property
    def _has_staged(self) -> bool:
        """Whether something waits for a transaction, as far as is known here: an end of its epoch lets it go."""
        return self.feed.options.staged and self.window.committed.sequence > 0

    def introduce(self, now: float) -> None:
        """Ask for the epoch again: a gateway says that the log does not know the producer."""
        if self.state is State.OPEN:
            self._introduce(now)

    def end(self, error: TuttiError) -> None:
        """Nothing more will be delivered; what has no outcome fails with `error`."""
        self._turn(Turn.END)
        failure = Failure(error)
        seized = self.feed.seize(error, ended=True)
        self.window.fail_from(0, failure)
        for batch in seized:
            self.window.fail(batch, failure)
        self.outbox.clear()
        self._tell()
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
        """A nameless producer is forgotten when idle for an hour: before that could be, its next record begins another epoch.

        Not where something staged would go with the present one: for that it is known for a day.
        """
        idle = now - self._active > _IDLE and self.state is State.OPEN
        if idle and is_nameless(self.identity.name) and not self._has_staged:
            self._starting = True
            self._want_next_epoch(now)

    def _tell(self) -> None:
        """Outcomes to the feed, then to callbacks."""
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
                # At or below the epoch that is wanted it speaks of an old copy, sent before this instance itself went on.
                if answer.producer == self.number and answer.epoch > self.wanted:
                    self.fenced(answer.epoch)
            case client_protocol.AbortedAnswer() | client_protocol.RefusedAnswer() | client_protocol.Expected():
                if answer.producer == self.number and answer.epoch == self.epoch:
                    self._on_batch_answer(answer, now)
            case _:
                LOG.debug("an answer that was not asked for: %r", answer)

    def _on_batch_answer(
        self, answer: client_protocol.AbortedAnswer | client_protocol.RefusedAnswer | client_protocol.Expected, now: float
    ) -> None:
        if isinstance(answer, client_protocol.Expected):
            if self.running:
                self._on_expected(answer.sequence, now)
            return
        whose = f"records of producer {self.identity.name!r} from sequence {answer.first_sequence}"
        if isinstance(answer, client_protocol.AbortedAnswer):
            failure = Failure(
                Aborted(f"{whose} were aborted: {answer.reason}. They are in no log, nor is what was sent after them")
            )
            failed = self.window.fail_from(answer.first_sequence, failure)
            self._epoch_over(failure, failed, now)
        elif answer.retry or answer.code in NOT_KNOWN_YET:
            self.trouble = f"{answer.reason} ({answer.code})"
            if answer.retry:
                self._back_off(now, answer.code)
            else:
                self._introduce(now)
        elif self.running:
            # Of this copy it is for good; another one may be on its way, so that the next epoch's begin tells what is in the log.
            text = f"{whose} were refused: {answer.reason}"
            own = TooLarge(text) if answer.code == "too_large" else Refused(text, answer.code)
            self._refused = answer.first_sequence, Failure(own)
            behind = Aborted(f"{text}. These were sent behind them, are in no log, and nothing has overtaken")
            self._epoch_over(Failure(behind), False, now)

    def _on_expected(self, sequence: int, now: float) -> None:
        oldest = self.window.oldest
        if oldest is None or now < self._retry_at:
            return  # nothing to send, or one of several answers to one gap: everything is sent again anyway
        if not oldest.first_sequence <= sequence <= self.window.next_sequence:
            text = (
                f"the gateway expects sequence {sequence} of producer {self.identity.name!r}, which has outcomes for everything "
                f"below {oldest.first_sequence} and has sent {self.window.next_sequence - 1}: "
                "it is not the log that this producer wrote to, or it lost committed records"
            )
            if sequence < oldest.first_sequence and self.welcome is not None and len(self.welcome.gateways) > 1:
                # Cut off from its group, a gateway can be behind what another one acknowledged: the others know better.
                self.trouble = f"{text}, or this gateway is behind its group (sequence)"
                self._back_off(now, "not_primary")
            else:
                self.end(Refused(text, "sequence"))
            return
        self.window.cut_at(sequence)
        self._back_off(now, "gap")

    # -- epochs

    def epoch_began(self, opened: client_protocol.EpochOpened, *, anew: bool) -> None:
        """Settle the epoch that was, whose last word is known now unless the producer began anew, and go on after it."""
        if len(self.window) and (anew or self._after is None):
            text = (
                f"producer {self.identity.name!r} was forgotten by the log and began anew there: whether records in flight had "
                "committed is not known"
            )
            self.window.fail_from(0, Failure(Unknown(text)))
            self.end(Refused(text, "forgotten"))
            return
        cause = self._refused[1] if self._refused is not None else self._after
        if self._after is not None:
            self.window.commit_upto(opened.sequence)
            if len(self.window):
                if self._refused is not None:
                    self.window.fail_at(*self._refused)
                self.window.fail_from(0, self._after)
                self._fail_unsent(self._after)  # what came in meanwhile: the application is only told now
            self._after = self._refused = None
        if self.epoch and self._has_staged:
            self.end(self._staged_lost(cause))
            return
        self.window.next_sequence = opened.sequence + 1
        self.window.committed = Resume(opened.sequence, opened.progress)
        self._tell()
        self.feed.set_opened(self.window.committed)

    def _staged_lost(self, cause: Failure | None) -> TuttiError:
        """The end of a producer whose staged batches went with their epoch: the failure that ended it comes first."""
        lost = f"all that producer {self.identity.name!r} staged went with its epoch {self.epoch}: stage it again"
        if cause is None:
            return Refused(f"the log opened another epoch: {lost}", "staged")
        error = copy.copy(cause.error)
        error.args = (f"{cause.error}; {lost}",)
        return error

    def fenced(self, epoch: int) -> None:
        """That epoch has begun elsewhere, or its floor was raised: this instance is over."""
        text = (
            f"producer {self.identity.name!r} is fenced: another instance began epoch {epoch}, or an operator fenced or forgot it: "
            f"epoch {self.epoch} is over. Whether records in flight committed is not known here: resume() of the instance that "
            "runs now tells, or of a new one when none does; of a forgotten producer only the log tells"
        )
        self.end(Fenced(text))

    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        """As `Carrier._fail_topic`. Progress may not overtake what failed."""
        failure = Failure(error)
        queue = self.feed.queue
        while queue and queue[0].topic == topic:
            self.window.fail(queue.popleft(), failure)
        if self.feed.uses_progress:
            self._fail_unsent(failure)

    def _epoch_over(self, failure: Failure, failed: bool, now: float) -> None:
        """The epoch ends here. What was not sent fails, so that it does not overtake what failed (`failed`) or still may.

        What was sent and has no outcome is settled when the next epoch begins.
        """
        if failed or self.running:
            self._fail_unsent(failure)
        if self.running:  # else it is another word on the same end
            self._after = failure
            self.feed.set_opened(None)
            self._want_next_epoch(now)

    def _fail_unsent(self, failure: Failure) -> None:
        stop = None
        if self.feed.uses_progress:
            stop = Aborted(
                f"{failure.error}. This producer uses progress and is stopped: call resume(), go on from what it returns"
            )
        for batch in self.feed.seize(stop):
            self.window.fail(batch, failure)

    def _give_up_old(self, now: float) -> None:
        """The delivery deadline: the outcome is unknown, of the oldest batch and of all behind it, which may not overtake it."""
        late = self._oldest()
        if late is None or late.deadline > now:
            return
        limit = f"{self.feed.options.delivery_timeout:g} s (delivery_timeout)"
        if late.transmitted:
            why = f"has no outcome after {limit}: it may or may not be committed, resume() of this producer tells"
        else:
            why = f"was not taken by any gateway within {limit}: it never left this process"
        trouble = f"; last trouble: {self.trouble}" if self.trouble else ""
        error = Unknown(f"a record of producer {self.identity.name!r} to topic {late.topic!r} {why}{trouble}")
        LOG.warning("%s", error)
        failure = Failure(error)
        self.window.fail_from(0, failure)
        if late.first_sequence and self.running:
            self._epoch_over(failure, True, now)
        else:
            self._fail_unsent(failure)

    def _oldest(self) -> Batch | None:
        """The closed batch that waits longest. (An open one waits behind others, or for its linger, which is shorter.)"""
        return self.window.oldest or (self.feed.queue[0] if self.feed.queue else None)
