"""Origin of a lane: assigns positions, runs two-phase commit with the attempt's members, and votes last (lanes, U12)."""

from __future__ import annotations

from collections.abc import Sequence

from tutti.data.client_protocol import Answer, Committed, Duplicate, Expected, FencedAnswer, RefusedAnswer
from tutti.data.frames.bodies import LaneViewBody, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.errors import invariant
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.frame_runs import split_runs
from tutti_gateway.core.lanes.dedup import DedupTable, LaneAdmission
from tutti_gateway.core.lanes.lane import Lane
from tutti_gateway.core.lanes.lost_end import LostEndRecovery
from tutti_gateway.core.lanes.outbox import LaneOutbox
from tutti_gateway.core.lanes.phases import ATTEMPT, VOTING, Input, Phase
from tutti_gateway.core.pending_window import weight
from tutti_gateway.core.protocol.messages import LaneTail, Post, Posted, Settled
from tutti_gateway.core.state_machine import Machine

Name = tuple[int, int, int, int]  # producer, epoch, first sequence and count, which identify an undecided batch


class Entry:
    """An undecided batch, and the number of the session that sent the batch last; 0 if that session has ended."""

    __slots__ = ("frame", "session")

    def __init__(self, frame: Frame, session: int) -> None:
        self.frame = frame
        self.session = session


class Origin:
    """Origin of this gateway's own lane.

    Attributes:
        low: reason why this member's disk accepts no new frames; empty if the disk accepts them.
    """

    def __init__(
        self,
        context: Context,
        outbox: LaneOutbox,
        lane: Lane,
        lines: DedupTable,
        halted: str = "",
        recovery: LostEndRecovery | None = None,
    ) -> None:
        self._context = context
        self._me = context.view_state.me
        self._outbox = outbox
        self._lane = lane
        self._lines = lines
        self._machine = Machine("attempt", ATTEMPT, Phase.NONE)
        self._attempt = lane.attempt
        self._mark = 0  # token of the PersistLane that ends the previous attempt
        self._connected: tuple[int, ...] = ()
        self._reported: set[int] = set()  # connected gateways that have reported their end of this lane
        self._eligible: set[int] = set()  # connected gateways that have enough of the lane to join an attempt
        # member that did not vote -> position that the member's copy must pass before the member may join an attempt again
        self._excluded: dict[int, int] = {}
        self._waited = 0
        self._members: tuple[int, ...] = ()  # members of the attempt, oldest first
        self._view_position = 0  # position of the attempt's VIEW
        self._votes: dict[int, int] = {}
        self._before: dict[int, int] = {}  # votes at the last heartbeat
        self._missed: dict[int, int] = {}
        self._entries: dict[Name, Entry] = {}  # undecided batches, in order
        self._bytes = 0
        # member with a low disk -> (reason, remaining heartbeats until the report expires)
        self._low_members: dict[int, tuple[str, int]] = {}
        self._last_settled: Settled | None = None
        self._repeats = 0
        self.low = ""
        self._halted, self._recovery = halted, recovery

    @property
    def halted(self) -> str:
        """Reason why the lane accepts no batches and begins no attempt; empty if the lane works.

        A lane halts when its disk has lost decided frames, either permanently or until other gateways send them.
        """
        if self._halted or self._recovery is None:
            return self._halted
        return self._recovery.reason([member for member, vote in self._votes.items() if vote < self._lane.end])

    @property
    def quiet(self) -> bool:
        """True if no undecided batch of this lane can become decided, and the last decision was repeated often enough."""
        return (bool(self.halted) or not self._entries) and not self._repeats

    @property
    def replicas(self) -> tuple[int, ...]:
        """Members of the attempt, oldest first, whose disks therefore hold every acknowledged frame.

        Until the attempt's VIEW is decided, a new member may lack earlier frames, so the result is empty.
        """
        return self._members if self._machine.state is Phase.OPEN and self._lane.decided >= self._view_position else ()

    # Clients

    def submit(self, session: int, frames: Sequence[Frame]) -> None:
        """Post a session's batches to the members. The session gets an answer at once for each batch that is not posted."""
        fresh: list[Entry] = []
        answers = self._context.outbox.answers(session)
        for frame in frames:
            no = self._unknown(frame)
            how, line = self._lines.judge(frame)
            if isinstance(no, FencedAnswer) and how in (LaneAdmission.DUPLICATE, LaneAdmission.UNDECIDED):
                no = None  # the lane holds the batch, so the client gets the real outcome instead of Fenced
            if no is None and how in (LaneAdmission.ACCEPT, LaneAdmission.EXPECTED) and frame.first_sequence > line:
                # A batch after a refused batch is out of sequence, but its answer must contain the reason of the refusal too.
                no = self._full(frame)
            if no is not None:
                answers.append(no)
            elif how is LaneAdmission.ACCEPT:
                self._lines.add(frame)
                self._bytes += weight(frame)
                entry = self._entries[_name_of(frame)] = Entry(frame, session)
                fresh.append(entry)
            elif how is LaneAdmission.UNDECIDED:
                # The producer may have reconnected, so the answer goes to the session that sent the batch last.
                waiting = self._entries.get(_name_of(frame))
                if waiting is not None:
                    waiting.session = session
                else:
                    reason = "part of the batch is undecided here with other limits: send it again later"
                    answers.append(_refused(frame, "busy", reason, retry=True))
            elif how is LaneAdmission.DUPLICATE:
                answers.append(Duplicate(frame.producer, frame.epoch, frame.first_sequence, frame.count))
            elif how is LaneAdmission.EXPECTED:
                answers.append(Expected(frame.producer, frame.epoch, line + 1))
            else:
                answers.append(FencedAnswer(frame.producer, line, frame.first_sequence))
        if fresh and self._machine.state is Phase.OPEN:
            self._order(fresh)

    def _unknown(self, frame: Frame) -> Answer | None:
        """Return the refusal of a batch whose producer, topic or epoch is not current in the log, or whose lane has halted.

        Return None if the batch has none of these faults.
        """
        if self.halted:
            return _refused(frame, "lane", f"{self.halted}; send to another gateway, as a new message", retry=True)
        state = self._context.window.state
        producer = state.producers.get(frame.producer)
        if producer is None or frame.topic not in state.topics or producer.epoch < frame.epoch:
            code = "producer" if producer is None else "topic" if frame.topic not in state.topics else "epoch"
            return _refused(frame, code, f"this gateway's log does not know the {code} of {frame!r}: open it first", retry=False)
        return FencedAnswer(frame.producer, producer.epoch, frame.first_sequence) if producer.epoch > frame.epoch else None

    def _full(self, frame: Frame) -> Answer | None:
        """Return the refusal of a batch for lack of a group, disk space or memory; None if the lane can accept the batch."""
        closed = self._context.view_state.closed
        if closed is not None:
            return _refused(frame, *closed, retry=True)
        if not self._connected:
            reason = "this gateway is not a member of the group; send again to this gateway or to another one"
            return _refused(frame, "not_primary", reason, retry=True)
        if self._low_reason:
            return _refused(frame, "space", self._low_reason, retry=True)
        if self._bytes >= limits.LANE_BYTES_MAX or len(self._entries) >= limits.LANE_FRAMES_MAX:
            reason = f"{len(self._entries)} batches with {self._bytes} bytes are undecided here: send it again later"
            return _refused(frame, "busy", reason, retry=True)
        return None

    @property
    def _low_reason(self) -> str:
        if self.low or not self._low_members:
            return self.low
        member = min(self._low_members)
        return f"gateway {member}: {self._low_members[member][0]}"

    def session_closed(self, session: int) -> None:
        """Send no more answers to a session that has ended. The session's batches continue."""
        for entry in self._entries.values():
            if entry.session == session:
                entry.session = 0

    # Attempts

    def set_connected(self, connected: tuple[int, ...]) -> None:
        """Set the gateways that now exchange heartbeats with each other, oldest first, this gateway included.

        `connected` is empty if this gateway is not a member. Such a gateway begins no attempt, because its disk may disappear.
        """
        invariant(not connected or self._me in connected, f"the part {connected} is not that of gateway {self._me}")
        self._connected = connected
        if self._recovery is not None:
            self._recovery.connected = connected
        # A gateway may lose frames before it reconnects, so it must then report its end again.
        self._reported &= set(connected)
        self._eligible &= set(connected)
        if connected:
            self._update_attempt()

    def on_end(self, peer: int, decided: int) -> None:
        """Handle a gateway's report of the decided end of its copy of this lane.

        A gateway that lags far would delay all members, so it must catch up before it joins an attempt. A member that was excluded
        because it did not vote may join again only after it has copied later frames, which proves that it can get them.
        """
        if self._recovery is not None:
            self._recovery.on_end(peer, decided)
        # Only the origin decides, so if a copy has more decided frames, this disk has lost those frames (lanes, U38).
        if decided > self._lane.end and not self.halted:
            self._halt(f"gateway {peer} has it decided up to position {decided}, but it ends at {self._lane.end} here")
        if peer not in self._connected or peer == self._me or self.halted:
            return
        self._reported.add(peer)
        if decided > self._excluded.get(peer, decided):
            del self._excluded[peer]
        if peer not in self._excluded and self._lane.decided - decided <= limits.LANE_LAG_FRAMES_MAX:
            self._eligible.add(peer)
        self._update_attempt()

    def disk_replaced(self, member: int) -> None:
        """Drop the votes of a member's old disk, because the roster lists a new disk.

        The VIEW of an attempt contains the disks of its members, so the attempt ends when a disk is replaced. During the recovery
        of a lost end, the last attempt continues instead, and waits for the vote of the new disk.
        """
        self._reported.discard(member)
        self._eligible.discard(member)
        self._excluded.pop(member, None)
        self._low_members.pop(member, None)
        # The old disk's vote does not cover the new disk.
        if member in self._votes:
            self._votes[member] = 0
        self._update_attempt()

    def _halt(self, reason: str) -> None:
        """Halt the lane after a loss of decided frames, because new frames would get the positions of the lost ones.

        Clients get no answers for undecided batches, because the lost frames may show that these batches were decided. Writes in
        progress still complete.
        """
        self._halted = f"the lane of this gateway takes nothing more: {reason}"
        if self._recovery is not None:
            self._recovery.copying = False
            self._recovery = None
        self._context.outbox.suspect(self._me, self._halted)

    @property
    def _wanted(self) -> tuple[int, ...]:
        return tuple(member for member in self._connected if member == self._me or member in self._eligible)

    def _update_attempt(self) -> None:
        """Begin a new attempt if the gateways that can join one differ from the current members."""
        if self.halted:
            return
        phase = self._machine.state
        # In phase RESUMED a change of members has no effect, because all frames of the attempt must be decided first (U33).
        if phase is Phase.NONE:
            self._begin()
        elif phase is Phase.OPEN and set(self._wanted) != set(self._members):
            self._end()
        elif phase is Phase.COLLECTING:
            self._open()

    def _begin(self) -> None:
        """Begin the first attempt when all voters are connected, or after a limited wait (protocol/lanes, U9).

        A new origin has received no heartbeats yet. Without the wait, only the origin's disk would hold its first acknowledged
        frames.
        """
        voters = [voter.number for voter in self._context.window.state.roster.values() if voter.voting]
        heard = set(self._connected).issuperset(voters) or self._waited >= limits.LANE_WAIT_HEARTBEATS
        if heard and self._connected and not self.halted:
            self._waited = 0
            self._end()

    def _end(self) -> None:
        """End the attempt by a durable promise of the next one, which is a NO to each frame not written here (lanes, U13)."""
        self._machine.on(Input.END)
        self._attempt += 1
        # The number is durable before any member receives it, so that no restart uses it for another attempt (lanes, U13).
        self._mark = self._outbox.persist(self._lane, up_to=self._lane.confirmed, attempt=self._attempt)

    def _open(self) -> None:
        """Begin the attempt when all connected gateways have reported their ends, or after a limited wait.

        The first frame of the attempt is a VIEW frame with the members. Then the attempt repeats all undecided batches.
        """
        waits = any(member not in self._reported for member in self._connected if member != self._me)
        if not self._connected or self.halted or (waits and self._waited < limits.LANE_WAIT_HEARTBEATS):
            return
        self._machine.on(Input.REPORTED)
        lane = self._lane
        invariant(lane.decided == lane.confirmed, "an attempt begins when all that the last one decided is durable")
        invariant(lane.truncate() is None, "the origin writes nothing of its lane that is undecided")
        self._members = self._wanted
        self._votes = {member: lane.end for member in self._members if member != self._me}
        self._before, self._missed = dict(self._votes), dict.fromkeys(self._votes, 0)
        self._waited, self._view_position = 0, lane.end + 1
        disk_of = self._context.window.state.disk_of
        view = LaneViewBody(self._members, tuple(disk_of(member) for member in self._members))
        self._order([Entry(Frame(Kind.VIEW, encode_body(view)), 0), *self._entries.values()])

    def _order(self, entries: Sequence[Entry]) -> None:
        """Assign positions to the batches and post them to all members."""
        lane = self._lane
        for entry in entries:
            # Messages of an earlier attempt may still use this frame object, so a copy gets the new position (lanes, U7).
            frame = entry.frame.unstamped() if entry.frame.position else entry.frame
            frame.origin = self._me
            frame.stamp(self._attempt, lane.end + 1, lane.chain)
            entry.frame = frame
            lane.append(frame)
        frames = [entry.frame for entry in entries]
        for member in self._votes:
            self._post(member, frames)
        self._advance()

    def _post(self, member: int, frames: Sequence[Frame]) -> None:
        for chunk in split_runs(frames):
            self._outbox.send(member, Post(self._lane.incarnation, chunk))

    # A lost end of the lane

    def on_tail(self, sender: int, message: LaneTail) -> None:
        """Handle a gateway's report about the lost end, and continue the last attempt if all frames of the attempt are known."""
        if self._recovery is not None:
            self._recovery.on_tail(sender, message)
            self._resume()

    def _resume(self) -> None:
        """Continue the last attempt when none of its frames can be missing.

        The origin may have voted YES in the lost end, so it must not vote NO to a frame of that attempt.
        """
        recovery, lane = self._recovery, self._lane
        tail = recovery.tail() if recovery is not None and recovery.copying else None
        if recovery is None or tail is None:
            return
        self._machine.on(Input.RECOVERED)
        recovery.copying, self._waited = False, 0
        self._attempt, self._members, self._view_position = recovery.attempt, tuple(recovery.members), lane.end + 1
        self._votes = {member: recovery.vote(member) for member in recovery.needed}
        for frame in tail:
            lane.append(frame)
            if frame.kind == Kind.BATCH:
                self._lines.add(frame)
                self._bytes += weight(frame)
                self._entries[_name_of(frame)] = Entry(frame, 0)
        self._before, self._missed = dict(self._votes), dict.fromkeys(self._votes, 0)
        for member, vote in self._votes.items():
            self._post(member, lane.after(vote))
        self._advance()
        self._end_recovery()

    def _drop_removed(self, removed: Sequence[int]) -> None:
        """Continue without the votes of removed members. The recovery already knows all frames that these members held."""
        for member in removed:
            del self._votes[member]
        if removed:
            self._advance()

    def _end_recovery(self) -> None:
        """End the recovery and begin a new attempt, if all frames of the last attempt are decided."""
        if self._recovery is not None and not self._recovery.copying and self._lane.decided == self._lane.end:
            self._recovery = None
            self._end()

    # Deciding

    def on_posted(self, sender: int, message: Posted) -> None:
        """Count a member's YES, and write the frames for which all other members have voted YES. A NO ends the attempt."""
        vote = self._votes.get(sender)
        # A vote in an earlier attempt does not count as YES, because the same positions may now hold different frames.
        if vote is None or self._halted or self._machine.state not in VOTING or message.attempt > self._attempt:
            return
        current, end = message.attempt == self._attempt, self._lane.end
        # After a restart, a vote for frames of the earlier run may arrive late.
        if current and message.up_to > end and self._machine.state is Phase.OPEN:
            self._outbox.drop(message, sender, f"it votes beyond position {end}")
            return
        if current:  # an older vote may arrive later than a newer one, so the count never goes back
            self._votes[sender] = max(vote, min(message.up_to, end))
        self._low_members.pop(sender, None)
        if message.low:
            self._low_members[sender] = message.low, limits.LOW_HEARTBEATS
        self._advance()
        # A member with a low disk writes no more batches, so this attempt cannot decide the undecided batches (lanes, U17).
        ends = message.low and current and self._machine.state is Phase.OPEN
        if ends and any(entry.frame.position > self._lane.confirmed for entry in self._entries.values()):
            self._end()
        elif message.again:
            self._post(sender, self._lane.after(self._votes[sender]))

    def _advance(self) -> None:
        """Write the frames that are durable at all other members.

        The write is the origin's own YES and, because the origin votes last, also the decision (protocol/lanes, U12).
        """
        reach = min(self._votes.values(), default=self._lane.end)
        if reach > self._lane.confirmed:
            self._lane.confirm(reach)
            self._outbox.persist(self._lane, up_to=reach)

    def persisted(self, token: int) -> None:
        """Handle the completion of all lane writes up to the token: their frames are decided.

        If one of the writes is the durable end of the last attempt, the next attempt begins.
        """
        self._lane.persisted(token)
        self.deliver_decided()
        if self._machine.state is Phase.ENDING and token >= self._mark:
            self._machine.on(Input.DURABLE)
            # After the durable NO, these copies of the batches can never be decided, so their refusal is final (lanes, U17).
            if self._low_reason and not self.halted:
                self._refuse_all()
            self._open()
        self._end_recovery()

    def deliver_decided(self) -> None:
        """Deliver the decided frames, answer their clients, and send the decision to the members."""
        offset, frames = self._lane.pop_decided()
        if not frames:
            return
        # If a copied frame contradicts the vote mark, decided frames were lost or changed, so the lane must not continue.
        if self._recovery is not None and (wrong := self._recovery.on_copied(frames)):
            self._halt(wrong)
        self._outbox.deliver(self._lane, offset, frames)
        for frame in frames:
            if frame.kind == Kind.BATCH:
                self._lines.decide(frame)
                entry = self._entries.pop(_name_of(frame), None)
                if entry is not None:  # frames from before a restart have no entry
                    self._bytes -= weight(frame)
                    answer = Committed(frame.producer, frame.epoch, frame.first_sequence, frame.count, offset)
                    self._context.outbox.answers(entry.session).append(answer)
                offset += frame.count
        self._last_settled = Settled(self._lane.incarnation, frames[-1].view, frames[-1].position)
        self._repeats = limits.LANE_REPEAT_HEARTBEATS
        self._announce_decision()

    def _announce_decision(self) -> None:
        if self._last_settled is not None:
            for member in self._votes:
                self._outbox.send(member, self._last_settled)

    def _refuse_all(self) -> None:
        """Refuse all undecided batches, because a member's disk is low. None of these copies can be decided later."""
        reason = self._low_reason
        for entry in self._entries.values():
            self._context.outbox.answers(entry.session).append(_refused(entry.frame, "space", reason, retry=True))
        self._entries.clear()
        self._bytes = 0
        # A refused batch must not count as undecided when its client sends the batch again.
        self._lines.rollback()

    # Time

    def beat(self) -> None:
        """Run one heartbeat: repeat messages without an answer, and suspect members that block the lane."""
        for member, (reason, beats) in list(self._low_members.items()):
            if beats > 1:
                self._low_members[member] = reason, beats - 1
            else:
                del self._low_members[member]
        if self._repeats:
            self._repeats -= 1
            self._announce_decision()
        if self._recovery is not None:
            self._recovery.beat()
            self._resume()
            if self._machine.state is Phase.RESUMED:
                self._drop_removed(self._recovery.removed(self._votes))
        if self._machine.state is Phase.NONE:
            self._waited += 1
            self._begin()
        elif self._machine.state is Phase.COLLECTING:
            self._waited += 1
            self._open()
        elif self._machine.state in VOTING and not self._halted:
            self._check_votes()

    def _check_votes(self) -> None:
        """Post frames again to members that do not vote, and exclude these members after the atomic period.

        The exclusion ends the attempt, and the excluded member joins again when it has frames of a later attempt. The attempt that
        continues after a lost end does not end until all its frames are decided.
        """
        outcome = "waits for it" if self._machine.state is Phase.RESUMED else "continues without it"
        late: list[int] = []
        for member, vote in self._votes.items():
            waits = vote == self._before[member] < self._lane.end
            self._before[member] = vote
            missed = self._missed[member] = self._missed[member] + 1 if waits else 0
            if missed and missed % limits.RESEND_HEARTBEATS == 0:
                self._post(member, self._lane.after(vote))
            # The test is `==` and not `>=`, so that each silence of a member causes one report.
            if missed == self._context.config.atomic_period_heartbeats:
                late.append(member)
                why = f"no vote since position {vote} of lane {self._me}, but {self._lane.end} is posted: the lane {outcome}"
                self._context.outbox.suspect(member, why)
        for member in late:
            self._eligible.discard(member)
            self._excluded[member] = self._lane.confirmed
        if late:
            self._update_attempt()


def _name_of(frame: Frame) -> Name:
    return frame.producer, frame.epoch, frame.first_sequence, frame.count


def _refused(frame: Frame, code: str, reason: str, retry: bool) -> RefusedAnswer:
    return RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, code, reason, retry)
