"""How long a member waits for the view that it promised (design, 5.1 and 5.5)."""

from __future__ import annotations

from typing import Protocol

from tutti.data.view_id import coordinator_of
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.view.lifecycle import Phase
from tutti_gateway.core.view.peers import Peers


class Views(Protocol):
    """*flush*: where this member is."""

    @property
    def phase(self) -> Phase:
        """Where this member is."""

    @property
    def attempt(self) -> int:
        """The view that this member proposes, 0 if it does not."""


class Promise:
    """What a member waits for that has promised another gateway's view."""

    def __init__(self, context: Context, peers: Peers, flush: Views) -> None:
        self._config = context.config
        self._standing = context.standing
        self._peers = peers
        self._flush = flush
        self._view = 0  # what was promised at the last heartbeat, and for how many it is
        self._beats = 0
        self._disowned = 0  # heartbeats for which the candidate of the promised view knew nothing of it
        self._elsewhere = 0  # heartbeats for which another view than the promised one is at work

    @property
    def _waits(self) -> bool:
        return self._flush.phase in (Phase.PROMISED, Phase.ADOPTING, Phase.ACCEPTING) and not self._flush.attempt

    def beat(self, leader: int, leader_view: int) -> bool:
        """One heartbeat; whether it is given up: whoever waits for a candidate that others have left behind learns, and joins as
        all others do. `leader` is who is heard to coordinate, 0 if nobody is, and `leader_view` the view of whoever was last.
        """
        self._beats = self._beats + 1 if self._view == self._standing.promised else 0
        self._view = self._standing.promised
        waits = self._waits
        self._elsewhere = self._elsewhere + 1 if waits and self._left_behind(leader, leader_view) else 0
        self._disowned = self._disowned + 1 if waits and self._is_disowned() else 0
        return self._elsewhere > 1 or self._disowned > limits.BOOT_HEARTBEATS

    def awaited(self, viewless: int) -> bool:
        """Whether another gateway's view is being made here, and it is there: its turn is not taken away, for a while. Where there
        was no view for long (`viewless` heartbeats), only until its answer can have come back, or who is far away would undo every
        view but its own.
        """
        standing, peers = self._standing, self._peers
        if not self._waits:
            return False
        young = standing.promised != self._view or self._beats < limits.CANDIDATE_HEARTBEATS + 4 * peers.round_beats()
        return (young or viewless < 2 * self._config.atomic_period_heartbeats) and peers.fresh(coordinator_of(standing.promised))

    def _is_disowned(self) -> bool:
        """Whether the candidate says that it has not promised the view. Whoever proposes one has, durably: it never proposed this
        one, or lost its disk, and nobody will ever install it.
        """
        promised = self._standing.promised
        candidate = self._peers.get(coordinator_of(promised))
        return candidate is not None and candidate.beat is not None and candidate.beat.promised < promised

    def _left_behind(self, leader: int, leader_view: int) -> bool:
        """Whether another view than the promised one is at work: its coordinator is heard, or members of it are, since the
        coordinator may be one that this gateway's log does not name yet.
        """
        promised = self._standing.promised
        if leader not in (0, self._standing.me, coordinator_of(promised)) and leader_view != promised:
            return True
        # Members install the promised view before its coordinator does, who waits for all of them.
        return any(
            peer.beat is not None
            and self._peers.fresh(peer.number)
            and not peer.beat.misses
            and peer.beat.view >= promised + (peer.number != coordinator_of(promised))
            for peer in self._peers
        )
