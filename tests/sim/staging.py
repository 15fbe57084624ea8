"""What the one log says of transactions: which batches are staged and open, and which records a TXN made visible, with a model of
its own beside `LogState`.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.sim.violation import Violation
from tutti.data.frames.bodies import ForgetBody, TrimBody, TxnBody, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.log_state import LogState


class Batch(NamedTuple):
    """A staged batch: where it stands, whose it is, and its records in order."""

    position: int
    producer: int
    epoch: int
    topic: int
    first_time: int
    last_time: int
    tokens: tuple[str, ...]


class Staging:
    """Staged batches and transactions of the group's log.

    Attributes:
        ever: every staged batch that is not void, by position. open: those that a TXN may make visible.
        at: for a staged record's token, its batch's position and its place there, as one number.
        spent: positions that a TXN made visible. offers: positions that a stager was told, in the order in which it was.
    """

    def __init__(self) -> None:
        self.ever: dict[int, Batch] = {}
        self.open: dict[int, Batch] = {}
        self.at: dict[str, int] = {}
        self.spent: set[int] = set()
        self.offers: list[int] = []
        self._txns: set[tuple[int, int, int]] = set()  # (producer, epoch, first sequence)
        self._failed: set[tuple[int, int, int]] = set()

    def add(self, frame: Frame, tokens: tuple[str, ...]) -> None:
        """A staged batch is decided, and not void."""
        again = [token for token in tokens if token in self.at]
        if again:
            raise Violation(f"{again[0]} is staged at {self.at[again[0]]} and again by {frame!r}")
        batch = Batch(frame.position, frame.producer, frame.epoch, frame.topic, frame.min_timestamp, frame.max_timestamp, tokens)
        self.ever[frame.position] = self.open[frame.position] = batch
        self.at |= {token: frame.position + place for place, token in enumerate(tokens)}

    def visible(self, who: str, frame: Frame) -> list[str]:
        """A TXN is decided: the records that it makes visible, all of each batch, in the order that it names."""
        key = frame.producer, frame.epoch, frame.first_sequence
        body = decode_body(TxnBody, frame.body)
        closed = [position for position in body.staged if position not in self.open]
        if closed or len(set(body.staged)) < len(body.staged):
            raise Violation(f"{who} decides {frame!r} of {body.staged}: nothing is staged at {closed}, or one is named twice")
        if key in self._failed:
            raise Violation(f"{who} decides {frame!r}, but its producer received a failure for it")
        batches = [self.open.pop(position) for position in body.staged]
        self.spent.update(body.staged)
        tokens = [token for batch in batches for token in batch.tokens]
        if [len(batch.tokens) for batch in batches] != list(body.counts) or len(tokens) != frame.count:
            raise Violation(f"{who} decides {frame!r} of {body.counts} records, but {len(tokens)} are staged there")
        self._txns.add(key)
        return tokens

    def let_go(self, frame: Frame) -> None:
        """An EPOCH or a FORGET: what its producers staged before stays invisible for ever. A TRIM: what stands below it."""
        if frame.kind == Kind.TRIM:
            start = decode_body(TrimBody, frame.body).position
            self.open = {position: batch for position, batch in self.open.items() if position >= start}
            return
        gone = decode_body(ForgetBody, frame.body).producers if frame.kind == Kind.FORGET else (frame.producer,)
        self.open = {position: batch for position, batch in self.open.items() if batch.producer not in gone}

    def same(self, who: str, state: LogState) -> None:
        """A state has the same batches open."""
        if state.staged.keys() != self.open.keys():
            raise Violation(f"{who} has staged {list(state.staged)} at {state.position}, but {list(self.open)} are open there")

    def told_staged(self, token: str, at: int) -> None:
        """A stager was told where a record is staged."""
        if self.at.get(token) != at:
            raise Violation(f"{token} was reported staged at {at}, but the log has it at {self.at.get(token)}")

    def told_failed(self, producer: int, epoch: int, first_sequence: int) -> None:
        """A committer knows that its transaction is in no log."""
        if (producer, epoch, first_sequence) in self._txns:
            raise Violation(f"a transaction of producer {producer} at sequence {first_sequence} failed, but the log has it")
        self._failed.add((producer, epoch, first_sequence))

    def told_committed(self, producer: int, epoch: int, first_sequence: int) -> None:
        """A committer was told that its transaction is in the log."""
        if (producer, epoch, first_sequence) not in self._txns:
            raise Violation(
                f"a transaction of producer {producer} at sequence {first_sequence} was acknowledged, but no log has it"
            )
