"""The other gateways and their soft state. After a start, the soft state is rebuilt from heartbeats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import google_crc32c

from tutti import limits as common_limits
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.messages import Heartbeat
from tutti_gateway.core.view.quorum import Rosters, rosters_of

_US = 1_000_000


class Peer:
    """One other gateway.

    Attributes:
        number, name, address: as in the roster, or in the configuration before there is one.
        incarnation: incarnation of its disk, as in its last message.
        beat: its last heartbeat; None if there is none.
        received_us: arrival time of that heartbeat.
        lag: number of positions that were decided here but not at the peer when that heartbeat arrived.
        missed: number of this gateway's heartbeats since the last message of the peer.
        up: False if the transport reports a broken connection.
        echoed_us: the latest `sent_us` of this gateway that the peer has returned.
        rtt_us, spread_us: measured round trip and its spread (RFC 6298); 0 before the first measurement.
        probed: number of heartbeats since the peer was probed; -1 if it was not.
    """

    __slots__ = (
        "address",
        "beat",
        "echoed_us",
        "incarnation",
        "lag",
        "missed",
        "name",
        "number",
        "probed",
        "received_us",
        "rtt_us",
        "spread_us",
        "up",
    )

    def __init__(self, number: int, name: str, address: str) -> None:
        self.number = number
        self.name = name
        self.address = address
        self.incarnation = b""
        self.beat: Heartbeat | None = None
        self.received_us = 0
        self.lag = 0
        self.missed = limits.BOOT_HEARTBEATS_MAX
        self.up = True
        self.echoed_us = -limits.ROUND_TRIP_US_MAX
        self.rtt_us = 0
        self.spread_us = 0
        self.probed = -1

    def boot_us(self, heartbeat_us: int) -> int:
        """Return the silence after which the peer is suspected: a number of heartbeats plus the time that its answers take
        (membership, M6).
        """
        return limits.BOOT_HEARTBEATS * heartbeat_us + 2 * self.rtt_us + 4 * self.spread_us

    def boot_beats(self, heartbeat_us: int) -> int:
        """Return `boot_us` as a number of this gateway's heartbeats. A remainder below a quarter of a heartbeat is dropped,
        because a near peer answers much faster than that.
        """
        silence_us = self.boot_us(heartbeat_us) - heartbeat_us // 4
        return min(-(-silence_us // heartbeat_us), limits.BOOT_HEARTBEATS_MAX)

    def fresh(self, heartbeat_us: int) -> bool:
        """True if the peer was heard within the boot period."""
        return self.up and self.beat is not None and self.missed < self.boot_beats(heartbeat_us)

    def measured(self, sample_us: int) -> None:
        """Add a measured round trip."""
        if not 0 <= sample_us <= limits.ROUND_TRIP_US_MAX:
            return
        # A sample far above the estimate usually means that a process was paused.
        # With the limit, the estimate can still follow a network that has become slow (membership, M6).
        sample_us = min(sample_us, 2 * self.rtt_us + limits.ROUND_TRIP_STEP_US)
        if not self.rtt_us:
            self.rtt_us, self.spread_us = max(sample_us, 1), sample_us // 2
        else:
            self.spread_us += (abs(sample_us - self.rtt_us) - self.spread_us) // 4
            self.rtt_us = max(self.rtt_us + (sample_us - self.rtt_us) // 8, 1)


class Peers:
    """All peers by number, and the number of this gateway.

    Attributes:
        rosters: the rosters that count according to this gateway's log.
        configured: (number, name, address) of the configured members, numbered from 1 in the order of their names.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        identity = context.identity
        self._heartbeat_us = context.config.heartbeat_us
        self.configured = [(number, name, identity.members[name]) for number, name in enumerate(sorted(identity.members), 1)]
        self.rosters = Rosters([])
        self._changes = 0
        self._rostered = False  # True if this gateway's number comes from a ROSTER
        self._peers: dict[int, Peer] = {}
        self._guests: dict[int, Peer] = {}

    def refresh(self) -> None:
        """Rebuild the peers and this gateway's number if the rosters of the log have changed."""
        window = self._context.window
        if self._changes != window.roster_changes:  # the counter makes repeated calls cheap
            self._changes = window.roster_changes
            self.rosters = rosters_of(window.state, window.rosters)
            self._rebuild()

    def _rebuild(self) -> None:
        context, identity = self._context, self._context.identity
        named = [(voter.number, voter.name, voter.address) for voter in self.rosters.known.values()] or self.configured
        me = next((number for number, name, _ in named if name == identity.gateway), 0)
        # A removed voter keeps its number, even after a restart. Peers that do not durably know its removal still count its answer.
        me = me or context.window.state.gateway_number(identity.incarnation)
        # A gateway that has a number from a ROSTER keeps it until the log assigns a new one.
        if me or not self._rostered:
            context.view_state.me = me  # the number is never given to another gateway
        self._rostered = self._rostered or (bool(me) and bool(self.rosters.known))
        # A peer keeps its soft state while its number and name stay the same.
        known = {(peer.number, peer.name): peer for peer in self._peers.values()}
        others = [one for one in named if one[1] != identity.gateway]
        self._guests = {number: peer for number, peer in self._guests.items() if number not in self.rosters.known}
        if [(peer.number, peer.name, peer.address) for peer in self._peers.values()] == others:
            return
        self._peers = {}
        for number, name, address in others:
            peer = known.get((number, name)) or Peer(number, name, address)
            peer.address = address
            self._peers[number] = peer
        self._peers |= self._guests
        context.outbox.peers(tuple(others))

    def admit(self, number: int) -> None:
        """Add a gateway that has the same log but is not in the rosters here. A later roster that has not arrived here may contain
        it.

        Its messages are accepted and its log may be copied, but it does not count in any majority here.
        """
        if number not in self._peers and number != self._context.view_state.me and len(self._peers) < common_limits.ROSTER_MAX:
            self._peers[number] = self._guests[number] = Peer(number, "", "")

    def __iter__(self) -> Iterator[Peer]:
        """Iterate over all other gateways."""
        return iter(self._peers.values())

    def get(self, number: int) -> Peer | None:
        """Return the gateway of that number, None if it is unknown or is this one."""
        return self._peers.get(number)

    @property
    def config_crc(self) -> int:
        """CRC of the configured members. All founders of a group must have the same value."""
        text = "\n".join(f"{name}={address}" for _, name, address in self.configured)
        return int(google_crc32c.value(text.encode()))

    def low(self, number: int) -> bool:
        """True if the gateway reports that its disk accepts no batches."""
        peer = self._peers.get(number)
        return peer is not None and peer.beat is not None and peer.beat.low

    @property
    def alone(self) -> bool:
        """True if there is no other gateway."""
        return not self._peers

    def fresh(self, number: int) -> bool:
        """True if this gateway hears the gateway with this number. It always hears itself."""
        if number == self._context.view_state.me:
            return True
        peer = self._peers.get(number)
        return peer is not None and peer.fresh(self._heartbeat_us)

    def incarnation(self, number: int) -> bytes:
        """Return the incarnation of the gateway's disk, according to its messages."""
        if number == self._context.view_state.me:
            return self._context.identity.incarnation
        peer = self._peers.get(number)
        return peer.incarnation if peer is not None else b""

    def incarnations(self, numbers: Iterable[int]) -> dict[int, bytes]:
        """Return the incarnations of several gateways."""
        return {number: self.incarnation(number) for number in numbers}

    def voter(self, number: int) -> bool:
        """True if the gateway is a voter with its current disk."""
        return self.rosters.voter(number, self.incarnation(number))

    @property
    def removed(self) -> bool:
        """True if the removal of this gateway from the group is decided."""
        return self._rostered and self._context.identity.gateway not in {voter.name for voter in self.rosters.known.values()}

    def member(self, number: int) -> bool:
        """True if the gateway may be a member of a view with its current disk."""
        return self.rosters.member(number, self.incarnation(number))

    def counts(self, number: int) -> bool:
        """True if any roster counts the gateway with its current disk, so that its answer is needed."""
        return self.rosters.votes(number, self.incarnation(number))

    def hears(self) -> tuple[int, ...]:
        """Return the gateways that this one hears."""
        return tuple(peer.number for peer in self if peer.fresh(self._heartbeat_us))

    def hears_majority(self) -> bool:
        """True if this gateway and the gateways that it hears form a majority of the roster."""
        return self.rosters.majority(self.incarnations([self._context.view_state.me, *self.hears()]))

    def later(self) -> set[int]:
        """Return the gateways that this one hears but whose numbers are not assigned in its log yet. Their logs are newer."""
        given = self._context.window.state.next_gateway
        return {number for number, peer in self._guests.items() if number >= given and peer.fresh(self._heartbeat_us)}

    def connected(self) -> list[int]:
        """Return this gateway and the members that it hears and that hear it; an empty list if this gateway is not a member.

        The list excludes gateways that leave, were removed, or have a disk that is not in the roster.
        """
        me = self._context.view_state.me
        if not self.member(me):
            return []
        # A lane needs both directions of a link (lanes, U8).
        hearing = [peer for peer in self if peer.fresh(self._heartbeat_us) and peer.beat is not None and me in peer.beat.hears]
        return [me, *(peer.number for peer in hearing if peer.beat and not peer.beat.leaving and self.member(peer.number))]

    def replicated_position(self) -> int:
        """Return the position up to which every other voter has reported the log as decided, and so holds it durably.

        The result is 0 until every voter was heard with its disk in the roster.
        """
        self.refresh()
        me = self._context.view_state.me
        voters = [voter for voter in self.rosters.known.values() if voter.voting and voter.number != me]
        beats = [
            peer.beat if (peer := self._peers.get(voter.number)) and peer.incarnation == voter.incarnation else None
            for voter in voters
        ]
        # All frames up to a reported frontier are durable at the reporting gateway (repair, R15).
        return min((beat.frontier if beat is not None else 0 for beat in beats), default=limits.POSITION_MAX)

    def distance_us(self, number: int) -> int:
        """Return the one-way distance to the gateway, as far as it is measured."""
        peer = self._peers.get(number)
        return max(peer.rtt_us // 2 if peer is not None else 0, limits.DISTANCE_US_MIN)

    def round_beats(self) -> int:
        """Return the number of heartbeats in a round trip to the furthest live gateway; 0 if it takes less than one heartbeat."""
        return self._furthest_us() // self._heartbeat_us

    def answer_beats(self) -> int:
        """Return the number of heartbeats in which two round trips to the furthest gateway end.

        A remainder below a quarter of a heartbeat is dropped, because a near gateway answers much faster than that.
        """
        return max(0, -(-(2 * self._furthest_us() - self._heartbeat_us // 4) // self._heartbeat_us))

    def _furthest_us(self) -> int:
        return max((peer.rtt_us for peer in self if peer.fresh(self._heartbeat_us)), default=0)

    def seen_view(self) -> int:
        """Return the highest view in any heartbeat."""
        return max((max(peer.beat.promised, peer.beat.view, peer.beat.claim) for peer in self if peer.beat), default=0)
