"""The *flush* layer: it changes the view without losing decided frames (protocol/flush; see NOTES.md).

It holds both roles. The candidate (`candidate.py`) promises a view, proposes it, collects the answers, adopts the greatest log, and
has the members install the view. A member promises the view, reports its log, makes its log equal to the chosen one, and accepts. A
promise takes effect only when it is durable.
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
    """Calls of a view change to the other layers."""

    def restore(self, tail: tuple[Frame, ...]) -> None:
        """Restore the undecided tail of the log that was found at the start."""

    def view_ended(self) -> None:
        """End the view. From now on only the log on the disk counts."""

    def log_replaced(self) -> None:
        """Continue after a snapshot replaced the log; everything in it is decided."""

    def installed(self) -> None:
        """Begin the installed view."""

    def primary(self) -> None:
        """Begin to order new messages, because the VIEW frame is decided."""

    def leads(self, sender: int) -> bool:
        """True if this member hears no coordinator but `sender`."""


class Flush:
    """Takes this member through view changes, and serves its log to other gateways.

    Attributes:
        adoption: fetches frames from other gateways.
        server: serves frames to other gateways.
        candidate: proposes views, and leads the attempt that this member began.
        learner: catches up outside of views.
        snapshot_install: installs a snapshot where the source has trimmed the missing frames.
        log_repair: repairs decided frames that the disk lost.
        hard_state: the last hard state given to the disk.
        token: token of the Persist that writes `hard_state`; 0 when it is durable.
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
        """Phase of this member."""
        return self.machine.state

    @property
    def attempt(self) -> int:
        """View that this member proposes; 0 if it proposes none."""
        return self.candidate.attempt.view if self.candidate.attempt is not None else 0

    @property
    def failed(self) -> str:
        """Reason why the last view that this member proposed failed."""
        return self.candidate.failed

    @property
    def end(self) -> int:
        """Last position of the log, including a corrupt end."""
        return self._window.end if self.adoption.damage is None else self.adoption.damage.last

    @property
    def ready(self) -> bool:
        """True if this member is outside the view that decides, and holds all decided frames."""
        return self.learner.ready

    def campaign(self, members: tuple[int, ...], forced: bool = False) -> None:
        """Propose a view of these members. With `forced` they are all that remains of the roster."""
        self.candidate.campaign(members, forced)

    def catch_up(self) -> None:
        """Run one heartbeat of a member that is in no view."""
        self.learner.beat()

    def on_started(self, event: Started) -> None:
        """Begin with the content of the disk."""
        recovered = event.recovered
        self._view_state.durable(recovered.scalars)  # the hard state was read from the disk, so it is durable
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
        """Return the reason why this gateway may not begin; empty if it may."""
        identity, rosters = self._identity, self._peers.rosters
        if rosters.blank:
            invariant(self._window.end == 0, "the log does not begin with a ROSTER frame")
            return ""
        voters = [voter for voter in rosters.named.values() if voter.voting]
        mine = rosters.named.get(self._view_state.me)
        # A gateway that is configured without peers must not continue the log of a group.
        if len(identity.members) == 1 and not self._view_state.me:
            names = ", ".join(sorted(voter.name for voter in voters))
            return f"the log belongs to the group of {names}; {identity.gateway!r} alone may not continue it"
        if len(voters) == 1 and mine == voters[0] and mine.incarnation != identity.incarnation:
            return (
                f"the log's voter {identity.gateway!r} had another disk (incarnation {mine.incarnation.hex()}, "
                f"this one is {identity.incarnation.hex()}); bring that directory back"
            )
        return ""

    # Hard state

    def persist(self, hard_state: HardState) -> None:
        """Write the hard state. `on_persisted` adopts the last hard state that was written."""
        self.hard_state = hard_state
        self.token = self._outbox.persist((), hard_state)
        self._written_frontier = self._step_frontier

    def persist_frontier(self) -> None:
        """Write the frontier durably, because other members rely on this knowledge (protocol/membership, M24)."""
        # If a write is in progress, a later heartbeat writes the newer frontier.
        if self._written_frontier < self._step_frontier and not self.token:
            self.persist(self.hard_state)

    def end_of_step(self) -> None:
        """Note the delivered frontier: later writes of hard state include it."""
        self._step_frontier = self._window.frontier

    def on_persisted(self, event: Persisted) -> None:
        """Handle the completion of a hard-state write, and continue the view change."""
        self.snapshot_install.persisted(event.token)
        self.learner.durable()
        self.adoption.durable()
        if not self.token or event.token < self.token:
            return
        self.token = 0
        # Hard state counts only once it is durable: promises and acceptances take effect here.
        self._view_state.durable(self.hard_state)
        self.watermark = max(self.watermark, self._written_frontier)
        # A candidate and a member write the same hard state. Only a candidate has an attempt.
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
        """End the installed view. From now on its messages are neither sent nor accepted (protocol/flush, F3)."""
        if self._view_state.view:
            self._view_state.end_view()
            self._outbox.installed()
        self.adoption.stop()
        self.learner.stop()
        self._layers.view_ended()

    def lost(self) -> None:
        """Abandon the view. This member is then in no view and in no attempt."""
        self.candidate.attempt = None
        self._install = None
        self.end_view()
        self.machine.on(Step.LOST)

    def state(self) -> State:
        """Return the state of this member's durable log."""
        window, damage = self._window, self.adoption.damage
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
        """Handle a proposal of a view."""
        view_state, peers = self._view_state, self._peers
        peers.refresh()
        if not self._may_propose(sender) or view_state.me not in message.members or coordinator_of(message.view) != sender:
            self._outbox.drop(
                message, sender, f"view {view_text(message.view)} must be proposed by its coordinator, to its members"
            )
            return
        # A repeated proposal means that STATE was lost.
        if message.view == view_state.promised and self.phase is Phase.PROMISED:
            self._outbox.send(sender, self.state())
        elif message.view == self.hard_state.promised:
            return  # the promise of this view is being written, or is durable
        elif message.view < self.hard_state.promised:
            self._reject(sender, message.view, "a higher view is promised")
        # A member that hears its coordinator refuses other proposals (membership, M9).
        elif not self._layers.leads(sender):
            self._reject(sender, message.view, "a coordinator is heard")
        elif message.forced and peers.hears_majority():
            self._reject(sender, message.view, "a majority of the roster is heard here: a forced roster is not allowed")
        elif message.forced and peers.later().difference(message.members):
            reason = "a gateway is heard here that a later roster names: a forced roster without it is not allowed"
            self._reject(sender, message.view, reason)
        else:
            self.candidate.attempt = None
            self._install = None
            self.end_view()
            # The old view ends before the promise is durable (flush, F3).
            self.machine.on(Step.PROPOSED)
            self.persist(msgspec.structs.replace(self.hard_state, promised=message.view))

    def _may_propose(self, sender: int) -> bool:
        """True if the gateway may propose a view to this member.

        It may if this log has no roster, or if a roster in this log counts it as a voter. It also may if it holds the same log and
        knows every forced roster, because later rosters of that log may count it. The candidate decides which members count, so a
        promise to any candidate does no harm.
        """
        peers, peer = self._peers, self._peers.get(sender)
        named = peers.rosters.blank or peers.rosters.votes(sender, peers.incarnation(sender))
        if named or peer is None or peer.beat is None:
            return named
        return peer.beat.log == self._window.log() and peer.beat.forced >= self._window.forced()

    def _reject(self, to: int, view: int, reason: str) -> None:
        self._outbox.send(to, Reject(view, self.hard_state.promised, reason))

    def _send_state(self) -> None:
        """Report the durable log to the candidate. The promise and every earlier write are durable now."""
        self._outbox.send(coordinator_of(self._view_state.promised), self.state())

    def on_install(self, sender: int, message: Install) -> None:
        """Begin to adopt the log of the promised view."""
        view_state = self._view_state
        # Only the candidate of the promised view may install a log here.
        if (
            message.view != view_state.promised
            or message.view != self.hard_state.promised
            or coordinator_of(message.view) != sender
        ):
            if message.view < self.hard_state.promised:
                self._reject(sender, message.view, "a higher view is promised")
            return
        if view_state.me not in message.members:
            if self.phase is Phase.PROMISED:
                self.lost()
        # A repeated INSTALL means that this member's answer was lost.
        elif view_state.accepted == message.view:
            self._outbox.send(sender, Installed(message.view))
        elif message.end < self._window.frontier:
            # every chosen log holds all decided frames, so this log must not cause a truncation
            reason = f"its log ends at {message.end}, but {self._window.frontier} is decided here"
            self._outbox.drop(message, sender, reason)
        elif self.phase is Phase.PROMISED:
            self._install = message
            self.machine.on(Step.CHOSEN)
            self.adoption.begin(message.view, sender, Extent(message.base, message.table, message.end), message.chain)
            self._adopted()

    def on_fetch(self, sender: int, message: Fetch) -> None:
        """Serve frames of this member's log."""
        # A member that fetches makes progress, so it does not count as silent.
        if self.candidate.attempt is not None and message.view == self.attempt:
            self.candidate.attempt.note_progress(sender)
        self.server.on_fetch(sender, message)

    def on_fetched(self, sender: int, message: Fetched) -> None:
        """Handle frames of the log to adopt, or of a range that the disk lost."""
        # Learners and repairs both fetch with view 0. The repair recognises the range that it requested.
        if self.log_repair.on_fetched(sender, message):
            return
        if not message.view:
            if self.phase is Phase.SEARCHING:
                self.learner.on_fetched(sender, message)
        elif self.phase is Phase.ADOPTING and self.adoption.on_fetched(sender, message):
            self._continue_adoption()

    def on_snapshot(self, sender: int, message: FetchedSnapshot) -> None:
        """Handle a chunk of the snapshot with which the log to adopt begins."""
        if not message.view:
            if self.phase is Phase.SEARCHING:
                self.learner.on_snapshot(sender, message)
        elif self.phase is Phase.ADOPTING and self.adoption.on_snapshot(sender, message):
            self._continue_adoption()

    def _on_known(self, position: int) -> None:
        """Note that the log holds all frames up to the position, all of them decided."""
        if self.phase is Phase.ADOPTING:
            self.adoption.known(position)
        else:
            self.learner.known(position)

    def _on_log_replaced(self) -> None:
        """Continue after a snapshot replaced the log."""
        self.watermark = self._step_frontier = self._written_frontier = self._window.frontier
        self._layers.log_replaced()
        self.adoption.log_replaced()
        if self.phase is Phase.ADOPTING:
            self._continue_adoption()
        elif self.phase is Phase.SEARCHING:
            self.learner.log_replaced()

    def _continue_adoption(self) -> None:
        """Continue to adopt a log that has grown."""
        if self.candidate.attempt is not None:
            self.candidate.on_adopted()
        else:
            self._adopted()

    def _adopted(self) -> None:
        done = self.adoption.done()
        if done is False:
            self.lost()  # the source lacks frames that the candidate announced, so a new attempt is needed
        elif done and not self._is_member():
            self.lost()
        elif done:
            self.machine.on(Step.ADOPTED)
            self.accept()

    def _is_member(self) -> bool:
        """True if the adopted log gives this gateway the number of a member. A gateway with a blank disk takes its number from its
        configuration. In the log, that number may belong to another gateway.
        """
        self._peers.refresh()
        return self._install is not None and self._view_state.me in self._install.members

    def accept(self) -> None:
        """Accept the promised view. All frames of the adopted log were given to the disk before this write."""
        self.persist(msgspec.structs.replace(self.hard_state, accepted=self.hard_state.promised))

    def _accepted(self) -> None:
        """Install the durably accepted view, so that its ORDER and CONFIRM count."""
        install = self._install
        # A newer proposal may have arrived while the disk was writing.
        if install is None or install.view != self._view_state.accepted:
            return
        self.machine.on(Step.ACCEPTED)
        self.install(install.members)
        self._outbox.send(self._view_state.coordinator, Installed(install.view))

    def install(self, members: tuple[int, ...]) -> None:
        """Begin the accepted view."""
        self._peers.refresh()  # the log of this view may name this gateway
        view_state = self._view_state
        view_state.install(view_state.accepted, members, coordinator_of(view_state.accepted))
        self._layers.installed()
        self._outbox.installed()

    def decided(self, run: tuple[Frame, ...]) -> None:
        """Handle a decided run. The view is primary when its VIEW frame is in it."""
        view_state = self._view_state
        # The decision of the VIEW frame decides everything before it (flush, F12).
        if self.phase is Phase.INSTALLING and any(frame.kind == Kind.VIEW and frame.view == view_state.view for frame in run):
            self.machine.on(Step.DECIDED)
            view_state.primary, view_state.pausing = True, False
            self._layers.primary()
            self._outbox.installed()

    # Time, and the end

    def beat(self) -> None:
        """Run one heartbeat."""
        self.adoption.beat()
        self.log_repair.beat()
        if not self.attempt and self.adoption.silent > self._period + 4 * self._peers.round_beats():
            self.lost()  # the source of the frames is silent or is in another view
        if self.candidate.attempt is not None:
            self.candidate.beat()

    def stop(self) -> None:
        """Stop, because nothing is in progress."""
        self.machine.on(Step.STOP)
        self._view_state.active = False
        self._view_state.closed = ("leaving", f"gateway {self._identity.gateway!r} has stopped")
        self._outbox.stopped()

    def on_failed(self, reason: str) -> None:
        """Halt after a failed write. No further vote is sent."""
        if self.phase in (Phase.STOPPED, Phase.HALTED):
            return
        view = view_text(self._view_state.view)
        self.machine.on(Step.FAILED)
        self._halt(f"the disk of gateway {self._identity.gateway!r} failed: {reason}; view {view} ends here")

    def halt_inconsistent(self, reason: str) -> None:
        """Halt, because this member's log contradicts another member's log."""
        if self.phase not in (Phase.STOPPED, Phase.HALTED):
            self.machine.on(Step.FAILED)
            self._halt(f"{reason}; what is decided here can still be read")

    def halt_removed(self, reason: str) -> None:
        """Halt, because a forced roster excludes this member. Its log must not be served as the group's log any longer."""
        if self.phase not in (Phase.STOPPED, Phase.HALTED):
            self.machine.on(Step.FAILED)
            self._halt(reason, out=True)

    def _halt(self, reason: str, out: bool = False) -> None:
        self._view_state.active = False
        self._view_state.closed = ("halted", reason)
        self._outbox.halt(reason, out)
