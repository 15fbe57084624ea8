"""Undecided batches of the own lane: their names, their sessions, and their refusals."""

from __future__ import annotations

from tutti.data.client_protocol import RefusedAnswer
from tutti.data.frames.frame import Frame

Name = tuple[int, int, int, int]  # producer, epoch, first sequence, count


def name_of(frame: Frame) -> Name:
    """Return the name of a batch until it is decided."""
    return frame.producer, frame.epoch, frame.first_sequence, frame.count


class Entry:
    """An undecided batch and the session that sent it last, 0 without one."""

    __slots__ = ("frame", "session")

    def __init__(self, frame: Frame, session: int) -> None:
        self.frame = frame
        self.session = session


def refused(frame: Frame, code: str, reason: str, retry: bool) -> RefusedAnswer:
    """Return the refusal of a batch."""
    return RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, code, reason, retry)
