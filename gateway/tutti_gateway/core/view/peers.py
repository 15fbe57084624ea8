"""The other gateways, and what is known of each: soft state, all of it learned again from heartbeats."""

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
        number, name, address: as in the roster, or the configuration before there is one.
        incarnation: of its disk, as its last message said.
        beat: its last heartbeat, None before any.
        came_us: when that came.
        behind: positions that it had not decided then and this gateway had.
        missed: heartbeats of this gateway since anything came from it.
        up: whether its connection stands, as far as the transport says.
        echoed_us: the latest own `sent_us` that it has sent back.
        rtt_us, spread_us: measured round trip and its spread (RFC 6298); 0 before any.
        probed: heartbeats since it was asked for a sign of life, -1 if it was not.
    """

    __slots__ = (
        "address",
        "beat",
        "behind",
        "came_us",
        "echoed_us",
        "incarnation",
        "missed",
        "name",
        "number",
        "probed",
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
        self.came_us = 0
        self.behind = 0
        self.missed = limits.BOOT_HEARTBEATS_MAX
        self.up = True
        self.echoed_us = -limits.ROUND_TRIP_US_MAX
        self.rtt_us = 0
        self.spread_us = 0
        self.probed = -1

    def boot_us(self, heartbeat_us: int) -> int:
        """Silence after which it is suspected: so many heartbeats, and the time that its answers are known to take."""
        return limits.BOOT_HEARTBEATS * heartbeat_us + 2 * self.rtt_us + 4 * self.spread_us

    def boot_beats(self, heartbeat_us: int) -> int:
        """The same in own heartbeats. Less than a quarter of one is none: answers of a near gateway take no heartbeat."""
        silence_us = self.boot_us(heartbeat_us) - heartbeat_us // 4
        return min(-(-silence_us // heartbeat_us), limits.BOOT_HEARTBEATS_MAX)

    def fresh(self, heartbeat_us: int) -> bool:
        """Whether it was heard of lately."""
        return self.up and self.beat is not None and self.missed < self.boot_beats(heartbeat_us)

    def measured(self, sample_us: int) -> None:
        """One more round trip was measured."""
        if not 0 <= sample_us <= limits.ROUND_TRIP_US_MAX:
            return
        # One that is far from what was measured tells of a process that stood still rather than of the network; a network that
        # did become slow is believed step by step.
        sample_us = min(sample_us, 2 * self.rtt_us + limits.ROUND_TRIP_STEP_US)
        if not self.rtt_us:
            self.rtt_us, self.spread_us = max(sample_us, 1), sample_us // 2
        else:
            self.spread_us += (abs(sample_us - self.rtt_us) - self.spread_us) // 4
            self.rtt_us = max(self.rtt_us + (sample_us - self.rtt_us) // 8, 1)


class Peers:
    """All of them, by number, and who this gateway is among them.

    Attributes:
        rosters: who counts, as this gateway's log has it.
        configured: (number, name, address) of the configured members: in the order of their names, from 1.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        identity = context.identity
        self._heartbeat_us = context.config.heartbeat_us
        self.configured = [(place, name, identity.members[name]) for place, name in enumerate(sorted(identity.members), 1)]
        self.rosters = Rosters([])
        self._changes = 0
        self._rostered = False  # whether the own number is one that a ROSTER gave
        self._peers: dict[int, Peer] = {}
        self._guests: dict[int, Peer] = {}

    def refresh(self) -> None:
        """Where the log's rosters changed, see who is there, and who this gateway is."""
        window = self._context.window
        if self._changes != window.roster_changes:
            self._changes = window.roster_changes
            self.rosters = rosters_of(window.state, window.rosters)
            self._rebuild()

    def _rebuild(self) -> None:
        context, identity = self._context, self._context.identity
        named = [(voter.number, voter.name, voter.address) for voter in self.rosters.known.values()] or self.configured
        me = next((number for number, name, _ in named if name == identity.gateway), 0)
        # A removed voter keeps its number, also after a restart: peers that do not know its removal durably still count its answer.
        me = me or context.window.state.gateway_number(identity.incarnation)
        if me or not self._rostered:
            context.standing.me = me  # no other gateway ever gets the number
        self._rostered = self._rostered or (bool(me) and bool(self.rosters.known))
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
        """A gateway whose number this log does not name says that it has the same log: a later roster may name it.

        It is heard and learned from like all others, and counts for nothing here.
        """
        if number not in self._peers and number != self._context.standing.me and len(self._peers) < common_limits.ROSTER_MAX:
            self._peers[number] = self._guests[number] = Peer(number, "", "")

    def __iter__(self) -> Iterator[Peer]:
        """Every other gateway."""
        return iter(self._peers.values())

    def get(self, number: int) -> Peer | None:
        """The gateway of that number, None if it is not known, or is this one."""
        return self._peers.get(number)

    @property
    def config_crc(self) -> int:
        """Of the configured members, which all who found a group have to agree on."""
        text = "\n".join(f"{name}={address}" for _, name, address in self.configured)
        return int(google_crc32c.value(text.encode()))

    def low(self, number: int) -> bool:
        """Whether the gateway says that its disk takes no batches."""
        peer = self._peers.get(number)
        return peer is not None and peer.beat is not None and peer.beat.low

    @property
    def alone(self) -> bool:
        """Whether there is nobody else."""
        return not self._peers

    def fresh(self, number: int) -> bool:
        """Whether this gateway hears that one, which may be itself."""
        if number == self._context.standing.me:
            return True
        peer = self._peers.get(number)
        return peer is not None and peer.fresh(self._heartbeat_us)

    def incarnation(self, number: int) -> bytes:
        """Of the gateway's disk, as it says."""
        if number == self._context.standing.me:
            return self._context.identity.incarnation
        peer = self._peers.get(number)
        return peer.incarnation if peer is not None else b""

    def incarnations(self, numbers: Iterable[int]) -> dict[int, bytes]:
        """The incarnations of several."""
        return {number: self.incarnation(number) for number in numbers}

    def voter(self, number: int) -> bool:
        """Whether the gateway, with the disk that it has, votes."""
        return self.rosters.voter(number, self.incarnation(number))

    @property
    def removed(self) -> bool:
        """Whether it is decided that this gateway is no member any more."""
        return self._rostered and self._context.identity.gateway not in {voter.name for voter in self.rosters.known.values()}

    def member(self, number: int) -> bool:
        """Whether the gateway, with the disk that it has, may be a member of a view."""
        return self.rosters.member(number, self.incarnation(number))

    def counts(self, number: int) -> bool:
        """Whether the gateway, with the disk that it has, is counted by any roster: its answer is wanted."""
        return self.rosters.votes(number, self.incarnation(number))

    def hears(self) -> tuple[int, ...]:
        """The gateways that this one hears."""
        return tuple(peer.number for peer in self if peer.fresh(self._heartbeat_us))

    def hears_majority(self) -> bool:
        """Whether this gateway and those that it hears are a majority of the roster."""
        return self.rosters.majority(self.incarnations([self._context.standing.me, *self.hears()]))

    def later(self) -> set[int]:
        """Return the gateways that this one hears and whose numbers its log has not given yet: the log is older than theirs."""
        given = self._context.window.state.next_gateway
        return {number for number, peer in self._guests.items() if number >= given and peer.fresh(self._heartbeat_us)}

    def part(self) -> list[int]:
        """This gateway and the members that it hears and that hear it, if it is a member itself; nobody otherwise. Who leaves, was
        removed, or has another disk than the roster says is not among them.
        """
        me = self._context.standing.me
        if not self.member(me):
            return []
        hearing = [peer for peer in self if peer.fresh(self._heartbeat_us) and peer.beat is not None and me in peer.beat.hears]
        return [me, *(peer.number for peer in hearing if peer.beat and not peer.beat.leaving and self.member(peer.number))]

    def held(self) -> int:
        """Up to which position every other voter holds the decided log, durably, as far as it said: what is decided was durable
        there first. Nobody knows it of one that was not heard with the disk that the roster names: then 0.
        """
        self.refresh()
        me = self._context.standing.me
        voters = [voter for voter in self.rosters.known.values() if voter.voting and voter.number != me]
        beats = [
            peer.beat if (peer := self._peers.get(voter.number)) and peer.incarnation == voter.incarnation else None
            for voter in voters
        ]
        return min((beat.frontier if beat is not None else 0 for beat in beats), default=limits.POSITION_MAX)

    def distance_us(self, number: int) -> int:
        """One-way distance to the gateway, as far as it is known."""
        peer = self._peers.get(number)
        return max(peer.rtt_us // 2 if peer is not None else 0, limits.DISTANCE_US_MIN)

    def round_beats(self) -> int:
        """Heartbeats in a round trip to the furthest gateway that is heard; 0 where it takes less than one."""
        return self._furthest_us() // self._heartbeat_us

    def answer_beats(self) -> int:
        """Heartbeats in which two round trips to it are over. Less than a quarter of one is none: answers of a near gateway take no
        heartbeat.
        """
        return max(0, -(-(2 * self._furthest_us() - self._heartbeat_us // 4) // self._heartbeat_us))

    def _furthest_us(self) -> int:
        return max((peer.rtt_us for peer in self if peer.fresh(self._heartbeat_us)), default=0)

    def seen_view(self) -> int:
        """The highest view that any of them spoke of."""
        return max((max(peer.beat.promised, peer.beat.view, peer.beat.claim) for peer in self if peer.beat), default=0)
