"""Lane sender: sends unordered batches to one gateway, which stores them in its own lane.

A batch is sent again only to the same gateway, with the same sequence. In a different lane, the batch would count as a new message.
The producer number and the epoch come from the ordered delivery. Sequences start with 1 in each epoch of each lane. NOTES.md has
the theory of operation and the failure cases.
"""

from __future__ import annotations

import logging

from tutti import limits
from tutti.batching.receipt import Failure
from tutti.data import client_protocol
from tutti.data.gateway_states import NO_NEW_UNORDERED
from tutti.delivery.lane_registry import Epoch, LaneRegistry
from tutti.delivery.sender import NOT_KNOWN_YET, Sender
from tutti.delivery.session import ELSEWHERE, Event, Greeting, Identity, State
from tutti.errors import Aborted, Refused, TooLarge, TuttiError, Unknown

LOG = logging.getLogger("tutti.client")
_ELSEWHERE = ELSEWHERE | {"lane"}


class LaneSender(Sender):
    """Unordered batches of one producer for one gateway's lane. Called by one thread.

    Attributes:
        lane: the lane whose sequences the window uses, as in `Welcome.lane`; empty while the sender is looking for a gateway.
        gateway: name of that gateway.
        closed: True if the lane gets no new batches; its session ends when all of its batches have outcomes.
        epoch_ended: True if the gateway has reported the end of the epoch; batches in flight get their outcomes before the next
            epoch begins.
    """

    def __init__(self, registry: LaneRegistry, identity: Identity) -> None:
        """Create a lane that is not bound to a gateway yet."""
        super().__init__(identity, registry.accumulator, unordered=True)
        self.lane = self.gateway = ""
        self.closed = self.epoch_ended = False
        self._registry = registry
        ordered = registry.ordered.session
        self.session.topics, self.session.log = ordered.topics, ordered.log

    # -- for the session connection

    @property
    def accepted(self) -> bool:
        """Always True, so that a lane that finds no gateway does not end the producer."""
        return True

    @property
    def only_gateway(self) -> tuple[str, str]:
        """The gateway to which batches without an outcome were sent."""
        return (self.gateway, self._registry.gateways.get(self.gateway, "")) if self.lane else ("", "")

    # -- events

    def disconnected(self) -> None:
        """See `Sender.disconnected`. Unsent batches may go to any gateway."""
        super().disconnected()
        self.closed = False
        self._requeue()
        # If a batch may be in the lane, the next session must be with the same gateway.
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
        """Return True if a new batch may be sent at once."""
        return self.accepts_batches and self.session.retry_at <= now

    # -- binding to a gateway

    def _on_welcome(self, welcome: client_protocol.Welcome) -> None:
        # The sequences of this session belong to the old lane. After the reconnect, `_open` decides what happens to the batches.
        if self.session.state is State.OPEN and welcome.lane != self.lane:
            self.session.leave(f"gateway {welcome.gateway} now has lane {welcome.lane or '(none)'}")
            return
        greeting = self._greet(welcome)
        if greeting is Greeting.FIRST:
            self._open(welcome)
        elif greeting is Greeting.CHANGED and welcome.state in NO_NEW_UNORDERED and len(welcome.gateways) > 1:
            self.closed, self.session.trouble = True, f"gateway {welcome.gateway} is {welcome.state}"

    def _open(self, welcome: client_protocol.Welcome) -> None:
        """Use the lane of that gateway.

        If the lane cannot be used, disconnect from the gateway. A lane does not request an epoch.
        """
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
        # A lane that is bound again in the same epoch continues its sequences.
        self.window.next_sequence = self._registry.next_sequence(self.lane, epoch)

    @property
    def _epoch(self) -> Epoch:
        """The epoch of the sent batches. The epoch of the ordered delivery may be newer."""
        return self.session.number, self.session.epoch

    def unbind(self) -> None:
        """Release the lane once it has no batches; the next session may use any gateway."""
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
        """Handle the end of the epoch at the lane: the batch is not in the lane, and never will be."""
        ordered = self._registry.ordered
        # A newer instance of the producer has begun an epoch; this is not the next epoch of this instance.
        if answer.epoch > ordered.session.requested_epoch:
            ordered.fenced(answer.epoch)
            return
        self.window.mark_rejected(answer.first_sequence, all_copies=True)
        self.epoch_ended = True

    def _next_epoch(self) -> None:
        """Move the batches of a finished epoch to the next epoch, once no copy of them can still enter the lane."""
        self._requeue()
        session, window = self.session, self.window
        # Otherwise the lane could get a copy from the old epoch and a second copy from the new epoch.
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
        # If a batch was sent more than once, the lane may still accept another copy.
        self.window.mark_rejected(answer.first_sequence, all_copies=False)
        if not answer.retry and answer.code not in NOT_KNOWN_YET:
            self._on_refused(answer)
            return
        session.trouble = f"{answer.reason} ({answer.code})"
        if answer.code == "topic":
            # The number may come from a different gateway with a longer log, so request it from this gateway.
            session.topics.clear()
        elif answer.code == "producer" and ordered.session.number != session.number:
            self.epoch_ended = True  # the log deleted the producer's state, and the producer has a new number
        elif answer.code == "producer" and not session.may_back_off_longer:
            ordered.reopen_epoch(now)  # the log may have deleted the producer's state
        self._back_off(now, answer.code)

    def _on_refused(self, answer: client_protocol.RefusedAnswer) -> None:
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
            own = TooLarge(text) if answer.code == "too_large" else Refused(text, answer.code)
            later = Aborted(f"{text}. These records were sent later, and are in no lane")
        # The lane has a gap at this sequence, so it cannot accept later batches of this epoch either.
        window.fail_at(answer.first_sequence, Failure(own))
        window.fail_from(answer.first_sequence, Failure(later))
        self._mark_next_unknown()
        self.closed, self.session.trouble = True, text

    def _on_expected(self, sequence: int, now: float) -> None:
        window = self.window
        oldest = window.oldest
        if oldest is None or now < self.session.retry_at:
            return  # nothing to send, or a repeated answer to the same gap: the first answer has queued everything again
        # Either a batch was lost, or all batches arrived and their receipts were lost. Sending again resolves both cases.
        if sequence == window.next_sequence or window.batch_at(sequence) is not None:
            self._back_off(now, "gap")
            return
        self._fail_all(
            f"it expects sequence {sequence}, and {oldest.first_sequence} to {window.next_sequence - 1} were sent: the lane lost "
            "records, or the records went to another lane"
        )

    def _back_off(self, now: float, code: str) -> None:
        """Queue everything again after a delay. Batches that this gateway refuses temporarily may go to another gateway."""
        session, elsewhere = self.session, code in _ELSEWHERE
        # Stay connected: batches in flight get their outcomes only from this gateway.
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
        """Move batches that are certainly not in the lane back to the queue."""
        self._registry.requeue(self.lane, self.window)

    def _mark_next_unknown(self) -> None:
        """Mark the next sequence of the lane as unknown in this epoch."""
        self._registry.mark_next_unknown(self.lane, self._epoch)

    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        self._registry.fail_topic(topic, error)

    def _expire_batches(self, now: float) -> None:
        """Enforce the delivery deadline: the oldest batch fails with `Unknown`.

        Later batches must not overtake it, so they fail too.
        """
        late = self.window.oldest
        if late is None or late.deadline > now:
            return
        self._requeue()  # batches that are certainly not in the lane may go to another lane until their own deadline
        if len(self.window):
            trouble = f"; last error: {self.session.trouble}" if self.session.trouble else ""
            self._fail_all(f"there is no outcome after {self._registry.timeout}{trouble}")

    def _fail_all(self, why: str) -> None:
        """Fail all batches with an unknown outcome.

        If one of the batches may be in the lane, the lane's next sequence is unknown. The lane then gets no more batches in this
        epoch.
        """
        self._requeue()
        # `_requeue` left batches of which no copy can be accepted, because newer batches of the producer are in another lane.
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
            self._registry.fail(rest, Failure(Unknown(f"an unordered record of producer {name!r} to topic {topic!r} {text}")))
        if self.session.state is State.OPEN:
            self.closed = True
        else:
            self.unbind()
