"""Limit on how long a member waits for the view that it has promised (protocol/flush, F2 and F14)."""

from __future__ import annotations

from typing import Protocol

from tutti.data.view_id import coordinator_of
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.view.peers import Peers
from tutti_gateway.core.view.phases import Phase


class Views(Protocol):
    """Phase and attempt of this member, from *flush*."""

    @property
    def phase(self) -> Phase:
        """Phase of this member."""

    @property
    def attempt(self) -> int:
        """View that this member proposes; 0 if it proposes none."""


class PromiseWait:
    """The wait for another gateway's view that this member has promised."""

    def __init__(self, context: Context, peers: Peers, flush: Views) -> None:
        self._config = context.config
        self._view_state = context.view_state
        self._peers = peers
        self._flush = flush
        self._view = 0  # the promised view at the last heartbeat, and the number of heartbeats since the promise
        self._beats = 0
        self._unknown = 0  # number of heartbeats for which the candidate of the promised view has not known that view
        self._overtaken = 0  # number of heartbeats for which a view other than the promised one has been active

    @property
    def _waits(self) -> bool:
        return self._flush.phase in (Phase.PROMISED, Phase.ADOPTING, Phase.ACCEPTING) and not self._flush.attempt

    def beat(self, leader: int, leader_view: int) -> bool:
        """Count one heartbeat. Return True if the member must abandon the promised view and catch up as a learner.

        `leader` is the live coordinator, 0 if there is none. `leader_view` is the view of the last leader.
        """
        self._beats = self._beats + 1 if self._view == self._view_state.promised else 0
        self._view = self._view_state.promised
        waits = self._waits
        self._overtaken = self._overtaken + 1 if waits and self._is_overtaken(leader, leader_view) else 0
        self._unknown = self._unknown + 1 if waits and self._is_unknown() else 0
        return self._overtaken > 1 or self._unknown > limits.BOOT_HEARTBEATS

    def awaited(self, viewless: int) -> bool:
        """True if the candidate of the promised view is live and its turn has not ended.

        After a long time without a view (`viewless` heartbeats), the turn ends when the candidate's answer can have arrived.
        Otherwise a far candidate would undo every view except its own.
        """
        view_state, peers = self._view_state, self._peers
        if not self._waits:
            return False
        young = view_state.promised != self._view or self._beats < limits.CANDIDATE_HEARTBEATS + 4 * peers.round_beats()
        return (young or viewless < 2 * self._config.atomic_period_heartbeats) and peers.fresh(coordinator_of(view_state.promised))

    def _is_unknown(self) -> bool:
        """True if the candidate reports that it has not promised its own view. A candidate promises durably before it proposes, so
        this view will never be installed.
        """
        promised = self._view_state.promised
        candidate = self._peers.get(coordinator_of(promised))
        return candidate is not None and candidate.beat is not None and candidate.beat.promised < promised

    def _is_overtaken(self, leader: int, leader_view: int) -> bool:
        """True if a view other than the promised one is active: its coordinator or some of its members are heard.

        The members count too, because the coordinator may not be in this gateway's log yet.
        """
        promised = self._view_state.promised
        if leader not in (0, self._view_state.me, coordinator_of(promised)) and leader_view != promised:
            return True
        # Members install the promised view earlier than its coordinator, which waits for all of them.
        return any(
            peer.beat is not None
            and self._peers.fresh(peer.number)
            and not peer.beat.misses
            and peer.beat.view >= promised + (peer.number != coordinator_of(promised))
            for peer in self._peers
        )
