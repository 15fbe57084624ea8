"""Orderly stop of a gateway. The batches of its clients are decided first, then the group continues without it (lifecycle, L14)."""

from __future__ import annotations

from typing import Protocol

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.view.peers import Peers


class Others(Protocol):
    """Work in progress in the layers above."""

    @property
    def quiet(self) -> bool:
        """True if no client of this gateway waits for an answer."""

    @property
    def lane_quiet(self) -> bool:
        """True if this gateway's lane has nothing undecided."""

    @property
    def idle(self) -> bool:
        """True if nothing is in progress."""


class OrderlyStop:
    """Progress of the stop.

    Attributes:
        requested: True if the gateway is to leave.
        announced: number of heartbeats since the stop was announced to the others, starting with 1; 0 before.
    """

    def __init__(self, context: Context, peers: Peers, others: Others) -> None:
        self._identity = context.identity
        self._view_state = context.view_state
        self._window = context.window
        self._peers = peers
        self._others = others
        self.requested = False
        self.announced = 0
        self._beats = 0

    def begin(self) -> None:
        """Begin to refuse new messages."""
        name = self._identity.gateway
        self._view_state.closed = ("leaving", f"gateway {name!r} is stopping; send again to another gateway, or when it is back")
        self.requested = True

    def beat(self) -> None:
        """Count one heartbeat."""
        if self.requested:
            self._beats += 1
            self.announced += self.announced > 0

    @property
    def timed_out(self) -> bool:
        """True if the stop has waited long enough."""
        return self._beats > limits.LEAVE_HEARTBEATS

    @property
    def waits(self) -> str:
        """Description of what the stop waits for, for the operator."""
        if self.announced:
            return f"it leaves, and waits at most {limits.LEFT_HEARTBEATS} heartbeats until the others continue without it"
        return f"it leaves when all batches of its clients are decided, or after {limits.LEAVE_HEARTBEATS} heartbeats"

    def must_announce(self) -> bool:
        """True one time, when the gateway must announce its stop to the others."""
        view_state = self._view_state
        # Without a view, waiting batches of the ordered log move to another gateway. The lane can still be decided here.
        done = self._others.quiet or (not view_state.primary and self._others.lane_quiet)
        if self.announced or not done:
            return False
        # From now on a coordinator orders no new frames, and leaves when all frames are decided (lifecycle, L14).
        view_state.draining = view_state.coordinating
        # All frames in progress are decided before the claim is abandoned.
        if view_state.coordinating and self._window.frames:
            return False
        self.announced = 1
        return True

    def may_stop(self, out: bool) -> bool:
        """True if this gateway may stop. `out` is True if the group continues without it."""
        return (self.announced > 0 and out) or self.announced > limits.LEFT_HEARTBEATS or self.timed_out

    def may_stop_alone(self) -> bool:
        """True if this gateway may stop although no other gateway is left to continue."""
        return self._others.idle or (not self._view_state.primary and (self._others.lane_quiet or self.timed_out))
