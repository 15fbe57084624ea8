"""Distribution of decisions: CONFIRM goes at once to members whose clients may wait, and with the next ORDER to others (atomic,
A5).
"""

from __future__ import annotations

from collections.abc import Iterable

from tutti.data.frames.frame import SEQUENCED, Frame, Kind
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.messages import Confirm

_BATCHES = SEQUENCED | {int(Kind.TICK)}  # the decision of these kinds matters only to the origin's clients


class DecisionBroadcast:
    """Sends the CONFIRMs of one coordinator.

    A message with only a decision costs the coordinator and the member as much as a message with frames. So a member that is the
    origin of no frame in a run gets the decision with its next frames, or after `CONFIRM_LATE_US`. Readers at that member see the
    run later by the same delay.

    Attributes:
        deadline_us: time at which the remaining members get the decision, None if all have it.
    """

    def __init__(self, context: Context) -> None:
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._pending: list[int] = []
        self.deadline_us: int | None = None

    def reset(self) -> None:
        """Reset at the end of a view."""
        self._pending, self.deadline_us = [], None

    def announce(self, up_to: int, run: Iterable[Frame]) -> None:
        """Send the decision of the run up to the position to this member, and to the members that need it now."""
        view_state, message = self._view_state, Confirm(self._view_state.view, up_to)
        now = self._concerned(run)
        for member in view_state.members:
            if now is None or member == view_state.me or member in now:
                self._outbox.send(member, message)
        # These include members that have not received older decisions: a CONFIRM is cumulative.
        self._pending = [] if now is None else [member for member in view_state.others if member not in now]
        if not self._pending:
            self.deadline_us = None
        elif self.deadline_us is None:
            self.deadline_us = self._outbox.now.mono_us + limits.CONFIRM_LATE_US

    def _concerned(self, run: Iterable[Frame]) -> set[int] | None:
        """Return the members that are the origin of frames in the run; None if all members need the decision at once."""
        origins: set[int] = set()
        for frame in run:
            if frame.kind not in _BATCHES:
                # A ROSTER, EPOCH or other request concerns all members (atomic, A5).
                return None
            origins.add(frame.origin)
        return origins

    def send_pending(self) -> None:
        """Send the decision to the remaining members."""
        view_state = self._view_state
        # After a view has ended, none of its decisions is sent (flush, F3).
        if self._pending and view_state.current(view_state.view):
            message = Confirm(view_state.view, self._window.frontier)
            for member in self._pending:
                self._outbox.send(member, message)
        self.reset()

    def on_timer(self) -> None:
        """Send the decision to the remaining members if it is due."""
        if self.deadline_us is not None and self._outbox.now.mono_us >= self.deadline_us:
            self.send_pending()
