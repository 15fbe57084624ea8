"""Deduplication in this gateway's own lane.

The lane accepts no batch twice or out of sequence, even if the first copy is very old (protocol/lanes, U22).
"""

from __future__ import annotations

import enum

from tutti.data.frames.frame import Frame
from tutti.data.log_state import LogState
from tutti_gateway.core.protocol.events import Lines


class LaneAdmission(enum.Enum):
    """What the origin does with a batch of a client."""

    ACCEPT = "take it"
    UNDECIDED = "it is undecided"
    DUPLICATE = "Duplicate"
    EXPECTED = "Expected"
    FENCED = "Fenced"


class DedupTable:
    """Two tables with epoch and highest sequence of each producer: in the decided part of the lane, and at the end of the lane.

    Entries do not expire. An entry is removed only when the log has deleted the producer, whose number is never used again.
    """

    def __init__(self, state: LogState, lines: Lines) -> None:
        self._state = state
        self._decided = dict(lines)
        self._end: Lines = {}  # only producers with undecided batches

    def judge(self, frame: Frame) -> tuple[LaneAdmission, int]:
        """Return what the origin must do with a batch, and a number for the answer to the client.

        The number is the producer's epoch in the lane if the result is FENCED, and otherwise the producer's highest sequence.
        """
        epoch, decided = self._decided.get(frame.producer, (0, 0))
        last_epoch, end = self._end.get(frame.producer, (epoch, decided))
        if frame.epoch < last_epoch:
            return LaneAdmission.FENCED, last_epoch
        # Sequences begin with 1 in each epoch, so sequences of an earlier epoch do not count (lanes, U22).
        if frame.epoch > last_epoch:
            end = 0
        if frame.epoch > epoch:
            decided = 0
        if frame.last_sequence <= decided:
            return LaneAdmission.DUPLICATE, decided
        if frame.first_sequence == end + 1:
            return LaneAdmission.ACCEPT, end
        if frame.first_sequence <= end and end > decided:
            return LaneAdmission.UNDECIDED, end
        return LaneAdmission.EXPECTED, end

    def add(self, frame: Frame) -> None:
        """Record a posted batch in the table that describes the end of the lane."""
        self._end[frame.producer] = frame.epoch, frame.last_sequence

    def decide(self, frame: Frame) -> None:
        """Record a decided batch in the table that describes the decided part of the lane."""
        line = frame.epoch, frame.last_sequence
        self._decided[frame.producer] = line
        # A producer without undecided batches needs no entry for the end of the lane, because both entries would be equal.
        if self._end.get(frame.producer) == line:
            del self._end[frame.producer]

    def rollback(self) -> None:
        """Remove the effect of all undecided batches."""
        self._end.clear()

    def prune(self) -> None:
        """Remove producers that the log has deleted, so that the table has no more entries than the log has producers.

        The table keeps a producer whose number this log has not assigned yet, because a log that has lost a corrupt end may be
        shorter than the log that assigned the number.
        """
        state = self._state
        if len(self._decided) > len(state.producers):
            self._decided = {
                number: line for number, line in self._decided.items() if number in state.producers or number >= state.next_producer
            }
