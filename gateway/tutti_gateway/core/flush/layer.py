"""The *flush* layer: changes views without a loss of decided frames (protocol/flush; see NOTES.md).

The layer has two roles. The candidate (`candidate.py`) promises a view, proposes it, collects the answers, adopts the greatest log,
and sends INSTALL to the members. A member promises the view, reports its log, makes its log equal to the chosen log, and accepts
the view. A promise takes effect only when it is durable.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.view_id import coordinator_of, view_text
from tutti.errors import invariant
from tutti_gateway.core.context import Context
from tutti_gateway.core.flush.candidate import Candidate, UpperLayers
from tutti_gateway.core.flush.disk_repair import LogRepair
from tutti_gateway.core.flush.install_snapshot import SnapshotInstall
from tutti_gateway.core.flush.learner_catch_up import Learner
from tutti_gateway.core.flush.log_adoption import Log, LogAdoption
from tutti_gateway.core.flush.log_compare import Extent
from tutti_gateway.core.flush.log_serving import LogServer
from tutti_gateway.core.pending_window import CommitStage
from tutti_gateway.core.protocol.events import Persisted, Recovered, Started
from tutti_gateway.core.protocol.messages import Fetch, Fetched, FetchedSnapshot, Install, Installed, Propose, Reject, State
from tutti_gateway.core.state_machine import Machine
from tutti_gateway.core.view.peers import Peers
from tutti_gateway.core.view.phases import LIFE, Phase, Step


class Layers(Log, UpperLayers, Protocol):
    """Methods of the other layers that *flush* calls."""

    def restore(self, tail: tuple[Frame, ...]) -> None:
        """Restore the undecided frames that the disk held at the start."""

    def view_ended(self) -> None:
        """End the view, and drop the frames that the disk has not received yet."""

    def log_replaced(self) -> None:
        """Report to all layers that a snapshot replaced the log. All of the snapshot is decided."""

    def installed(self) -> None:
        """Reset the state of each layer for the installed view."""

    def primary(self) -> None:
        """Begin to order new messages, because the VIEW frame is decided."""

    def leads(self, sender: int) -> bool:
        """True if this member currently follows no coordinator other than `sender`."""


class Flush:
    """Takes this member through view changes, and serves its log to other gateways.

    Attributes:
        adoption: makes this member's log equal to the chosen log.
        server: serves frames to other gateways.
        candidate: proposes views, and leads the attempt that this member began.
        learner: copies decided frames while this member is in no view.
        snapshot_install: installs a snapshot if the source has trimmed the missing frames.
        log_repair: repairs decided frames that the disk lost.
        hard_state: the last hard state that the disk has received, durable or not.
        token: token of the Persist action that writes `hard_state`; 0 if `hard_state` is durable.
        watermark: the last position that is durably known as decided.
    """

    def __init__(self, context: Context, layers: Layers, peers: Peers) -> None:
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._identity = context.identity
        self._period = context.config.atomic_period_heartbeats
        self._layers = layers
        self._peers = peers
        self.machine = Machine("flush", LIFE, Phase.BORN)
        self.snapshot_install = SnapshotInstall(context, self._on_known, self._on_log_replaced)
        self.adoption = LogAdoption(context, layers, peers, self.snapshot_install)
        self.server = LogServer(context)
        self.candidate = Candidate(context, self, layers, peers)
        self.learner = Learner(context, peers, self.adoption, self.snapshot_install, layers.advance_frontier)
        self.log_repair = LogRepair(context, peers)
        self.hard_state = HardState()
        self.token = 0
        self._install: Install | None = None
        self.watermark = 0
        self._written_frontier = self._step_frontier = 0

    @property
    def phase(self) -> Phase:
        """Current phase of this member in a view change."""
        return self.machine.state

    @property
    def attempt(self) -> int:
        """Id of the view that this member proposes; 0 if it proposes none."""
        return self.candidate.attempt.view if self.candidate.attempt is not None else 0

    @property
    def failed(self) -> str:
        """Reason why the last view that this member proposed failed."""
        return self.candidate.failed

    @property
    def waits(self) -> str:
        """The conditions for which this member's proposed view waits, as text for the operator; empty if it proposes none."""
        return self.candidate.waits

    @property
    def end(self) -> int:
        """Last position of this member's log, which includes a corrupt end."""
        return self._window.end if self.adoption.damage is None else self.adoption.damage.last

    @property
    def ready(self) -> bool:
        """True if this member is in no view but holds all decided frames, so that a view can add it without waiting."""
        return self.learner.ready

    def campaign(self, members: tuple[int, ...], forced: bool = False) -> None:
        """Propose a view of these members. `forced` is True if no other voter of the roster remains."""
        self.candidate.campaign(members, forced)

    def catch_up(self) -> None:
        """Run one heartbeat of a member that is in no view: copy decided frames from another gateway."""
        self.learner.beat()

    def on_started(self, event: Started) -> None:
        """Start this layer with the content of the disk. Halt if this gateway must not continue the log on its disk."""
        recovered = event.recovered
        self._view_state.durable(recovered.scalars)
        self.hard_state = recovered.scalars
        self._layers.restore(recovered.tail)
        self.adoption.damage = recovered.damage
        self.watermark = self._step_frontier = self._written_frontier = self._window.frontier
        self._peers.refresh()
        self.candidate.entropy = event.entropy
        unfit = self._unfit(recovered)
        if unfit:
            self.machine.on(Step.UNFIT)
            self._halt(unfit)
        else:
            self.machine.on(Step.STARTED)

    def _unfit(self, recovered: Recovered) -> str:
        """Return the reason why this gateway must not continue the log on its disk; empty if there is none."""
        identity, rosters = self._identity, self._peers.rosters
        if rosters.blank:
            invariant(self._window.end == 0, "the log does not begin with a ROSTER frame")
            return ""
        voters = [voter for voter in rosters.named.values() if voter.voting]
        mine = rosters.named.get(self._view_state.me)
        # Without this check, a gateway that was configured without peers by mistake would decide alone on a group's log.
        if len(identity.members) == 1 and not self._view_state.me:
            names = ", ".join(sorted(voter.name for voter in voters))
            return f"the log belongs to the group of {names}; {identity.gateway!r} alone must not continue it"
        # If the only voter of the group has a new disk, it would decide without the records on its old disk.
        if len(voters) == 1 and mine == voters[0] and mine.incarnation != identity.incarnation:
            return (
                f"the log's voter {identity.gateway!r} had another disk (incarnation {mine.incarnation.hex()}, "
                f"this one is {identity.incarnation.hex()}); bring that directory back"
            )
        return ""

    # Hard state

    def persist(self, hard_state: HardState) -> None:
        """Write the hard state to the disk. Promises and acceptances take effect in `on_persisted`, when they are durable."""
        self.hard_state = hard_state
        self.token = self._outbox.persist((), hard_state)
        self._written_frontier = self._step_frontier

    def persist_frontier(self) -> None:
        """Write the frontier to the disk. Roster changes rely on a frontier that survives a crash (protocol/membership, M24)."""
        # If a write of the hard state is in progress, a later heartbeat writes the frontier.
        if self._written_frontier < self._step_frontier and not self.token:
            self.persist(self.hard_state)

    def end_of_step(self) -> None:
        """Store the frontier of this step. The disk writes this frontier together with the next hard state."""
        self._step_frontier = self._window.frontier

    def on_persisted(self, event: Persisted) -> None:
        """Handle the report that all writes up to the token are durable. A durable hard state continues the view change."""
        self.snapshot_install.persisted(event.token)
        self.learner.durable()
        self.adoption.durable()
        # A report with a smaller token belongs to an earlier write, so the last hard state is not durable yet.
        if not self.token or event.token < self.token:
            return
        self.token = 0
        # A crash would have lost a promise that was not durable, so promises and acceptances take effect only now.
        self._view_state.durable(self.hard_state)
        self.watermark = max(self.watermark, self._written_frontier)
        # Both the candidate and the other members write promises and acceptances, but only the candidate has an attempt.
        if self.phase is Phase.PROMISING:
            if self.candidate.attempt is not None:
                self.machine.on(Step.PROMISED_OWN)
                self.candidate.on_promised()
            else:
                self.machine.on(Step.PROMISED)
                self._send_state()
        elif self.phase is Phase.ACCEPTING and self._view_state.accepted == self._view_state.promised:
            if self.candidate.attempt is not None:
                self.machine.on(Step.ACCEPTED_OWN)
                self.candidate.on_accepted()
            else:
                self._accepted()

    # Ending a view

    def end_view(self) -> None:
        """End the installed view. This member then neither sends nor accepts messages of that view (protocol/flush, F3)."""
        if self._view_state.view:
            self._view_state.end_view()
            self._outbox.installed()
        self.adoption.stop()
        self.learner.stop()
        self._layers.view_ended()

    def lost(self) -> None:
        """Abandon the view or the attempt, so that this member is in no view and proposes none."""
        self.candidate.attempt = None
        self._install = None
        self.end_view()
        self.machine.on(Step.LOST)

    def state(self) -> State:
        """Return the state of this member's durable log."""
        window, damage = self._window, self.adoption.damage
        # If STATE contained frames that a crash can take back, a candidate could choose a log that no longer exists.
        invariant(window.mark(CommitStage.DURABLE) == window.end, "the reported log is not durable")
        return State(
            view=self._view_state.promised,
            accepted=self._view_state.accepted,
            end=window.end if damage is None else damage.last,
            chain=window.chain if damage is None else damage.chain,
            frontier=window.frontier,
            base=window.base,
            table=tuple(window.runs),
            damage=damage,
        )

    # As a member

    def on_propose(self, sender: int, message: Propose) -> None:
        """Promise a proposed view, or refuse the proposal with a reason."""
        view_state, peers = self._view_state, self._peers
        peers.refresh()
        if not self._may_propose(sender) or view_state.me not in message.members or coordinator_of(message.view) != sender:
            self._outbox.drop(
                message, sender, f"view {view_text(message.view)} must be proposed by its coordinator, to its members"
            )
            return
        # The candidate repeats its proposal if it has not received STATE, so this member sends STATE again.
        if message.view == view_state.promised and self.phase is Phase.PROMISED:
            self._outbox.send(sender, self.state())
        elif message.view == self.hard_state.promised:
            return  # the promise is still being written, or this member has already answered the candidate
        elif message.view < self.hard_state.promised:
            self._reject(sender, message.view, "a higher view is promised")
        # A candidate that has lost its connections must not end a view that works for the other members (membership, M9).
        elif not self._layers.leads(sender):
            self._reject(sender, message.view, "a coordinator is heard")
        # A connected majority continues without a forced roster, which would lose the later records of that majority.
        elif message.forced and peers.hears_majority():
            self._reject(sender, message.view, "a majority of the roster is heard here: a forced roster is not allowed")
        # A later roster may contain a live gateway that is not in the proposed view and holds records that would be lost.
        elif message.forced and peers.later().difference(message.members):
            reason = "a gateway is heard here that a later roster names: a forced roster without it is not allowed"
            self._reject(sender, message.view, reason)
        else:
            self.candidate.attempt = None
            self._install = None
            self.end_view()
            # The view has ended above, so this member sends no vote of the old view while the disk writes the promise (flush, F3).
            self.machine.on(Step.PROPOSED)
            self.persist(msgspec.structs.replace(self.hard_state, promised=message.view))

    def _may_propose(self, sender: int) -> bool:
        """True if the gateway may propose a view to this member.

        Any sender may propose if this log has no roster, and a sender that is a voter in a roster of this log may always propose. A
        later roster may list a sender that has the same log and all forced rosters of this log, so such a sender may propose too. A
        promise to a candidate that is not a voter does no harm, because the candidate needs a majority of the rosters in the log
        that it adopts.
        """
        peers, peer = self._peers, self._peers.get(sender)
        named = peers.rosters.blank or peers.rosters.votes(sender, peers.incarnation(sender))
        if named or peer is None or peer.beat is None:
            return named
        return peer.beat.log == self._window.log() and peer.beat.forced >= self._window.forced()

    def _reject(self, to: int, view: int, reason: str) -> None:
        self._outbox.send(to, Reject(view, self.hard_state.promised, reason))

    def _send_state(self) -> None:
        """Report this member's log to the candidate. The promise and every earlier write are durable now."""
        self._outbox.send(coordinator_of(self._view_state.promised), self.state())

    def on_install(self, sender: int, message: Install) -> None:
        """Begin to adopt the log of the promised view."""
        view_state = self._view_state
        # Only the candidate of the promised view may change this member's log.
        if (
            message.view != view_state.promised
            or message.view != self.hard_state.promised
            or coordinator_of(message.view) != sender
        ):
            if message.view < self.hard_state.promised:
                self._reject(sender, message.view, "a higher view is promised")
            return
        # If the view does not include this gateway, the wait for it ends, so that this gateway can catch up as a learner.
        if view_state.me not in message.members:
            if self.phase is Phase.PROMISED:
                self.lost()
        # The candidate repeats INSTALL if it has not received the answer, so this member sends the answer again.
        elif view_state.accepted == message.view:
            self._outbox.send(sender, Installed(message.view))
        elif message.end < self._window.frontier:
            # A correctly chosen log holds all decided frames, so an INSTALL of a log that lacks one is wrong.
            reason = f"its log ends at {message.end}, but {self._window.frontier} is decided here"
            self._outbox.drop(message, sender, reason)
        elif self.phase is Phase.PROMISED:
            self._install = message
            self.machine.on(Step.CHOSEN)
            self.adoption.begin(message.view, sender, Extent(message.base, message.table, message.end), message.chain)
            self._adopted()

    def on_fetch(self, sender: int, message: Fetch) -> None:
        """Serve frames of this member's log to another gateway."""
        # The fetch of a large log takes long, so the candidate counts each Fetch as progress of the requesting member.
        if self.candidate.attempt is not None and message.view == self.attempt:
            self.candidate.attempt.note_progress(sender)
        self.server.on_fetch(sender, message)

    def on_fetched(self, sender: int, message: Fetched) -> None:
        """Pass fetched frames to the part that requested them: the repair, the learner or the adoption of a log."""
        # Both learners and repairs fetch with view 0. The repair accepts only frames of the range that it has requested.
        if self.log_repair.on_fetched(sender, message):
            return
        if not message.view:
            if self.phase is Phase.SEARCHING:
                self.learner.on_fetched(sender, message)
        elif self.phase is Phase.ADOPTING and self.adoption.on_fetched(sender, message):
            self._continue_adoption()

    def on_snapshot(self, sender: int, message: FetchedSnapshot) -> None:
        """Pass a chunk of a snapshot to the part that requested it: the learner or the adoption of a log."""
        if not message.view:
            if self.phase is Phase.SEARCHING:
                self.learner.on_snapshot(sender, message)
        elif self.phase is Phase.ADOPTING and self.adoption.on_snapshot(sender, message):
            self._continue_adoption()

    def _on_known(self, position: int) -> None:
        """Continue after `position`, because this log already holds all frames that the snapshot covers."""
        if self.phase is Phase.ADOPTING:
            self.adoption.known(position)
        else:
            self.learner.known(position)

    def _on_log_replaced(self) -> None:
        """Copy the frames that follow the snapshot which has replaced the log."""
        self.watermark = self._step_frontier = self._written_frontier = self._window.frontier
        self._layers.log_replaced()
        self.adoption.log_replaced()
        if self.phase is Phase.ADOPTING:
            self._continue_adoption()
        elif self.phase is Phase.SEARCHING:
            self.learner.log_replaced()

    def _continue_adoption(self) -> None:
        """If the adoption of the log is complete, continue as candidate or as member, according to this member's role."""
        if self.candidate.attempt is not None:
            self.candidate.on_adopted()
        else:
            self._adopted()

    def _adopted(self) -> None:
        done = self.adoption.done()
        if done is False:
            self.lost()  # this log cannot become equal to the chosen log, so this member waits for another attempt
        elif done and not self._is_member():
            self.lost()
        elif done:
            self.machine.on(Step.ADOPTED)
            self.accept()

    def _is_member(self) -> bool:
        """True if the number that the adopted log assigns to this gateway is the number of a member.

        Before the adoption, a gateway with a blank disk uses its configured number, which may belong to another gateway in the log.
        """
        self._peers.refresh()
        return self._install is not None and self._view_state.me in self._install.members

    def accept(self) -> None:
        """Accept the promised view. The disk writes the acceptance after all frames of the adopted log."""
        self.persist(msgspec.structs.replace(self.hard_state, accepted=self.hard_state.promised))

    def _accepted(self) -> None:
        """Install the accepted view after the acceptance is durable, and report the acceptance to the candidate."""
        install = self._install
        # If a newer proposal arrived while the disk wrote the acceptance, the accepted view is not installed.
        if install is None or install.view != self._view_state.accepted:
            return
        self.machine.on(Step.ACCEPTED)
        self.install(install.members)
        self._outbox.send(self._view_state.coordinator, Installed(install.view))

    def install(self, members: tuple[int, ...]) -> None:
        """Install the accepted view with these members."""
        self._peers.refresh()  # the adopted log may contain a new roster
        view_state = self._view_state
        view_state.install(view_state.accepted, members, coordinator_of(view_state.accepted))
        self._layers.installed()
        self._outbox.installed()

    def decided(self, run: tuple[Frame, ...]) -> None:
        """Open the view for new messages if a decided run contains its VIEW frame."""
        view_state = self._view_state
        # When the VIEW frame is decided, all frames of earlier views are decided too (flush, F12).
        if self.phase is Phase.INSTALLING and any(frame.kind == Kind.VIEW and frame.view == view_state.view for frame in run):
            self.machine.on(Step.DECIDED)
            view_state.primary, view_state.pausing = True, False
            self._layers.primary()
            self._outbox.installed()

    # Time, and the end

    def beat(self) -> None:
        """Run one heartbeat: repeat requests, and abandon a view change that makes no progress."""
        self.adoption.beat()
        self.log_repair.beat()
        # This limit is for members other than the candidate, which limits its attempt in `candidate.beat`.
        if not self.attempt and self.adoption.silent > self._period + 4 * self._peers.round_beats():
            self.lost()  # the source of the chosen log is silent or has promised another view
        if self.candidate.attempt is not None:
            self.candidate.beat()

    def stop(self) -> None:
        """Complete the orderly stop of this member."""
        self.machine.on(Step.STOP)
        self._view_state.active = False
        self._view_state.closed = ("leaving", f"gateway {self._identity.gateway!r} has stopped")
        self._outbox.stopped()

    def on_failed(self, reason: str) -> None:
        """Halt after a failed write, so that this member sends no further vote."""
        # The disk thread may report further failures after the first one.
        if self.phase in (Phase.STOPPED, Phase.HALTED):
            return
        view = view_text(self._view_state.view)
        self.machine.on(Step.FAILED)
        self._halt(f"the disk of gateway {self._identity.gateway!r} failed: {reason}; view {view} ends here")

    def halt_inconsistent(self, reason: str) -> None:
        """Halt this member, because another member's log holds a decided frame that contradicts this log."""
        if self.phase not in (Phase.STOPPED, Phase.HALTED):
            self.machine.on(Step.FAILED)
            self._halt(f"{reason}; what is decided here can still be read")

    def halt_removed(self, reason: str) -> None:
        """Halt this member, because a forced roster excludes it, so its log may differ from the group's log."""
        if self.phase not in (Phase.STOPPED, Phase.HALTED):
            self.machine.on(Step.FAILED)
            self._halt(reason, out=True)

    def _halt(self, reason: str, out: bool = False) -> None:
        self._view_state.active = False
        self._view_state.closed = ("halted", reason)
        self._outbox.halt(reason, out)
