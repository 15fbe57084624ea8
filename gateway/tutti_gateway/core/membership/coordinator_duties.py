"""Duties of a coordinator: to probe and exclude suspects, and to add joiners, several at a time (protocol/membership, M15 to M20).

Source: Navaratnam 1987, section 3.4 (prober).
"""

from __future__ import annotations

from collections.abc import Sequence

from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.messages import Probe
from tutti_gateway.core.view.peers import Peer, Peers


class CoordinatorDuties:
    """Checks members and joiners in each heartbeat while this gateway coordinates.

    Attributes:
        stuck: members whose votes make no progress, although their heartbeats continue, each with the number of heartbeats until
            the report expires.
        has_absent: True if the last check found a member that is silent, leaves, or is not in the view.
    """

    def __init__(self, context: Context, peers: Peers) -> None:
        self._heartbeat_us = context.config.heartbeat_us
        self._period = context.config.atomic_period_heartbeats
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._peers = peers
        self.stuck: dict[int, int] = {}
        self.has_absent = False
        self._away: dict[int, int] = {}  # member -> number of heartbeats for which it has reported another view, or no view
        self._boots: dict[int, tuple[int, int]] = {}  # booted gateway -> (number of boots, heartbeats left before it may return)
        self._changed = 0  # number of heartbeats for which a change of members has waited
        self._opening = 0  # number of heartbeats for which the view's VIEW frame has been undecided

    def installed(self) -> None:
        """Delete the reports and probes of the previous view."""
        self.stuck, self._away, self._changed, self._opening = {}, {}, 0, 0
        for peer in self._peers:
            peer.probed = -1

    def booted(self, number: int) -> None:
        """Start the wait of a booted gateway before it may return."""
        self._outbox.suspect(number, "the next view leaves it out")
        # The wait doubles with each boot, because each return of an unreliable gateway interrupts the group (membership, M18).
        times = min(self._boots.get(number, (0, 0))[0] + 1, limits.REJOIN_BOOTS_MAX)
        wait = min(limits.REJOIN_HEARTBEATS << (times - 1), limits.REJOIN_HEARTBEATS_MAX)
        self._boots[number] = times, wait

    def must_wait(self, number: int) -> bool:
        """True if the gateway was booted so recently that it must not return yet."""
        return self._boots.get(number, (0, 0))[1] > 0

    def beat(self) -> None:
        """Count down the waits and reports by one heartbeat, even while this gateway does not coordinate."""
        self.stuck = {member: beats - 1 for member, beats in self.stuck.items() if beats > 1}
        for number, (times, wait) in list(self._boots.items()):
            if wait > -limits.REJOIN_FORGIVEN_FACTOR * limits.REJOIN_HEARTBEATS << (times - 1):
                self._boots[number] = times, wait - 1
            else:
                del self._boots[number]

    def members(self) -> tuple[int, ...] | None:
        """Return the members of the next view, oldest first, if it is time for a view change; else None."""
        view_state, peers = self._view_state, self._peers
        away = {member for member in view_state.others if self._is_away(member)}
        leavers = {member for member in view_state.others if self._must_leave(member) and member not in away}
        self.has_absent = bool(leavers or away)
        staying = [member for member in view_state.members if member not in leavers]
        joining = sorted(peer.number for peer in peers if peer.number not in view_state.members and self._may_join(peer, staying))
        self._opening = 0 if view_state.primary else self._opening + 1
        # A joiner does not end a new view. Otherwise, with long round trips, no view would last long enough to decide a frame.
        early = 0 < self._opening <= self._period + 4 * peers.round_beats()
        if not leavers and (early or not (joining or away)):
            self._changed = 0
            return None
        self._changed += 1
        if self._changed <= self._batched(leavers, staying):
            return None
        members = (*(member for member in view_state.members if member not in leavers), *joining)
        # A view without a majority could decide nothing, so this member proposes none, and the current view continues.
        if not peers.rosters.majority(peers.incarnations(members)):
            return None
        for member in leavers:
            peer = peers.get(member)
            if peer is None or peer.beat is None or not peer.beat.leaving:
                self.booted(member)
        self._changed = 0
        return members

    def _batched(self, leavers: set[int], staying: Sequence[int]) -> int:
        """Return the number of heartbeats for which a change waits, so that several changes share one view.

        A suspect whose vote is missing blocks all decisions, so its exclusion waits only until the other suspects are probed.
        """
        peers = [peer for peer in map(self._peers.get, leavers) if peer is not None]
        if not any(peer.probed > 0 or peer.number in self.stuck for peer in peers):
            return limits.BATCH_HEARTBEATS
        suspected = any(peer is not None and peer.probed >= 0 for peer in map(self._peers.get, staying))
        return limits.VERIFY_HEARTBEATS if suspected else 0

    def on_link_broken(self, peer: Peer) -> None:
        """Probe a member immediately after its connection has broken.

        The next heartbeat probes the member again, because it may have reconnected by then.
        """
        if peer.number in self._view_state.others and peer.probed < 0:
            self._outbox.send(peer.number, Probe())

    def _must_leave(self, member: int) -> bool:
        """True if the next view must exclude the member: it leaves, is not in the roster, blocks the group, or is silent."""
        peer = self._peers.get(member)
        if peer is None or not self._peers.member(member):
            return True
        if member in self.stuck or (peer.beat is not None and peer.beat.leaving):
            return True
        if peer.fresh(self._heartbeat_us):
            peer.probed = -1
            return False
        peer.probed += 1
        # `probed` is -1 until the member becomes silent and then counts heartbeats, so each silence causes one probe.
        if not peer.probed:
            self._outbox.send(member, Probe())
        return peer.probed >= limits.VERIFY_HEARTBEATS + (peer.rtt_us + 4 * peer.spread_us) // self._heartbeat_us

    def _is_away(self, member: int) -> bool:
        """True if a live member has not been in this view for some time, because it restarted or promised a higher view."""
        peer, view_state = self._peers.get(member), self._view_state
        if (
            peer is None
            or peer.beat is None
            or not peer.fresh(self._heartbeat_us)
            or peer.beat.leaving
            or not self._peers.member(member)
        ):
            return False
        inside = peer.beat.view == view_state.view and peer.beat.promised <= view_state.view
        self._away[member] = 0 if inside else self._away.get(member, 0) + 1
        return self._away[member] > 1 + peer.rtt_us // self._heartbeat_us

    def _may_join(self, peer: Peer, staying: Sequence[int]) -> bool:
        """True if a gateway may join the view.

        The gateway must be in the roster, have free disk space, have caught up, and exchange heartbeats with all remaining members.
        """
        beat = peer.beat
        if beat is None or beat.leaving or beat.low or not peer.fresh(self._heartbeat_us) or not self._peers.member(peer.number):
            return False
        if self.must_wait(peer.number):
            return False
        # Each decision needs a vote of every member, so a joiner with an old log would block the group (membership, M19).
        if not beat.ready and beat.frontier < self._window.frontier:
            return False
        # If two members cannot exchange heartbeats in both directions, the coordinator would soon have to exclude one of them.
        for member in staying:
            other = self._peers.get(member)
            if member not in beat.hears or (other is not None and (other.beat is None or peer.number not in other.beat.hears)):
                return False
        return True
