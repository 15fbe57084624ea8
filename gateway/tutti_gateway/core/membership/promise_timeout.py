"""Limit on the time for which a member waits until its promised view is formed (protocol/flush, F2 and F14)."""

from __future__ import annotations

from typing import Protocol

from tutti.data.view_id import coordinator_of
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.view.peers import Peers
from tutti_gateway.core.view.phases import Phase


class Views(Protocol):
    """The state of *flush* on which the wait depends."""

    @property
    def phase(self) -> Phase:
        """Current phase of this member in a view change."""

    @property
    def attempt(self) -> int:
        """Id of the view that this member proposes; 0 if it proposes none."""


class PromiseWait:
    """The wait of a member for a view that it has promised to another gateway."""

    def __init__(self, context: Context, peers: Peers, flush: Views) -> None:
        self._config = context.config
        self._view_state = context.view_state
        self._peers = peers
        self._flush = flush
        self._view = 0  # the promised view at the last heartbeat
        self._beats = 0  # number of heartbeats since the promise
        self._unknown = 0  # number of heartbeats for which the candidate has reported that it promised only a lower view
        self._overtaken = 0  # number of heartbeats for which a view other than the promised view has been active

    @property
    def _waits(self) -> bool:
        return self._flush.phase in (Phase.PROMISED, Phase.ADOPTING, Phase.ACCEPTING) and not self._flush.attempt

    def beat(self, leader: int, leader_view: int) -> bool:
        """Count one heartbeat. Return True if the promised view can no longer be formed, so that the member must abandon it.

        `leader` is the number of the live coordinator, 0 if there is none. `leader_view` is the last view that a coordinator has
        claimed.
        """
        self._beats = self._beats + 1 if self._view == self._view_state.promised else 0
        self._view = self._view_state.promised
        waits = self._waits
        self._overtaken = self._overtaken + 1 if waits and self._is_overtaken(leader, leader_view) else 0
        self._unknown = self._unknown + 1 if waits and self._is_unknown() else 0
        return self._overtaken > 1 or self._unknown > limits.BOOT_HEARTBEATS

    def awaited(self, viewless: int) -> bool:
        """True if this member should propose no view, because the candidate of the promised view is live and may still succeed.

        Normally a live candidate has unlimited time. After many heartbeats without a coordinator (`viewless`), this member waits
        only for as long as an answer of the candidate may take. Otherwise a far candidate could prevent every view except its own.
        """
        view_state, peers = self._view_state, self._peers
        if not self._waits:
            return False
        young = view_state.promised != self._view or self._beats < limits.CANDIDATE_HEARTBEATS + 4 * peers.round_beats()
        return (young or viewless < 2 * self._config.atomic_period_heartbeats) and peers.fresh(coordinator_of(view_state.promised))

    def _is_unknown(self) -> bool:
        """True if the candidate's last heartbeat reports a lower promise than the view that it proposed.

        A candidate promises a view durably before it proposes that view. A candidate that reports a lower promise has therefore
        lost its promise, and will never install the view.
        """
        promised = self._view_state.promised
        candidate = self._peers.get(coordinator_of(promised))
        return candidate is not None and candidate.beat is not None and candidate.beat.promised < promised

    def _is_overtaken(self, leader: int, leader_view: int) -> bool:
        """True if heartbeats show that a view other than the promised view is active.

        Heartbeats of that view's members count like those of its coordinator, which this gateway may not know yet because its log
        is too old.
        """
        promised = self._view_state.promised
        if leader not in (0, self._view_state.me, coordinator_of(promised)) and leader_view != promised:
            return True
        # The coordinator installs the promised view last, so a member that reports the promised view proves no other view.
        return any(
            peer.beat is not None
            and self._peers.fresh(peer.number)
            and not peer.beat.misses
            and peer.beat.view >= promised + (peer.number != coordinator_of(promised))
            for peer in self._peers
        )
