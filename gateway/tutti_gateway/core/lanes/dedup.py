"""Deduplication in this gateway's own lane. No batch is accepted twice or out of sequence, even if the first copy is very old
(protocol/lanes, U22).
"""

from __future__ import annotations

import enum

from tutti.data.frames.frame import Frame
from tutti.data.log_state import LogState
from tutti_gateway.core.protocol.events import Lines


class LaneAdmission(enum.Enum):
    """Action of the origin for a batch."""

    ACCEPT = "take it"
    UNDECIDED = "it is undecided"
    DUPLICATE = "Duplicate"
    EXPECTED = "Expected"
    FENCED = "Fenced"


class DedupTable:
    """Two tables, for the decided part and for the end of the lane: producer -> (epoch, highest sequence). An epoch begins with
    sequence 1.

    Entries do not expire. Only producers that left the log are removed, because their numbers are never used again.
    """

    def __init__(self, state: LogState, lines: Lines) -> None:
        self._state = state
        self._decided = dict(lines)
        self._end: Lines = {}  # only producers with undecided batches

    def judge(self, frame: Frame) -> tuple[LaneAdmission, int]:
        """Return the action for a batch and a detail.

        The detail is an epoch for FENCED, and a sequence otherwise. For EXPECTED it is the last sequence that is here.
        """
        epoch, decided = self._decided.get(frame.producer, (0, 0))
        last_epoch, end = self._end.get(frame.producer, (epoch, decided))
        if frame.epoch < last_epoch:
            return LaneAdmission.FENCED, last_epoch
        # Sequences begin with 1 in each epoch (lanes, U22).
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
        """Note that a batch was posted."""
        self._end[frame.producer] = frame.epoch, frame.last_sequence

    def decide(self, frame: Frame) -> None:
        """Note that a batch was decided."""
        line = frame.epoch, frame.last_sequence
        self._decided[frame.producer] = line
        # The producer has no more undecided batches.
        if self._end.get(frame.producer) == line:
            del self._end[frame.producer]

    def rollback(self) -> None:
        """Drop the undecided entries."""
        self._end.clear()

    def prune(self) -> None:
        """Remove producers that left the log, so that there are never more lines than producers in the log.

        Keep producers whose numbers are not below the next number of the log. After a start with a corrupt log, this gateway may
        hold a shorter log than before.
        """
        state = self._state
        if len(self._decided) > len(state.producers):
            self._decided = {
                number: line for number, line in self._decided.items() if number in state.producers or number >= state.next_producer
            }
