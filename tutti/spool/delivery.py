"""Delivery of a producer with a spool: only refused batches fail, and no batch has a delivery deadline."""

from __future__ import annotations

import logging

from tutti.batching.receipt import Batch, Failure, Resume
from tutti.data import client_protocol
from tutti.delivery.ordered import OrderedDelivery
from tutti.delivery.sender import NOT_KNOWN_YET
from tutti.delivery.session import NOT_ALLOWED, Identity, State
from tutti.errors import NotAllowed, Refused, TooLarge, TuttiError, Unknown
from tutti.spool.accumulator import SpooledAccumulator
from tutti.spool.commit_mark import EpochStart

LOG = logging.getLogger("tutti.client")


class SpooledDelivery(OrderedDelivery):
    """A `OrderedDelivery` that continues after every end of an epoch: it reads the spool again from the log's position."""

    def __init__(self, identity: Identity, feed: SpooledAccumulator) -> None:
        """Deliver the batches of the spool."""
        super().__init__(identity, feed)
        self._spool = feed

    def work(self, now: float) -> None:
        """See `OrderedDelivery.work`."""
        if self._spool.broken is not None and self.state is not State.ENDED:
            self.end(self._spool.broken)
        super().work(now)

    def end(self, error: TuttiError) -> None:
        """See `OrderedDelivery.end`. The spool keeps its batches."""
        left = self._spool.uncommitted()
        if left:
            kept = f"{left} records of producer {self.identity.name!r} stay in spool {self._spool.path}"
            LOG.warning("%s: %s", kept, error)
            if type(error) is Unknown:
                error = Unknown(f"{error}: {kept}, and the next producer with this spool sends them")
        super().end(error)

    def _on_welcome(self, welcome: client_protocol.Welcome, now: float) -> None:
        log = self._spool.log
        if log and welcome.log and welcome.log != log:
            text = (
                f"spool {self._spool.path} belongs to log {log}, and gateway {welcome.gateway} serves log {welcome.log}: the url "
                "names gateways of another group, or the log was replaced; give this producer its own directory"
            )
            self.end(Refused(text, "log"))
            return
        super()._on_welcome(welcome, now)

    def _on_batch_answer(
        self, answer: client_protocol.AbortedAnswer | client_protocol.RefusedAnswer | client_protocol.Expected, now: float
    ) -> None:
        if isinstance(answer, client_protocol.AbortedAnswer):
            self.trouble = f"{answer.reason} (aborted)"
            self._start_over(now)
        elif isinstance(answer, client_protocol.RefusedAnswer) and not answer.retry and answer.code not in NOT_KNOWN_YET:
            batch = self.window.at(answer.first_sequence)
            if self.running and batch is not None:
                whose = f"{batch.count} records of producer {self.identity.name!r}"
                text = f"{whose} to topic {batch.topic!r} were refused: {answer.reason}"
                if answer.code in NOT_ALLOWED:
                    error: Refused = NotAllowed(text, answer.code, batch.topic)
                else:
                    error = TooLarge(text) if answer.code == "too_large" else Refused(text, answer.code)
                if self._ends(error):
                    self.end(error)
                    return
                self._refuse(batch, error)
                self._start_over(now)
        else:
            super()._on_batch_answer(answer, now)

    def _ends(self, error: TuttiError) -> bool:
        """Return True if a refusal ends the producer: a missing right can be granted, but a refused batch is never sent again."""
        return isinstance(error, NotAllowed) and not self.feed.options.puts_denied_aside

    def _refuse(self, batch: Batch, error: TuttiError) -> None:
        """Mark a batch as refused. The batch moves to `refused/` when it is read again, unless it has committed."""
        if batch.place is not None:
            with self.feed.lock:
                self._spool.refusals[batch.place] = Failure(error)

    def _start_over(self, now: float) -> None:
        """End the epoch after a growing delay; batches that did not commit are read from the spool again."""
        if self.running:
            self.feed.set_opened(None)
            self._request_next_epoch(now)
            self._delay_sending(now)

    def epoch_began(self, opened: client_protocol.EpochOpened, *, renumbered: bool) -> None:
        """Compare the log's position with the spool, and continue there. The spool detects by itself if the producer is new."""
        self.window.commit_upto(opened.sequence)
        self._publish()
        try:
            self._spool.began(self.log, EpochStart(self.number, opened.sequence, opened.progress))
        except TuttiError as error:
            self.end(error)
            return
        self._spool.let_go(self.window.let_go())
        self.window.next_sequence = opened.sequence + 1
        self.window.committed = Resume(opened.sequence, opened.progress)
        self.feed.set_opened(self.window.committed)

    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        """Mark the batches of that topic at the head of the queue as refused, and read later ones from the spool again.

        If only the right to the topic is missing, end the producer.
        """
        if self._ends(error):
            self.end(error)
            return
        refused = []
        for batch in self.feed.queue:
            if batch.topic != topic:
                break
            self._refuse(batch, error)
            refused.append(batch)
        if refused and refused[0].place is not None:
            first = refused[0].place
            self._spool.go_back(first._replace(records=first.records - refused[0].count))
