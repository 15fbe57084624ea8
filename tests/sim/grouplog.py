"""The one log of the group, as its members showed it: what was decided first, by whom, and what the log says at each place.

The checkers compare everybody with it; it knows nothing of the protocol but the meaning of frames.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tests.sim.staging import Staging
from tests.sim.violation import Violation
from tutti.data.frames.bodies import RosterBody, decode_body
from tutti.data.frames.frame import SEQUENCED, Frame, Kind, chained
from tutti.data.log_state import LogState

STATE_EVERY = 200  # positions between two kept states


class Place(NamedTuple):
    """One decided position."""

    frame: Frame
    offset: int
    void: bool
    view: int  # in which it was decided


class GroupLog:
    """The log.

    Attributes:
        places: decided positions, position 1 first. state: what they say.
        tokens: offset of every committed record's token. aborted: tokens whose producer was told that they are in no log.
        floors: for a token that was sent, the highest offset that anybody had been told before: it comes behind that.
        numbers: gateways' numbers by name, as the last ROSTER says. ever, names: by name and by number, as any ROSTER said.
        removals: how often a ROSTER that is not forced left out a gateway that the one before it named.
        acknowledged: the highest offset that anybody was told. staging: what it says of transactions.
    """

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.state = LogState()
        self._states = [LogState()]
        self.tokens: dict[str, int] = {}
        self.aborted: set[str] = set()
        self.floors: dict[str, int] = {}
        self.acknowledged = -1
        self.staging = Staging()
        self._records = 0  # visible ones
        self.numbers: dict[str, int] = {}
        self.removals: Counter[str] = Counter()
        self.ever: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.kinds: Counter[str] = Counter()
        self._orders: dict[str, int] = {}
        self._sequences: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._batches: dict[tuple[int, int], tuple[int, int]] = {}  # (producer, sequence) -> (offset, position), of every record

    @property
    def end(self) -> int:
        """The last decided position."""
        return len(self.places)

    def state_at(self, position: int) -> LogState:
        """What the log up to the position says; a copy of its own."""
        if position > self.end:
            raise Violation(f"a watermark is at {position}, but the last decided position is {self.end}")
        state = self._states[position // STATE_EVERY].copy()
        for place in self.places[state.position : position]:
            state.apply(place.frame, place.void)
        return state

    def add(self, who: str, frame: Frame, offset: int, void: bool, view: int) -> None:
        """A position that was never shown before."""
        state = self.state
        if frame.position != self.end + 1 or not chained(frame, state.chain):
            raise Violation(f"{who} decides {frame!r} after position {self.end}, which it does not continue")
        if self.places and view < self.places[-1].view:
            raise Violation(f"{who} decides {frame!r} in view {view}, but view {self.places[-1].view} has decided before")
        if not offset == state.next_offset == self._records:
            raise Violation(
                f"{who} gives {frame!r} offset {offset} after {self._records} records; the next one is {state.next_offset}"
            )
        if frame.kind == Kind.EPOCH:
            self._epoch(who, frame)
        elif frame.kind in SEQUENCED:
            self._batch(who, frame, offset, void)
        elif frame.kind == Kind.ROSTER:
            body = decode_body(RosterBody, frame.body)
            before, self.numbers = self.numbers, {one.name: one.number for one in body.voters}
            if not body.forced:  # a forced roster removes gateways without a request for each
                self.removals.update(before.keys() - self.numbers.keys())
            self.ever |= self.numbers
            self.names |= {number: name for name, number in self.numbers.items()}
        self.kinds[Kind(frame.kind).name] += 1
        self.kinds["void"] += void
        if frame.kind in (Kind.EPOCH, Kind.FORGET, Kind.TRIM):
            self.staging.let_go(frame)
        state.apply(frame, void)
        if frame.staged or frame.kind in (Kind.EPOCH, Kind.FORGET, Kind.TRIM, Kind.TXN):
            self.staging.same(who, state)
        self.places.append(Place(frame, offset, void, view))
        if self.end % STATE_EVERY == 0:
            self._states.append(state.copy())

    def _epoch(self, who: str, frame: Frame) -> None:
        if frame.epoch <= self._epochs.get(frame.producer, 0):
            raise Violation(f"{who} decides {frame!r}, but the producer was at epoch {self._epochs[frame.producer]}")
        self._epochs[frame.producer] = frame.epoch

    def _batch(self, who: str, frame: Frame, offset: int, void: bool) -> None:
        """A producer's sequences are 1, 2, 3, ... over all its epochs, every record once, and behind whatever was told before."""
        if frame.epoch != self._epochs.get(frame.producer):
            raise Violation(f"{who} decides {frame!r}, but the producer is at epoch {self._epochs.get(frame.producer)}")
        if void:
            if frame.kind == Kind.TXN:
                raise Violation(f"{who} decides {frame!r} as void: an ABORT covers a transaction")
            return
        after = self._sequences.get(frame.producer, 0)
        if frame.first_sequence != after + 1:
            raise Violation(f"{who} decides {frame!r} after sequence {after}: a gap or a duplicate")
        self._sequences[frame.producer] = after + frame.count
        if frame.kind == Kind.TXN:
            self._visible(frame, self.staging.visible(who, frame), offset)
            return
        tokens = bytes(frame.body).decode().split(",")
        if frame.staged:
            if gone := self.aborted.intersection(tokens):
                raise Violation(f"{min(gone)} was reported aborted, but is staged by {frame!r}")
            self.staging.add(frame, tuple(tokens))
            for place in range(frame.count):
                self._batches[frame.producer, frame.first_sequence + place] = frame.position + place, frame.position
        else:
            self._visible(frame, tokens, offset)
        for token in tokens:
            client, number = token.rsplit("-", 1)
            if int(number) <= self._orders.get(client, 0):
                raise Violation(f"{token} is decided after {client}-{self._orders[client]}, which was sent later")
            self._orders[client] = int(number)

    def _visible(self, frame: Frame, tokens: list[str], offset: int) -> None:
        """Every record once, and behind whatever was told before it was sent."""
        self._records += len(tokens)
        for place, token in enumerate(tokens):
            at = offset + place
            if token in self.tokens:
                raise Violation(f"{token} is at offset {self.tokens[token]} and again at {at}")
            if token in self.aborted:
                raise Violation(f"{token} was reported aborted, but is decided at offset {at}")
            if at <= self.floors.get(token, -1):
                raise Violation(f"{token} was sent after offset {self.floors[token]} was acknowledged, but it gets offset {at}")
            self.tokens[token] = at
            self._batches[frame.producer, frame.first_sequence + place] = at, frame.position

    def find(self, producer: int, sequence: int) -> tuple[int, int] | None:
        """Offset and position of a committed record."""
        return self._batches.get((producer, sequence))

    def sent(self, token: str) -> None:
        """A producer sends a record for the first time."""
        self.floors[token] = self.acknowledged

    def told_committed(self, token: str, offset: int) -> None:
        """A producer was told where a record is."""
        if self.tokens.get(token) != offset:
            raise Violation(f"{token} was reported at offset {offset}, but the log has it at {self.tokens.get(token)}")
        self.acknowledged = max(self.acknowledged, offset)

    def told_aborted(self, token: str) -> None:
        """A producer was told that a record is in no log."""
        if token in self.tokens:
            raise Violation(f"{token} was reported aborted, but the log has it at offset {self.tokens[token]}")
        if token in self.staging.at:
            raise Violation(f"{token} was reported aborted, but it is staged at position {self.staging.at[token]}")
        self.aborted.add(token)
