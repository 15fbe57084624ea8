"""Producers that send into the lane of one gateway, and go to another one's only when theirs is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.connection import Connection, State
from tests.sim.schedule import MS, SECOND
from tests.sim.violation import Violation
from tutti.data.client_protocol import (
    AbortedAnswer,
    Answer,
    Committed,
    Denied,
    Duplicate,
    EpochFenced,
    EpochOpened,
    Expected,
    FencedAnswer,
    RefusedAnswer,
    TopicOpened,
)
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core.protocol.events import EpochAsked, SubmittedUnordered, TopicAsked

if TYPE_CHECKING:
    from tests.sim.gateways import Gateway
    from tests.sim.world import World

PATIENCE_US = 12 * SECOND  # without a word that helps, then another gateway is tried
RETRY_US = 100 * MS


class LaneProducer(Connection):
    """One producer. Sequences begin with 1 in each epoch; another lane is another epoch, and what was under way is unknown then.

    Attributes:
        origin: the gateway that it sends to, empty before it has chosen one. lane: incarnation of that gateway's disk.
        number: of the gateway in that lane: added again it has another one, and so another lane.
        unanswered: tokens by sequence, one record a batch.
    """

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"u{number}")
        self.instance = self.name.encode().ljust(16, b"-")
        self.origin = ""
        self.lane = b""
        self.number = 0
        self.opened = False
        self.producer = self.topic = self.epoch = 0
        self.next_sequence = 1
        self.unanswered: dict[int, str] = {}
        self._tokens = 0
        self._request = 0
        self._retry_at = 0
        self._good_us = 0  # when something went well last
        self._later()

    @property
    def settled(self) -> bool:
        return self.state is State.OPEN and not self.unanswered

    def waits(self) -> bool:
        return self.state is State.OPENING or bool(self.unanswered)

    # Where it sends

    def _connect(self) -> None:
        if self.state is State.ENDED or self.process is not None:
            return
        numbers = self.world.log.numbers or self.world.genesis
        if self.origin not in numbers or self.world.schedule.now - self._good_us > PATIENCE_US:
            self.origin = self.chance.choice(sorted(numbers))
            self._good_us = self.world.schedule.now
        gateway = self.world.gateways[self.origin]
        number = self._number(gateway)
        if gateway.process is None or not number or not self.world.reaches(self.name, self.origin):
            self.world.schedule.after(self.chance.uniform(50, 300) * MS, self._connect)
            return
        self.process = gateway.process
        self._link += 1
        link = self._link
        self._delay = self.chance.uniform(50, 500)
        self.session = self.process.open(lambda answers: self._come(link, answers))
        self.world.lanes.sessions.add((self.process, self.session))
        self._heard = self.world.schedule.now
        self._pinged = False
        if (self.lane, self.number) != (gateway.incarnation, number):
            self.lane, self.number = gateway.incarnation, number
            self._anew(self.epoch + 1 if self.opened else max(self.epoch, 1))  # one that was asked for is asked for again
        self.state = State.OPEN if self.opened else State.OPENING
        self.connected()

    def _number(self, gateway: Gateway) -> int:
        """Under which the log of a gateway names it with the disk that it has, as it tells its clients; 0 while it names no lane:
        the next one may be another, whatever the last one was.
        """
        if gateway.process is None:
            return 0
        roster, disk = gateway.process.stack.decided.roster, gateway.incarnation
        return next((number for number, voter in roster.items() if voter.incarnation == disk), 0)

    def _anew(self, epoch: int) -> None:
        """Another epoch, or another lane: what is under way is not known."""
        self.unanswered.clear()
        self.opened, self.epoch, self.next_sequence = False, epoch, 1
        self.state = State.OPENING

    def connected(self) -> None:
        """Everything is asked, or sent, again."""
        if self.opened:
            self._send(0)
            return
        self._request += 1
        self.say(TopicAsked(self.session, 0, "topic1"))
        self.say(EpochAsked(self.session, self._request, self.name, self.instance, self.epoch))

    def looked(self) -> None:
        if self.process is not None and self.waits() and self.world.schedule.now - self._good_us > PATIENCE_US:
            self.leave()

    # Sending

    def _later(self) -> None:
        self.world.schedule.after(self.chance.expovariate(self.world.options.rate) * SECOND, self._due)

    def _due(self) -> None:
        self._later()
        if not self.world.healing:
            self.produce(self.chance.randint(1, 3))

    def produce(self, batches: int) -> bool:
        """Send so many new batches; False if nothing may be sent now."""
        room = len(self.unanswered) < self.world.options.pipeline
        if self.state is not State.OPEN or not room or self.world.schedule.now < self._retry_at:
            return False
        if not self.unanswered:
            self._good_us = self.world.schedule.now
        first = self.next_sequence
        for _ in range(batches):
            self._tokens += 1
            self.unanswered[self.next_sequence] = f"{self.name}-{self._tokens}"
            self.next_sequence += 1
        self._send(first)
        return True

    def _send(self, start: int) -> None:
        frames = [
            Frame(
                Kind.BATCH,
                token.encode(),
                producer=self.producer,
                epoch=self.epoch,
                first_sequence=sequence,
                count=1,
                topic=self.topic,
            )
            for sequence, token in self.unanswered.items()
            if sequence >= start
        ]
        if frames and self.topic:
            self.say(SubmittedUnordered(self.session, tuple(frames)))

    def _back_off(self) -> None:
        now = self.world.schedule.now
        if now >= self._retry_at:
            self._retry_at = now + RETRY_US
            self.world.schedule.at(self._retry_at, self._try_again, self._link)

    def _try_again(self, link: int) -> None:
        if link == self._link and self.process is not None:
            self.connected()

    # Answers

    def on(self, answer: Answer) -> None:
        match answer:
            case Committed(producer, epoch, first, count) | Duplicate(producer, epoch, first, count):
                if (producer, epoch) == (self.producer, self.epoch):
                    self.heard_well()
                    self._good_us = self.world.schedule.now
                    for sequence in range(first, first + count):
                        self.unanswered.pop(sequence, None)
            case TopicOpened(_, topic):
                self.topic = topic
                if self.opened:
                    self._send(0)
            case EpochOpened(_, producer, epoch):
                if epoch == self.epoch and not self.opened:
                    self.producer, self.opened, self.state = producer, True, State.OPEN
                    self._good_us = self.world.schedule.now
                    self._send(0)
            case EpochFenced(_, epoch):
                if epoch >= self.epoch and not self.opened:
                    self._anew(epoch + 1)
                    self.connected()
            case RefusedAnswer() if answer.code == "lane":
                self.origin = ""  # nothing more comes into it
                self.leave()
            case Denied() | RefusedAnswer():
                self._back_off()
            case Expected(producer, epoch, sequence):
                if (producer, epoch) == (self.producer, self.epoch):
                    self._expected(sequence)
            case FencedAnswer() | AbortedAnswer():
                raise Violation(f"{self.name} receives {answer}, but its name is unique and no lane aborts")

    def _expected(self, sequence: int) -> None:
        oldest = next(iter(self.unanswered), None)
        if oldest is not None and not oldest <= sequence <= self.next_sequence:
            raise Violation(f"{self.name} has receipts below {oldest}, but its lane expects {sequence}")
        self._back_off()
