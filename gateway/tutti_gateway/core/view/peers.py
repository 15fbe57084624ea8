"""The other gateways and their soft state, which a gateway rebuilds from heartbeats after each start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
        number, name, address: number, name and address of the peer in the roster, or in the configuration before the log has a
            roster.
        incarnation: incarnation of the peer's disk, from the peer's last message.
        beat: the peer's last heartbeat; None before the first one.
        received_us: arrival time of the peer's last heartbeat.
        round_us: time between the last heartbeat that the peer echoes and its own, without the time for which the peer held the
            echo; 0 without an echo. The peer's heartbeat cannot be older than this time.
        lag: number of positions by which the peer's frontier was below this gateway's when the last heartbeat arrived.
        missed: number of this gateway's heartbeats since the last message of the peer.
        up: False if the transport reports that the connection to the peer is broken.
        echoed_us: the latest `sent_us` of this gateway that the peer has returned in a heartbeat.
        rtt_us, spread_us: measured round trip and its spread (RFC 6298); 0 before the first measurement.
        probed: number of heartbeats since the coordinator probed the peer; -1 if the peer is not silent.
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
        "round_us",
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
        self.round_us = 0
        self.lag = 0
        self.missed = limits.BOOT_HEARTBEATS_MAX
        self.up = True
        self.echoed_us = -limits.ROUND_TRIP_US_MAX
        self.rtt_us = 0
        self.spread_us = 0
        self.probed = -1

    def boot_us(self, heartbeat_us: int) -> int:
        """Return the boot period, which is the silence after which the peer is suspected. Long round trips extend it (M6)."""
        return limits.BOOT_HEARTBEATS * heartbeat_us + 2 * self.rtt_us + 4 * self.spread_us

    def boot_beats(self, heartbeat_us: int) -> int:
        """Return the boot period as a number of this gateway's heartbeats.

        The number is rounded up, except that a remainder below a quarter of a heartbeat is dropped. So a near peer with its short
        round trip gets no extra heartbeat.
        """
        silence_us = self.boot_us(heartbeat_us) - heartbeat_us // 4
        return min(-(-silence_us // heartbeat_us), limits.BOOT_HEARTBEATS_MAX)

    def fresh(self, heartbeat_us: int) -> bool:
        """True if a message of the peer arrived within the boot period."""
        return self.up and self.beat is not None and self.missed < self.boot_beats(heartbeat_us)

    def measured(self, sample_us: int) -> None:
        """Update the estimate of the peer's round trip by a measured one."""
        if not 0 <= sample_us <= limits.ROUND_TRIP_US_MAX:
            return
        # A sample far above the estimate usually means that a process was paused, so its effect is limited.
        # If the network has really become slow, the estimate still reaches the new value after a few samples (membership, M6).
        sample_us = min(sample_us, 2 * self.rtt_us + limits.ROUND_TRIP_STEP_US)
        if not self.rtt_us:
            self.rtt_us, self.spread_us = max(sample_us, 1), sample_us // 2
        else:
            self.spread_us += (abs(sample_us - self.rtt_us) - self.spread_us) // 4
            self.rtt_us = max(self.rtt_us + (sample_us - self.rtt_us) // 8, 1)


class Peers:
    """Table of the other gateways by number. The table also determines this gateway's own number.

    Attributes:
        rosters: the rosters in this gateway's log whose majorities count.
        configured: (number, name, address) of the configured members, numbered from 1 in the order of their names.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        identity = context.identity
        self._heartbeat_us = context.config.heartbeat_us
        self.configured = [(number, name, identity.members[name]) for number, name in enumerate(sorted(identity.members), 1)]
        self.rosters = Rosters([])
        self._changes = 0
        self._rostered = False  # True after a ROSTER in the log has given this gateway its number
        self._peers: dict[int, Peer] = {}
        self._guests: dict[int, Peer] = {}

    def refresh(self) -> None:
        """If the rosters of the log have changed, compute the peers and this gateway's number from them."""
        window = self._context.window
        if self._changes != window.roster_changes:  # the counter makes repeated calls cheap
            self._changes = window.roster_changes
            self.rosters = rosters_of(window.state, window.rosters)
            self._rebuild()

    def _rebuild(self) -> None:
        context, identity = self._context, self._context.identity
        named = [(voter.number, voter.name, voter.address) for voter in self.rosters.known.values()] or self.configured
        me = next((number for number, name, _ in named if name == identity.gateway), 0)
        # A removed gateway keeps its number, because peers that do not durably know the removal still count its answers.
        me = me or context.window.state.gateway_number(identity.incarnation)
        # The log never assigns a number twice, so this gateway may use its old number until the log assigns a new one.
        if me or not self._rostered:
            context.view_state.me = me
        self._rostered = self._rostered or (bool(me) and bool(self.rosters.known))
        # Peers that stay in the roster keep their heartbeats and round trips when the roster changes.
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
        """Add a gateway that has the same log but is in none of this gateway's rosters.

        A later roster of that log may contain the added gateway. This gateway accepts the messages of the added gateway and may
        copy its log, but does not count it in any majority.
        """
        if number not in self._peers and number != self._context.view_state.me and len(self._peers) < common_limits.ROSTER_MAX:
            self._peers[number] = self._guests[number] = Peer(number, "", "")

    def __iter__(self) -> Iterator[Peer]:
        """Iterate over all other gateways."""
        return iter(self._peers.values())

    def get(self, number: int) -> Peer | None:
        """Return the other gateway with this number; None if the number is unknown or is this gateway's own."""
        return self._peers.get(number)

    @property
    def config_crc(self) -> int:
        """CRC of the names and addresses of all configured members. The founders of a group must have equal CRCs."""
        text = "\n".join(f"{name}={address}" for _, name, address in self.configured)
        return int(google_crc32c.value(text.encode()))

    def low(self, number: int) -> bool:
        """True if the gateway reports that its disk accepts no batches."""
        peer = self._peers.get(number)
        return peer is not None and peer.beat is not None and peer.beat.low

    @property
    def alone(self) -> bool:
        """True if neither the log nor the configuration names another gateway."""
        return not self._peers

    def fresh(self, number: int) -> bool:
        """True if a message of the gateway arrived within the boot period, or if the number is this gateway's own."""
        if number == self._context.view_state.me:
            return True
        peer = self._peers.get(number)
        return peer is not None and peer.fresh(self._heartbeat_us)

    def incarnation(self, number: int) -> bytes:
        """Return the incarnation of a gateway's disk, from the gateway's last message; empty if unknown."""
        if number == self._context.view_state.me:
            return self._context.identity.incarnation
        peer = self._peers.get(number)
        return peer.incarnation if peer is not None else b""

    def incarnations(self, numbers: Iterable[int]) -> dict[int, bytes]:
        """Return the incarnations of the gateways' disks, by gateway number."""
        return {number: self.incarnation(number) for number in numbers}

    def voter(self, number: int) -> bool:
        """True if the last roster counts the gateway with its current disk."""
        return self.rosters.voter(number, self.incarnation(number))

    @property
    def removed(self) -> bool:
        """True if this gateway was in a roster of the log, but is in none of the rosters that count now."""
        return self._rostered and self._context.identity.gateway not in {voter.name for voter in self.rosters.known.values()}

    def member(self, number: int) -> bool:
        """True if the gateway may be a member of a view with its current disk."""
        return self.rosters.member(number, self.incarnation(number))

    def counts(self, number: int) -> bool:
        """True if the gateway, with its current disk, is a voter in any of the rosters that count."""
        return self.rosters.votes(number, self.incarnation(number))

    def hears(self) -> tuple[int, ...]:
        """Return the live gateways, which are those from which a message arrived within the boot period."""
        return tuple(peer.number for peer in self if peer.fresh(self._heartbeat_us))

    def hears_majority(self) -> bool:
        """True if this gateway and the live gateways form a majority of every roster that counts."""
        return self.rosters.majority(self.incarnations([self._context.view_state.me, *self.hears()]))

    def later(self) -> set[int]:
        """Return the live gateways whose numbers this log has not assigned yet. Their logs must be newer than this log."""
        given = self._context.window.state.next_gateway
        return {number for number, peer in self._guests.items() if number >= given and peer.fresh(self._heartbeat_us)}

    def may_decide(self) -> bool:
        """True if a view of the live gateways may decide: they are a majority, or one of them has a later roster."""
        return self.hears_majority() or bool(self.later())

    def lacking(self) -> str:
        """Return a text that names the voters that are missing for a majority, and how many are needed."""
        voters = {number: voter for number, voter in self.rosters.known.items() if voter.voting}
        absent = [voter.name for number, voter in voters.items() if not self.fresh(number)]
        wiped = [
            voter.name for number, voter in voters.items() if self.fresh(number) and self.incarnation(number) != voter.incarnation
        ]
        said = [f"not heard of {listed(absent)}"] if absent else []
        said += [f"{listed(wiped)} {has(wiped)} another disk than the roster names, and so no vote"] if wiped else []
        needed = " and ".join(f"{size // 2 + 1} of {size} voters" for size in self.rosters.sizes)
        undecided = ": a change of the roster is undecided" if len(self.rosters.sizes) > 1 else ""
        return "; ".join([*said, f"{needed} are needed{undecided}"])

    def connected(self) -> list[int]:
        """Return this gateway and the members with which it exchanges heartbeats; an empty list if this gateway is not a member.

        The list excludes gateways that leave, were removed, or have a disk that is not in the roster.
        """
        me = self._context.view_state.me
        if not self.member(me):
            return []
        # An origin sends frames to a member and gets its votes, so both directions of the connection must work (lanes, U8).
        hearing = [peer for peer in self if peer.fresh(self._heartbeat_us) and peer.beat is not None and me in peer.beat.hears]
        return [me, *(peer.number for peer in hearing if peer.beat and not peer.beat.leaving and self.member(peer.number))]

    def replicated_position(self) -> int:
        """Return the position up to which the log is durable and decided at every other voter, according to its last heartbeat.

        The result is 0 until a heartbeat of every other voter has arrived, sent with the disk that is in the roster.
        """
        self.refresh()
        me = self._context.view_state.me
        voters = [voter for voter in self.rosters.known.values() if voter.voting and voter.number != me]
        beats = [
            peer.beat if (peer := self._peers.get(voter.number)) and peer.incarnation == voter.incarnation else None
            for voter in voters
        ]
        # A gateway moves its frontier only over frames that are durable on its own disk (repair, R15).
        return min((beat.frontier if beat is not None else 0 for beat in beats), default=limits.POSITION_MAX)

    def distance_us(self, number: int) -> int:
        """Return the one-way delay to the gateway: half of the measured round trip, at least `DISTANCE_US_MIN`."""
        peer = self._peers.get(number)
        return max(peer.rtt_us // 2 if peer is not None else 0, limits.DISTANCE_US_MIN)

    def round_beats(self) -> int:
        """Return the number of whole heartbeats in a round trip to the furthest live gateway."""
        return self._furthest_us() // self._heartbeat_us

    def answer_beats(self) -> int:
        """Return the number of heartbeats that two round trips to the furthest live gateway take.

        The number is rounded up, except that a remainder below a quarter of a heartbeat is dropped. So gateways with short round
        trips get no extra heartbeat.
        """
        return max(0, -(-(2 * self._furthest_us() - self._heartbeat_us // 4) // self._heartbeat_us))

    def _furthest_us(self) -> int:
        return max((peer.rtt_us for peer in self if peer.fresh(self._heartbeat_us)), default=0)

    def seen_view(self) -> int:
        """Return the highest view id that any peer's last heartbeat contains."""
        return max((max(peer.beat.promised, peer.beat.view, peer.beat.claim) for peer in self if peer.beat), default=0)


def listed(names: Sequence[str]) -> str:
    """Return names as text, for example "g1, g2 and g3"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def has(names: Sequence[str]) -> str:
    """Return the verb for the names: "has" or "have"."""
    return "has" if len(names) == 1 else "have"
