"""Producers of transactions: stagers stage batches, committers make them visible, both through every fault of a producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.clients import Producer
from tests.sim.connection import State
from tests.sim.staging import Batch
from tests.sim.violation import Violation
from tutti.data.client_protocol import AbortedAnswer, EpochOpened, Expected, RefusedAnswer
from tutti.data.frames.bodies import TxnBody, encode_body
from tutti.data.frames.frame import STAGED, Frame, Kind

if TYPE_CHECKING:
    from tests.sim.world import World

LATELY = 30  # offers that a committer chooses among: old ones too, of epochs that are over, and such as were taken
REFUSALS = frozenset({"staged", "limit"})


class Transacting(Producer):
    """A producer whose batch may be refused for good: it goes on under another epoch, which says whether the log has it."""

    def _on_batch(self, answer: AbortedAnswer | RefusedAnswer | Expected) -> None:
        if isinstance(answer, RefusedAnswer) and answer.code in REFUSALS and not answer.retry:
            self.world.counts[f"refused {answer.code}"] += 1
            if self.running:
                self._epoch_over("unknown")
        else:
            super()._on_batch(answer)


class Stager(Transacting):
    """It stages all that it sends, and offers what it was told is staged."""

    def _frame(self, batch: list[int]) -> Frame:
        frame = super()._frame(batch)
        return Frame(
            Kind.BATCH,
            frame.body,
            flags=STAGED,
            progress=frame.progress,
            producer=frame.producer,
            epoch=frame.epoch,
            first_sequence=frame.first_sequence,
            count=frame.count,
            topic=frame.topic,
            min_timestamp=batch[0],
            max_timestamp=batch[-1],
        )

    def _place(self, token: str) -> int:
        return self.world.log.staging.at.get(token, -1)

    def _told(self, token: str, sequence: int, offset: int) -> None:
        staging = self.world.log.staging
        staging.told_staged(token, offset)
        found = self.world.log.find(self.producer, sequence)
        if found is not None and found[1] not in staging.offers[-LATELY:]:
            staging.offers.append(found[1])
        self._acknowledged(sequence)


class Committer(Transacting):
    """It makes some of what is offered visible, often what others take too, and sends batches of its own between.

    Its transactions are by the sequence of their first record in `_txns`; their records are the staged ones.
    """

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self._txns: dict[int, list[Batch]] = {}

    def produce(self, batches: int) -> bool:
        if self.chance.random() < 0.4 and not self.world.healing:
            return super().produce(batches)
        world, offers = self.world, self.world.log.staging.offers[-LATELY:]
        under_way = {batch.position for parts in self._txns.values() for batch in parts}
        offers = [position for position in offers if position not in under_way]
        if not offers or self.state is not State.OPEN or not self.topic or world.schedule.now < self._retry_at:
            return False
        if len(self._txns) >= world.options.pipeline:
            return False
        chosen = self.chance.sample(offers, min(len(offers), self.chance.choice((1, 1, 2, 5))))
        parts = [world.log.staging.ever[position] for position in chosen]
        if not self.unanswered:
            self._since = world.schedule.now
        first = self.next_sequence
        self.bounds.add(first)
        self._txns[first] = parts
        for token in [token for batch in parts for token in batch.tokens]:
            self.unanswered[self.next_sequence] = token
            self.next_sequence += 1
        self.bounds.add(self.next_sequence)
        self._send(first)
        return True

    def _frame(self, batch: list[int]) -> Frame:
        parts = self._txns.get(batch[0])
        if parts is None:
            return super()._frame(batch)
        counts = tuple([len(part.tokens) for part in parts])
        if len(batch) != sum(counts):
            raise Violation(f"{self.name} is to send {len(batch)} records of a transaction of {sum(counts)}")
        return Frame(
            Kind.TXN,
            encode_body(TxnBody(tuple([part.position for part in parts]), counts)),
            progress=str(batch[-1]).encode(),
            producer=self.producer,
            epoch=self.epoch,
            first_sequence=batch[0],
            count=len(batch),
            topic=parts[0].topic,
            min_timestamp=min([part.first_time for part in parts]),
            max_timestamp=max([part.last_time for part in parts]),
        )

    def _told(self, token: str, sequence: int, offset: int) -> None:
        if self._txns.pop(sequence, None) is not None:
            self.world.log.staging.told_committed(self.producer, self.epoch, sequence)
        super()._told(token, sequence, offset)

    def _opened(self, opened: EpochOpened) -> None:
        producer, epoch = self.producer, self.epoch
        super()._opened(opened)
        if self.epoch > epoch:
            for first in self._txns:
                if first > opened.sequence and producer == opened.producer:
                    self.world.log.staging.told_failed(producer, epoch, first)
            self._txns = {}

    def _fail_from(self, first: int, how: str) -> None:
        # The records of a transaction are those of who staged them: what failed is the transaction.
        for start, parts in self._txns.items():
            if start >= first:
                if how == "aborted":
                    self.world.log.staging.told_failed(self.producer, self.epoch, start)
                for sequence in range(start, start + sum([len(part.tokens) for part in parts])):
                    self.unanswered.pop(sequence, None)
        self._txns = {start: parts for start, parts in self._txns.items() if start < first or how != "aborted"}
        super()._fail_from(first, how)
