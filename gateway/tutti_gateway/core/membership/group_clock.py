"""The group's clock: wall time from several gateways' clocks, because a single clock may be wrong by years (M26)."""

from __future__ import annotations

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.events import Now
from tutti_gateway.core.view.peers import Peers


class Clocks:
    """Wall time for ticks and for the age of records.

    The group's clock is the lower median of the clocks of this gateway and of the voters that it hears. If fewer than half of these
    clocks are wrong, the median is still between two right clocks. Of two clocks the earlier one counts: ticks may then stand
    still, but nothing is trimmed early. A gateway that hears no other clock uses its own. It believes a forward leap of that clock
    only after the leap has lasted for some time (M27).

    Between two readings the time follows the monotonic clock. So a leap of this gateway's wall clock has no effect before the next
    reading.

    Attributes:
        ahead_us: this gateway's own clock minus the group's clock at the last reading.
        offset_us: the group's clock minus the monotonic clock at the last reading; None before the first reading.
    """

    def __init__(self, context: Context, peers: Peers) -> None:
        self._heartbeat_us = context.config.heartbeat_us
        self._outbox = context.outbox
        self._peers = peers
        self._leapt_us: int | None = None  # time at which a leap of the only available clock was first seen
        self.ahead_us = 0
        self.offset_us: int | None = None

    def wall_us(self) -> int:
        """Return the wall time (us, UTC) of this moment."""
        now = self._outbox.now
        clocks = sorted([now.wall_us, *self._heard(now)])
        # With the lower median, a tick is never in the future of a correct clock.
        wall_us = clocks[(len(clocks) - 1) // 2] if len(clocks) > 1 else self._alone(now)
        if len(clocks) > 1:
            self._leapt_us = None
        self.offset_us, self.ahead_us = wall_us - now.mono_us, now.wall_us - wall_us
        return wall_us

    def _heard(self, now: Now) -> list[int]:
        """Return the current clocks of the live voters. A heartbeat of an older release carries no clock."""
        return [
            # Half a round trip, and the age of the heartbeat, have passed since the peer read its clock.
            peer.beat.wall_us + peer.rtt_us // 2 + now.mono_us - peer.received_us
            for peer in self._peers
            if peer.beat is not None and peer.beat.wall_us and peer.fresh(self._heartbeat_us) and self._peers.voter(peer.number)
        ]

    def _alone(self, now: Now) -> int:
        """Return the time of this gateway's clock. Ignore a forward leap that has not lasted long enough."""
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
