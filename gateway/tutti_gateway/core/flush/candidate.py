"""The candidate's role in *flush*: a candidate proposes one view after another (protocol/flush, F1 to F14)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

import msgspec

from tutti.data.frames.bodies import RosterBody, ViewBody, Voter, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.view_id import counter_of, view_of
from tutti.errors import invariant
from tutti_gateway.core.context import Context
from tutti_gateway.core.flush.attempt import Attempt
from tutti_gateway.core.flush.log_adoption import LogAdoption
from tutti_gateway.core.flush.log_choice import choose, readable_end
from tutti_gateway.core.flush.log_compare import Extent
from tutti_gateway.core.protocol.messages import Install, Installed, Propose, Reject, State
from tutti_gateway.core.state_machine import Machine
from tutti_gateway.core.view.peers import Peers
from tutti_gateway.core.view.phases import Phase, Step
from tutti_gateway.core.view.quorum import Rosters


class Member(Protocol):
    """The part of the member's role that a candidate uses. The member's role owns the hard state and the phase.

    Attributes:
        adoption: adoption of another member's log by this member.
        machine: state machine of this member's phases.
        hard_state: the last hard state that the disk has received, durable or not.
    """

    adoption: LogAdoption
    machine: Machine[Phase, Step]
    hard_state: HardState

    @property
    def phase(self) -> Phase:
        """Current phase of this member in a view change."""

    def persist(self, hard_state: HardState) -> None:
        """Write the hard state to the disk."""

    def end_view(self) -> None:
        """End the installed view. This member then neither sends nor accepts messages of that view."""

    def lost(self) -> None:
        """Abandon the attempt and any view, so that this member is in no view."""

    def state(self) -> State:
        """Return the state of this member's durable log."""

    def accept(self) -> None:
        """Accept the promised view."""

    def install(self, members: tuple[int, ...]) -> None:
        """Install the accepted view with these members."""


class UpperLayers(Protocol):
    """Methods of the other layers that a candidate calls."""

    def append_adopted(self, frames: Sequence[Frame]) -> tuple[int, str]:
        """Append and write frames that continue the log.

        Return the number of appended frames, and the reason why the next frame was rejected.
        """

    def order_frame(self, kind: Kind, body: msgspec.Struct) -> Frame:
        """Order a frame that the coordinator itself creates, and return the frame."""

    def view_opened(self, view_position: int) -> None:
        """Store the position at which the VIEW frame was ordered."""

    def attempt_failed(self, stalled: Sequence[int], unresolved: bool) -> None:
        """Report to *membership* that the proposed view was not formed.

        `stalled` holds the members that did not answer in time. `unresolved` is True if a majority's answers did not show which log
        to adopt.
        """


class Candidate:
    """Proposes views, and leads each proposed view to its installation.

    Attributes:
        attempt: state of the current attempt; None while this member proposes no view.
        entropy: uuid of the new log, if this candidate founds the group.
        rejected: the highest promised view that any refusal has reported.
        failed: reason why the last attempt failed, for the operator.
    """

    def __init__(self, context: Context, flush: Member, layers: UpperLayers, peers: Peers) -> None:
        self._config = context.config
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._identity = context.identity
        self._flush = flush
        self._layers = layers
        self._peers = peers
        self.attempt: Attempt | None = None
        self.entropy = b""
        self.rejected = 0
        self.failed = ""
        self._chosen: Attempt | None = None  # the last attempt that chose a log; None after a late answer to that attempt
        self._extra_beats = 0  # heartbeats by which the next attempt waits longer than normal, so that slow members can answer

    def campaign(self, members: tuple[int, ...], forced: bool = False) -> None:
        """Propose a view of these members, this one included. `forced` is True if no other voter of the roster remains."""
        flush, view_state = self._flush, self._view_state
        invariant(view_state.me in members, f"a gateway proposes members {members} without itself")
        # The promise is durable before the proposal is sent, so no restart lets this gateway use the view id twice (flush, F1).
        view = self._next_view()
        flush.end_view()
        flush.machine.on(Step.CAMPAIGN)
        self.attempt = Attempt(view, members, forced)
        flush.persist(msgspec.structs.replace(flush.hard_state, promised=view, coordinated=view))

    def _next_view(self) -> int:
        """Return a view id above all view ids that this gateway has seen."""
        hard_state, state = self._flush.hard_state, self._window.state
        seen = max(
            hard_state.promised,
            hard_state.accepted,
            hard_state.coordinated,
            state.view,
            self._window.view_at_end(),
            self._peers.seen_view(),
            self.rejected,
        )
        return view_of(counter_of(seen) + 1, self._view_state.me)

    def on_promised(self) -> None:
        """Send the proposal to the other members, because this member's own promise is durable now."""
        attempt = self.attempt
        if attempt is None:
            return
        # The state of the candidate's own log is the first answer, and counts like any other answer.
        attempt.answer(self._view_state.me, self._identity.incarnation, self._flush.state())
        for member in attempt.proposed:
            if member != self._view_state.me:
                self._outbox.send(member, Propose(attempt.view, attempt.proposed, attempt.forced))
        self._collect()

    def on_state(self, sender: int, message: State) -> None:
        """Store the STATE with which a member promised the view, and choose a log as soon as enough members have answered."""
        attempt = self.attempt
        # A STATE that arrives after the choice of the log cannot change the choice, so it does not count as an answer.
        if attempt is not None and message.view == attempt.view and self._flush.phase is Phase.COLLECTING:
            attempt.note_progress(sender)
            attempt.answer(sender, self._peers.incarnation(sender), message)
            self._collect()
        # A STATE that arrives after the choice shows how long the next attempt must wait.
        elif self._chosen is not None and message.view == self._chosen.view and sender in self._chosen.pending:
            self._on_late_answer(self._chosen)

    def _on_late_answer(self, attempt: Attempt) -> None:
        """Make the next attempt wait long enough for a member whose answer arrived after the choice.

        Without the longer wait, every view would exclude a far or slow gateway, and each attempt to add that gateway would fail.
        """
        # `-(-a // b)` rounds up, because even a slightly shorter wait would miss the answer again.
        beats = -(-(self._outbox.now.mono_us - attempt.chosen_us) // self._config.heartbeat_us)
        self._extra_beats = max(0, min(attempt.waited + beats - self._patience(), self._period() // 2))
        self._chosen = None

    def _patience(self) -> int:
        """Return the number of heartbeats for which the candidate waits for further answers after a majority has answered.

        A further answer may report a longer log, and then fewer undecided frames are lost.
        """
        return 1 + self._peers.answer_beats()

    def on_reject(self, sender: int, message: Reject) -> None:
        """Store a member's refusal of the proposed view, or end the attempt if a member that answered promised a higher view."""
        # The member refuses every view up to its promised view, so the id of the next proposal must be higher.
        self.rejected = max(self.rejected, message.promised)
        attempt = self.attempt
        if attempt is None or message.view != attempt.view:
            return
        if message.promised > attempt.view and sender in attempt.states:
            self.fail()  # the member has promised a higher view, so it will not install this view
            return
        if sender in attempt.states:
            return
        attempt.note_progress(sender)
        attempt.refuse(sender, message.reason, message.promised > attempt.view)
        if self._flush.phase is Phase.COLLECTING:
            self._collect()

    def _majority(self, attempt: Attempt) -> bool:
        """True if enough members have answered: a majority, all founders of a new group, or all gateways of a forced roster."""
        peers = self._peers
        if attempt.forced:
            return set(attempt.states) == set(attempt.proposed)
        # To found a group, a majority of blank disks is not enough, because a silent gateway may hold a log (flush, F17).
        if peers.rosters.blank:
            return set(attempt.states) == {number for number, _, _ in peers.configured}
        return peers.rosters.majority(attempt.incarnations)

    def _collect(self) -> None:
        """Choose the log to adopt if enough members have answered. If too few can still answer, end the attempt."""
        attempt = self.attempt
        if attempt is None or attempt.choice is not None:
            return
        # A refusal is not final at once, because the member may accept another copy of the proposal that is in transit.
        final = attempt.answered and not attempt.may_retry(self._peers.round_beats())
        if not self._majority(attempt):
            if final:
                self.fail()
            return
        # A later answer may report a longer log with more undecided frames, so the candidate waits for it (flush, F7).
        if not attempt.answered and attempt.waited < self._patience() + self._extra_beats:
            return
        choice = choose(attempt.states, self._counting(attempt), attempt.incarnations)
        attempt.unresolved = not choice.source
        if attempt.unresolved:
            if final:
                self.fail()
            return  # a further answer may show which corrupt frames were decided
        decided = max(state.frontier for state in attempt.states.values())
        # If a member has reported a wrong state, the chosen log may lack a decided frame. This check then ends the attempt.
        if choice.end < decided:
            reason = f"the log to adopt ends at {choice.end}, but {decided} is decided"
            self._outbox.drop(attempt.states[choice.best], choice.best, reason)
            self.fail()
            return
        attempt.choice, attempt.chosen_us = choice, self._outbox.now.mono_us
        self._chosen, self._extra_beats = attempt, max(0, attempt.needed - self._patience())
        self._flush.machine.on(Step.CHOSEN)
        best, source = attempt.states[choice.best], attempt.states[choice.source]
        # STATE contains the chain value at the end of the log. If the candidate adopts only a part, the value there is unknown.
        chain = best.chain if best.end == choice.end else None
        # The table of a corrupt log lacks its unreadable frames, but the table of the source may include these frames.
        state = source if readable_end(source) >= choice.end else best
        theirs = Extent(state.base, state.table, choice.end)
        self._flush.adoption.begin(attempt.view, choice.source, theirs, chain)
        self.on_adopted()

    def _counting(self, attempt: Attempt) -> Rosters:
        """Return the rosters whose majorities count for the choice of the log.

        If the ROSTER frame is unreadable, all configured gateways are voters, but a disk counts only if it has accepted a view.
        A disk that has accepted no view may be a blank replacement (protocol/flush, F24).
        """
        named = self._peers.rosters.known
        if self._peers.rosters.blank and not attempt.forced:
            # Every founder's disk has accepted a view, so a disk that has accepted none may be a blank replacement.
            founded = {member for member, state in attempt.states.items() if state.accepted}
            return Rosters([{voter.number: voter for voter in self._founders(attempt, founded)}])
        if not attempt.forced:
            return self._peers.rosters
        return Rosters([{member: named[member] for member in attempt.proposed if member in named}])

    def on_adopted(self) -> None:
        """If this member now holds the whole chosen log, send INSTALL to the members and accept the view."""
        attempt, flush, window, view_state = self.attempt, self._flush, self._window, self._view_state
        done = flush.adoption.done()
        if attempt is None or done is None:
            return
        peers = self._peers
        peers.refresh()
        # A forced ROSTER must be in the adopted log before INSTALL, so that every member copies the ROSTER (membership, M25).
        if done and attempt.forced and not self._append_forced_roster(attempt):
            done = False
        members = tuple(member for member in attempt.proposed if member in attempt.states and self._is_eligible(member, attempt))
        # The adopted log may contain a later ROSTER, so the majority is checked again with the rosters of that log (flush, F6).
        if not done or not self._suffices(attempt, members) or view_state.me not in members:
            self.fail()
            return
        flush.machine.on(Step.ADOPTED)
        attempt.install = Install(
            view=attempt.view,
            members=members,
            end=window.end,
            chain=window.chain,
            base=window.base,
            table=tuple(window.runs),
        )
        # INSTALL also goes to gateways that answered but are not members, so that they stop waiting for the promised view.
        for member in attempt.states:
            attempt.note_progress(member)
            if member != view_state.me:
                self._outbox.send(member, attempt.install)
        flush.accept()

    def _is_eligible(self, member: int, attempt: Attempt) -> bool:
        return self._peers.rosters.blank or self._peers.rosters.member(member, attempt.incarnations[member])

    def _suffices(self, attempt: Attempt, members: tuple[int, ...]) -> bool:
        """True if both the answers and the members are majorities of the rosters in the adopted log (protocol/flush, F6)."""
        rosters = self._peers.rosters
        if rosters.blank:
            return self._majority(attempt) and set(members) == set(attempt.states)
        # A proof that a corrupt frame was undecided must also hold with the rosters of the adopted log (flush, F20).
        if attempt.choice is not None and not all(map(rosters.blocks, attempt.choice.blocking)):
            return False
        return rosters.majority(attempt.incarnations) and rosters.majority({m: attempt.incarnations[m] for m in members})

    def _append_forced_roster(self, attempt: Attempt) -> bool:
        """Append a forced ROSTER to the adopted log before any member accepts that log (protocol/membership, M25).

        Every gateway that accepts the view then has that ROSTER in its log, and counts only the voters in the ROSTER.
        """
        peers, window = self._peers, self._window
        # Each gateway must have answered with its disk in the roster. Otherwise its vote would move to an unknown disk.
        voters = tuple(peers.rosters.known[member] for member in sorted(attempt.proposed) if member in peers.rosters.known)
        if any(voter.incarnation != attempt.incarnations.get(voter.number) for voter in voters) or len(voters) < len(
            attempt.proposed
        ):
            return False
        body = RosterBody(self._identity.group, window.log(), voters, forced=True)
        frame = Frame(Kind.ROSTER, encode_body(body), origin=self._view_state.me)
        frame.stamp(attempt.view, window.end + 1, window.chain)
        appended, _ = self._layers.append_adopted((frame,))
        peers.refresh()
        return appended == 1

    def on_accepted(self) -> None:
        """Count this member's own acceptance, which has just become durable."""
        attempt = self.attempt
        if attempt is not None and attempt.install is not None:
            attempt.installed.add(self._view_state.me)
            self._install_if_complete(attempt)

    def on_installed(self, sender: int, message: Installed) -> None:
        """Count a member's acceptance, and install the view when all members have accepted."""
        attempt = self.attempt
        if attempt is not None:
            attempt.note_progress(sender)
            attempt.accepted(sender, self._peers.incarnation(sender), message)
            self._install_if_complete(attempt)

    def _install_if_complete(self, attempt: Attempt) -> None:
        """If all members have accepted, install the view and order its VIEW frame.

        The decision of the VIEW frame also decides all earlier frames (flush, F12).
        """
        flush = self._flush
        # In any phase before GATHERING, the acceptance of this member is not durable yet.
        if not attempt.complete or flush.phase is not Phase.GATHERING or attempt.install is None:
            return
        self.attempt = None
        flush.machine.on(Step.GATHERED)
        flush.install(attempt.install.members)
        # The log of a new group begins with its ROSTER, so that majorities are defined from position 1 (flush, F17).
        if self._window.end == 0:
            self._layers.order_frame(Kind.ROSTER, self._first_roster(attempt))
        self._layers.view_opened(self._layers.order_frame(Kind.VIEW, ViewBody(attempt.install.members)).position)

    def _first_roster(self, attempt: Attempt) -> RosterBody:
        return RosterBody(self._identity.group, self.entropy, self._founders(attempt, attempt.states))

    def _founders(self, attempt: Attempt, known: Container[int]) -> tuple[Voter, ...]:
        """Return all configured members as voters.

        The incarnation of a voter in `known` is that of the disk that answered. All other voters have an empty incarnation.
        """
        return tuple(
            Voter(number, name, attempt.incarnations[number] if number in known else b"", address)
            for number, name, address in self._peers.configured
        )

    # Time

    def beat(self) -> None:
        """Run one heartbeat: repeat messages that got no answer, and end the attempt if a member is silent."""
        attempt, phase = self.attempt, self._flush.phase
        if attempt is None:
            return
        attempt.beats += 1
        if phase is Phase.COLLECTING:
            attempt.waited += self._majority(attempt)
            self._collect()
            if self.attempt is attempt and attempt.choice is None:
                self._resend(attempt)
        elif attempt.install is not None:
            self._resend(attempt)
        if self.attempt is attempt and self._is_stalled(attempt):
            self.fail()

    def _resend(self, attempt: Attempt) -> None:
        install = attempt.install
        for member in attempt.proposed:
            # A member that refused gets no further copies of the proposal, but may still accept a copy that is in transit.
            if member == self._view_state.me or member in attempt.refused:
                continue
            if install is not None and member in attempt.states and member not in attempt.installed:
                self._outbox.send(member, install)
            elif install is None and member not in attempt.states:
                self._outbox.send(member, Propose(attempt.view, attempt.proposed, attempt.forced))

    def _is_stalled(self, attempt: Attempt) -> bool:
        """True if the attempt must end, because a member that has not answered is silent or makes no progress."""
        period = self._period()
        pending = attempt.silent(0)
        # This attempt does not wait for a silent member, because the next attempt excludes that member (flush, F14).
        if any(not self._peers.fresh(member) for member in pending) and attempt.beats > 1:
            return True
        # The candidate too may wait without progress, for frames of the chosen log's source.
        if self._flush.phase is Phase.ADOPTING and self._flush.adoption.silent > period:
            return True
        return bool(attempt.silent(period)) or (attempt.choice is None and attempt.beats > 2 * period)

    def _period(self) -> int:
        """Return the number of heartbeats within which a member must make progress: the atomic period plus four round trips."""
        return self._config.atomic_period_heartbeats + 4 * self._peers.round_beats()

    def fail(self) -> None:
        """End the attempt without a view, and report the members that did not answer in time."""
        attempt = self.attempt
        if attempt is None:
            return
        stalled = attempt.silent(self._period())
        self.failed = self._failure_reason(attempt, stalled)
        self._flush.lost()
        self._layers.attempt_failed(stalled, attempt.unresolved)

    @property
    def waits(self) -> str:
        """The conditions for which the proposed view waits, as text for the operator; empty if this member proposes none."""
        attempt, named = self.attempt, self._window.state.gateway_text
        if attempt is None:
            return ""
        if self._flush.phase is Phase.ADOPTING and attempt.choice is not None:
            return f"it copies the log of {named(attempt.choice.source)}"
        if attempt.install is not None:
            late = sorted(set(attempt.install.members) - attempt.installed)
            return f"{', '.join(map(named, late))} must store the view" if late else "the view must be installed"
        refused = [f"{named(member)} refuses: {reason}" for member, reason in sorted(attempt.refused.items())]
        pending = sorted(attempt.pending)
        waits = [f"no answer yet from {', '.join(map(named, pending))}"] if pending else []
        return "; ".join([*refused, *waits]) or "the answers are compared"

    def _failure_reason(self, attempt: Attempt, stalled: Sequence[int]) -> str:
        """Return an explanation for the operator why an attempt failed."""
        named = self._window.state.gateway_text
        if attempt.refused:
            return "; ".join(f"{named(member)} refuses: {reason}" for member, reason in sorted(attempt.refused.items()))
        # The text lists a member that is silent now, even if the attempt failed before that member's time was over.
        absent = sorted({*stalled, *(member for member in attempt.proposed if not self._peers.fresh(member))})
        if absent:
            return f"no answer came in time from {', '.join(map(named, absent))}"
        damaged = sorted(member for member, state in attempt.states.items() if state.damage is not None)
        if damaged and attempt.choice is None:
            return f"the end of the log is corrupt at {', '.join(map(named, damaged))}, and no other gateway has it"
        return "the logs could not be made equal"
