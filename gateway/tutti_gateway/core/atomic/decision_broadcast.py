"""Whom the coordinator tells of a decision, and when: at once where a producer may wait for it, with the next ORDER elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from tutti.data.frames.frame import SEQUENCED, Frame, Kind
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.messages import Confirm

_BATCHES = SEQUENCED | {int(Kind.TICK)}  # of these alone no request of another member waits for the decision


class Telling:
    """CONFIRMs of one coordinator.

    A message that wakes a member for itself alone costs it, and the coordinator, as much as one that brings work. So a member
    through which nothing of a run came hears of its decision with the next frames that it is sent, or a little later
    (`CONFIRM_LATE_US`) when none are. Readers at that member see the run so much later.

    Attributes:
        due_us: when those who were not told are to be told at last, None while all were.
    """

    def __init__(self, context: Context) -> None:
        self._outbox = context.outbox
        self._standing = context.standing
        self._window = context.window
        self._untold: list[int] = []
        self.due_us: int | None = None

    def forget(self) -> None:
        """The view ended."""
        self._untold, self.due_us = [], None

    def decide(self, up_to: int, run: Iterable[Frame]) -> None:
        """The run up to the position is decided: tell this member, and whom it matters to now."""
        standing, message = self._standing, Confirm(self._standing.view, up_to)
        now = self._concerned(run)
        for member in standing.members:
            if now is None or member == standing.me or member in now:
                self._outbox.send(member, message)
        self._untold = [] if now is None else [member for member in standing.others if member not in now]
        if not self._untold:
            self.due_us = None
        elif self.due_us is None:
            self.due_us = self._outbox.now.mono_us + limits.CONFIRM_LATE_US

    def _concerned(self, run: Iterable[Frame]) -> set[int] | None:
        """The members that producers wait at for something of the run; None where it matters to all."""
        origins: set[int] = set()
        for frame in run:
            if frame.kind not in _BATCHES:
                return None
            origins.add(frame.origin)
        return origins

    def tell(self) -> None:
        """Tell those who were not: something else goes to them just now, or it is time."""
        standing = self._standing
        if self._untold and standing.current(standing.view):
            message = Confirm(standing.view, self._window.frontier)
            for member in self._untold:
                self._outbox.send(member, message)
        self.forget()

    def time(self) -> None:
        """Tell them if it is time."""
        if self.due_us is not None and self._outbox.now.mono_us >= self.due_us:
            self.tell()
