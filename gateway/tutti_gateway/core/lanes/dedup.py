"""Who sent what in the own lane: no batch twice, none before its turn, however long ago the first copy came."""

from __future__ import annotations

import enum

from tutti.data.frames.frame import Frame
from tutti.data.log_state import LogState
from tutti_gateway.core.protocol.events import Lines


class Entrance(enum.Enum):
    """What the origin does with a batch."""

    TAKE = "take it"
    WAITS = "it is undecided"
    DUPLICATE = "Duplicate"
    EXPECTED = "Expected"
    FENCED = "Fenced"


class LineTable:
    """Producer -> (epoch, highest sequence), of what is decided and at the lane's end. A producer's epoch begins with sequence 1.

    It has no window. Producers that the log forgot leave it: their numbers never come again.
    """

    def __init__(self, state: LogState, lines: Lines) -> None:
        self._state = state
        self._decided = dict(lines)
        self._end: Lines = {}  # of producers with something undecided

    def judge(self, frame: Frame) -> tuple[Entrance, int]:
        """What becomes of a batch, and the sequence (EXPECTED: the last that is there) or epoch (FENCED) that says why."""
        epoch, decided = self._decided.get(frame.producer, (0, 0))
        last_epoch, end = self._end.get(frame.producer, (epoch, decided))
        if frame.epoch < last_epoch:
            return Entrance.FENCED, last_epoch
        if frame.epoch > last_epoch:
            end = 0
        if frame.epoch > epoch:
            decided = 0
        if frame.last_sequence <= decided:
            return Entrance.DUPLICATE, decided
        if frame.first_sequence == end + 1:
            return Entrance.TAKE, end
        if frame.first_sequence <= end and end > decided:
            return Entrance.WAITS, end
        return Entrance.EXPECTED, end

    def take(self, frame: Frame) -> None:
        """A batch is posted."""
        self._end[frame.producer] = frame.epoch, frame.last_sequence

    def decide(self, frame: Frame) -> None:
        """A batch is decided."""
        line = frame.epoch, frame.last_sequence
        self._decided[frame.producer] = line
        if self._end.get(frame.producer) == line:
            del self._end[frame.producer]

    def rollback(self) -> None:
        """What is undecided was given up."""
        self._end.clear()

    def tidy(self) -> None:
        """Forget whom the log forgot, so that there are never more lines than the log has producers. Numbers that are not given yet
        were given: a start on a damaged log begins with less of it than there was.
        """
        state = self._state
        if len(self._decided) > len(state.producers):
            self._decided = {
                number: line for number, line in self._decided.items() if number in state.producers or number >= state.next_producer
            }
