"""Orderly stop of a gateway: first the batches of its clients are decided, then it leaves the group (lifecycle, L14)."""

from __future__ import annotations

from typing import Protocol

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.view.peers import Peers


class Others(Protocol):
    """Queries about work in progress in the other layers."""

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
    """Progress of this gateway's orderly stop.

    Attributes:
        requested: True after an operator or a signal has asked this gateway to stop.
        announced: 1 at the announcement of the stop to the other gateways, increased by each heartbeat; 0 before the announcement.
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
        """Begin the orderly stop, and refuse new client messages from now on."""
        name = self._identity.gateway
        self._view_state.closed = ("leaving", f"gateway {name!r} is stopping; send again to another gateway, or when it is back")
        self.requested = True

    def beat(self) -> None:
        """Count one heartbeat of an orderly stop, if one is in progress."""
        if self.requested:
            self._beats += 1
            self.announced += self.announced > 0

    @property
    def timed_out(self) -> bool:
        """True after `LEAVE_HEARTBEATS` heartbeats of the stop. The gateway then stops even with work in progress."""
        return self._beats > limits.LEAVE_HEARTBEATS

    @property
    def waits(self) -> str:
        """Text for the operator that names what the stop waits for, and the longest time of the wait."""
        if self.announced:
            return f"it leaves, and waits at most {limits.LEFT_HEARTBEATS} heartbeats until the others continue without it"
        return f"it leaves when all batches of its clients are decided, or after {limits.LEAVE_HEARTBEATS} heartbeats"

    def must_announce(self) -> bool:
        """Return True if this gateway must announce its stop to the others now; the method returns True only one time."""
        view_state = self._view_state
        # Without a view, clients can send ordered batches again to another gateway, but only this gateway can decide its lane.
        done = self._others.quiet or (not view_state.primary and self._others.lane_quiet)
        if self.announced or not done:
            return False
        # A coordinator may leave only when all its frames are decided, so it first stops ordering new ones (lifecycle, L14).
        view_state.draining = view_state.coordinating
        if view_state.coordinating and self._window.frames:
            return False
        self.announced = 1
        return True

    def may_stop(self, out: bool) -> bool:
        """True if this gateway may stop. `out` is True if the coordinator's view does not include this gateway."""
        # If the others form no view without this gateway in time, it stops anyway, and they exclude it later.
        return (self.announced > 0 and out) or self.announced > limits.LEFT_HEARTBEATS or self.timed_out

    def may_stop_alone(self) -> bool:
        """True if this gateway, as the only member of its view or group, may stop: all work is done, or no view can finish it."""
        return self._others.idle or (not self._view_state.primary and (self._others.lane_quiet or self.timed_out))
