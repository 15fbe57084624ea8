"""Orderly stop of a gateway: the batches of its clients are decided first, then the group continues without it (lifecycle, L14)."""

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
    def settled(self) -> bool:
        """True if this gateway's lane has nothing undecided."""

    @property
    def idle(self) -> bool:
        """True if nothing is in progress."""


class OrderlyStop:
    """Progress of the stop.

    Attributes:
        asked: True if the gateway is to leave.
        told: heartbeats since the others were told, from 1; 0 before.
    """

    def __init__(self, context: Context, peers: Peers, others: Others) -> None:
        self._identity = context.identity
        self._standing = context.standing
        self._window = context.window
        self._peers = peers
        self._others = others
        self.asked = False
        self.told = 0
        self._beats = 0

    def begin(self) -> None:
        """Refuse new messages from now on."""
        name = self._identity.gateway
        self._standing.closed = ("leaving", f"gateway {name!r} is stopping; send again to another gateway, or when it is back")
        self.asked = True

    def beat(self) -> None:
        """Count one heartbeat."""
        if self.asked:
            self._beats += 1
            self.told += self.told > 0

    @property
    def late(self) -> bool:
        """True if the stop has waited long enough."""
        return self._beats > limits.LEAVE_HEARTBEATS

    @property
    def waits(self) -> str:
        """What the stop waits for, for the operator."""
        if self.told:
            return f"it leaves, and waits at most {limits.LEFT_HEARTBEATS} heartbeats until the others continue without it"
        return f"it leaves when all batches of its clients are decided, or after {limits.LEAVE_HEARTBEATS} heartbeats"

    def tells(self) -> bool:
        """True once, when the others must be told now."""
        standing = self._standing
        # Without a view, waiting batches of the log move to another gateway, and the lane can be decided here.
        done = self._others.quiet or (not standing.primary and self._others.settled)
        if self.told or not done:
            return False
        standing.draining = standing.coordinating
        if standing.coordinating and self._window.frames:
            return False
        self.told = 1
        return True

    def over(self, out: bool) -> bool:
        """True if this gateway may stop. `out` is True if the group continues without it."""
        return (self.told > 0 and out) or self.told > limits.LEFT_HEARTBEATS or self.late

    def over_alone(self) -> bool:
        """True if this gateway may stop where no other gateway is left to continue."""
        return self._others.idle or (not self._standing.primary and (self._others.settled or self.late))
