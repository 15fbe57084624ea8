"""Lane: the talk with one gateway about unordered batches, which go into that gateway's own lane.

A batch that was sent there is retried there alone, under the same sequence: in the lane of another gateway it would be another
message. Number and epoch are those that the delivery opened; sequences begin with 1 in each epoch of each lane. Theory of operation
and failure cases: NOTES.md.
"""

from __future__ import annotations

import logging

from tutti import limits
from tutti.batching.receipt import Failure
from tutti.data import client_protocol
from tutti.data.gateway_states import SHUT
from tutti.delivery.lane_registry import Ledger
from tutti.delivery.sender import NOT_KNOWN_YET, Carrier
from tutti.delivery.session import ELSEWHERE, US, Identity, State, Turn
from tutti.errors import Aborted, Refused, TooLarge, TuttiError, Unknown, invariant

LOG = logging.getLogger("tutti.client")
_RETRY_MAX = limits.RETRY_US_MAX / US
_ELSEWHERE = ELSEWHERE | {"lane"}


class Lane(Carrier):
    """Batches on their way into one gateway's lane. Called by one thread.

    Attributes:
        lane: whose sequences the window goes by, as `Welcome.lane` names it; empty while it looks for a gateway.
        gateway: name of that gateway.
        closed: it takes nothing new, and ends when what it has is settled.
        over: the gateway says that the epoch is; what it holds of it has its outcome before the next one begins.
    """

    def __init__(self, ledger: Ledger, identity: Identity) -> None:
        """Look for a gateway."""
        super().__init__(identity, ledger.feed, unordered=True)
        self.lane = self.gateway = ""
        self.closed = self.over = False
        self.topics = ledger.delivery.topics
        self._ledger = ledger
        self._log = ledger.delivery.log

    # -- what its channel asks

    @property
    def begun(self) -> bool:
        """A lane ends no producer because nobody is there."""
        return True

    @property
    def only(self) -> tuple[str, str]:
        """The gateway that batches without an outcome were sent to."""
        return (self.gateway, self._ledger.gateways.get(self.gateway, "")) if self.lane else ("", "")

    # -- what happens to it

    def lost(self) -> None:
        """As `Session.lost`; what was not sent yet may go anywhere."""
        super().lost()
        self.closed = False
        self._take_back()
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
        if self._may_send(now):
            self._send_window(now)

    def takes(self) -> bool:
        """Whether new batches may go there."""
        return self.state is State.OPEN and not (self.closed or self.over or self.drop)

    def ready(self, now: float) -> bool:
        """Whether they may leave at once."""
        return self.takes() and self._retry_at <= now

    # -- whose lane it is

    def _on_welcome(self, welcome: client_protocol.Welcome, now: float) -> None:
        if self.state is State.OPEN and welcome.lane != self.lane:
            self._leave(f"gateway {welcome.gateway} has lane {welcome.lane or '(none)'} now")
            return
        super()._on_welcome(welcome, now)

    def _on_news(self, welcome: client_protocol.Welcome) -> None:
        if welcome.state in SHUT and len(welcome.gateways) > 1:
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
        self._turn(Turn.OPENED)
        self.resend()

    def _unfit(self, welcome: client_protocol.Welcome) -> str:
        """Why this gateway is none for what is to be sent; empty if it is one."""
        name = welcome.gateway
        if self.lane:
            return (
                "" if welcome.lane == self.lane else f"it is gateway {name} without the lane {self.lane} of gateway {self.gateway}"
            )
        if not welcome.lane:
            return f"gateway {name} has no lane: it takes no unordered records (yet, or its release is too old)"
        return self._ledger.why_not(welcome)

    def bind(self, welcome: client_protocol.Welcome) -> None:
        """Send into that gateway's lane, under the epoch that the delivery has."""
        self.gateway, self.lane = welcome.gateway, welcome.lane
        self._ledger.bound.add(self.lane)
        self._enter()

    def _enter(self) -> None:
        self.over = False
        self.number, self.epoch = self._ledger.epoch
        self.wanted = self.epoch
        self.window.next_sequence = self._ledger.next_sequence(self.lane, self._ledger.epoch)

    def unbind(self) -> None:
        """Nothing of it is left: any gateway will do."""
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
                self.trouble = f"an answer that was not asked for: {answer!r}"

    def _on_fenced(self, answer: client_protocol.FencedAnswer) -> None:
        """The batch is not in the lane and never will be: its epoch is over."""
        if answer.epoch > self._ledger.delivery.wanted:
            self._ledger.delivery.fenced(answer.epoch)
            return
        self.window.turned_away(answer.first_sequence, all_copies=True)
        self.over = True

    def _next_epoch(self) -> None:
        """What the epoch that is over left behind goes out under the next, once nothing else of it can come into the lane."""
        self._take_back()
        delivery, window = self._ledger.delivery, self.window
        if window.in_doubt or not delivery.running or self.state is not State.OPEN:
            return
        if self._ledger.epoch != (self.number, self.epoch):
            left = window.take_back()
            self._enter()
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
            self.over = True  # it was forgotten, and has begun anew
        elif answer.code == "producer" and self._retry >= _RETRY_MAX:
            self._ledger.delivery.introduce(now)  # it may have been forgotten
        self._back_off(now, answer.code)

    def _refused(self, answer: client_protocol.RefusedAnswer) -> None:
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
        self._spoil()
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
            self._take_back()

    # -- what a session asks

    def _fail_topic(self, topic: str, error: TuttiError) -> None:
        self._ledger.topic_refused(topic, error)

    def epoch_began(self, opened: client_protocol.EpochOpened, *, anew: bool) -> None:
        """A lane opens no epochs."""
        invariant(False, f"a lane was told {opened!r}")

    def fenced(self, epoch: int) -> None:
        """Another instance began that epoch."""
        self._ledger.delivery.fenced(epoch)

    def end(self, error: TuttiError) -> None:
        """The producer cannot go on at all."""
        self._turn(Turn.END)
        self._ledger.delivery.end(error)

    # -- what comes back, and what does not

    def _take_back(self) -> None:
        """What is surely not in the lane may go to another one."""
        self._ledger.take_back(self.lane, self.window)

    def _spoil(self) -> None:
        """What comes next in the lane is not known in this epoch."""
        self._ledger.spoil(self.lane, (self.number, self.epoch))

    def _give_up_old(self, now: float) -> None:
        """The delivery deadline: whether the oldest batch is in the lane is not known, and those behind it may not overtake it."""
        late = self.window.oldest
        if late is None or late.deadline > now:
            return
        self._take_back()  # surely not there: they may still go elsewhere, in their time
        if len(self.window):
            trouble = f"; last trouble: {self.trouble}" if self.trouble else ""
            self._fail_all(f"there is no outcome after {self._ledger.timeout}{trouble}")

    def _fail_all(self, why: str) -> None:
        """What was sent has no outcome and is not asked for any more. If something of it may be in the lane, what comes next there
        is not known, so that it takes nothing in this epoch.
        """
        self._take_back()
        rest = self.window.take_back()
        oldest = self.window.oldest
        if oldest is not None:
            error = Unknown(
                f"an unordered record of producer {self.identity.name!r} to topic {oldest.topic!r} may or may not be in the lane "
                f"of gateway {self.gateway}: {why}. Sent again, there or elsewhere, it is a new message"
            )
            LOG.warning("%s", error)
            self.window.fail_from(0, Failure(error))
            self._spoil()
        if rest:
            text = f"is in no lane: it waited for gateway {self.gateway}, as others were sent behind it elsewhere, and {why}"
            name, topic = self.identity.name, rest[0].topic
            self._ledger.fail(rest, Failure(Unknown(f"an unordered record of producer {name!r} to topic {topic!r} {text}")))
        if self.state is State.OPEN:
            self.closed = True
        else:
            self.unbind()
