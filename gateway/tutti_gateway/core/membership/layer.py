"""The *membership* layer: heartbeats, claims, candidates and learners (protocol/membership; see NOTES.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tutti.data.view_id import coordinator_of, view_text
from tutti.errors import invariant
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.membership.coordinator_duties import CoordinatorDuties
from tutti_gateway.core.membership.forced_roster import ForcedRoster
from tutti_gateway.core.membership.leaving import OrderlyStop
from tutti_gateway.core.membership.leaving import Others as Leavers
from tutti_gateway.core.membership.promise_timeout import PromiseWait
from tutti_gateway.core.membership.roster_change import RosterChanges
from tutti_gateway.core.membership.succession import by_age, succession
from tutti_gateway.core.protocol.events import LinkChanged
from tutti_gateway.core.protocol.messages import Heartbeat, Probe
from tutti_gateway.core.view.peers import Peer, Peers
from tutti_gateway.core.view.phases import Phase


class Views(Protocol):
    """Methods of *flush* that *membership* calls."""

    watermark: int

    @property
    def phase(self) -> Phase:
        """Current phase of this member in a view change."""

    @property
    def attempt(self) -> int:
        """Id of the view that this member proposes; 0 if it proposes none."""

    @property
    def end(self) -> int:
        """Last position of this member's log, which includes a corrupt end."""

    @property
    def ready(self) -> bool:
        """True if this member is in no view but holds all decided frames, so that a view can add it without waiting."""

    def campaign(self, members: tuple[int, ...]) -> None:
        """Propose a view of these members."""

    def catch_up(self) -> None:
        """Run one heartbeat of a member that is in no view: copy decided frames from another gateway."""

    def lost(self) -> None:
        """Abandon the installed or promised view, so that this member is in no view."""

    def stop(self) -> None:
        """Complete the orderly stop of this member."""


class Others(Leavers, Protocol):
    """Methods that *membership* calls in the layers above."""

    @property
    def own_low(self) -> bool:
        """True if this gateway's disk accepts no batches."""

    def log_end_reported(self, member: int, end: int) -> None:
        """Report to *repair* that a member's log reaches `end`. Frames up to `end` that have not arrived here may be lost."""

    def send_decisions(self) -> None:
        """Send the last decision to the members that have not received it yet."""


class Membership:
    """Sends heartbeats, follows the coordinator, and decides when this gateway proposes a view.

    Attributes:
        peers: the other gateways and their soft state.
        leaving: progress of this gateway's orderly stop.
    """

    def __init__(
        self, context: Context, peers: Peers, flush: Views, others: Others, changes: RosterChanges, force: ForcedRoster
    ) -> None:
        self._config = context.config
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._identity = context.identity
        self._random = context.random
        self.peers = peers
        self._flush = flush
        self._others = others
        self._changes = changes
        self._force = force
        self.duties = CoordinatorDuties(context, peers)
        self._config_crc = peers.config_crc
        self._leader = 0  # the coordinator whose claim arrived last; 0 before the first claim
        self._leader_view = 0
        self._leader_missed = limits.BOOT_HEARTBEATS_MAX
        self._waiting = 0  # number of heartbeats for which a majority has had no coordinator
        self._patience = 0  # number of heartbeats to wait before the next candidacy
        self._viewless = limits.PAUSE_HEARTBEATS
        self._unserved = 0  # number of heartbeats without a view that decides
        # number of heartbeats for which this gateway still must not coordinate, because its disk made no progress
        self._resigned = 0
        self._needs_more = False  # True if the last attempt failed because too few answers showed what a corrupt log contained
        self._round = 0
        self.leaving = OrderlyStop(context, peers, others)
        self._promise = PromiseWait(context, peers, flush)

    # Who coordinates

    @property
    def misses(self) -> bool:
        """True if this member has received no claim of a coordinator for the boot period."""
        if self._leader == self._view_state.me and self._leader:
            # A new coordinator gets its first echoes only after one round trip, so it may miss as many heartbeats as its members.
            return self._leader_missed >= limits.BOOT_HEARTBEATS
        peer = self.peers.get(self._leader)
        period = peer.boot_beats(self._config.heartbeat_us) if peer is not None else 0
        return self._leader_missed >= period

    def leads(self, sender: int) -> bool:
        """True if this member currently follows no coordinator other than `sender`."""
        return self.misses or self._leader == sender

    def _claim(self) -> int:
        """Return the view that this gateway coordinates or proposes, 0 if no majority echoes its heartbeats (membership, M4)."""
        view_state = self._view_state
        view = view_state.view if view_state.coordinating else self._flush.attempt
        # A coordinator whose disk makes no progress claims nothing, so that another gateway replaces it (membership, M4).
        if not view or self._resigned or (view_state.draining and not self._window.frames):
            return 0
        now_us, heartbeat_us = self._outbox.now.mono_us, self._config.heartbeat_us
        # A coordinator that can send but not receive gets no echoes, so it claims nothing (membership, M5).
        hearing = [peer.number for peer in self.peers if now_us - peer.echoed_us <= peer.boot_us(heartbeat_us)]
        return view if self._enough([view_state.me, *hearing]) else 0

    def _enough(self, gateways: Sequence[int]) -> bool:
        """True if the gateways form a majority. If the log is empty, all configured gateways are needed."""
        if self.peers.rosters.blank:
            return set(gateways) >= {number for number, _, _ in self.peers.configured}
        return self.peers.rosters.majority(self.peers.incarnations(gateways))

    def _set_leader(self, number: int, view: int) -> None:
        """Follow the coordinator that claims the view, unless another one claims a higher view."""
        # Of two coordinators, the coordinator of the higher view wins, because that view has ended the lower one (RESOLVE, M13).
        if self.misses or view >= self._leader_view:
            self._leader, self._leader_view, self._leader_missed = number, view, 0
            self._waiting = 0

    # Messages

    def on_heartbeat(self, sender: int, beat: Heartbeat) -> None:
        """Store the soft state of another gateway, follow its claim, and propose a view if no coordinator is left."""
        peer, view_state = self.peers.get(sender), self._view_state
        if peer is None:
            return
        if self._force.is_separated(peer, beat):
            if view_state.active:
                # This heartbeat reports the exclusion, so that the peer halts before it forms a view with other excluded gateways.
                self._send_heartbeat(peer, self._heartbeat())
            return
        # With an empty log, the gateways' configurations determine their numbers and may differ, so the check does not apply.
        if beat.claim and coordinator_of(beat.claim) != sender and not self.peers.rosters.blank:
            self._outbox.drop(beat, sender, f"view {view_text(beat.claim)} names another coordinator")
            return
        now_us = self._outbox.now.mono_us
        peer.beat, peer.received_us = beat, now_us
        peer.round_us = now_us - beat.echo_us - beat.held_us if 0 < beat.echo_us <= now_us else 0
        peer.lag = max(0, self._window.frontier - beat.frontier)
        if beat.echo_us and peer.echoed_us < beat.echo_us <= now_us:  # 0 means no echo
            peer.echoed_us = beat.echo_us
            peer.measured(peer.round_us)
        if beat.claim:
            self._set_leader(sender, beat.claim)
        # A coordinator that stops has given up its claim, so another member may propose a view at once (lifecycle, L14).
        elif sender == self._leader and beat.leaving:
            self._leader_missed = limits.BOOT_HEARTBEATS_MAX
        if beat.view == view_state.view and view_state.view:
            self._others.log_end_reported(sender, beat.end)
        if beat.claim == beat.view > view_state.view > 0:
            # The claim of a higher view ends this view, even if this member is not in the higher view (RESOLVE, M13).
            self._flush.lost()
        self._maybe_campaign()

    def on_link(self, event: LinkChanged) -> None:
        """Handle a report that a connection has broken or is restored. The peer of a broken connection is suspected at once.

        The suspicion does not end the view: the coordinator first probes the suspect, or a majority must lose the coordinator.
        """
        peer = self.peers.get(event.peer)
        if peer is None:
            return
        peer.up = event.up
        if not event.up:
            peer.missed = limits.BOOT_HEARTBEATS_MAX
            if self._view_state.coordinating:
                self.duties.on_link_broken(peer)
            if event.peer == self._leader:
                self._leader_missed = limits.BOOT_HEARTBEATS_MAX
                self._announce()
                self._maybe_campaign()

    def on_probe(self, sender: int) -> None:
        """Answer a probe at once with a heartbeat, which proves that this gateway is live and reports its view and frontier."""
        peer = self.peers.get(sender)
        if peer is not None:
            self._others.send_decisions()  # the heartbeat reports the new frontier, so CONFIRM must arrive before the heartbeat
            self._send_heartbeat(peer, self._heartbeat())

    def inquire(self) -> None:
        """Send a heartbeat and a probe to every voter, so that each voter answers at once with an echo of this heartbeat."""
        self._others.send_decisions()
        base = self._heartbeat()
        for peer in self.peers:
            if self.peers.counts(peer.number):
                self._send_heartbeat(peer, base)
                self._outbox.send(peer.number, Probe())

    # Time

    def started(self) -> None:
        """Propose a view at once if this gateway alone is a majority, as in a group of one."""
        self._maybe_campaign()

    def beat(self) -> None:
        """Run one heartbeat: count silence, send heartbeats, and act as coordinator, learner or candidate."""
        self.peers.refresh()
        for peer in self.peers:
            # Silence is counted in heartbeats of this gateway, so after a pause of its process it suspects no peer (M3).
            peer.missed = min(peer.missed + 1, limits.BOOT_HEARTBEATS_MAX)
        self._leader_missed = min(self._leader_missed + 1, limits.BOOT_HEARTBEATS_MAX)
        self._resigned = max(self._resigned - 1, 0)
        self._patience = max(self._patience - 1, 0)
        claim = self._claim()
        if claim:
            self._set_leader(self._view_state.me, claim)
        self.duties.beat()
        self._changes.beat()
        self._force.beat()
        self._announce(scheduled=True)
        self._pause()
        # If the promised view can no longer be formed, this member abandons it, so that it can join another view.
        if self._promise.beat(0 if self.misses else self._leader, self._leader_view):
            self._flush.lost()
        if self._view_state.coordinating:
            # A coordinator that was removed from the roster stops ordering like one that leaves, so that no frame is lost.
            self._view_state.draining = self._view_state.draining or self.peers.removed
            self._coordinate()
        elif self._flush.phase is Phase.SEARCHING and not self._others.own_low:
            self._flush.catch_up()
        self._maybe_campaign(beat=True)
        self.leaving.beat()

    def _pause(self) -> None:
        """After a long time without a coordinator, abandon the view and refuse client messages.

        This gateway also refuses client messages if a coordinator exists but its view does not include this gateway for a long
        time, for example because of a slow disk.
        """
        view_state = self._view_state
        self._viewless = self._viewless + 1 if self.misses else 0
        if self._viewless == limits.PAUSE_HEARTBEATS and not self._flush.attempt and view_state.view:
            self._flush.lost()
        self._unserved = 0 if view_state.primary and not self.misses else self._unserved + 1
        if self._unserved >= limits.PAUSE_HEARTBEATS + 4 * self.peers.round_beats():
            view_state.pausing = False

    def _coordinate(self) -> None:
        members = self.duties.members()
        if members is None or self._view_state.me not in members:
            return
        if not self._view_state.draining:
            self._flush.campaign(members)
        elif self.duties.has_absent:
            # This coordinator is about to leave and proposes no view, but a member that does not vote blocks its last frames.
            # If this coordinator claims nothing, another gateway can propose a view without that member.
            self._resigned = 2 * self._config.atomic_period_heartbeats

    def suspect(self, member: int, reason: str) -> None:
        """Make the next view exclude a member that blocks the group. If that member is this gateway, stop coordinating."""
        self._outbox.suspect(member, reason)
        if member != self._view_state.me:
            self.duties.stuck[member] = self._config.atomic_period_heartbeats
        elif not self.peers.alone:
            # The disk of this gateway makes no progress, so another gateway should coordinate.
            self._resigned = 2 * self._config.atomic_period_heartbeats

    # Candidates

    def _maybe_campaign(self, beat: bool = False) -> None:
        """Propose a view if a majority has lost its coordinator and this gateway is next in turn (membership, M9 to M12)."""
        flush, me = self._flush, self._view_state.me
        if not self.misses or self.leaving.requested or self._resigned or not me or flush.attempt:
            return
        if flush.phase in (Phase.HALTED, Phase.BORN) or not self._view_state.active or self._promise.awaited(self._viewless):
            return
        self.peers.refresh()
        there = [peer for peer in self.peers if self._may_answer(peer)]
        missing = [peer.number for peer in there if peer.beat is not None and peer.beat.misses]
        if not self._votes(me) or not self._enough([me, *missing]):
            self._waiting = 0
            return
        self._waiting += beat
        # All gateways should compute the same ranks, so the list includes voters that have not yet noticed the loss.
        voters = {me, *missing, *(peer.number for peer in self.peers if self._may_propose(peer))}
        # The oldest members with a recent log propose first, because the group knows their order from the log (membership, M11).
        rank = succession(self._window.state.members, {number: self._log_end_of(number) for number in voters}).index(me)
        # Each rank waits longer than the rank before, so that candidates do not propose at once and undo each other's views.
        if self._patience or self._waiting < rank * (limits.CANDIDATE_HEARTBEATS + 2 * self.peers.round_beats()):
            return
        # The view may include gateways that have not yet noticed the loss, because their logs may be needed.
        answering = [peer.number for peer in there]
        able = [number for number in answering if not self.duties.must_wait(number) and not self.peers.low(number)]
        chosen = able if not self._needs_more and self._enough([me, *set(able) & set(missing)]) else answering
        flush.campaign(tuple(by_age(self._window.state.members, [me, *chosen])))

    def _may_propose(self, peer: Peer) -> bool:
        return peer.beat is not None and not peer.beat.leaving and self.peers.fresh(peer.number) and self._votes(peer.number)

    def _votes(self, number: int) -> bool:
        return self.peers.rosters.blank or self.peers.voter(number)

    def _may_answer(self, peer: Peer) -> bool:
        """True if the gateway is live, and its answer may count when this gateway chooses the log of the next view."""
        beat = peer.beat
        if beat is None or not self.peers.fresh(peer.number) or beat.leaving:
            return False
        if (
            not self._votes(peer.number)
            and not self.peers.counts(peer.number)
            # A learner that has caught up may join a view, because it becomes a voter only in a view.
            and not (beat.ready and self.peers.member(peer.number))
        ):
            return False
        if self.peers.rosters.blank:
            return not beat.log and beat.config == self._config_crc
        return not beat.log or beat.log == self._log()

    def _log(self) -> bytes:
        return self._window.log()

    def _log_end_of(self, number: int) -> tuple[int, int]:
        """Return (accepted view, end of the log) of a gateway, from the gateway's last heartbeat."""
        if number == self._view_state.me:
            return self._view_state.accepted, self._flush.end
        peer = self.peers.get(number)
        return (peer.beat.accepted, peer.beat.end) if peer is not None and peer.beat is not None else (0, 0)

    def campaign_failed(self, stalled: Sequence[int], unresolved: bool) -> None:
        """After a failed attempt, wait before the next proposal, so that other candidates can propose first.

        `stalled` holds the members that did not answer in time. `unresolved` is True if the answers did not show what a corrupt log
        contained; this gateway then sends its next proposal to all live gateways.
        """
        for member in (number for number in stalled if number != self._view_state.me):
            self.duties.booted(member)
        self._needs_more = unresolved
        # Two candidates may have undone each other's views, so a random wait separates their next attempts.
        self._patience = 1 + self._random.randrange(limits.RETRY_HEARTBEATS_MAX + 4 * self.peers.round_beats())
        if self._leader == self._view_state.me:
            self._leader_missed = limits.BOOT_HEARTBEATS_MAX
        self._waiting = 0

    def installed(self) -> None:
        """Follow the coordinator of the view that was just installed."""
        self.duties.installed()
        self._viewless = self._waiting = 0
        self._needs_more = False
        self._leader, self._leader_view, self._leader_missed = self._view_state.coordinator, self._view_state.view, 0

    # Heartbeats

    def _announce(self, scheduled: bool = False) -> None:
        """Send a heartbeat to all peers or, in a large group, to the coordinator and to some peers in turn (membership, M8)."""
        if not scheduled:  # with a scheduled heartbeat, *atomic* sends CONFIRM to all members in the same step
            self._others.send_decisions()
        base = self._heartbeat()
        peers = list(self.peers)
        rounds = -(-len(peers) // limits.HEARTBEATS_A_TURN)
        self._round = (self._round + 1) % rounds if rounds > 1 else 0
        for index, peer in enumerate(peers):
            # Exclusions and claims depend on heartbeats between the coordinator and each member, so these are always sent.
            near = self._view_state.coordinating or peer.number == self._view_state.coordinator
            if near or self.misses or index % rounds == self._round:
                self._send_heartbeat(peer, base)

    def _heartbeat(self) -> Heartbeat:
        view_state, window = self._view_state, self._window
        return Heartbeat(
            sent_us=self._outbox.now.mono_us,
            log=self._log(),
            config=self._config_crc,
            view=view_state.view,
            members=view_state.members,
            promised=view_state.promised,
            accepted=view_state.accepted,
            claim=self._claim(),
            end=self._flush.end,
            frontier=window.frontier,
            watermark=self._flush.watermark,
            misses=self.misses,
            hears=self.peers.hears(),
            ready=self._flush.ready,
            leaving=self.leaving.announced > 0 or (view_state.draining and not window.frames),
            low=self._others.own_low,
            forced=window.state.forced,
            forced_at=window.state.forced_at,
            wall_us=self._outbox.now.wall_us,
        )

    def _send_heartbeat(self, peer: Peer, base: Heartbeat) -> None:
        if peer.beat is not None:
            held_us = self._outbox.now.mono_us - peer.received_us
            base = msgspec.structs.replace(base, echo_us=peer.beat.sent_us, held_us=held_us)
        if base.forced and self._force.left_out(peer):
            base = msgspec.structs.replace(base, out=True)
        self._outbox.send(peer.number, base)

    # Leaving

    def leave(self) -> None:
        """Begin an orderly stop: decide the batches of this gateway's clients, and then leave the group."""
        if self._flush.phase is Phase.STOPPED:
            return
        invariant(self._flush.phase is not Phase.BORN, "LeaveAsked came before Started")
        self.leaving.begin()
        # A halted member takes no part in the group, so it can stop at once.
        if not self._view_state.active:
            self._flush.stop()

    def end_of_step(self) -> None:
        """Complete an orderly stop if the others have a view without this gateway, or after a limited time."""
        view_state = self._view_state
        if not self.leaving.requested or not view_state.active:
            return
        if self.peers.alone or view_state.members == (view_state.me,):
            may_stop = self.leaving.may_stop_alone()
        else:
            if self.leaving.must_announce():
                self._announce()
            may_stop = self.leaving.may_stop(
                self._leader not in (0, view_state.me) and not self.misses and view_state.me not in self._members()
            )
        if may_stop:
            self._flush.stop()

    def _members(self) -> tuple[int, ...]:
        """Return the members of the coordinator's view, according to the coordinator's last heartbeat."""
        peer = self.peers.get(self._leader)
        return peer.beat.members if peer is not None and peer.beat is not None else ()
