"""Undecided batches of the own lane: what each is called, who waits for it, and how one is refused."""

from __future__ import annotations

from tutti.data.client_protocol import RefusedAnswer
from tutti.data.frames.frame import Frame

Name = tuple[int, int, int, int]  # producer, epoch, first sequence, count


def name_of(frame: Frame) -> Name:
    """What a batch is called until it is decided."""
    return frame.producer, frame.epoch, frame.first_sequence, frame.count


class Entry:
    """An undecided batch and the session that sent it last, 0 for none."""

    __slots__ = ("frame", "session")

    def __init__(self, frame: Frame, session: int) -> None:
        self.frame = frame
        self.session = session


def refused(frame: Frame, code: str, reason: str, retry: bool) -> RefusedAnswer:
    """A batch is not taken."""
    return RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, code, reason, retry)
