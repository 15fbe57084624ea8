"""Forced roster: if a majority is permanently lost, an operator lists the remaining voters (protocol/membership, M25).

The gateway that gets the request is the candidate: it proposes a view to all remaining voters. All remaining voters must answer,
and no other answer counts. The candidate adopts the greatest of their logs, as in every view change. Before any member accepts the
view, the candidate appends a ROSTER that is marked as forced to that log, so every gateway that has accepted the view has that
ROSTER. A crash during the view change leaves either the forced roster, or the old roster; in the second case, the operator must
repeat the request.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tutti.data.client_protocol import Denied, Done
from tutti.data.frames.bodies import Voter
from tutti.data.view_id import view_text
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.events import RosterForced
from tutti_gateway.core.protocol.messages import Heartbeat
from tutti_gateway.core.view.peers import Peer, Peers

US = 1_000_000


class Views(Protocol):
    """Methods of *flush* that a forced roster needs."""

    @property
    def attempt(self) -> int:
        """Id of the view that this member proposes; 0 if it proposes none."""

    @property
    def failed(self) -> str:
        """Reason why the last view that this member proposed failed."""

    @property
    def waits(self) -> str:
        """The conditions for which this member's proposed view waits, as text for the operator; empty if it proposes none."""

    def campaign(self, members: tuple[int, ...], forced: bool = False) -> None:
        """Propose a view of these members."""

    def halt_removed(self, reason: str) -> None:
        """Halt this member, because a forced roster excludes it and the group continues without it."""


class Waiting(msgspec.Struct):
    """An operator's request for a forced roster, and the id of the view that this gateway proposed for that request."""

    session: int
    request: int
    names: frozenset[str]
    view: int
    beats: int = 0


class ForcedRoster:
    """Forces a roster at an operator's request, and halts this gateway if a forced roster excludes it."""

    def __init__(self, context: Context, peers: Peers, flush: Views) -> None:
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._identity = context.identity
        self._heartbeat_us = context.config.heartbeat_us
        self._peers = peers
        self._flush = flush
        self._waiting: Waiting | None = None
        self._beats_without_majority = 0  # number of heartbeats for which this gateway has not been connected to a majority

    # At a remaining gateway

    def on_request(self, event: RosterForced) -> None:
        """Check an operator's list of remaining gateways. Propose a view with a forced roster, or deny the request."""
        self._peers.refresh()
        names = frozenset(event.names)
        waiting = self._waiting
        # The operator may repeat a request that got no answer but has taken effect.
        if self._is_made(names):
            self._outbox.answers(event.session).append(Done(event.request))
        elif waiting is not None:
            if (waiting.session, waiting.request) != (event.session, event.request):
                names_text = ", ".join(sorted(waiting.names))
                reason = f"an earlier request forces the roster {names_text} here, and is not done: {self._obstacle()}; ask again"
                self._deny(event.session, event.request, "busy", reason, retry=True)
        else:
            wrong = self._forbidden() or self._wrong(names) or self._lost(names)
            late = self._early(names) if not wrong else ""
            if wrong or late:
                self._deny(event.session, event.request, "roster", wrong or late, retry=bool(late))
                return
            members = tuple(voter.number for name, voter in self._voters().items() if name in names)
            self._flush.campaign(members, forced=True)
            self._waiting = Waiting(event.session, event.request, names, self._flush.attempt)

    def _is_made(self, names: frozenset[str]) -> bool:
        """True if the last roster is forced, decided, and consists of exactly these gateways."""
        state = self._window.state
        return bool(state.forced) and not self._window.rosters and {voter.name for voter in state.roster.values()} == names

    def _voters(self) -> dict[str, Voter]:
        """Return the voters of every roster that counts, by name.

        A voter whose removal is undecided is included, because it may be the only remaining voter of a majority.
        """
        return {voter.name: voter for voter in self._peers.rosters.known.values() if voter.voting}

    def _wrong(self, names: frozenset[str]) -> str:
        """Return the reason why the named gateways cannot form a forced roster; empty if they can."""
        voters, me = self._voters(), self._identity.gateway
        if self._peers.rosters.blank:
            return f"the log of gateway {me!r} has no roster yet: leave {me} out of the named gateways, and stop it first"
        unknown = sorted(names - voters.keys())
        if unknown or not names:
            detail = f"{', '.join(unknown)} not among them" if unknown else "no gateway was named"
            return f"the remaining gateways must be voters of the roster ({', '.join(sorted(voters))}), but {detail}"
        # The candidate of a forced roster must itself be one of the remaining voters.
        if me not in names:
            return f"this is gateway {me!r}, which is not named: ask a remaining one"
        # If no voter is lost, the group continues by itself as soon as a majority is running.
        if names == voters.keys():
            return "all voters of the roster are named: there is nothing to force; start the voters that are not heard"
        for name in sorted(names):
            number, incarnation = voters[name].number, voters[name].incarnation
            known = self._peers.incarnation(number)
            # The disk that voted before is gone, so the named gateway may lack records that the group has decided.
            if known and known != incarnation:
                return f"gateway {name!r} has another disk than the roster names, and its votes are lost: leave it out"
        return ""

    def _forbidden(self) -> str:
        """Return the reason why this gateway must not force any roster now; empty if a forced roster is allowed."""
        view_state = self._view_state
        if view_state.closed is not None:
            return view_state.closed[1]
        if view_state.primary and self._peers.hears_majority():
            return f"view {view_text(view_state.view)} decides: change members with `tutti members`; a forced roster is not allowed"
        if self._peers.hears_majority():
            return "a majority of the roster is heard: the group continues by itself, a forced roster is not allowed"
        if self._peers.later():
            return (
                "a gateway is heard that a later roster names, and the log here does not have that roster: ask that gateway, whose "
                "`tutti members` lists the voters"
            )
        return ""

    def _lost(self, names: frozenset[str]) -> str:
        """Return the objection that the forced roster would exclude live gateways; empty if it would exclude none."""
        peers = self._peers
        known = peers.rosters.known
        others = sorted(known[peer.number].name for peer in peers if peers.fresh(peer.number) and peer.number in known)
        left = [name for name in others if name not in names]
        # An excluded live gateway would halt, and the group would lose the records that only this gateway holds.
        if left:
            return f"gateway {', '.join(left)} is heard and would be left out permanently: name it too, or stop it first"
        return ""

    def _early(self, names: frozenset[str]) -> str:
        """Return the reason why the operator must repeat the request later; empty if the view can be proposed now."""
        peers = self._peers
        absent = sorted(name for name, voter in self._voters().items() if name in names and not peers.fresh(voter.number))
        if absent:
            return f"gateway {', '.join(absent)} is named and is not heard: start it, or leave it out if it is lost too"
        # A forced roster would lose records that a majority holds. This wait gives a majority that is restarting time to return.
        missing = max(0, limits.FORCE_HEARTBEATS - self._beats_without_majority)
        if self._view_state.primary:
            wait_s = -(-max(1, missing) * self._heartbeat_us // US)
            view = view_text(self._view_state.view)
            return f"a majority is not heard, but view {view} has not ended yet: ask again after it has ended, in about {wait_s} s"
        if missing:
            return f"a majority of the roster may still come back: ask again in {missing} heartbeats"
        if self._flush.attempt:
            return f"this gateway proposes a view already, and is not done: {self._obstacle()}; ask again"
        return ""

    def _obstacle(self) -> str:
        """Return what the forced view waits for, for the operator."""
        if self._flush.waits:
            return self._flush.waits
        voters = [voter for voter in self._voters().values() if not self._peers.fresh(voter.number)]
        silent = ", ".join(sorted(voter.name for voter in voters))
        return f"its view is installed, and not decided yet{f'; not heard of {silent}' if silent else ''}"

    def _deny(self, session: int, request: int, code: str, reason: str, retry: bool) -> None:
        self._outbox.answers(session).append(Denied(request, code, reason, retry))

    def session_closed(self, session: int) -> None:
        """Send no more answers to a session that has ended. The session's request continues."""
        if self._waiting is not None and self._waiting.session == session:
            self._waiting.session = 0

    def beat(self) -> None:
        """Run one heartbeat: report to the operator that the forced roster is decided, or why it failed."""
        self._beats_without_majority = 0 if self._peers.hears_majority() else self._beats_without_majority + 1
        waiting = self._waiting
        if waiting is None:
            return
        waiting.beats += 1
        if self._is_made(waiting.names):
            self._waiting = None
            self._outbox.answers(waiting.session).append(Done(waiting.request))
        # If the view is neither proposed nor installed any more, the attempt has failed.
        elif waiting.view not in (self._flush.attempt, self._view_state.view):
            self._end(waiting, f"the view with the forced roster failed: {self._flush.failed}")
        elif waiting.beats > limits.ROSTER_WAIT_HEARTBEATS:
            self._end(waiting, f"the roster was not forced in time: {self._obstacle()}")

    def _end(self, waiting: Waiting, reason: str) -> None:
        self._waiting = None
        self._deny(waiting.session, waiting.request, "roster", f"{reason}; ask again", retry=True)

    # At an excluded gateway, and at a remaining gateway that gets a heartbeat from an excluded one

    def is_separated(self, peer: Peer, beat: Heartbeat) -> bool:
        """True if a forced roster in one of the two logs excludes the gateway with the other log.

        If the roster excludes this gateway, this gateway halts. If the roster excludes the peer, the caller must ignore the peer's
        view.
        """
        state = self._window.state
        if not beat.log or beat.log != self._window.log():
            return False
        # `out` reports that a forced roster in the peer's log excludes this gateway. It is out of date if this log has the roster.
        if beat.out and beat.forced > state.forced:
            self._flush.halt_removed(
                f"the group continued without gateway {self._identity.gateway!r}: as {state.gateway_text(peer.number)} reports, an "
                f"operator forced the roster, without it, at position {beat.forced_at} (view {view_text(beat.forced)}). The log "
                f"here is decided up to {state.position} and may hold records that the group has lost. Keep the directory if they "
                "are needed. To bring the gateway back, give it an empty directory and run `tutti members add`"
            )
            return True
        return beat.forced < state.forced and self.left_out(peer)

    def left_out(self, peer: Peer) -> bool:
        """True if this log's forced roster excludes the peer, according to the peer's last heartbeat.

        A peer is excluded if no roster contains it, or if its log has a different decided frame at the position of the forced
        ROSTER. The comparison of the logs also excludes an old disk whose gateway name or number now belongs to a new disk.
        """
        if peer.number not in self._peers.rosters.known:
            return True
        state, beat = self._window.state, peer.beat
        same = beat is not None and bool(beat.log) and beat.log == self._window.log()
        return same and beat is not None and beat.forced < state.forced and beat.frontier >= state.forced_at
