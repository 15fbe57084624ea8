"""Lane: the talk with one gateway about unordered batches, which go into that gateway's own lane.

A batch that was sent there is retried there alone, under the same sequence: in the lane of another gateway it would be another
message. Number and epoch are those that the delivery opened; sequences begin with 1 in each epoch of each lane. Theory of operation
and failure cases: NOTES.md.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gateway.client.receipt import Failure
from gateway.client.session import ELSEWHERE, US, Identity, Session, State, Turn
from gateway.client.window import Window
from gateway.core import limits
from gateway.data import wire
from gateway.data.states import SHUT
from gateway.errors import Aborted, FormatError, Refused, TooLarge, TuttiError, Unknown, invariant

if TYPE_CHECKING:
    from gateway.client.lanes import Lanes

LOG = logging.getLogger("tutti.client")
_RETRY_MAX = limits.RETRY_US_MAX / US
_NOT_KNOWN_YET = frozenset({"topic", "epoch", "producer"})  # by this gateway, whose log is a moment behind
_ELSEWHERE = ELSEWHERE | {"lane"}


class Lane(Session):
    """Batches on their way into one gateway's lane. Called by one thread.

    Attributes:
        lane: whose sequences the window goes by, as `Welcome.lane` names it; empty while it looks for a gateway.
        gateway: name of that gateway.
        closed: it takes nothing new, and ends when what it has is settled.
        over: the gateway says that the epoch is; what it holds of it has its outcome before the next one begins.
    """

    def __init__(self, lanes: Lanes, identity: Identity) -> None:
        """Look for a gateway."""
        super().__init__(identity)
        self.window = Window(lanes.feed.options.compression, unordered=True)
        self.lane = self.gateway = ""
        self.closed = self.over = False
        self.topics = lanes.delivery.topics
        self._lanes = lanes
        self._log = lanes.delivery.log

    # -- what its channel asks

    @property
    def begun(self) -> bool:
        """A lane ends no producer because nobody is there."""
        return True

    @property
    def only(self) -> tuple[str, str]:
        """The gateway that batches without an outcome were sent to."""
        return (self.gateway, self._lanes.gateways.get(self.gateway, "")) if self.lane else ("", "")

    # -- what happens to it

    def receive(self, data: bytes, now: float) -> None:
        """As `Session.receive`."""
        self._heard = now
        if data[:1] == wire.RECEIPTS:
            self._on_receipts(data)
        elif data[:1] == wire.CONTROL:
            message = wire.decode_from_gateway(data)
            if self.state is not State.ENDED:
                self._on_answer(message, now)
        else:
            raise FormatError(f"the gateway sent a message that starts with {data[:1]!r}")

    def lost(self) -> None:
        """As `Session.lost`; what was not sent yet may go anywhere."""
        super().lost()
        self.closed = False
        self._lanes.take_back(self)
        if not len(self.window):
            self.unbind()

    def work(self, now: float) -> None:
        """Do what is due: give up what is too old, ask a silent gateway, go on to the next epoch."""
        self._give_up_old(now)
        self._mind_time(now)
        if self.over:
            self._next_epoch()
        if self.closed and not len(self.window) and self.state is State.OPEN and not self.drop:
            self._leave(self.trouble or f"gateway {self.gateway} takes nothing new")

    def send(self, now: float) -> None:
        """Send what has a sequence and is to be sent (again)."""
        window = self.window
        if self.state is not State.OPEN or self._retry_at > now or self.drop:
            return
        waited = window.waits
        for message in window.messages(self.number, self.epoch, self.topic_number):
            self.outbox.append(message)
        if window.waits and not waited:
            self._heard = now  # the silence begins now

    def next_time(self, now: float) -> float | None:
        """When it has something to do, if nothing happens before (monotonic)."""
        times = self._times(now)
        oldest = self.window.oldest
        if oldest is not None:
            times.append(oldest.deadline)
        if self.state is State.OPEN and self._retry_at > now and (self.window.has_unsent or self._lanes.feed.queue):
            times.append(self._retry_at)
        return min(times, default=None)

    def takes(self) -> bool:
        """Whether new batches may go there."""
        return self.state is State.OPEN and not (self.closed or self.over or self.drop)

    def ready(self, now: float) -> bool:
        """Whether they may leave at once."""
        return self.takes() and self._retry_at <= now

    # -- whose lane it is

    def _on_welcome(self, welcome: wire.Welcome, now: float) -> None:
        if self.state is State.OPEN and welcome.lane != self.lane:
            self._leave(f"gateway {welcome.gateway} has lane {welcome.lane or '(none)'} now")
            return
        super()._on_welcome(welcome, now)

    def _on_news(self, welcome: wire.Welcome) -> None:
        if welcome.state in SHUT and len(welcome.gateways) > 1:
            self.closed, self.trouble = True, f"gateway {welcome.gateway} is {welcome.state}"

    def _welcomed(self, welcome: wire.Welcome, now: float) -> None:
        if self.lane and welcome.gateway == self.gateway and welcome.lane and welcome.lane != self.lane:
            self._fail_all(f"its disk with the lane {self.lane} was lost")
        unfit = self._unfit(welcome)
        if unfit:
            self._leave(unfit)
            self._lanes.unfit[welcome.gateway] = unfit
            return
        if not self.lane:
            self.bind(welcome)
        self._topic_requests.clear()
        self._turn(Turn.OPENED)
        self.resend()

    def _unfit(self, welcome: wire.Welcome) -> str:
        """Why this gateway is none for what is to be sent; empty if it is one."""
        name = welcome.gateway
        if self.lane:
            return (
                "" if welcome.lane == self.lane else f"it is gateway {name} without the lane {self.lane} of gateway {self.gateway}"
            )
        if not welcome.lane:
            return f"gateway {name} has no lane: it takes no unordered records (yet, or its release is too old)"
        return self._lanes.why_not(welcome)

    def bind(self, welcome: wire.Welcome) -> None:
        """Send into that gateway's lane, under the epoch that the delivery has."""
        self.gateway, self.lane = welcome.gateway, welcome.lane
        self._enter()

    def _enter(self) -> None:
        self.over = False
        self.number, self.epoch = self._lanes.delivery.number, self._lanes.delivery.epoch
        self.wanted = self.epoch
        self.window.next_sequence = self._lanes.next_sequence(self)

    def unbind(self) -> None:
        """Nothing of it is left: any gateway will do."""
        if self.lane:
            self._lanes.note_end(self)
        self.gateway = self.lane = ""
        self.over = False

    # -- answers

    def _on_receipts(self, data: bytes) -> None:
        progressed = False
        for producer, first_sequence, offset, epoch, count in wire.decode_receipts(data):
            if producer == self.number and epoch == self.epoch:
                progressed = self.window.commit(first_sequence, count, offset) or progressed
        if progressed:
            self._heard_well()

    def _on_answer(self, answer: wire.FromGateway, now: float) -> None:
        match answer:
            case wire.Welcome():
                self.window.bytes_max = min(answer.window_bytes, limits.LANE_WINDOW_BYTES)
                self._lanes.hear(answer)
                self._on_welcome(answer, now)
            case wire.TopicOpened():
                self._on_topic_opened(answer, now)
            case wire.Denied():
                self._on_denied(answer, now)
            case wire.FencedAnswer():
                if answer.producer == self.number and answer.epoch > self.epoch and self.state is State.OPEN:
                    self._on_fenced(answer)
            case wire.RefusedAnswer() | wire.Expected():
                if answer.producer == self.number and answer.epoch == self.epoch and self.state is State.OPEN:
                    self._on_batch_answer(answer, now)
            case _:
                self.trouble = f"an answer that was not asked for: {answer!r}"

    def _on_fenced(self, answer: wire.FencedAnswer) -> None:
        """The batch is not in the lane and never will be: its epoch is over."""
        if answer.epoch > self._lanes.delivery.wanted:
            self._lanes.delivery.fenced(answer.epoch)
            return
        self.window.turned_away(answer.first_sequence, all_copies=True)
        self.over = True

    def _next_epoch(self) -> None:
        """What the epoch that is over left behind goes out under the next, once nothing else of it can come into the lane."""
        self._lanes.take_back(self)
        delivery, window = self._lanes.delivery, self.window
        if window.in_doubt or not delivery.running or self.state is not State.OPEN:
            return
        if (delivery.number, delivery.epoch) != (self.number, self.epoch):
            left = window.take_back()
            self._enter()
            for batch in left:
                batch.lane = self.lane
                window.admit(batch)

    def _on_batch_answer(self, answer: wire.RefusedAnswer | wire.Expected, now: float) -> None:
        if isinstance(answer, wire.Expected):
            self._on_expected(answer.sequence, now)
            return
        self.window.turned_away(answer.first_sequence, all_copies=False)
        if not answer.retry and answer.code not in _NOT_KNOWN_YET:
            self._refused(answer)
            return
        self.trouble = f"{answer.reason} ({answer.code})"
        if answer.code == "topic":
            self.topics.clear()
        elif answer.code == "producer" and self._lanes.delivery.number != self.number:
            self.over = True  # it was forgotten, and has begun anew
        elif answer.code == "producer" and self._retry >= _RETRY_MAX:
            self._lanes.delivery.introduce(now)  # it may have been forgotten
        self._back_off(now, answer.code)

    def _refused(self, answer: wire.RefusedAnswer) -> None:
        """For good, and then nothing behind it can come into the lane in this epoch."""
        window = self.window
        batch = window.at(answer.first_sequence)
        if batch is None:
            return
        text = f"records to topic {batch.topic!r} were refused by gateway {self.gateway}: {answer.reason}"
        if batch.copies:
            text = f"{text}. An earlier copy of them may be in its lane"
            own: TuttiError = Unknown(text)
            behind: TuttiError = Unknown(f"{text}. These were sent behind them, and may be there, too")
        else:
            own = TooLarge(text) if answer.code == "too_large" else Refused(text, answer.code)
            behind = Aborted(f"{text}. These were sent behind them and are in no lane")
        window.fail_at(answer.first_sequence, Failure(own))
        window.fail_from(answer.first_sequence, Failure(behind))
        self._lanes.spoil(self)
        self.closed, self.trouble = True, text

    def _on_expected(self, sequence: int, now: float) -> None:
        window = self.window
        oldest = window.oldest
        if oldest is None or now < self._retry_at:
            return  # nothing to send, or one of several answers to one gap: everything is sent again anyway
        if sequence == window.next_sequence or window.at(sequence) is not None:
            self._back_off(now, "gap")
            return
        self._fail_all(
            f"it expects sequence {sequence} where {oldest.first_sequence} to {window.next_sequence - 1} were sent: it lost "
            "records, or is not the lane that they went to"
        )

    def _back_off(self, now: float, code: str) -> None:
        """Send everything again a little later; what this gateway will not take now may go elsewhere."""
        super()._back_off(now, "gap" if code in _ELSEWHERE else code)
        if code in _ELSEWHERE and self.welcome is not None and len(self.welcome.gateways) > 1:
            self.closed = True
            self._lanes.take_back(self)

    # -- what a session asks

    def resend(self) -> None:
        """Everything unanswered is sent again, in order."""
        self.window.rewind()

    def waits_for_batches(self) -> bool:
        """Whether batches were sent on this connection that have no answer."""
        return self.window.waits

    def forgettable(self) -> bool:
        """Whether nothing was sent that has no outcome."""
        return not len(self.window)

    def topic_refused(self, topic: str, error: TuttiError) -> None:
        """Batches of that topic that wait to be sent fail."""
        self._lanes.topic_refused(topic, error)

    def epoch_began(self, opened: wire.EpochOpened) -> None:
        """A lane opens no epochs."""
        invariant(False, f"a lane was told {opened!r}")

    def fenced(self, epoch: int) -> None:
        """Another instance began that epoch."""
        self._lanes.delivery.fenced(epoch)

    def end(self, error: TuttiError) -> None:
        """The producer cannot go on at all."""
        self._turn(Turn.END)
        self._lanes.delivery.end(error)

    # -- what is too old

    def _give_up_old(self, now: float) -> None:
        """The delivery deadline: whether the oldest batch is in the lane is not known, and those behind it may not overtake it."""
        late = self.window.oldest
        if late is None or late.deadline > now:
            return
        self._lanes.take_back(self)  # surely not there: they may still go elsewhere, in their time
        if len(self.window):
            trouble = f"; last trouble: {self.trouble}" if self.trouble else ""
            self._fail_all(f"there is no outcome after {self._lanes.timeout}{trouble}")

    def _fail_all(self, why: str) -> None:
        """What was sent has no outcome and is not asked for any more. If something of it may be in the lane, what comes next there
        is not known, so that it takes nothing in this epoch.
        """
        self._lanes.take_back(self)
        rest = self.window.take_back()
        oldest = self.window.oldest
        if oldest is not None:
            error = Unknown(
                f"an unordered record of producer {self.identity.name!r} to topic {oldest.topic!r} may or may not be in the lane "
                f"of gateway {self.gateway}: {why}. Sent again, there or elsewhere, it is a new message"
            )
            LOG.warning("%s", error)
            self.window.fail_from(0, Failure(error))
            self._lanes.spoil(self)
        if rest:
            text = f"is in no lane: it waited for gateway {self.gateway}, as others were sent behind it elsewhere, and {why}"
            failure = Failure(Unknown(f"an unordered record of producer {self.identity.name!r} to topic {rest[0].topic!r} {text}"))
            for batch in rest:
                self._lanes.fail(batch, failure)
        if self.state is State.OPEN:
            self.closed = True
        else:
            self.unbind()
