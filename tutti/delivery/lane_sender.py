"""Lane sender: sends unordered batches to one gateway, which stores them in its own lane.

The sender repeats a batch only to the same lane, with the same sequence, because a different lane would store a duplicate. The
producer number and the epoch come from the ordered delivery. Sequences start with 1 in each epoch of each lane. tutti/NOTES.md
contains the rules and the failure cases.
"""

from __future__ import annotations

import logging

from tutti import limits
from tutti.batching.receipt import Failure
from tutti.data import client_protocol
from tutti.data.gateway_states import NO_NEW_UNORDERED
from tutti.delivery.lane_registry import Epoch, LaneRegistry
from tutti.delivery.sender import NOT_KNOWN_YET, Sender, refusal
from tutti.delivery.session import ELSEWHERE, Event, Greeting, Identity, State
from tutti.errors import Aborted, NotAllowed, TuttiError, Unknown

LOG = logging.getLogger("tutti.client")
_ELSEWHERE = ELSEWHERE | {"lane"}


class LaneSender(Sender):
    """Sends unordered batches of one producer into the lane of one gateway. Called by one thread.

    Attributes:
        lane: the lane whose sequences the window uses, as in `Welcome.lane`; empty while the sender is looking for a gateway.
        gateway: name of the gateway that has the lane.
        closed: True if the lane gets no new batches; the session ends when all batches of the lane have outcomes.
        epoch_ended: True from the gateway's report that the epoch has ended until the next epoch begins, which waits while a copy
            of a batch is in doubt.
    """

    def __init__(self, registry: LaneRegistry, identity: Identity) -> None:
        """Create a sender that is not bound to a lane yet."""
        super().__init__(identity, registry.accumulator, unordered=True)
        self.lane = self.gateway = ""
        self.closed = self.epoch_ended = False
        self._registry = registry
        ordered = registry.ordered.session
        self.session.topics, self.session.log = ordered.topics, ordered.log
        self.session.refused_topics = ordered.refused_topics

    # -- for the session connection

    @property
    def accepted(self) -> bool:
        """Always True, so that the producer does not end if this sender finds no gateway."""
        return True

    @property
    def subject(self) -> str:
        """See `Sender.subject`."""
        return f"producer {self.name!r}, unordered records"

    @property
    def pending(self) -> int:
        """See `Sender.pending`. While the sender is looking for a gateway, all unordered records of the producer wait for it."""
        return self.window.in_flight if self.lane else super().pending

    @property
    def waiting(self) -> int:
        """See `Sender.waiting`. A new batch can go to another lane, so it does not wait for this one."""
        return self.pending if self.lane else super().waiting

    @property
    def only_gateway(self) -> tuple[str, str]:
        """Name and url of the gateway that has the lane; empty while the sender may use any gateway."""
        return (self.gateway, self._registry.gateways.get(self.gateway, "")) if self.lane else ("", "")

    # -- events

    def disconnected(self) -> None:
        """See `Sender.disconnected`. Unsent batches go back to the queue, because any gateway may take them."""
        super().disconnected()
        self.closed = False
        self._requeue()
        # A batch that is still in the window may be in the lane, so the next session must be with the same gateway.
        if not len(self.window):
            self.unbind()

    def work(self, now: float) -> None:
        """Perform the actions that are due: enforce delivery deadlines, probe a silent gateway, move to the next epoch."""
        session = self.session
        self._expire_batches(now)
        session.check_timeouts(now)
        if self.epoch_ended:
            self._next_epoch()
        if self.closed and not len(self.window) and session.state is State.OPEN and not session.drop:
            session.leave(session.trouble or f"gateway {self.gateway} accepts no new batches")

    def send(self, now: float) -> None:
        """Send queued batches."""
        if self.session.may_send(now):
            self._send_window(now)

    @property
    def accepts_batches(self) -> bool:
        """True if the lane accepts new batches."""
        session = self.session
        return session.state is State.OPEN and not (self.closed or self.epoch_ended or session.drop)

    def ready(self, now: float) -> bool:
        """Return True if the lane accepts a new batch at once, without a retry delay."""
        return self.accepts_batches and self.session.retry_at <= now

    # -- binding to a gateway

    def _on_welcome(self, welcome: client_protocol.Welcome) -> None:
        # The window's sequences belong to the old lane, so reconnect; then `_open` decides what happens to the batches.
        if self.session.state is State.OPEN and welcome.lane != self.lane:
            self.session.leave(f"gateway {welcome.gateway} now has lane {welcome.lane or '(none)'}")
            return
        greeting = self._greet(welcome)
        if greeting is Greeting.FIRST:
            self._open(welcome)
        elif greeting is Greeting.CHANGED and welcome.state in NO_NEW_UNORDERED and len(welcome.gateways) > 1:
            self.closed, self.session.trouble = True, f"gateway {welcome.gateway} is {welcome.state}"

    def _open(self, welcome: client_protocol.Welcome) -> None:
        """Use the lane of that gateway, without an epoch request; disconnect from the gateway if its lane cannot be used."""
        if self.lane and welcome.gateway == self.gateway and welcome.lane and welcome.lane != self.lane:
            self._fail_all(f"its disk with the lane {self.lane} was lost")
        reason = self._refusal_reason(welcome)
        if reason:
            self.session.leave(reason)
            self._registry.unusable[welcome.gateway] = reason
            return
        if not self.lane:
            self.bind(welcome)
        self.session.opened()
        self.window.rewind()

    def _refusal_reason(self, welcome: client_protocol.Welcome) -> str:
        """Return the reason why this gateway cannot be used; empty if it can."""
        name = welcome.gateway
        if self.lane:
            return (
                "" if welcome.lane == self.lane else f"it is gateway {name} without the lane {self.lane} of gateway {self.gateway}"
            )
        if not welcome.lane:
            return f"gateway {name} has no lane: it accepts no unordered records (yet, or its release is too old)"
        return self._registry.refusal_reason(welcome)

    def bind(self, welcome: client_protocol.Welcome) -> None:
        """Bind to the lane of that gateway, under the current epoch of the ordered delivery."""
        self.gateway, self.lane = welcome.gateway, welcome.lane
        self._registry.bound.add(self.lane)
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        session, epoch = self.session, self._registry.epoch
        self.epoch_ended = False
        session.number, session.epoch = epoch
        session.requested_epoch = session.epoch
        # A lane continues its sequences if a sender binds to it again in the same epoch.
        self.window.next_sequence = self._registry.next_sequence(self.lane, epoch)

    @property
    def _epoch(self) -> Epoch:
        """Producer number and epoch of the sent batches. The ordered delivery may be in a newer epoch."""
        return self.session.number, self.session.epoch

    def unbind(self) -> None:
        """Release the lane, which has no batches in flight; the next session may use any gateway."""
        if self.lane:
            self._registry.note_end(self.lane, self._epoch, self.window.next_sequence)
            self._registry.bound.discard(self.lane)
        self.gateway = self.lane = ""
        self.epoch_ended = False

    # -- answers

    def _on_answer(self, answer: client_protocol.FromGateway, now: float) -> None:
        session = self.session
        match answer:
            case client_protocol.Welcome():
                self.window.bytes_max = min(answer.window_bytes, limits.LANE_WINDOW_BYTES)
                self._registry.update_gateways(answer)
                self._on_welcome(answer)
            case client_protocol.TopicOpened():
                session.on_topic_opened(answer)
            case client_protocol.Denied():
                self._on_denied(answer, now)
            case client_protocol.FencedAnswer():
                if answer.producer == session.number and answer.epoch > session.epoch and session.state is State.OPEN:
                    self._on_fenced(answer)
            case client_protocol.RefusedAnswer() | client_protocol.Expected():
                if answer.producer == session.number and answer.epoch == session.epoch and session.state is State.OPEN:
                    self._on_batch_answer(answer, now)
            case _:
                session.trouble = f"unexpected answer: {answer!r}"

    def _on_fenced(self, answer: client_protocol.FencedAnswer) -> None:
        """Handle the answer that the epoch has ended. The lane does not contain the batch in the answer, and never will."""
        ordered = self._registry.ordered
        # This instance did not request the newer epoch, so another instance of the producer has begun it.
        if answer.epoch > ordered.session.requested_epoch:
            ordered.fenced(answer.epoch)
            return
        self.window.mark_rejected(answer.first_sequence, all_copies=True)
        self.epoch_ended = True

    def _next_epoch(self) -> None:
        """Move the batches of a finished epoch to the next epoch, as soon as no copy of them can still enter the lane."""
        self._requeue()
        session, window = self.session, self.window
        # Wait while a copy is in doubt: the lane could store this copy, and a second copy from the next epoch.
        if window.in_doubt or not self._registry.ordered.session.running or session.state is not State.OPEN:
            return
        if self._registry.epoch != self._epoch:
            batches = window.withdraw()
            self._begin_epoch()
            for batch in batches:
                batch.lane = self.lane
                window.admit(batch)

    def _on_batch_answer(self, answer: client_protocol.RefusedAnswer | client_protocol.Expected, now: float) -> None:
        session, ordered = self.session, self._registry.ordered
        if isinstance(answer, client_protocol.Expected):
            self._on_expected(answer.sequence, now)
            return
        # Only one copy is refused; if the batch was sent more than once, the lane may still accept another copy.
        self.window.mark_rejected(answer.first_sequence, all_copies=False)
        if not answer.retry and answer.code not in NOT_KNOWN_YET:
            self._on_refused(answer, now)
            return
        session.trouble = f"{answer.reason} ({answer.code})"
        if answer.code == "topic":
            # The topic number may come from another gateway, whose log is longer, so request the number from this gateway.
            session.topics.clear()
        elif answer.code == "producer" and ordered.session.number != session.number:
            self.epoch_ended = True  # the log deleted the producer's state, and the ordered delivery has a new producer number
        elif answer.code == "producer" and not session.may_back_off_longer:
            ordered.reopen_epoch(now)  # after repeated refusals, assume that the log has deleted the producer's state
        self._back_off(now, answer.code)

    def _on_refused(self, answer: client_protocol.RefusedAnswer, now: float) -> None:
        """Handle a permanent refusal: no later batch can enter the lane in this epoch."""
        window = self.window
        batch = window.batch_at(answer.first_sequence)
        if batch is None:
            return
        text = f"records to topic {batch.topic!r} were refused by gateway {self.gateway}: {answer.reason}"
        if batch.copies:
            text = f"{text}. An earlier copy of them may be in the lane"
            own: TuttiError = Unknown(text)
            later: TuttiError = Unknown(f"{text}. These records were sent later, and may be in the lane, too")
        else:
            own = refusal(text, answer.code)
            later = Aborted(f"{text}. These records were sent later, and are in no lane")
        if isinstance(own, NotAllowed):
            self._log_refusal(batch.topic, own)
        # Without this batch, the lane has a gap, so it accepts no later batch of this epoch.
        window.fail_at(answer.first_sequence, Failure(own))
        window.fail_from(answer.first_sequence, Failure(later))
        self._mark_next_unknown()
        self.closed, self.session.trouble = True, text

    def _on_expected(self, sequence: int, now: float) -> None:
        window = self.window
        oldest = window.oldest
        if oldest is None or now < self.session.retry_at:
            return  # no batch is in flight, or an earlier answer about this gap has already queued all batches again
        # Either a batch was lost, or all batches arrived and their receipts were lost; sending again resolves both cases.
        if sequence == window.next_sequence or window.batch_at(sequence) is not None:
            self._back_off(now, "gap")
            return
        self._fail_all(
            f"it expects sequence {sequence}, and {oldest.first_sequence} to {window.next_sequence - 1} were sent: the lane lost "
            "records, or the records went to another lane"
        )

    def _back_off(self, now: float, code: str) -> None:
        """Send all batches again after a delay. Batches that this gateway refuses temporarily may go to another gateway."""
        session, elsewhere = self.session, code in _ELSEWHERE
        # The code "gap" keeps the session connected, because only this gateway can report the outcomes of the batches in flight.
        super()._back_off(now, "gap" if elsewhere else code)
        if elsewhere and session.welcome is not None and len(session.welcome.gateways) > 1:
            self.closed = True
            self._requeue()

    # -- the end

    def end(self, error: TuttiError) -> None:
        """End the producer with an error."""
        self.session.transition(Event.END)
        self._registry.ordered.end(error)

    # -- moving and failing batches

    def _requeue(self) -> None:
        """Move batches that are certainly not in the lane back to the producer's queue."""
        self._registry.requeue(self.lane, self.window)

    def _mark_next_unknown(self) -> None:
        """Mark the next sequence of the lane as unknown in this epoch."""
        self._registry.mark_next_unknown(self.lane, self._epoch)

    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        self._log_refusal(topic, error)
        self._registry.fail_topic(topic, error)

    def _expire_batches(self, now: float) -> None:
        """Enforce the delivery deadline: if the oldest batch is too old, all batches in flight fail with `Unknown`.

        Later batches fail too, because they must not overtake the oldest batch.
        """
        late = self.window.oldest
        if late is None or late.deadline > now:
            return
        self._requeue()  # until its own deadline, a batch that is certainly not in the lane may go to another lane
        if len(self.window):
            self._fail_all(f"the gateways reported no outcome within {self._registry.timeout}{self.session.cause}")

    def _fail_all(self, why: str) -> None:
        """Fail all batches with an unknown outcome.

        If one of the batches may be in the lane, the lane's next sequence is unknown, and the lane gets no more batches in this
        epoch.
        """
        self._requeue()
        # These batches are in no lane; `_requeue` did not move them, because newer batches of the producer are in another lane.
        rest = self.window.withdraw()
        oldest = self.window.oldest
        if oldest is not None:
            error = Unknown(
                f"an unordered record of producer {self.name!r} to topic {oldest.topic!r} may or may not be in the lane "
                f"of gateway {self.gateway}: {why}. A record that is sent again is a new message"
            )
            LOG.warning("%s", error)
            self.window.fail_from(0, Failure(error))
            self._mark_next_unknown()
        if rest:
            text = f"is in no lane: it waited for gateway {self.gateway}, as later records went to another lane, and {why}"
            name, topic = self.name, rest[0].topic
            self._registry.fail(rest, Failure(Aborted(f"an unordered record of producer {name!r} to topic {topic!r} {text}")))
        if self.session.state is State.OPEN:
            self.closed = True
        else:
            self.unbind()
