"""Lane: the session with one gateway for unordered batches, which go into that gateway's own lane.

A batch is sent again only to the same gateway, under the same sequence, because it would be another message in another lane.
Producer number and epoch come from the ordered delivery. Sequences start with 1 in each epoch of each lane. NOTES.md has the theory
of operation and the failure cases.
"""

from __future__ import annotations

import logging

from tutti import limits
from tutti.batching.receipt import Failure
from tutti.data import client_protocol
from tutti.data.gateway_states import NO_NEW_UNORDERED
from tutti.delivery.lane_registry import LaneRegistry
from tutti.delivery.sender import NOT_KNOWN_YET, Sender
from tutti.delivery.session import ELSEWHERE, US, Event, Identity, State
from tutti.errors import Aborted, Refused, TooLarge, TuttiError, Unknown, invariant

LOG = logging.getLogger("tutti.client")
_RETRY_MAX = limits.RETRY_US_MAX / US
_ELSEWHERE = ELSEWHERE | {"lane"}


class Lane(Sender):
    """Unordered batches of one producer for one gateway's lane. Called by one thread.

    Attributes:
        lane: the lane whose sequences the window uses, as in `Welcome.lane`; empty while looking for a gateway.
        gateway: name of that gateway.
        closed: the lane gets no new batches, and its session ends when all of its batches have outcomes.
        over: the gateway reports the end of the epoch; batches in flight get their outcomes before the next epoch begins.
    """

    def __init__(self, ledger: LaneRegistry, identity: Identity) -> None:
        """Create a lane that is not bound to a gateway yet."""
        super().__init__(identity, ledger.feed, unordered=True)
        self.lane = self.gateway = ""
        self.closed = self.over = False
        self.topics = ledger.delivery.topics
        self._ledger = ledger
        self._log = ledger.delivery.log

    # -- for the session connection

    @property
    def begun(self) -> bool:
        """Always True: a lane does not end the producer when it finds no gateway."""
        return True

    @property
    def only(self) -> tuple[str, str]:
        """The gateway to which batches without an outcome were sent."""
        return (self.gateway, self._ledger.gateways.get(self.gateway, "")) if self.lane else ("", "")

    # -- events

    def lost(self) -> None:
        """See `Session.lost`. Batches that were not sent yet may go to any gateway."""
        super().lost()
        self.closed = False
        self._take_back()
        if not len(self.window):
            self.unbind()

    def work(self, now: float) -> None:
        """Do what is due: enforce delivery deadlines, probe a silent gateway, move to the next epoch."""
        self._expire_batches(now)
        self._check_timeouts(now)
        if self.over:
            self._next_epoch()
        if self.closed and not len(self.window) and self.state is State.OPEN and not self.drop:
            self._leave(self.trouble or f"gateway {self.gateway} accepts no new batches")

    def send(self, now: float) -> None:
        """Send queued batches."""
        if self._may_send(now):
            self._send_window(now)

    def takes(self) -> bool:
        """Return True if the lane accepts new batches."""
        return self.state is State.OPEN and not (self.closed or self.over or self.drop)

    def ready(self, now: float) -> bool:
        """Return True if a new batch may be sent at once."""
        return self.takes() and self._retry_at <= now

    # -- binding to a gateway

    def _on_welcome(self, welcome: client_protocol.Welcome, now: float) -> None:
        if self.state is State.OPEN and welcome.lane != self.lane:
            self._leave(f"gateway {welcome.gateway} now has lane {welcome.lane or '(none)'}")
            return
        super()._on_welcome(welcome, now)

    def _on_state_change(self, welcome: client_protocol.Welcome) -> None:
        if welcome.state in NO_NEW_UNORDERED and len(welcome.gateways) > 1:
            self.closed, self.trouble = True, f"gateway {welcome.gateway} is {welcome.state}"

    def _welcomed(self, welcome: client_protocol.Welcome, now: float) -> None:
        if self.lane and welcome.gateway == self.gateway and welcome.lane and welcome.lane != self.lane:
            self._fail_all(f"its disk with the lane {self.lane} was lost")
        unfit = self._unfit(welcome)
        if unfit:
            self._leave(unfit)
            self._ledger.unfit[welcome.gateway] = unfit
            return
        if not self.lane:
            self.bind(welcome)
        self._topic_requests.clear()
        self._transition(Event.OPENED)
        self.resend()

    def _unfit(self, welcome: client_protocol.Welcome) -> str:
        """Return why this gateway cannot be used; empty if it can."""
        name = welcome.gateway
        if self.lane:
            return (
                "" if welcome.lane == self.lane else f"it is gateway {name} without the lane {self.lane} of gateway {self.gateway}"
            )
        if not welcome.lane:
            return f"gateway {name} has no lane: it accepts no unordered records (yet, or its release is too old)"
        return self._ledger.why_not(welcome)

    def bind(self, welcome: client_protocol.Welcome) -> None:
        """Bind to the lane of that gateway, under the current epoch of the ordered delivery."""
        self.gateway, self.lane = welcome.gateway, welcome.lane
        self._ledger.bound.add(self.lane)
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.over = False
        self.number, self.epoch = self._ledger.epoch
        self.wanted = self.epoch
        self.window.next_sequence = self._ledger.next_sequence(self.lane, self._ledger.epoch)

    def unbind(self) -> None:
        """Release the lane once it has no batches; the next session may use any gateway."""
        if self.lane:
            self._ledger.note_end(self.lane, (self.number, self.epoch), self.window.next_sequence)
            self._ledger.bound.discard(self.lane)
        self.gateway = self.lane = ""
        self.over = False

    # -- answers

    def _on_answer(self, answer: client_protocol.FromGateway, now: float) -> None:
        match answer:
            case client_protocol.Welcome():
                self.window.bytes_max = min(answer.window_bytes, limits.LANE_WINDOW_BYTES)
                self._ledger.hear(answer)
                self._on_welcome(answer, now)
            case client_protocol.TopicOpened():
                self._on_topic_opened(answer, now)
            case client_protocol.Denied():
                self._on_denied(answer, now)
            case client_protocol.FencedAnswer():
                if answer.producer == self.number and answer.epoch > self.epoch and self.state is State.OPEN:
                    self._on_fenced(answer)
            case client_protocol.RefusedAnswer() | client_protocol.Expected():
                if answer.producer == self.number and answer.epoch == self.epoch and self.state is State.OPEN:
                    self._on_batch_answer(answer, now)
            case _:
                self.trouble = f"unexpected answer: {answer!r}"

    def _on_fenced(self, answer: client_protocol.FencedAnswer) -> None:
        """Handle the end of the epoch at the lane: the batch is not in the lane, and never will be."""
        if answer.epoch > self._ledger.delivery.wanted:
            self._ledger.delivery.fenced(answer.epoch)
            return
        self.window.turned_away(answer.first_sequence, all_copies=True)
        self.over = True

    def _next_epoch(self) -> None:
        """Move the batches of a finished epoch to the next one, once none of their copies can enter the lane any more."""
        self._take_back()
        delivery, window = self._ledger.delivery, self.window
        if window.in_doubt or not delivery.running or self.state is not State.OPEN:
            return
        if self._ledger.epoch != (self.number, self.epoch):
            left = window.take_back()
            self._begin_epoch()
            for batch in left:
                batch.lane = self.lane
                window.admit(batch)

    def _on_batch_answer(self, answer: client_protocol.RefusedAnswer | client_protocol.Expected, now: float) -> None:
        if isinstance(answer, client_protocol.Expected):
            self._on_expected(answer.sequence, now)
            return
        self.window.turned_away(answer.first_sequence, all_copies=False)
        if not answer.retry and answer.code not in NOT_KNOWN_YET:
            self._refused(answer)
            return
        self.trouble = f"{answer.reason} ({answer.code})"
        if answer.code == "topic":
            self.topics.clear()
        elif answer.code == "producer" and self._ledger.delivery.number != self.number:
            self.over = True  # the log deleted the producer's state, and the producer has a new number
        elif answer.code == "producer" and self._retry >= _RETRY_MAX:
            self._ledger.delivery.introduce(now)  # the log may have deleted the producer's state
        self._back_off(now, answer.code)

    def _refused(self, answer: client_protocol.RefusedAnswer) -> None:
        """Handle a permanent refusal: no later batch can enter the lane in this epoch."""
        window = self.window
        batch = window.at(answer.first_sequence)
        if batch is None:
            return
        text = f"records to topic {batch.topic!r} were refused by gateway {self.gateway}: {answer.reason}"
        if batch.copies:
            text = f"{text}. An earlier copy of them may be in the lane"
            own: TuttiError = Unknown(text)
            behind: TuttiError = Unknown(f"{text}. These records were sent later, and may be in the lane, too")
        else:
            own = TooLarge(text) if answer.code == "too_large" else Refused(text, answer.code)
            behind = Aborted(f"{text}. These records were sent later, and are in no lane")
        window.fail_at(answer.first_sequence, Failure(own))
        window.fail_from(answer.first_sequence, Failure(behind))
        self._mark_unknown()
        self.closed, self.trouble = True, text

    def _on_expected(self, sequence: int, now: float) -> None:
        window = self.window
        oldest = window.oldest
        if oldest is None or now < self._retry_at:
            return  # nothing to send, or a further answer to one gap: the first answer queued everything again
        if sequence == window.next_sequence or window.at(sequence) is not None:
            self._back_off(now, "gap")
            return
        self._fail_all(
            f"it expects sequence {sequence}, and {oldest.first_sequence} to {window.next_sequence - 1} were sent: the lane lost "
            "records, or the records went to another lane"
        )

    def _back_off(self, now: float, code: str) -> None:
        """Queue everything again after a delay. Batches that this gateway refuses for now may go to another one."""
        super()._back_off(now, "gap" if code in _ELSEWHERE else code)
        if code in _ELSEWHERE and self.welcome is not None and len(self.welcome.gateways) > 1:
            self.closed = True
            self._take_back()

    # -- for the session

    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        self._ledger.topic_refused(topic, error)

    def epoch_began(self, opened: client_protocol.EpochOpened, *, renumbered: bool) -> None:
        """Never called, as a lane opens no epochs."""
        invariant(False, f"a lane must not get {opened!r}")

    def fenced(self, epoch: int) -> None:
        """End the producer: another instance began that epoch."""
        self._ledger.delivery.fenced(epoch)

    def end(self, error: TuttiError) -> None:
        """End the producer with an error."""
        self._transition(Event.END)
        self._ledger.delivery.end(error)

    # -- moving and failing batches

    def _take_back(self) -> None:
        """Move batches that are certainly not in the lane back to the queue."""
        self._ledger.take_back(self.lane, self.window)

    def _mark_unknown(self) -> None:
        """Mark the next sequence of the lane as unknown in this epoch."""
        self._ledger.spoil(self.lane, (self.number, self.epoch))

    def _expire_batches(self, now: float) -> None:
        """Enforce the delivery deadline: the oldest batch fails with `Unknown`, and so do later ones, which may not overtake it."""
        late = self.window.oldest
        if late is None or late.deadline > now:
            return
        self._take_back()  # batches that are certainly not in the lane may go elsewhere until their own deadline
        if len(self.window):
            trouble = f"; last error: {self.trouble}" if self.trouble else ""
            self._fail_all(f"there is no outcome after {self._ledger.timeout}{trouble}")

    def _fail_all(self, why: str) -> None:
        """Fail all batches with an unknown outcome.

        If one of them may be in the lane, the next sequence of the lane is unknown, so the lane gets no more batches in this epoch.
        """
        self._take_back()
        rest = self.window.take_back()
        oldest = self.window.oldest
        if oldest is not None:
            error = Unknown(
                f"an unordered record of producer {self.identity.name!r} to topic {oldest.topic!r} may or may not be in the lane "
                f"of gateway {self.gateway}: {why}. A record that is sent again is a new message"
            )
            LOG.warning("%s", error)
            self.window.fail_from(0, Failure(error))
            self._mark_unknown()
        if rest:
            text = f"is in no lane: it waited for gateway {self.gateway}, as later records went to another lane, and {why}"
            name, topic = self.identity.name, rest[0].topic
            self._ledger.fail(rest, Failure(Unknown(f"an unordered record of producer {name!r} to topic {topic!r} {text}")))
        if self.state is State.OPEN:
            self.closed = True
        else:
            self.unbind()
