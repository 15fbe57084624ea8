"""Orderly stop of a gateway: its clients' batches are decided first, then the group continues without it (lifecycle, L14)."""

from __future__ import annotations

from typing import Protocol

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.view.peers import Peers


class Others(Protocol):
    """Work in progress in the other layers."""

    @property
    def quiet(self) -> bool:
        """True if no client of this gateway waits for an answer."""

    @property
    def lane_quiet(self) -> bool:
        """True if this gateway's lane has no undecided batches."""

    @property
    def idle(self) -> bool:
        """True if no client waits, no frame is undecided, and no write is in progress."""


class OrderlyStop:
    """Progress of an orderly stop.

    Attributes:
        requested: True after an operator or a signal has asked this gateway to stop.
        announced: number of heartbeats since this gateway announced its stop, starting with 1; 0 before the announcement.
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
        """Begin the stop: refuse new client messages."""
        name = self._identity.gateway
        self._view_state.closed = ("leaving", f"gateway {name!r} is stopping; send again to another gateway, or when it is back")
        self.requested = True

    def beat(self) -> None:
        """Count one heartbeat of the stop."""
        if self.requested:
            self._beats += 1
            self.announced += self.announced > 0

    @property
    def timed_out(self) -> bool:
        """True if the stop has lasted for `LEAVE_HEARTBEATS`, so that the gateway stops even with work in progress."""
        return self._beats > limits.LEAVE_HEARTBEATS

    @property
    def waits(self) -> str:
        """Text for the operator: what the stop waits for, and for how long."""
        if self.announced:
            return f"it leaves, and waits at most {limits.LEFT_HEARTBEATS} heartbeats until the others continue without it"
        return f"it leaves when all batches of its clients are decided, or after {limits.LEAVE_HEARTBEATS} heartbeats"

    def must_announce(self) -> bool:
        """True once, when the gateway must announce its stop to the others."""
        view_state = self._view_state
        # Without a view, clients send their ordered batches again elsewhere, but only this gateway can decide its own lane.
        done = self._others.quiet or (not view_state.primary and self._others.lane_quiet)
        if self.announced or not done:
            return False
        # A coordinator stops ordering first, because it may leave only when all frames are decided (lifecycle, L14).
        view_state.draining = view_state.coordinating
        if view_state.coordinating and self._window.frames:
            return False
        self.announced = 1
        return True

    def may_stop(self, out: bool) -> bool:
        """True if this gateway may stop. `out` is True if it is no longer in the coordinator's view."""
        # If the others form no new view in time, the gateway stops anyway, and they boot it later.
        return (self.announced > 0 and out) or self.announced > limits.LEFT_HEARTBEATS or self.timed_out

    def may_stop_alone(self) -> bool:
        """True if the only member of a view, or of the group, may stop: all its work is done, or no view can finish it."""
        return self._others.idle or (not self._view_state.primary and (self._others.lane_quiet or self.timed_out))
