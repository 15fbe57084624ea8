"""Producers that follow the contract: they react to every answer, resend unanswered batches, and remember their outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.transcripts.group import Group, Member, incarnation
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
from tutti.data.frames.bodies import TxnBody, encode_body
from tutti.data.frames.frame import STAGED, Frame, Kind
from tutti_gateway.core.protocol.events import EpochAsked, SessionClosed, TopicAsked, submitted

TOPIC = 1


@dataclass
class Client:
    """One producer. A record is a token that is never used twice; a sequence may be, after an abort."""

    name: str
    number: int  # also its session and its only request number
    group: Group
    gateway: str
    instance: int = 0
    epoch: int = 0
    asked_epoch: int = 1
    producer: int = 0
    open: bool = False
    next_sequence: int = 1
    tokens: int = 0
    unanswered: dict[int, str] = field(default_factory=dict)  # sequence -> token, in order
    cuts: list[int] = field(default_factory=list)  # first sequences of batches
    staged: set[int] = field(default_factory=set)  # sequences that are sent to be staged
    offers: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)  # position and tokens of what is staged, as it was told
    txns: dict[int, TxnBody] = field(default_factory=dict)  # by first sequence
    txn_of: dict[int, int] = field(default_factory=dict)  # sequence -> first sequence of its transaction
    committed: dict[str, int] = field(default_factory=dict)  # token -> offset, -1 for a duplicate
    aborted: set[str] = field(default_factory=set)
    again_from: int = 0  # send again from this sequence, 0 for not at all
    session: int = 0

    @property
    def member(self) -> Member:
        return self.group.members[self.gateway]

    def connect(self, gateway: str) -> None:
        """Another connection: open the epoch again, everything unanswered goes again."""
        if self.session:
            self.group.step(self.member, SessionClosed(self.session))
        self.gateway = gateway
        self.session = self.number + 100 * (self.session // 100 + 1)
        self.open = False
        self.ask()

    def ask(self) -> None:
        """Ask for the topic, and for the epoch wanted."""
        instance = incarnation(f"{self.name}{self.instance}")
        self.group.step(self.member, TopicAsked(self.session, 2, "topic"))
        self.group.step(self.member, EpochAsked(self.session, 1, self.name, instance, self.asked_epoch))

    def produce(self, sizes: list[int], staged: bool = False) -> None:
        """New records, in batches of these sizes."""
        if not self.open or self.again_from:
            return
        first = self.next_sequence
        for size in sizes:
            self.cuts.append(self.next_sequence)
            for _ in range(size):
                self.tokens += 1
                self.unanswered[self.next_sequence] = f"{self.name}-{self.tokens}"
                if staged:
                    self.staged.add(self.next_sequence)
                self.next_sequence += 1
        self.send(first)

    def transact(self, parts: list[tuple[int, tuple[str, ...]]]) -> None:
        """Make the batches staged at these positions visible."""
        if not self.open or self.again_from:
            return
        first = self.next_sequence
        self.txns[first] = TxnBody(tuple([position for position, _ in parts]), tuple([len(tokens) for _, tokens in parts]))
        for token in [token for _, tokens in parts for token in tokens]:
            self.unanswered[self.next_sequence] = token
            self.txn_of[self.next_sequence] = first
            self.next_sequence += 1
        self.send(first)

    def _follows(self, before: int, sequence: int) -> bool:
        """Whether a sequence is in the same batch as the one before it."""
        one, other = self.txn_of.get(before, 0), self.txn_of.get(sequence, 0)
        if one or other or before + 1 != sequence:
            return one == other and before + 1 == sequence
        return sequence not in self.cuts and (before in self.staged) == (sequence in self.staged)

    def send(self, start: int, leave_out: int = -1) -> None:
        """Send everything unanswered from the sequence on, split as before; `leave_out` is a batch that is skipped (a gap)."""
        batches: list[list[int]] = []
        for sequence in self.unanswered:
            if sequence >= start:
                if not batches or not self._follows(batches[-1][-1], sequence):
                    batches.append([])
                batches[-1].append(sequence)
        frames = tuple(self._frame(batch) for place, batch in enumerate(batches) if place != leave_out)
        if frames:
            self.group.step(self.member, submitted(self.session, frames))

    def _frame(self, batch: list[int]) -> Frame:
        body = ",".join(self.unanswered[sequence] for sequence in batch).encode()
        progress = str(batch[-1]).encode()
        txn = self.txns.get(batch[0])
        return Frame(
            Kind.TXN if txn else Kind.BATCH,
            encode_body(txn) if txn else body,
            flags=STAGED if batch[0] in self.staged else 0,
            progress=progress,
            producer=self.producer,
            epoch=self.epoch,
            first_sequence=batch[0],
            count=len(batch),
            topic=TOPIC,
        )

    def retry(self) -> None:
        """Resend what is due."""
        if not self.open:
            self.ask()
        elif self.again_from or self.unanswered:
            start, self.again_from = self.again_from, 0
            self.send(start)

    def on(self, answer: Answer) -> None:
        """Follow an answer."""
        match answer:
            case TopicOpened(_, topic):
                assert topic == TOPIC
            case EpochOpened(_, producer, epoch, sequence, progress):
                self._opened(producer, epoch, sequence, progress)
            case EpochFenced(_, epoch):
                self.instance += 1
                self.asked_epoch = epoch + 1
                self.open = False
            case Committed(_, _, first, count, offset):
                self._outcome(first, count, offset)
            case Duplicate(_, _, first, count):
                self._outcome(first, count, -1)
            case Expected(_, epoch, sequence):
                if epoch == self.epoch:
                    self.cuts.append(sequence)
                    self.again_from = sequence
            case AbortedAnswer(_, epoch, first, count, _):
                self._aborted(epoch, first, count)
            case FencedAnswer(producer, epoch, _):
                if producer == self.producer and epoch > self.epoch:
                    self.instance += 1
                    self.asked_epoch = epoch + 1
                    self.open = False
            case RefusedAnswer(_, epoch, first, code, reason, retry):
                assert retry or code in ("producer", "epoch", "topic", "staged"), reason
                if code == "staged" and epoch == self.epoch:
                    self.asked_epoch, self.open = epoch + 1, False
                elif epoch == self.epoch:
                    self.again_from = min(self.again_from or first, first)
            case Denied(_, code, reason, retry):
                assert retry, reason

    def _opened(self, producer: int, epoch: int, sequence: int, progress: bytes) -> None:
        assert progress == (str(sequence).encode() if sequence else b""), "progress is that of the last sequence"
        if epoch != self.asked_epoch:
            return
        if epoch > self.epoch:
            # What the log did not take under the older epoch is not taken any more; what it did is there.
            self.unanswered, self.txns, self.txn_of = {}, {}, {}
            self.staged = set()
            self.next_sequence = sequence + 1
        self.epoch, self.producer, self.open, self.again_from = epoch, producer, True, 0

    def _outcome(self, first: int, count: int, offset: int) -> None:
        if first in self.staged:
            tokens = tuple([self.unanswered[at] for at in range(first, first + count) if at in self.unanswered])
            for at in range(first, first + count):
                self.unanswered.pop(at, None)
            if offset >= 0 and len(tokens) == count:
                self.offers.append((offset, tokens))
            return
        for place in range(count):
            token = self.unanswered.pop(first + place, None)
            if token is not None:
                self.committed[token] = -1 if offset < 0 else offset + place

    def _aborted(self, epoch: int, first: int, count: int) -> None:
        assert epoch >= self.epoch, "a batch of an older epoch is Fenced, not Aborted"
        for sequence in range(first, first + count):
            token = self.unanswered.pop(sequence, None)
            if token is not None and sequence not in self.txn_of:  # those of a transaction are of who staged them
                self.aborted.add(token)
        self.asked_epoch = epoch + 1
        self.open = False
