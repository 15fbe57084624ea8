"""The group's clock: wall time from the clocks of several gateways. A single clock may be wrong by years (membership, M26)."""

from __future__ import annotations

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.events import Now
from tutti_gateway.core.view.peers import Peers


class Clocks:
    """Computes the wall time that ticks contain, and from which retention computes the age of records.

    The group's clock is the lower median of the clocks of this gateway and of the live voters. If fewer than half of these clocks
    are wrong, the median lies between two right clocks. Of two middle clocks the earlier one counts, so that retention trims
    nothing too early; at worst, the time of ticks does not advance. A gateway that receives no other clock uses its local clock. If
    the local clock jumps forward, the gateway ignores the leap until it has lasted for some time (M27).

    Between two readings, the time follows the monotonic clock, so a leap of the wall clock has no effect before the next reading.

    Attributes:
        ahead_us: this gateway's local clock minus the group's clock at the last reading.
        offset_us: the group's clock minus the monotonic clock at the last reading; None before the first reading.
    """

    def __init__(self, context: Context, peers: Peers) -> None:
        self._heartbeat_us = context.config.heartbeat_us
        self._outbox = context.outbox
        self._peers = peers
        self._leapt_us: int | None = None  # time of the first reading after a forward leap, while no other clock is available
        self.ahead_us = 0
        self.offset_us: int | None = None

    def wall_us(self) -> int:
        """Read the clocks, and return the group's current wall time (us, UTC)."""
        now = self._outbox.now
        clocks = sorted([now.wall_us, *self._heard(now)])
        # The log cannot undo a tick in the future, so the earlier of two middle clocks counts.
        wall_us = clocks[(len(clocks) - 1) // 2] if len(clocks) > 1 else self._alone(now)
        if len(clocks) > 1:
            self._leapt_us = None
        self.offset_us, self.ahead_us = wall_us - now.mono_us, now.wall_us - wall_us
        return wall_us

    def _heard(self, now: Now) -> list[int]:
        """Return the current wall times of the live voters. Heartbeats of older releases contain no wall time and are skipped.

        Heartbeats that may have waited long are skipped too: after a pause of this process, the first ones are as old as the pause.
        """
        return [
            # The peer read its clock half a round trip before its heartbeat arrived.
            peer.beat.wall_us + peer.rtt_us // 2 + now.mono_us - peer.received_us
            for peer in self._peers
            if peer.beat is not None
            and peer.beat.wall_us
            and peer.round_us <= limits.ROUND_TRIP_US_MAX
            and peer.fresh(self._heartbeat_us)
            and self._peers.voter(peer.number)
        ]

    def _alone(self, now: Now) -> int:
        """Return the time of this gateway's local clock, but without a recent forward leap."""
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
