"""The peers of accepted connections: the number of each peer, and which peers are refused.

The log identifies gateways by number. A peer's log may be ahead of this gateway's log, or blank. Therefore the number of a peer is
the number that this gateway's log has for the peer's name, or a higher number that the peer states for the same log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tutti_gateway.core import limits
from tutti_gateway.transport.handshake import differences, duplicate_reason, refusal_reason
from tutti_gateway.transport.interface import Introduction


def number_of(name: str, claimed: int, numbers: Mapping[str, int], me: int) -> int:
    """Return the number of a gateway, 0 if it has none.

    A log assigns each number once, and later numbers are higher. If a gateway states a higher number than this log has for its
    name, the gateway was removed and added again, in frames that are not here yet. If a gateway states a lower number, its own log
    does not have those frames yet.

    Args:
        name: name of the gateway.
        claimed: number that the gateway states for the log of this gateway; 0 if the gateway has another log, or none.
        numbers: numbers in this gateway's log, by name, each of which belongs to one gateway only.
        me: number of this gateway.
    """
    listed = numbers.get(name, 0)
    return claimed if claimed > listed and claimed != me and claimed not in numbers.values() else listed


class Verdict(NamedTuple):
    """Result of an introduction.

    Attributes:
        number: number of the peer in the group, 0 if the peer's messages are refused.
        connect: whether this gateway must open a link to the peer, because this log does not have the peer's number.
        reason: reason for the refusal, as it is logged here; empty for none.
        refusal: reason for the refusal, as it is sent to the peer; empty for none.
    """

    number: int = 0
    connect: bool = False
    reason: str = ""
    refusal: str = ""


class InboundPeer:
    """The peer of one accepted connection. `number` is 0 while the peer's messages are refused."""

    __slots__ = ("incarnation", "introduced_us", "introduction", "last_received_us", "name", "number")

    def __init__(self, introduction: Introduction, number: int, last_received_us: int) -> None:
        self.introduction = introduction
        self.name = introduction.gateway
        self.incarnation = introduction.incarnation
        self.number = number
        self.introduced_us = self.last_received_us = last_received_us


class InboundPeers:
    """All introduced peers, by the routing id of their connection."""

    def __init__(self, me: Introduction, clock_us: Callable[[], int]) -> None:
        self.me = me
        self._clock_us = clock_us
        self._peers: dict[bytes, InboundPeer] = {}
        self._numbers: dict[str, int] = {}

    def __iter__(self) -> Iterator[InboundPeer]:
        """Iterate over the introduced peers, including peers whose messages are refused (number 0)."""
        return iter(self._peers.values())

    def is_accepted(self, routing: bytes) -> bool:
        """True if messages of the connection are accepted."""
        peer = self._peers.get(routing)
        return peer is not None and peer.number != 0

    def clear(self) -> None:
        """Delete all peers, after their connections were closed."""
        self._peers.clear()

    def set_numbers(self, numbers: Mapping[str, int]) -> None:
        """Set the numbers in this gateway's log, by name."""
        self._numbers = dict(numbers)
        self.reassess()

    def reassess(self) -> None:
        """Determine the numbers of all peers again, because this gateway's number, its log, or the numbers in its log have
        changed.
        """
        for peer in self._peers.values():
            # If this gateway had no log before, a peer with a different log is refused only from now on.
            peer.number = self._number(peer.introduction) if self._rejected(peer.introduction) is None else 0

    def unlisted(self) -> dict[int, tuple[str, str]]:
        """Return the active peers with a number that this log does not have: number -> (name, address)."""
        since_us = self._clock_us() - limits.GUEST_SILENT_US
        # A peer that is silent for a minute gets no link, because a removed gateway would otherwise keep its link permanently.
        peers = [peer for peer in self._peers.values() if peer.number and not self._is_listed(peer.number)]
        return {peer.number: (peer.name, peer.introduction.address) for peer in peers if peer.last_received_us > since_us}

    def differing(self) -> dict[str, str]:
        """Return the configuration differences of the active peers, by name."""
        since_us = self._clock_us() - limits.GUEST_SILENT_US
        peers = [peer for peer in self._peers.values() if peer.number and peer.last_received_us > since_us]
        peers.sort(key=lambda peer: peer.introduced_us)  # newest last, because the dict below keeps the last process of each name
        found = {peer.name: differences(self.me, peer.introduction) for peer in peers}
        return {name: what for name, what in found.items() if what}

    def received_from(self, routing: bytes) -> InboundPeer | None:
        """Register a received message. Return its sender; None if the sender has not introduced itself."""
        peer = self._peers.get(routing)
        if peer is not None:
            peer.last_received_us = self._clock_us()
        return peer

    def assess_introduction(
        self, routing: bytes, introduction: Introduction, broke_us: int, is_open: Callable[[bytes], bool] = lambda _: True
    ) -> Verdict:
        """Process an introduction.

        Args:
            routing: routing id of the connection.
            introduction: the introduction that the peer sent.
            broke_us: time at which this gateway's own link to that name last broke; earlier processes of the name count as ended.
            is_open: returns True for the routing id of an open connection; the process of a closed connection counts as ended,
                even if this gateway reads its last messages only later.
        """
        rejected = self._rejected(introduction)
        if rejected is not None:
            self._peers.pop(routing, None)  # the peer is refused now, even if an earlier introduction was accepted
            return rejected
        now = self._clock_us()
        number = self._number(introduction)
        if number:
            # The connected process wins, because a later one is probably a copied directory or a second start (transport, T9).
            duplicate = self._duplicate(routing, introduction, broke_us, is_open)
            if duplicate is not None:
                self._peers.pop(routing, None)
                reason = duplicate_reason(duplicate.introduction, introduction)
                return Verdict(reason=reason, refusal=reason)
        # The limit of 256 exceeds two connections of each gateway in the largest group, as old ones may linger.
        if routing not in self._peers and len(self._peers) >= limits.MESH_INTRODUCED_MAX:
            # Forget the longest silent peer. Its connection stays open, and its next message makes it introduce itself again.
            del self._peers[min(self._peers, key=lambda one: self._peers[one].last_received_us)]
        self._peers[routing] = InboundPeer(introduction, number, now)
        if number:
            return Verdict(number, not self._is_listed(number), differences(self.me, introduction))
        reason = f"is not a member of group {self.me.group!r}: add it with `tutti members add {introduction.gateway} HOST:PORT`"
        # Both texts name the peer, because the peer logs its text next to this gateway's name, where "it" would be ambiguous.
        return Verdict(
            reason=f"{introduction.gateway} at {introduction.address} {reason}", refusal=f"{introduction.gateway} {reason}"
        )

    def _rejected(self, other: Introduction) -> Verdict | None:
        """Return the refusal of a peer for a reason other than its number; None if there is no such reason."""
        reason = refusal_reason(self.me, other)
        return Verdict(reason=reason, refusal=reason) if reason else None

    def _number(self, introduction: Introduction) -> int:
        """Return the number of a gateway, 0 if it has none."""
        # A stated number counts only for this log, because another log may have assigned the number to a different gateway.
        same_log = bool(self.me.log) and introduction.log == self.me.log
        return number_of(introduction.gateway, introduction.number if same_log else 0, self._numbers, self.me.number)

    def _is_listed(self, number: int) -> bool:
        return number in self._numbers.values()

    def _duplicate(
        self, routing: bytes, introduction: Introduction, broke_us: int, is_open: Callable[[bytes], bool]
    ) -> InboundPeer | None:
        """Return another process of the same name that is connected and not silent; None if there is none."""
        since_us = self._clock_us() - limits.DUPLICATE_SILENT_US
        for other_routing, peer in self._peers.items():
            other = peer.introduction
            if (
                other_routing != routing
                and other.gateway == introduction.gateway
                and other.process != introduction.process
                and peer.introduced_us > broke_us
                and peer.last_received_us > since_us
                and is_open(other_routing)
            ):
                return peer
        return None
