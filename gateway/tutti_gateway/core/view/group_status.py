"""Read-only status of this gateway and of the others, for the status document.

Data about another gateway comes from that gateway's last heartbeat, so the data is old if the gateway is silent.
"""

from __future__ import annotations

from typing import NamedTuple

from tutti.data.frames.bodies import Voter
from tutti.data.view_id import coordinator_of
from tutti.errors import disk_remedy
from tutti_gateway.core.layers import Layers
from tutti_gateway.core.stack import Stack
from tutti_gateway.core.view.peers import Peer, Peers, has, listed
from tutti_gateway.core.view.phases import Phase

PRIMARY, MINORITY, JOINING, LEARNER, SILENT, LEAVING, HALTED = (
    "primary",  # in the view that decides
    "minority",  # cut off from a majority: the gateway serves its log but accepts no messages
    "joining",  # between two views, or catching up
    "learner",  # added to the roster, but without a vote until it has caught up
    "silent",  # no message has arrived within the boot period
    "leaving",  # an orderly stop is in progress
    "halted",  # the gateway only serves reads, because its disk failed or because it must not continue its log
)


class Member(NamedTuple):
    """Status of one gateway, as far as this gateway knows it.

    Attributes:
        number, name, address: number, name and address of the gateway in the roster, or in the configuration before the log has a
            roster.
        incarnation: incarnation of the gateway's disk; empty if unknown.
        state: state of the gateway: one of the constants of this module, such as `PRIMARY`.
        voter: True if the gateway, with its current disk, is a voter in the last roster.
        coordinator: True if the gateway coordinates the view.
        age: rank by age among the members of the view, 1 for the oldest; 0 if the gateway is not in the view.
        frontier: last position that the gateway has reported as decided.
        lag: number of decided positions that the gateway lacked at its last heartbeat, or lacks now if it is silent.
        heard_us: time since the gateway's last heartbeat; -1 if none has arrived.
        round_trip_us: measured round trip to the gateway; 0 before the first measurement.
        reason: reason why the gateway accepts no messages or has no vote, if known; else empty.
    """

    number: int
    name: str
    address: str
    incarnation: bytes
    state: str
    voter: bool
    coordinator: bool
    age: int
    frontier: int
    lag: int
    heard_us: int
    round_trip_us: int
    reason: str = ""


class GroupStatus:
    """Reads the status of one stack."""

    def __init__(self, stack: Stack) -> None:
        """Store the stack. A property computes its value from the stack on each access."""
        self._stack = stack

    @property
    def state(self) -> str:
        """State of this gateway: `primary`, `minority`, `joining`, `leaving` or `halted`."""
        phase = self._stack.phase
        if phase is Phase.BORN:
            return JOINING
        return HALTED if phase is Phase.HALTED else _state(self._stack.layers)

    @property
    def reason(self) -> str:
        """Reason why this gateway accepts no messages, if the operator must act; else empty."""
        if self._stack.phase is not Phase.BORN and self._stack.layers.peers.removed:
            return "this gateway was removed from the group: it can be stopped, or added again with `tutti members add`"
        if self._stack.phase is not Phase.BORN and (other := _other_disk(self._stack.layers)):
            return other
        low = "" if self._stack.phase is Phase.BORN else self._stack.layers.atomic.low
        return f"new messages are refused because a member's disk has no free space: {low}" if low else ""

    @property
    def waits(self) -> str:
        """Description of what this gateway waits for while it leaves or is not in the view; otherwise empty."""
        if self.state == LEAVING:
            return self._stack.layers.membership.leaving.waits
        if self._stack.phase is Phase.BORN or self.state not in (JOINING, MINORITY) or self._stack.layers.peers.removed:
            return ""  # a removed gateway waits for nothing
        return _waits(self._stack.layers)

    @property
    def majority(self) -> bool:
        """True if this gateway hears a majority of the roster, or a gateway with a later roster, which knows its majority."""
        return self._stack.phase is not Phase.BORN and self._stack.layers.peers.may_decide()

    @property
    def clock_ahead_us(self) -> int:
        """Local wall clock minus the group's clock, in microseconds; negative if the local clock lags."""
        return 0 if self._stack.phase is Phase.BORN else self._stack.layers.clocks.ahead_us

    def group_time_us(self, mono_us: int) -> int:
        """Return the time of the group's clock (us, UTC) when the monotonic clock shows `mono_us`; 0 before the first reading.

        Between two readings, the time follows the monotonic clock, so a leap of the host's wall clock has no effect.
        """
        offset_us = None if self._stack.phase is Phase.BORN else self._stack.layers.clocks.offset_us
        return 0 if offset_us is None else mono_us + offset_us

    @property
    def view(self) -> tuple[int, tuple[int, ...], int]:
        """The installed view: its id, members (numbers, oldest first) and coordinator; 0, () and 0 if no view is installed."""
        if self._stack.phase is Phase.BORN:
            return 0, (), 0
        view_state = self._stack.layers.context.view_state
        return view_state.view, view_state.members, view_state.coordinator

    @property
    def repair(self) -> dict[str, int]:
        """Counters since the start: requests, repairs, and discarded frames and messages (see *repair* and `Receiver`)."""
        layers = None if self._stack.phase is Phase.BORN else self._stack.layers
        if layers is None:
            return {}
        asker, holder = layers.repair.requester, layers.repair.responder
        return {
            "requests": asker.requests,
            "requests_joined": asker.joined,
            "requests_suppressed": asker.suppressed,
            "repairs": holder.repairs,
            "repaired_frames": holder.repaired,
            "repairs_claimed": holder.claims,
            "repairs_suppressed": holder.suppressed,
            "repairs_held_down": holder.hold_down_hits,
            "refused": asker.bucket.refused + holder.refused,
            "in_sequence_frames": layers.order.receiver.in_sequence,
            "discarded_frames": layers.order.receiver.discarded,
            "dropped_messages": layers.context.outbox.drops,
        }

    def members(self) -> list[Member]:
        """Return the status of all gateways in the log's rosters or in the configuration, this one included, by number."""
        if self._stack.phase is Phase.BORN:
            return []
        layers = self._stack.layers
        known = [_other(layers, peer) for peer in layers.peers if peer.name]
        number = layers.context.view_state.me
        return sorted([_own(layers, number, self.state, self.reason or self.waits), *known] if number else known)


def _other_disk(layers: Layers) -> str:
    """Return a reason and a remedy if the roster contains another disk for this gateway; empty if it contains this disk."""
    identity, rosters = layers.context.identity, layers.peers.rosters
    voter = rosters.named.get(layers.context.view_state.me)
    if voter is None or not voter.voting or voter.name != identity.gateway or voter.incarnation == identity.incarnation:
        return ""
    return (
        f"the roster names another disk for {identity.gateway}, so this one catches up and does not vote: "
        f"if the other is lost for good, {_disk_remedy(layers.peers, voter)}"
    )


def _disk_remedy(peers: Peers, voter: Voter) -> str:
    """Return the remedy for a voter whose disk is not the one in the roster.

    The remedy depends on whether the other live gateways can decide without that voter.
    """
    if peers.hears_majority():
        return disk_remedy(voter.name, others_decide=True)
    never = peers.rosters.blocks({voter.number: voter.incarnation})
    return disk_remedy(voter.name, others_decide=False if never else None)


def _waits(layers: Layers) -> str:
    """Return a text that says what this gateway waits for, if it neither leaves nor has halted."""
    peers, view_state = layers.peers, layers.context.view_state
    if peers.rosters.blank:
        return _founding(peers)
    # The roster in an old log may lack the live voters, so this gateway must not report that they are missing.
    if not peers.hears_majority() and (layers.membership.misses or not peers.later()):
        return peers.lacking()
    if layers.membership.misses:
        return "a majority is heard, and a view change is in progress"
    heard = [peer for peer in peers if peer.beat is not None and peers.fresh(peer.number)]
    leader = next((peer.name for peer in heard if peer.beat and peer.beat.view and _leads(peer.number, peer.beat.view)), "")
    view = f"the view that {leader} coordinates" if leader else "the view that decides"
    furthest = max((peer.beat.frontier for peer in peers if peer.beat is not None), default=0)
    voter = peers.rosters.named.get(view_state.me)
    added = "was added, and votes when it has caught up: " if voter is not None and not voter.voting else ""
    if furthest > layers.context.window.frontier:
        return f"{added}copies the log from {view}"
    if voter is None:
        name = layers.context.identity.gateway
        return f"{name} was removed, as its own complete log shows; `tutti members add {name}` adds it again"
    return f"{added}is about to join {view}"


def _leads(number: int, view: int) -> bool:
    return coordinator_of(view) == number


def _founding(peers: Peers) -> str:
    """Return the reason why a gateway with an empty log has not founded a group; empty if it will do so soon."""
    others = [peer for peer in peers if peer.name]
    there = [(peer.name, peer.beat) for peer in others if peers.fresh(peer.number) and peer.beat is not None]
    absent = [peer.name for peer in others if not peers.fresh(peer.number) or peer.beat is None]
    begun = [name for name, beat in there if beat.log]
    differing = [name for name, beat in there if not beat.log and beat.config != peers.config_crc]
    if begun:
        return f"{listed(begun)} {has(begun)} a log already and this gateway has none: it waits to copy the log from a view"
    if differing:
        return (
            f"{listed(differing)} {has(differing)} other `group.members` than this gateway: configure the same members everywhere"
        )
    if not absent:
        return ""
    where = "" if there else "; if the group exists already, `tutti members add` adds this gateway"
    return f"the group is founded when {listed(absent)} {'is' if len(absent) == 1 else 'are'} running too: not heard of{where}"


def _state(layers: Layers) -> str:
    view_state, misses = layers.context.view_state, layers.membership.misses
    if layers.membership.leaving.requested:
        return LEAVING
    if view_state.primary:
        return JOINING if misses else PRIMARY  # without a coordinator, the installed view is about to end
    lost = bool(layers.context.window.log()) and not view_state.pausing and (misses or layers.peers.removed)
    return MINORITY if lost else JOINING


def _own(layers: Layers, number: int, state: str, reason: str) -> Member:
    view_state, window, identity, peers = layers.context.view_state, layers.context.window, layers.context.identity, layers.peers
    voter = peers.rosters.known.get(number)
    furthest = max((peer.beat.frontier for peer in peers if peer.beat is not None), default=0)
    return Member(
        number,
        identity.gateway,
        voter.address if voter is not None else identity.members.get(identity.gateway, ""),
        identity.incarnation,
        LEARNER if state == JOINING and voter is not None and not voter.voting else state,
        peers.voter(number),
        view_state.coordinator == number,
        _age(layers, number),
        window.frontier,
        max(0, furthest - window.frontier),
        0,
        0,
        reason,
    )


def _other(layers: Layers, peer: Peer) -> Member:
    peers, now_us = layers.peers, layers.context.outbox.now.mono_us
    beat, fresh = peer.beat, peers.fresh(peer.number)
    frontier = beat.frontier if beat is not None else 0
    return Member(
        peer.number,
        peer.name,
        peer.address,
        peer.incarnation,
        _state_of(layers, peer) if fresh else SILENT,
        peers.voter(peer.number),
        layers.context.view_state.coordinator == peer.number,
        _age(layers, peer.number),
        frontier,
        # The lag of a silent gateway grows with each decision, so it is computed from the current frontier.
        peer.lag if fresh else max(0, layers.context.window.frontier - frontier),
        now_us - peer.received_us if beat is not None else -1,
        peer.rtt_us,
        _reason_of(layers, peer) if fresh else "",
    )


def _reason_of(layers: Layers, peer: Peer) -> str:
    """Return the reason why another live gateway accepts no messages or has no vote, according to its heartbeats."""
    peers, beat, voter = layers.peers, peer.beat, layers.peers.rosters.named.get(peer.number)
    if beat is None or beat.leaving:
        return ""
    # A low disk may be the cause of all other reasons, so the text begins with it.
    low = "its disk has no free space; " if beat.low else ""
    if voter is not None and voter.voting and voter.name == peer.name and voter.incarnation != peer.incarnation:
        return f"{low}has another disk than the roster names, and no vote: if the named disk is lost, {_disk_remedy(peers, voter)}"
    if voter is not None and not voter.voting:
        return f"{low}was added, and votes when it has caught up"
    if beat.low:
        return low.rstrip("; ")
    if peers.rosters.blank:
        return "" if beat.log or beat.config == peers.config_crc else "has other `group.members` than the gateway that was asked"
    unheard = [one.name for number, one in peers.rosters.named.items() if number not in (*beat.hears, peer.number)]
    return f"does not hear {listed(unheard)}" if beat.misses and beat.log and unheard else ""


def _state_of(layers: Layers, peer: Peer) -> str:
    beat = peer.beat
    if beat is None:
        return SILENT
    if beat.leaving:
        return LEAVING
    if beat.view and not beat.misses:
        return PRIMARY
    if beat.misses and beat.log:
        return MINORITY
    voter = layers.peers.rosters.named.get(peer.number)
    return LEARNER if voter is not None and not voter.voting else JOINING


def _age(layers: Layers, number: int) -> int:
    members = layers.context.view_state.members
    return members.index(number) + 1 if number in members else 0
