"""*flush*: how views change without losing what was decided (design, section 5; see NOTES.md).

Both roles are here. A candidate promises, proposes, collects, adopts the greatest log and has the members install it
(`candidate.py`); a member promises, tells of its log, makes it the one that it is told, accepts. Every promise waits for the disk.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import Scalars
from tutti.data.view_id import coordinator_of, view_text
from tutti.errors import invariant
from tutti_gateway.core.context import Context
from tutti_gateway.core.flush.candidate import Above, Candidate
from tutti_gateway.core.flush.disk_repair import LogMending
from tutti_gateway.core.flush.install_snapshot import Relearning
from tutti_gateway.core.flush.learner import Learner
from tutti_gateway.core.flush.log_adoption import Adopting, Log
from tutti_gateway.core.flush.log_compare import Extent
from tutti_gateway.core.flush.log_serving import Serving
from tutti_gateway.core.protocol.events import Persisted, Recovered, Started
from tutti_gateway.core.protocol.messages import Fetch, Fetched, FetchedSnapshot, Install, Installed, Propose, Reject, State
from tutti_gateway.core.state_machine import Machine
from tutti_gateway.core.view.lifecycle import LIFE, Phase, Step
from tutti_gateway.core.view.peers import Peers
from tutti_gateway.core.window import Stage


class Layers(Log, Above, Protocol):
    """What a view change does to the other layers."""

    def restore(self, tail: tuple[Frame, ...]) -> None:
        """Take the undecided end of the log that a start found."""

    def view_ended(self) -> None:
        """The view ended: only what the disk has counts now."""

    def relearned(self) -> None:
        """The log was replaced by a state, all of it decided."""

    def installed(self) -> None:
        """A view was installed."""

    def primary(self) -> None:
        """The VIEW frame is decided."""

    def leads(self, sender: int) -> bool:
        """Whether nobody but `sender` is heard to coordinate."""


class Flush:
    """The layer.

    Attributes:
        adopting, serving: taking and giving frames.
        candidate: the candidate's half.
        learner: catches up outside of views.
        relearning: takes over the begin of another log where the frames are gone.
        mending: fetches again what the disk lost of the decided log.
        scalars, token: the last scalars that were asked for, and the Persist that is under way with them, 0 if none is.
        watermark: the frontier that is known durably.
    """

    def __init__(self, context: Context, layers: Layers, peers: Peers) -> None:
        self._outbox = context.outbox
        self._standing = context.standing
        self._window = context.window
        self._identity = context.identity
        self._period = context.config.atomic_period_heartbeats
        self._layers = layers
        self._peers = peers
        self.life = Machine("flush", LIFE, Phase.BORN)
        self.relearning = Relearning(context, self._known, self._relearned)
        self.adopting = Adopting(context, layers, peers, self.relearning)
        self.serving = Serving(context)
        self.candidate = Candidate(context, self, layers, peers)
        self.learner = Learner(context, peers, self.adopting, self.relearning, layers.learned)
        self.mending = LogMending(context, peers)
        self.scalars = Scalars()
        self.token = 0
        self._install: Install | None = None
        self.watermark = 0
        self._written_frontier = self._step_frontier = 0

    @property
    def phase(self) -> Phase:
        """Where this member is."""
        return self.life.state

    @property
    def attempt(self) -> int:
        """The view that this member proposes, 0 if it does not."""
        return self.candidate.attempt.view if self.candidate.attempt is not None else 0

    @property
    def failed(self) -> str:
        """Why the last view that this member proposed did not come about."""
        return self.candidate.failed

    @property
    def end(self) -> int:
        """Last position of the log, a damaged end included."""
        return self._window.end if self.adopting.damage is None else self.adopting.damage.last

    @property
    def ready(self) -> bool:
        """Whether this member, outside of the view that decides, holds what is decided."""
        return self.learner.ready

    def campaign(self, members: tuple[int, ...], forced: bool = False) -> None:
        """Propose a view of these members, who are all that remains of the roster if it is `forced`."""
        self.candidate.campaign(members, forced)

    def learn(self) -> None:
        """One heartbeat of a member that is in no view."""
        self.learner.beat()

    def on_started(self, event: Started) -> None:
        """Begin with what the disk holds."""
        recovered = event.recovered
        self._standing.durable(recovered.scalars)
        self.scalars = recovered.scalars
        self._layers.restore(recovered.tail)
        self.adopting.damage = recovered.damage
        self.watermark = self._step_frontier = self._written_frontier = self._window.frontier
        self._peers.refresh()
        self.candidate.entropy = event.entropy
        unfit = self._unfit(recovered)
        if unfit:
            self.life.on(Step.UNFIT)
            self._halt(unfit)
        else:
            self.life.on(Step.STARTED)

    def _unfit(self, recovered: Recovered) -> str:
        """Why this gateway may not begin, empty if it may."""
        identity, rosters = self._identity, self._peers.rosters
        if rosters.blank:
            invariant(self._window.end == 0, "the log does not begin with a ROSTER frame")
            return ""
        voters = [voter for voter in rosters.named.values() if voter.voting]
        mine = rosters.named.get(self._standing.me)
        if len(identity.members) == 1 and not self._standing.me:
            names = ", ".join(sorted(voter.name for voter in voters))
            return f"the log belongs to the group of {names}; {identity.gateway!r} alone may not go on with it"
        if len(voters) == 1 and mine == voters[0] and mine.incarnation != identity.incarnation:
            return (
                f"the log's voter {identity.gateway!r} had another disk (incarnation {mine.incarnation.hex()}, "
                f"this one is {identity.incarnation.hex()}); bring that directory back"
            )
        return ""

    # Scalars

    def persist(self, scalars: Scalars) -> None:
        """Have them written; the last ones asked for are those that `on_persisted` takes over."""
        self.scalars = scalars
        self.token = self._outbox.persist((), scalars)
        self._written_frontier = self._step_frontier

    def note_frontier(self) -> None:
        """Have the frontier written: others rely on its being known durably (design, 5, roster change)."""
        if self._written_frontier < self._step_frontier and not self.token:
            self.persist(self.scalars)

    def end_of_step(self) -> None:
        """What was delivered up to here counts as written by the scalars of later steps."""
        self._step_frontier = self._window.frontier

    def on_persisted(self, event: Persisted) -> None:
        """The scalars under way are durable: the next step."""
        self.relearning.persisted(event.token)
        self.learner.durable()
        self.adopting.durable()
        if not self.token or event.token < self.token:
            return
        self.token = 0
        self._standing.durable(self.scalars)
        self.watermark = max(self.watermark, self._written_frontier)
        if self.phase is Phase.PROMISING:
            if self.candidate.attempt is not None:
                self.life.on(Step.PROMISED_OWN)
                self.candidate.promised()
            else:
                self.life.on(Step.PROMISED)
                self._tell_state()
        elif self.phase is Phase.ACCEPTING and self._standing.accepted == self._standing.promised:
            if self.candidate.attempt is not None:
                self.life.on(Step.ACCEPTED_OWN)
                self.candidate.accepted()
            else:
                self._accepted()

    # Ending a view

    def end_view(self) -> None:
        """From here on nothing of the installed view leaves, or is taken."""
        if self._standing.view:
            self._standing.end_view()
            self._outbox.installed()
        self.adopting.stop()
        self.learner.stopped()
        self._layers.view_ended()

    def lost(self) -> None:
        """No view: this member is out of the one that it was in, or was about to be in."""
        self.candidate.attempt = None
        self._install = None
        self.end_view()
        self.life.on(Step.LOST)

    def state(self) -> State:
        """What this member's log holds, all of it durable."""
        window, damage = self._window, self.adopting.damage
        invariant(window.mark(Stage.DURABLE) == window.end, "a log is told of that is not durable")
        return State(
            view=self._standing.promised,
            accepted=self._standing.accepted,
            end=window.end if damage is None else damage.last,
            chain=window.chain if damage is None else damage.chain,
            frontier=window.frontier,
            base=window.base,
            table=tuple(window.runs),
            damage=damage,
        )

    # As a member

    def on_propose(self, sender: int, message: Propose) -> None:
        """A view is proposed."""
        standing, peers = self._standing, self._peers
        peers.refresh()
        if not self._may_propose(sender) or standing.me not in message.members or coordinator_of(message.view) != sender:
            self._outbox.drop(message, sender, f"view {view_text(message.view)} is not its to propose, or not to this gateway")
            return
        if message.view == standing.promised and self.phase is Phase.PROMISED:
            self._outbox.send(sender, self.state())
        elif message.view == self.scalars.promised:
            return  # it is being promised, or more
        elif message.view < self.scalars.promised:
            self._reject(sender, message.view, "a higher view is promised")
        elif not self._layers.leads(sender):
            self._reject(sender, message.view, "a coordinator is heard")
        elif message.forced and peers.hears_majority():
            self._reject(sender, message.view, "a majority of the roster is heard here: nothing is to be forced")
        elif message.forced and peers.later().difference(message.members):
            self._reject(
                sender, message.view, "a gateway is heard here that a later roster names: nothing is to be forced without it"
            )
        else:
            self.candidate.attempt = None
            self._install = None
            self.end_view()
            self.life.on(Step.PROPOSED)
            self.persist(msgspec.structs.replace(self.scalars, promised=message.view))

    def _may_propose(self, sender: int) -> bool:
        """Whether a gateway may propose: one that counts here, or that says it has this log, whose later rosters may count it, and
        knows what was forced upon it. Whom to count is the candidate's to know; to promise something does no harm.
        """
        peers, peer = self._peers, self._peers.get(sender)
        named = peers.rosters.blank or peers.rosters.votes(sender, peers.incarnation(sender))
        if named or peer is None or peer.beat is None:
            return named
        return peer.beat.log == self._window.log() and peer.beat.forced >= self._window.forced()

    def _reject(self, to: int, view: int, reason: str) -> None:
        self._outbox.send(to, Reject(view, self.scalars.promised, reason))

    def _tell_state(self) -> None:
        """The promise is durable, and with it everything that was handed to the disk before."""
        self._outbox.send(coordinator_of(self._standing.promised), self.state())

    def on_install(self, sender: int, message: Install) -> None:
        """The log and the members of the promised view."""
        standing = self._standing
        if message.view != standing.promised or message.view != self.scalars.promised or coordinator_of(message.view) != sender:
            if message.view < self.scalars.promised:
                self._reject(sender, message.view, "a higher view is promised")
            return
        if standing.me not in message.members:
            if self.phase is Phase.PROMISED:
                self.lost()
        elif standing.accepted == message.view:
            self._outbox.send(sender, Installed(message.view))
        elif message.end < self._window.frontier:
            # No log without what is decided is ever chosen: nothing is cut for it.
            reason = f"its log ends at {message.end}, and {self._window.frontier} is decided here"
            self._outbox.drop(message, sender, reason)
        elif self.phase is Phase.PROMISED:
            self._install = message
            self.life.on(Step.CHOSEN)
            self.adopting.begin(message.view, sender, Extent(message.base, message.table, message.end), message.chain)
            self._adopted()

    def on_fetch(self, sender: int, message: Fetch) -> None:
        """Frames of this member's log are wanted."""
        if self.candidate.attempt is not None and message.view == self.attempt:
            self.candidate.attempt.did(sender)
        self.serving.on_fetch(sender, message)

    def on_fetched(self, sender: int, message: Fetched) -> None:
        """Frames of the log to adopt, or of what the disk lost."""
        if self.mending.on_fetched(sender, message):
            return
        if not message.view:
            if self.phase is Phase.SEARCHING:
                self.learner.on_fetched(sender, message)
        elif self.phase is Phase.ADOPTING and self.adopting.on_fetched(sender, message):
            self._went_on()

    def on_snapshot(self, sender: int, message: FetchedSnapshot) -> None:
        """A piece of the state with which the log to adopt begins."""
        if not message.view:
            if self.phase is Phase.SEARCHING:
                self.learner.on_snapshot(sender, message)
        elif self.phase is Phase.ADOPTING and self.adopting.on_snapshot(sender, message):
            self._went_on()

    def _known(self, position: int) -> None:
        """The log holds everything up to the position, and that is decided."""
        if self.phase is Phase.ADOPTING:
            self.adopting.known(position)
        else:
            self.learner.known(position)

    def _relearned(self) -> None:
        """The log was replaced by a state."""
        self.watermark = self._step_frontier = self._written_frontier = self._window.frontier
        self._layers.relearned()
        self.adopting.relearned()
        if self.phase is Phase.ADOPTING:
            self._went_on()
        elif self.phase is Phase.SEARCHING:
            self.learner.relearned()

    def _went_on(self) -> None:
        """There is more of the log to adopt."""
        if self.candidate.attempt is not None:
            self.candidate.adopted()
        else:
            self._adopted()

    def _adopted(self) -> None:
        done = self.adopting.done()
        if done is False:
            self.lost()  # the source did not hold what the candidate said of it: another attempt
        elif done and not self._is_member():
            self.lost()
        elif done:
            self.life.on(Step.ADOPTED)
            self.accept()

    def _is_member(self) -> bool:
        """True if the adopted log gives this gateway the number of a member. A blank disk takes its number from its configuration,
        and that may be the number of another gateway in the log.
        """
        self._peers.refresh()
        return self._install is not None and self._standing.me in self._install.members

    def accept(self) -> None:
        """The log is that of the promised view, all of it handed to the disk before this: accept the view."""
        self.persist(msgspec.structs.replace(self.scalars, accepted=self.scalars.promised))

    def _accepted(self) -> None:
        """The view is accepted durably: it is installed here, and ORDER and CONFIRM of it count."""
        install = self._install
        if install is None or install.view != self._standing.accepted:
            return
        self.life.on(Step.ACCEPTED)
        self.install(install.members)
        self._outbox.send(self._standing.coordinator, Installed(install.view))

    def install(self, members: tuple[int, ...]) -> None:
        """Begin the accepted view."""
        self._peers.refresh()  # its log may name this gateway
        standing = self._standing
        standing.install(standing.accepted, members, coordinator_of(standing.accepted))
        self._layers.installed()
        self._outbox.installed()

    def decided(self, run: tuple[Frame, ...]) -> None:
        """The frontier passed the run; with the view's VIEW frame in it, the view is primary."""
        standing = self._standing
        if self.phase is Phase.INSTALLING and any(frame.kind == Kind.VIEW and frame.view == standing.view for frame in run):
            self.life.on(Step.DECIDED)
            standing.primary, standing.pausing = True, False
            self._layers.primary()
            self._outbox.installed()

    # Time, and the end

    def beat(self) -> None:
        """One heartbeat."""
        self.adopting.beat()
        self.mending.beat()
        if not self.attempt and self.adopting.silent > self._period + 4 * self._peers.round_beats():
            self.lost()  # who is to give the frames is gone, or has moved on
        if self.candidate.attempt is not None:
            self.candidate.beat()

    def stop(self) -> None:
        """Nothing is under way."""
        self.life.on(Step.STOP)
        self._standing.taking_part = False
        self._standing.closed = ("leaving", f"gateway {self._identity.gateway!r} has stopped")
        self._outbox.stopped()

    def on_failed(self, reason: str) -> None:
        """A write failed: no vote leaves any more."""
        if self.phase in (Phase.STOPPED, Phase.HALTED):
            return
        view = view_text(self._standing.view)
        self.life.on(Step.FAILED)
        self._halt(f"the disk of gateway {self._identity.gateway!r} failed: {reason}; view {view} ends here")

    def contradicted(self, reason: str) -> None:
        """This member's log and another one's cannot both be right: this member takes no part any more."""
        if self.phase not in (Phase.STOPPED, Phase.HALTED):
            self.life.on(Step.FAILED)
            self._halt(f"{reason}; what is decided here can still be read")

    def cast_out(self, reason: str) -> None:
        """The group went on without this member: what it decided since may be nobody else's, and is not shown as the group's."""
        if self.phase not in (Phase.STOPPED, Phase.HALTED):
            self.life.on(Step.FAILED)
            self._halt(reason, out=True)

    def _halt(self, reason: str, out: bool = False) -> None:
        self._standing.taking_part = False
        self._standing.closed = ("halted", reason)
        self._outbox.halt(reason, out)
