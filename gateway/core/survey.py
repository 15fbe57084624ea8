"""What a gateway knows of itself and of the others, for those who ask how the group is. It looks and changes nothing.

Others are known by their heartbeats, so what is told of them is a heartbeat old, and of one that is silent it is its last word.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.life import Phase
from gateway.core.peers import Peer
from gateway.core.stack import Layers, Stack

PRIMARY, MINORITY, JOINING, LEARNER, SILENT, LEAVING, HALTED = (
    "primary",  # in the view that decides
    "minority",  # out of reach of a majority: it serves what it has and takes nothing new
    "joining",  # between views, or catching up
    "learner",  # added, and has no vote before it has caught up
    "silent",  # not heard of lately
    "leaving",  # it stops in order
    "halted",  # its disk failed, or it may not go on: it serves what it has
)


class Member(NamedTuple):
    """One gateway as this one knows it.

    Attributes:
        number, name, address: as in the roster, or the configuration before there is one.
        incarnation: of its disk, empty when it is not known.
        state: one of this module's words.
        voter: whether the roster counts it, with the disk that it has.
        coordinator: whether it coordinates the view.
        age: its place in the view by age, 1 is the oldest and coordinates next; 0 outside of the view.
        frontier: last position that it has decided, as it said.
        lag: decided positions that it lacked when it said so, or lacks now when it is silent.
        heard_us: how long ago it was heard of, -1 if never.
        round_trip_us: measured, 0 before it is.
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


def state_of(stack: Stack) -> str:
    """Where the stack's own gateway is: `primary`, `minority`, `joining`, `leaving` or `halted`."""
    if stack.phase is Phase.BORN:
        return JOINING
    if stack.phase is Phase.HALTED:
        return HALTED
    layers = stack.layers
    standing = layers.context.standing
    if layers.membership.leaving:
        return LEAVING
    misses = layers.membership.misses
    if standing.primary:
        return JOINING if misses else PRIMARY  # a view that hears nobody of its majority any more is about to end
    lost = bool(layers.context.window.log()) and not standing.pausing and (misses or layers.peers.removed)
    return MINORITY if lost else JOINING


def reason_of(stack: Stack) -> str:
    """Why it takes nothing new where the operator has to act, empty otherwise."""
    if stack.phase is not Phase.BORN and stack.layers.peers.removed:
        return "this gateway was removed from the group: it can be stopped, or added again with `tutti members add`"
    return ""


def members_of(stack: Stack) -> list[Member]:
    """Every gateway that the log or the configuration names, this one included, by number."""
    if stack.phase is Phase.BORN:
        return []
    layers = stack.layers
    known = [_other(layers, peer) for peer in layers.peers if peer.name]
    me = _self(stack, layers)
    return sorted([me, *known] if me is not None else known)


def silent_of(stack: Stack) -> frozenset[int]:
    """Numbers of the gateways that are not heard."""
    if stack.phase is Phase.BORN:
        return frozenset()
    peers = stack.layers.peers
    return frozenset(peer.number for peer in peers if not peers.fresh(peer.number))


def _self(stack: Stack, layers: Layers) -> Member | None:
    standing, window, name = layers.context.standing, layers.context.window, layers.context.identity.gateway
    number, peers = standing.me, layers.peers
    if not number:
        return None
    voter = peers.rosters.known.get(number)
    state = state_of(stack)
    if state == JOINING and voter is not None and not voter.voting:
        state = LEARNER
    furthest = max((peer.beat.frontier for peer in peers if peer.beat is not None), default=0)
    return Member(
        number,
        name,
        voter.address if voter is not None else layers.context.identity.members.get(name, ""),
        layers.context.identity.incarnation,
        state,
        peers.voter(number),
        standing.coordinator == number,
        _age(layers, number),
        window.frontier,
        max(0, furthest - window.frontier),
        0,
        0,
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
        _state(layers, peer) if fresh else SILENT,
        peers.voter(peer.number),
        layers.context.standing.coordinator == peer.number,
        _age(layers, peer.number),
        frontier,
        peer.behind if fresh else max(0, layers.context.window.frontier - frontier),
        now_us - peer.came_us if beat is not None else -1,
        peer.rtt_us,
    )


def _state(layers: Layers, peer: Peer) -> str:
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
    members = layers.context.standing.members
    return members.index(number) + 1 if number in members else 0
