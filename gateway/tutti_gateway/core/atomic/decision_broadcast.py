"""Distribution of decisions. Members whose clients may wait get CONFIRM at once, other members with the next ORDER (atomic, A5)."""

from __future__ import annotations

from collections.abc import Iterable

from tutti.data.frames.frame import SEQUENCED, Frame, Kind
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.messages import Confirm

_BATCHES = SEQUENCED | {int(Kind.TICK)}  # kinds of frames for whose decision only clients of the origin may wait


class DecisionBroadcast:
    """Sends the CONFIRM messages of a coordinator.

    A message that contains only a decision costs as much as a message with frames. Therefore a member that is the origin of no
    frame in a decided run gets the decision only with its next frames, or after `CONFIRM_LATE_US`. Readers at such a member see the
    run with the same delay.

    Attributes:
        deadline_us: latest time at which the remaining members get the decision; None if all members have got it.
    """

    def __init__(self, context: Context) -> None:
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._pending: list[int] = []
        self.deadline_us: int | None = None

    def reset(self) -> None:
        """Delete the list of members that wait for a decision, because the view has ended or all members got the decision."""
        self._pending, self.deadline_us = [], None

    def announce(self, up_to: int, run: Iterable[Frame]) -> None:
        """Send the decision to this member and to the origins of frames in the run. The other members get it later."""
        view_state, message = self._view_state, Confirm(self._view_state.view, up_to)
        now = self._concerned(run)
        for member in view_state.members:
            if now is None or member == view_state.me or member in now:
                self._outbox.send(member, message)
        # A CONFIRM includes all earlier decisions, so members that got this one no longer wait for an earlier one.
        self._pending = [] if now is None else [member for member in view_state.others if member not in now]
        if not self._pending:
            self.deadline_us = None
        elif self.deadline_us is None:
            self.deadline_us = self._outbox.now.mono_us + limits.CONFIRM_LATE_US

    def _concerned(self, run: Iterable[Frame]) -> set[int] | None:
        """Return the members that need the decision of a run at once: the origins of its frames, or None for all members."""
        origins: set[int] = set()
        for frame in run:
            if frame.kind not in _BATCHES:
                # The decision of a ROSTER, EPOCH or similar frame may affect clients of every member (atomic, A5).
                return None
            origins.add(frame.origin)
        return origins

    def send_pending(self) -> None:
        """Send the last decision to the members that have not received it yet."""
        view_state = self._view_state
        # A coordinator that has promised another view must send no decision of its old view (flush, F3).
        if self._pending and view_state.current(view_state.view):
            message = Confirm(view_state.view, self._window.frontier)
            for member in self._pending:
                self._outbox.send(member, message)
        self.reset()

    def on_timer(self) -> None:
        """Send the last decision to the remaining members, if `deadline_us` has passed."""
        if self.deadline_us is not None and self._outbox.now.mono_us >= self.deadline_us:
            self.send_pending()
