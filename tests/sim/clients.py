"""Producers and named readers: they follow every answer as the real client does, and remember what they heard."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.sim.connection import Connection, State
from tests.sim.schedule import SECOND
from tests.sim.violation import Violation
from tutti import limits
from tutti.data.client_protocol import (
    AbortedAnswer,
    Answer,
    Committed,
    Denied,
    Done,
    Duplicate,
    EpochFenced,
    EpochOpened,
    Expected,
    FencedAnswer,
    RefusedAnswer,
    TopicOpened,
)
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core.protocol.events import EpochAsked, OffsetsAsked, TopicAsked, submitted

if TYPE_CHECKING:
    from tests.sim.world import World

NOT_KNOWN_YET = frozenset({"topic", "epoch", "producer"})  # by this gateway, though another has opened it


class Producer(Connection):
    """One instance of a producer. A record is a token that is never used twice; a sequence may be, after an abort.

    Attributes:
        producer, epoch: as opened. wanted: the epoch asked for; above `epoch` while that one is over.
        unanswered: tokens by sequence, in order. bounds: sequences at which a batch begins.
    """

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(world, f"{name}#{number}")
        self.producer_name = name
        self.number = number
        self.instance = self.name.encode().ljust(16, b"-")
        self.producer = self.epoch = 0
        self.wanted = 1
        self.topic = 0
        self.topic_name = f"topic{self.chance.randint(1, 2)}"
        self.next_sequence = 1
        self.unanswered: dict[int, str] = {}
        self.bounds: set[int] = set()
        self.acknowledged = 0
        self._tokens = 0
        self._starting = True
        self._after = ""  # what befalls records of the epoch that is over and did not commit
        self._retry_at = 0
        self._retry = limits.RETRY_US_MIN
        self._since = 0  # when the oldest unanswered one was sent
        self._request = 0
        self._later()

    @property
    def running(self) -> bool:
        """Whether the epoch that is wanted is the one under which batches were sent."""
        return self.epoch == self.wanted

    @property
    def settled(self) -> bool:
        """Whether nothing of it waits for an outcome."""
        return self.state is State.ENDED or (self.state is State.OPEN and not self.unanswered)

    def waits(self) -> bool:
        return self.state is State.OPENING or bool(self.unanswered)

    def looked(self) -> None:
        if self.unanswered and self.world.schedule.now - self._since > limits.DELIVERY_TIMEOUT_US and not self.world.healing:
            self._since = self.world.schedule.now
            self._fail_from(0, "unknown")
            if self.running:
                self._epoch_over("unknown")

    # Sending

    def _later(self) -> None:
        self.world.schedule.after(self.chance.expovariate(self.world.options.rate) * SECOND, self._due)

    def _due(self) -> None:
        """Time for a new batch or two, if there is room for them."""
        if self.state is State.ENDED:
            return
        self._later()
        if not self.world.healing:
            self.produce(1 if self.chance.random() < 0.7 else self.chance.randint(2, 4))

    def produce(self, batches: int) -> bool:
        """Send so many new batches; False if nothing may be sent now."""
        now = self.world.schedule.now
        batches_now = sum(1 for sequence in self.unanswered if sequence in self.bounds)
        if self.state is not State.OPEN or not self.topic or now < self._retry_at or batches_now >= self.world.options.pipeline:
            return False
        if not self.unanswered:
            self._since = now
        first = self.next_sequence
        for _ in range(batches):
            self.bounds.add(self.next_sequence)
            for _ in range(1 if self.chance.random() < 0.7 else self.chance.randint(2, 5)):
                self._tokens += 1
                token = f"{self.name}-{self._tokens}"
                self.unanswered[self.next_sequence] = token
                self.world.log.sent(token)
                self.next_sequence += 1
        self._send(first)
        return True

    def _send(self, start: int) -> None:
        """Everything unanswered from the sequence on, cut as it was."""
        if self.state is not State.OPEN or not self.topic:
            return
        batches: list[list[int]] = []
        for sequence in self.unanswered:
            if sequence >= start:
                if not batches or sequence in self.bounds or batches[-1][-1] + 1 != sequence:
                    batches.append([])
                batches[-1].append(sequence)
        if batches:
            self.say(submitted(self.session, tuple([self._frame(batch) for batch in batches])))

    def _frame(self, batch: list[int]) -> Frame:
        return Frame(
            Kind.BATCH,
            ",".join([self.unanswered[sequence] for sequence in batch]).encode(),
            progress=str(batch[-1]).encode(),
            producer=self.producer,
            epoch=self.epoch,
            first_sequence=batch[0],
            count=len(batch),
            topic=self.topic,
        )

    def connected(self) -> None:
        """Everything is asked and sent again."""
        if self.state is State.OPEN:
            self._send(0)
        else:
            self._ask()

    def _ask(self) -> None:
        self.state = State.OPENING
        self._request += 1
        self.say(TopicAsked(self.session, 0, self.topic_name))
        self.say(EpochAsked(self.session, self._request, self.producer_name, self.instance, self.wanted))

    def _back_off(self, code: str) -> None:
        now = self.world.schedule.now
        if now >= self._retry_at:
            self._retry_at = now + self._retry
            self._retry = min(2 * self._retry, limits.RETRY_US_MAX)
            self.world.schedule.at(self._retry_at, self._try_again, self._link)
        if code == "not_primary" and len(self.world.gateways) > 1:
            self.leave()

    def _try_again(self, link: int) -> None:
        if link == self._link and self.process is not None:
            self.connected()

    # Answers

    def on(self, answer: Answer) -> None:
        match answer:
            case Duplicate(producer, epoch, first, count):
                found = self.world.log.find(producer, first)
                last = self.world.log.find(producer, first + count - 1)
                together = found is not None and last is not None and last[0] - found[0] == count - 1
                self.on(Committed(producer, epoch, first, count, found[0] if found is not None and together else -1))
            case Committed(producer, epoch, first, count, offset):
                if (producer, epoch) == (self.producer, self.epoch):
                    self._committed(first, count, offset)
            case TopicOpened(_, topic):
                self.topic = topic
                if self.state is State.OPEN:
                    self._send(0)
            case EpochOpened():
                self._opened(answer)
            case EpochFenced(_, epoch):
                self._epoch_fenced(epoch)
            case FencedAnswer(producer, epoch, _):
                if producer == self.producer and epoch > self.wanted:
                    self._fenced()
            case Denied(_, code, reason, retry):
                if not retry and code not in ("epoch", "limit"):
                    raise Violation(f"{self.name} had its request denied: {code}, {reason}")
                if retry:
                    self._back_off(code)
                else:
                    self.end()
            case AbortedAnswer() | RefusedAnswer() | Expected():
                if (answer.producer, answer.epoch) == (self.producer, self.epoch):
                    self._on_batch(answer)

    def _on_batch(self, answer: AbortedAnswer | RefusedAnswer | Expected) -> None:
        if isinstance(answer, Expected):
            if self.running:
                self._expected(answer.sequence)
        elif isinstance(answer, AbortedAnswer):
            self._fail_from(answer.first_sequence, "aborted")
            if self.running:
                self._epoch_over("aborted")
        elif answer.retry:
            self._back_off(answer.code)
        elif answer.code in NOT_KNOWN_YET:
            self.topic = 0
            self.state = State.OPENING
            self._back_off("unknown")
        else:
            raise Violation(f"{self.name} had a batch rejected: {answer.code}, {answer.reason}")

    def _committed(self, first: int, count: int, offset: int) -> None:
        self.heard_well()
        self._retry = limits.RETRY_US_MIN
        self._since = self.world.schedule.now
        for place in range(count):
            token = self.unanswered.pop(first + place, None)
            if token is not None:
                self._told(token, first + place, offset + place if offset >= 0 else self._place(token))

    def _place(self, token: str) -> int:
        return self.world.log.tokens.get(token, -1)

    def _told(self, token: str, sequence: int, offset: int) -> None:
        self.world.log.told_committed(token, offset)
        self._acknowledged(sequence)

    def _acknowledged(self, sequence: int) -> None:
        self.bounds.discard(sequence)
        self.acknowledged = sequence
        key = self.producer, self.epoch
        self.world.resumes[key] = max(self.world.resumes.get(key, 0), sequence)

    def _expected(self, sequence: int) -> None:
        oldest = next(iter(self.unanswered), None)
        if oldest is None or self.world.schedule.now < self._retry_at:
            return
        if sequence < oldest and len(self.world.gateways) > 1:
            self._back_off("not_primary")  # a gateway that is cut off from its group is behind what another one acknowledged
            return
        if not oldest <= sequence <= self.next_sequence:
            raise Violation(
                f"{self.name} has outcomes below {oldest}, sent up to {self.next_sequence - 1}, but the gateway expects {sequence}"
            )
        self.bounds.add(sequence)
        self._back_off("gap")

    # Epochs

    def _opened(self, opened: EpochOpened) -> None:
        if opened.epoch != self.wanted or self.state is not State.OPENING:
            return
        if opened.progress != (str(opened.sequence).encode() if opened.sequence else b""):
            raise Violation(f"{self.name} continues after {opened.sequence}, but its progress is {opened.progress!r}")
        self.state = State.OPEN
        if self.running and opened.producer == self.producer:
            self._send(0)
            return
        before = max((self.world.resumes.get((opened.producer, epoch), 0) for epoch in range(1, opened.epoch)), default=0)
        if opened.sequence < before:
            raise Violation(f"{self.name} continues after {opened.sequence}, but {before} was acknowledged under an earlier epoch")
        if self.unanswered and not self._after:
            raise Violation(f"{self.name} gets producer number {opened.producer}, but had {self.producer}")
        for sequence in [sequence for sequence in self.unanswered if sequence <= opened.sequence]:
            token = self.unanswered.pop(sequence)
            self._told(token, sequence, self._place(token))
        self._fail_from(0, self._after)
        self.producer, self.epoch = opened.producer, self.wanted
        self.next_sequence = opened.sequence + 1
        self.bounds.clear()
        self._after, self._starting = "", False

    def _epoch_fenced(self, epoch: int) -> None:
        if epoch < self.wanted or self.state is not State.OPENING:
            return
        if not self._starting:
            self._fenced()
        else:
            self.wanted = max(self.wanted, epoch) + 1
            self._ask()

    def _fenced(self) -> None:
        """This instance is over; what it had under way is not known to it."""
        self._fail_from(0, "unknown")
        self.end()

    def _epoch_over(self, after: str) -> None:
        self._after = after
        self.wanted = self.epoch + 1
        if self.process is not None:
            self._ask()

    def _fail_from(self, first: int, how: str) -> None:
        for sequence in [sequence for sequence in self.unanswered if sequence >= first]:
            token = self.unanswered.pop(sequence)
            if how == "aborted":
                self.world.log.told_aborted(token)


class Reader(Connection):
    """A named reader: it reads what a gateway shows, carries the highest offset that it saw, and commits how far it has read.

    Attributes:
        floor: it has seen everything below; no gateway shows it less.
        position: how far it has read: `floor`, or less after it went back.
        committed: what it was told is committed; asked: what it asked for and has no answer to, or None.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.floor = self.position = self.committed = 0
        self.asked: int | None = None
        self._back = False  # the commit that has no answer asks to go back
        self._goal: int | None = None  # it wants to go back there, and asks until that is committed or it changes its mind
        self._below: int | None = None  # it wants to commit that once, and does not ask to go back
        self._mind = world.chance(f"mind of reader {name}")
        self._went_back = False
        self._unsure = False  # it changed its mind: what is committed is not known
        self._request = 0
        self._open: list[int] = []  # what it asked for and had no answer to: each may be committed yet
        world.schedule.after(self.chance.random() * SECOND, self._read)

    def waits(self) -> bool:
        return self.asked is not None

    def go_back(self, chance: Random) -> None:
        """Read something again. Some do not ask to go back, as an instance that another one has overtaken does not."""
        if not self.committed or self._goal is not None:
            return
        below = chance.choice((0, max(0, self.committed - 1), chance.randrange(self.committed)))
        if chance.random() < 0.2:
            self._below = below
        else:
            self._goal = below

    def connected(self) -> None:
        self.state = State.OPEN
        self.asked = None

    def _read(self) -> None:
        self.world.schedule.after(self.chance.uniform(0.3, 3) * SECOND, self._read)
        process = self.process
        if process is None or self.asked is not None or self.world.healing:
            return
        if process.offset < self.floor:
            self.leave()  # behind
            return
        self.floor = process.offset
        self.position = self._mind.randint(self.position, self.floor) if self._went_back else self.floor
        if self._goal in self._open and self._mind.random() < 0.3:
            self._goal, self._unsure = None, True
        if self._goal is not None:
            self._went_back = True
            self._ask(self._goal, back=True)
        elif self._below is not None:
            self._ask(self._below)
        elif self.position > self.committed or self._unsure:
            self._ask(self.position)

    def _ask(self, offset: int, *, back: bool = False) -> None:
        self.asked, self._back = offset, back
        self._open.append(offset)
        self._request += 1
        self.say(OffsetsAsked(self.session, self._request, self.name, offset, back))

    def on(self, answer: Answer) -> None:
        if self.asked is None or not isinstance(answer, Done | Denied) or answer.request != self._request:
            return
        asked, self.asked = self.asked, None
        if isinstance(answer, Done):
            self.heard_well()
            self._open.remove(asked)
            found = self.world.log.state.readers.get(self.name)
            if found != asked and found not in self._open:
                raise Violation(f"reader {self.name} got Done for offset {asked}, but the log has {found}")
            self._went_on(asked)
        elif not answer.retry:
            self._open.remove(asked)
            if not self._back and asked != self._below and max(self._open, default=0) <= asked:
                raise Violation(f"reader {self.name} was denied its commit of {asked}: {answer.code}, {answer.reason}")
            self._goal = self._below = None
            self._unsure = True
        elif answer.code in ("not_primary", "behind"):
            self.leave()

    def _went_on(self, offset: int) -> None:
        self.committed, self._unsure = offset, False
        if self._back:
            self.position, self._goal = offset, None
        elif not self._went_back:
            self._open.clear()  # they are below: none can be committed any more

    def check(self) -> None:
        """The log has what it was told, or what it asked for and never heard of."""
        found = self.world.log.state.readers.get(self.name, 0)
        if found != self.committed and found not in self._open:
            raise Violation(f"reader {self.name} has committed {self.committed}, but the log has {found}")
