"""Delivery of a producer with a spool. Only refused batches fail, and batches have no delivery deadline."""

from __future__ import annotations

import logging

from tutti.batching.receipt import Batch, Failure, Resume
from tutti.common.stats import records_text
from tutti.data import client_protocol
from tutti.delivery.ordered import OrderedDelivery
from tutti.delivery.sender import NOT_KNOWN_YET
from tutti.delivery.session import NOT_ALLOWED, Identity, State
from tutti.errors import NotAllowed, Refused, TooLarge, TuttiError, Unknown
from tutti.spool.commit_mark import EpochStart
from tutti.spool.spool import Spool

LOG = logging.getLogger("tutti.client")


class SpooledDelivery(OrderedDelivery):
    """An `OrderedDelivery` that survives the end of an epoch, because it reads uncommitted batches from the spool again."""

    def __init__(self, identity: Identity, spool: Spool) -> None:
        """Deliver the batches of the spool."""
        super().__init__(identity, spool.accumulator, spool)
        self._spool = spool

    def work(self, now: float) -> None:
        """See `OrderedDelivery.work`."""
        # A producer with a failed disk must end, because it can neither read batches back nor store refused ones.
        if self._spool.broken is not None and self.session.state is not State.ENDED:
            self.end(self._spool.broken)
        super().work(now)

    def end(self, error: TuttiError) -> None:
        """See `OrderedDelivery.end`. Spooled batches stay in the spool."""
        left = self._spool.uncommitted()
        if left:
            kept = f"the spool {self._spool.path} of producer {self.name!r} keeps {records_text(left)}"
            LOG.warning("%s: %s", kept, error)
            # Extend the text of `Unknown`, because the record commits if the spool is used again.
            if type(error) is Unknown:
                error = Unknown(f"{error}: {kept}, and the next producer with this spool sends them")
        super().end(error)

    def _log_end(self, error: TuttiError) -> None:
        # The line of `end` about the records that stay in the spool also contains the error.
        if not self._spool.uncommitted():
            super()._log_end(error)

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
            self.session.trouble = f"{answer.reason} (aborted)"
            self._start_over(now)
        elif isinstance(answer, client_protocol.RefusedAnswer) and not answer.retry and answer.code not in NOT_KNOWN_YET:
            batch = self.window.batch_at(answer.first_sequence)
            # Ignore a repeated answer: the first answer has already ended the epoch or given the batch its outcome.
            if self.session.running and batch is not None:
                subject = f"{records_text(batch.count)} of producer {self.name!r} to topic {batch.topic!r}"
                text = f"{subject} were refused: {answer.reason}" if batch.count > 1 else f"{subject} was refused: {answer.reason}"
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
        """Return True if a refusal ends the producer: the producer lacks a right, and `dead_letters_denied` is not set.

        An operator can grant a missing right later, but a batch in `refused/` is never sent again.
        """
        return isinstance(error, NotAllowed) and not self.accumulator.options.dead_letters_denied

    def _refuse(self, batch: Batch, error: TuttiError) -> None:
        """Mark a batch as refused. When the disk thread reads the batch again, it moves the batch to `refused/`."""
        if batch.spool_position is not None:
            with self.accumulator.lock:
                self._spool.refusals[batch.spool_position] = Failure(error)

    def _start_over(self, now: float) -> None:
        """End the epoch and request the next one, in which batches that did not commit are read from the spool again."""
        if self.session.running:
            self._spool.set_opened(None)
            self.session.request_next_epoch(now)
            # Delay the batches of the next epoch, because repeated aborts would otherwise open epochs in a tight loop.
            self.session.delay_sending(now)

    def _begin_epoch(self, opened: client_protocol.EpochOpened, *, renumbered: bool) -> None:
        """Determine from the log's last progress which batches are committed, and continue after them.

        The method ignores `renumbered`, because `committed_position` detects that the log deleted the producer's state.
        """
        # Publish the outcomes of committed batches first, because these batches must not be read again.
        self.window.commit_upto(opened.sequence)
        self._publish()
        try:
            self._spool.began(self.session.log, EpochStart(self.session.number, opened.sequence, opened.progress))
        except TuttiError as error:
            self.end(error)
            return
        # Empty the window: its other batches did not commit, and the disk thread reads them again in order.
        self._spool.release_bodies(self.window.drain())
        self.window.next_sequence = opened.sequence + 1
        self.window.committed = Resume(opened.sequence, opened.progress)
        self._spool.set_opened(self.window.committed)

    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        """Mark the batches of that topic at the head of the queue as refused, and read the queue from the spool again.

        If the producer has no right to write to the topic, end the producer instead, unless `dead_letters_denied` is set.
        """
        if self._ends(error):
            self.end(error)
            return
        refused = []
        # Queued batches have no sequences yet, so no new epoch is needed; the disk thread moves them to `refused/`.
        for batch in self._spool.queue:
            if batch.topic != topic:
                break
            self._refuse(batch, error)
            refused.append(batch)
        if refused and refused[0].spool_position is not None:
            first = refused[0].spool_position
            self._spool.rewind(first._replace(records=first.records - refused[0].count))
