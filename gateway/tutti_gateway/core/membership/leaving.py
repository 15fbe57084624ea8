"""Leaving in order: what clients sent here is decided first, then the group goes on without this gateway."""

from __future__ import annotations

from typing import Protocol

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.view.peers import Peers


class Others(Protocol):
    """What is under way in the layers above."""

    @property
    def quiet(self) -> bool:
        """Whether no client of this gateway waits for anything."""

    @property
    def settled(self) -> bool:
        """Whether nothing of this gateway's lane is undecided."""

    @property
    def idle(self) -> bool:
        """Whether nothing at all is under way."""


class Leaving:
    """How far this gateway is with it.

    Attributes:
        asked: whether it is to leave.
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
        """Take nothing new."""
        name = self._identity.gateway
        self._standing.closed = ("leaving", f"gateway {name!r} is being stopped; send again at another one, or when it is back")
        self.asked = True

    def beat(self) -> None:
        """One heartbeat."""
        if self.asked:
            self._beats += 1
            self.told += self.told > 0

    @property
    def late(self) -> bool:
        """Whether it has waited for long enough."""
        return self._beats > limits.LEAVE_HEARTBEATS

    @property
    def waits(self) -> str:
        """What it waits for, for people."""
        if self.told:
            return f"it leaves, and waits until the others go on without it ({limits.LEFT_HEARTBEATS} heartbeats at most)"
        return f"it leaves when all that clients sent here is decided (in {limits.LEAVE_HEARTBEATS} heartbeats in any case)"

    def tells(self) -> bool:
        """Whether the others are to be told now, once."""
        standing = self._standing
        # Without a view what waits for the log waits for another gateway's; what is in the lane can be decided here.
        done = self._others.quiet or (not standing.primary and self._others.settled)
        if self.told or not done:
            return False
        standing.draining = standing.coordinating
        if standing.coordinating and self._window.frames:
            return False
        self.told = 1
        return True

    def over(self, out: bool) -> bool:
        """Whether this gateway may stop; `out`: the group goes on without it."""
        return (self.told > 0 and out) or self.told > limits.LEFT_HEARTBEATS or self.late

    def over_alone(self) -> bool:
        """The same where nobody is left who could go on."""
        return self._others.idle or (not self._standing.primary and (self._others.settled or self.late))
