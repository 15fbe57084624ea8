"""Wall time: what the clocks of several gateways say, since any single one may be wrong by years (design, section 3, TICK)."""

from __future__ import annotations

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.events import Now
from tutti_gateway.core.view.peers import Peers


class Clocks:
    """The wall time that this gateway dates ticks with, and measures the age of records against.

    It is the lower median of the clocks of this gateway and of the voters that it hears: less than half of them, set wrong, move it
    no further than to another right one. Of two clocks it is the earlier one: ticks then stand still, and nothing is trimmed early.
    A gateway that hears no other clock has only its own. It believes a leap forward of that clock when the leap has lasted.

    Between two readings that time runs with the monotonic clock: a leap of the own clock changes nothing before the next reading.

    Attributes:
        ahead_us: how far this gateway's own clock was ahead of that time at the last reading; negative: behind.
        offset_us: that time less the monotonic clock at the last reading; None before the first one.
    """

    def __init__(self, context: Context, peers: Peers) -> None:
        self._heartbeat_us = context.config.heartbeat_us
        self._outbox = context.outbox
        self._peers = peers
        self._leapt_us: int | None = None  # when the only clock was first seen to have leapt
        self.ahead_us = 0
        self.offset_us: int | None = None

    def wall_us(self) -> int:
        """Return the wall time (us, UTC) of this moment."""
        now = self._outbox.now
        clocks = sorted([now.wall_us, *self._heard(now)])
        wall_us = clocks[(len(clocks) - 1) // 2] if len(clocks) > 1 else self._alone(now)
        if len(clocks) > 1:
            self._leapt_us = None
        self.offset_us, self.ahead_us = wall_us - now.mono_us, now.wall_us - wall_us
        return wall_us

    def _heard(self, now: Now) -> list[int]:
        """Return what the clocks of the voters that are heard show now. A heartbeat of an older release carries no clock."""
        return [
            peer.beat.wall_us + peer.rtt_us // 2 + now.mono_us - peer.came_us
            for peer in self._peers
            if peer.beat is not None and peer.beat.wall_us and peer.fresh(self._heartbeat_us) and self._peers.voter(peer.number)
        ]

    def _alone(self, now: Now) -> int:
        """Return the time of the own clock, without a leap forward that has not lasted yet."""
        expected_us = now.wall_us if self.offset_us is None else now.mono_us + self.offset_us
        if now.wall_us - expected_us <= limits.CLOCK_LEAP_US:
            self._leapt_us = None
            return now.wall_us
        if self._leapt_us is None:
            self._leapt_us = now.mono_us
        if now.mono_us - self._leapt_us < limits.CLOCK_LEAP_LASTS_US:
            return expected_us
        self._leapt_us = None
        return now.wall_us
