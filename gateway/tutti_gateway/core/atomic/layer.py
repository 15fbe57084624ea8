"""Two-phase commit of the ordered stream: persist, vote, confirm, abort (protocol/atomic; see NOTES.md).

Every member votes, the coordinator included. The coordinator of the view also counts the votes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Protocol

from tutti.data.frames.bodies import AbortBody, Entry, EpochBody, decode_body
from tutti.data.frames.frame import SEQUENCED, Frame, Kind
from tutti.errors import InvariantViolated, invariant
from tutti_gateway.core import limits
from tutti_gateway.core.atomic.ballot import Ballot
from tutti_gateway.core.atomic.decision_broadcast import DecisionBroadcast
from tutti_gateway.core.context import Context
from tutti_gateway.core.pending_window import CommitStage
from tutti_gateway.core.protocol.messages import Confirm, No, Vote


class UpperLayers(Protocol):
    """Methods that *atomic* calls in the layers above."""

    def decided(self, run: tuple[Frame, ...], offsets: tuple[int, ...], void: frozenset[int]) -> None:
        """Answer clients and update all layers after the frontier has passed a run of frames."""

    def abort(self, frame: Frame, body: AbortBody) -> None:
        """Order an ABORT that voids the batch `frame`."""

    def space_freed(self) -> None:
        """Order batches that waited for space in the window or on a disk."""

    def suspect(self, member: int, reason: str) -> None:
        """Suspect a member that blocks the group, so that the next view excludes it."""

    def full(self, low: Mapping[int, str]) -> None:
        """Suspect the members whose disks were full for the atomic period. `low` maps each of them to the reason."""


class Atomic:
    """Writes ordered frames, votes for them, and advances the frontier. At the coordinator, this class also counts the votes.

    Attributes:
        decisions: sends CONFIRM to the members while this member coordinates.
    """

    def __init__(self, context: Context, above: UpperLayers) -> None:
        self._config = context.config
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._above = above
        self._unwritten: list[Frame] = []
        self._writing: deque[tuple[int, int]] = deque()  # (token, last position) of every Persist in progress
        self._deferred: list[Frame] = []  # frames not given to the disk: a declined batch and all frames after it, until the ABORT
        self._declined: dict[int, Frame] = {}  # position -> declined batch that no ABORT has voided yet
        self._low = ""
        self._ballot: Ballot | None = None
        self.decisions = DecisionBroadcast(context)
        self._view_position = 0

    # Taking part

    def installed(self) -> None:
        """Begin an installed view: vote again for all durable frames, because votes of the previous view no longer count."""
        window, view_state = self._window, self._view_state
        # A vote counts only in the view in which it was sent, so each view has a new ballot (atomic, A3).
        self._ballot = Ballot(view_state.members, window.frontier) if view_state.coordinating else None
        self.decisions.reset()
        self._view_position = 0
        # The new view must also decide the tail of the adopted log, which is already durable (atomic, A10).
        self._vote(again=True)

    def ended(self) -> None:
        """End the view, and drop the frames that the disk has not received yet."""
        self._unwritten, self._deferred, self._declined, self._ballot = [], [], {}, None
        self.decisions.reset()
        # The message STATE reports only the durable log, so this member must hold no frames beyond the last write (flush, F4).
        self._window.truncate(self._window.mark(CommitStage.WRITING))

    def truncate(self, to: int) -> None:
        """Truncate the log after position `to`, both in the window and on the disk."""
        window = self._window
        invariant(not self._unwritten and not self._deferred, "a log is truncated while frames of its view wait")
        if window.mark(CommitStage.WRITING) > to:
            self._outbox.persist(truncate_after=to)
        # The write of a truncated frame may still complete, but must not count as the write of a new frame at that position.
        self._writing = deque((token, min(last, to)) for token, last in self._writing)
        window.truncate(to)

    def append_adopted(self, frames: Sequence[Frame]) -> None:
        """Append and write frames of another member's log, even if the disk is low, because the group may have decided them."""
        self._window.extend(frames, limits.WINDOW_MORE_FRAMES + limits.VIEW_RESERVE_FRAMES)
        self._unwritten.extend(frames)
        self.write()

    def advance_frontier(self, up_to: int) -> None:
        """Advance the frontier over frames that a view without this member has decided, and that are durable on this member."""
        # A learner does not vote in that view. The decision of the view's members replaces the learner's vote.
        self._window.advance(CommitStage.VOTED, max(up_to, self._window.mark(CommitStage.VOTED)))
        self._decide(up_to)

    def view_opened(self, view_position: int) -> None:
        """Store the position of the VIEW frame that opens the view. The first decision of the view must include it (atomic, A6)."""
        self._view_position = view_position

    def append(self, frames: Sequence[Frame]) -> None:
        """Append the next frames of the log, which the received-table already contains."""
        # A VIEW frame must be able to follow an adopted log above the coordinator's limit, so only other orders obey that limit.
        orders = self._view_state.coordinating and frames[0].kind != Kind.VIEW
        self._window.extend(frames, 0 if orders else limits.WINDOW_MORE_FRAMES + limits.VIEW_RESERVE_FRAMES)
        if self._low or self._deferred:
            self._append_while_low(frames)
        else:
            self._unwritten.extend(frames)

    def _append_while_low(self, frames: Sequence[Frame]) -> None:
        """Append frames while the disk is low: vote NO to batches, and keep later frames from the disk until the ABORT (A16)."""
        for frame in frames:
            if frame.kind == Kind.BATCH and self._low:
                self.decline(frame, f"no space: {self._low}")
            elif self._deferred:
                # The log on the disk must have no gap, so frames after a declined batch wait until that batch is written.
                self._deferred.append(frame)
                if frame.kind == Kind.ABORT:
                    self._on_abort(frame)
            else:
                self._unwritten.append(frame)

    def decline(self, frame: Frame, reason: str) -> None:
        """Send NO to a batch that the disk has not received, and keep the batch and all later frames from the disk."""
        invariant(frame.kind == Kind.BATCH, f"{frame!r} is not a batch: a member that cannot take it is booted")
        invariant(frame.position > self._window.mark(CommitStage.WRITING), f"NO to {frame!r}, which is being written")
        self._deferred.append(frame)
        # One ABORT voids all later batches of the epoch, so one NO for the first of them is enough (atomic, A12).
        if not any(_same_epoch(frame, other) for other in self._declined.values()):
            self._declined[frame.position] = frame
            self._outbox.send(self._view_state.coordinator, No(self._view_state.view, frame.position, reason))

    def _on_abort(self, abort: Frame) -> None:
        first = decode_body(AbortBody, abort.body).position
        for position, frame in list(self._declined.items()):
            if first <= position and _same_epoch(frame, abort):
                del self._declined[position]
        if not self._declined:
            # Void batches stay in the log. A low disk still has enough space for them (limits.DISK_LOW_BYTES).
            self._unwritten += self._deferred
            self._deferred = []

    def write(self) -> None:
        """Give all frames that this step appended to the disk as one Persist, so that they share one write and one fsync."""
        if self._unwritten:
            last = self._unwritten[-1].position
            self._window.advance(CommitStage.WRITING, last)
            self._writing.append((self._outbox.persist(tuple(self._unwritten)), last))
            self._unwritten = []

    def persisted(self, token: int) -> None:
        """Handle the completion of all writes up to the token: send YES for the frames that are now durable."""
        last = 0
        while self._writing and self._writing[0][0] <= token:
            last = self._writing.popleft()[1]
        if last:  # `last` is 0 if the token belongs to a write without frames, such as hard state
            self._window.advance(CommitStage.DURABLE, last)
            self._vote()

    def _vote(self, again: bool = False) -> None:
        """Send YES for the durable frames, unless this member has promised another view."""
        window, view_state = self._window, self._view_state
        if not view_state.current(view_state.view):
            return
        durable = window.mark(CommitStage.DURABLE)
        # A YES promises that a crash loses none of its frames, so it covers only durable frames (atomic, A1).
        if again or durable > window.mark(CommitStage.VOTED):
            window.advance(CommitStage.VOTED, durable)
            self._outbox.send(view_state.coordinator, Vote(view_state.view, durable, self._low))

    def set_low(self, low: str) -> None:
        """Store the reason why the disk is low (empty if it has free space), and report the reason to the coordinator in a vote."""
        if low != self._low:
            self._low = low
            self._vote(again=True)

    def on_confirm(self, sender: int, message: Confirm) -> None:
        """Advance the frontier to the position that the coordinator has decided."""
        view_state, window = self._view_state, self._window
        up_to = message.up_to
        if not view_state.current(message.view) or sender != view_state.coordinator or up_to <= window.frontier:
            return
        # A decision needs the YES of this member, so a CONFIRM above its last YES is wrong.
        if up_to > window.mark(CommitStage.VOTED) or up_to != window.reach(up_to):
            self._outbox.drop(message, sender, f"position {up_to} was not voted for here, or an ABORT reaches over it")
            return
        self._decide(up_to)

    def _decide(self, up_to: int) -> None:
        window = self._window
        run, offsets, void = window.decide(up_to)
        self._outbox.deliver(run, offsets, void, window.state.next_offset)
        self._above.decided(run, offsets, void)

    # Coordinating

    @property
    def own_low(self) -> bool:
        """True if this member's disk accepts no batches."""
        return bool(self._low)

    @property
    def low(self) -> str:
        """Name of a member whose disk is low, with the reason; empty if all disks have free space. Only a coordinator knows it."""
        if self._ballot is None or not self._ballot.low:
            return ""
        member = min(self._ballot.low)
        return f"{self._window.state.gateway_text(member)}: {self._ballot.low[member]}"

    def on_vote(self, sender: int, message: Vote) -> None:
        """Count a member's YES. Send CONFIRM for the positions for which all members have now voted."""
        ballot, window = self._ballot, self._window
        if ballot is None or not self._view_state.current(message.view) or sender not in ballot.votes:
            return
        if message.up_to > window.end:
            self._outbox.drop(message, sender, f"a YES to position {message.up_to}, but only {window.end} is ordered")
            return
        again = message.up_to <= ballot.votes[sender]
        ballot.yes(sender, message.up_to)
        # A vote without a reason shows that the member's disk has free space again.
        if message.low or sender in ballot.low:
            ballot.report_space(sender, message.low)
            self._above.space_freed()
        # The frontier must not stop between a batch and its ABORT (atomic, A13), and must not stop before the VIEW frame (A6).
        confirmed, frontier = window.reach(ballot.all_yes), window.frontier
        if confirmed > frontier and 0 < self._view_position <= confirmed:
            self.decisions.announce(confirmed, islice(window.frames, confirmed - frontier))
        elif again and sender != self._view_state.me:
            # A member repeats its vote if it has not received the decision, so the coordinator sends the decision again.
            self._outbox.send(sender, Confirm(message.view, window.frontier))

    def on_no(self, sender: int, message: No) -> None:
        """Order an ABORT after a member's NO to a batch."""
        ballot, window = self._ballot, self._window
        if ballot is None or not self._view_state.current(message.view) or sender not in ballot.votes:
            return
        position = message.position
        # A repeated NO may arrive after the ABORT was ordered, or after the position was decided, and then has no effect.
        if not window.frontier < position <= window.end or window.is_void(position):
            return
        # A member must not vote NO after its YES, because the position may already be decided.
        if position <= ballot.votes[sender]:
            self._outbox.drop(message, sender, f"a NO to position {position} after a YES to {ballot.votes[sender]}")
            return
        frame = window.at(position)
        # This view can abort only batches that it has ordered. A member that rejects any other frame is booted (atomic, A14).
        if frame.kind != Kind.BATCH or not 0 < self._view_position <= window.frontier:
            self._above.suspect(sender, f"it cannot take position {position}, which must not be aborted: {message.reason}")
            return
        if frame.view != self._view_state.view:
            raise InvariantViolated(
                f"{frame!r} follows the VIEW frame of view {self._view_state.view}, but belongs to another view"
            )
        self._above.abort(frame, AbortBody(position, message.reason, self._entry_before(frame)))

    def _entry_before(self, frame: Frame) -> Entry:
        """Return the state of the frame's producer before the frame. An ABORT of the frame restores this state."""
        producer = self._window.state.producers.get(frame.producer)
        entry = Entry(b"", 0, 0, b"")
        if producer is not None:
            entry = Entry(producer.instance, producer.epoch, producer.sequence, producer.progress, producer.closed)
        # The decided state lacks the effect of undecided frames, so this loop applies the undecided frames before the batch.
        for other in self._window.frames:
            if other is frame:
                break
            if other.producer != frame.producer:
                continue
            if other.kind == Kind.EPOCH:
                body = decode_body(EpochBody, other.body)
                entry = Entry(body.instance, other.epoch, body.sequence, body.progress)
            elif other.kind in SEQUENCED:
                entry = Entry(entry.instance, other.epoch, other.last_sequence, other.progress or entry.progress)
        invariant(entry.epoch == frame.epoch, f"{frame!r} follows epoch {entry.epoch}")
        return entry

    # Time

    def beat(self) -> None:
        """Run one heartbeat: repeat votes and decisions, and suspect members that block the group."""
        view_state, window = self._view_state, self._window
        if not view_state.current(view_state.view):
            return
        if self._ballot is not None:
            for member in view_state.others:
                self._outbox.send(member, Confirm(view_state.view, window.frontier))
            self.decisions.reset()
            for member in self._ballot.beat(window.end, self._config.atomic_period_heartbeats):
                vote = self._ballot.votes[member]
                self._above.suspect(member, f"no vote since position {vote}, but {window.end} is ordered")
            full = [member for member, beats in self._ballot.full.items() if beats >= self._config.atomic_period_heartbeats]
            if full:
                self._above.full({member: self._ballot.low[member] for member in full})
            self._above.space_freed()
        if self._low or (self._ballot is None and window.mark(CommitStage.VOTED) > window.frontier):
            self._vote(again=True)
        # A declined batch blocks all later frames until its ABORT arrives, so this member repeats the NO in case it was lost.
        for position in self._declined:
            self._outbox.send(view_state.coordinator, No(view_state.view, position, f"no space: {self._low}"))

    @property
    def beating(self) -> bool:
        """True if heartbeats are needed: frames are undecided, the disk is low, or other members need repeated decisions."""
        if not self._view_state.view:
            return False
        return bool(self._window.frames or self._low or (self._ballot is not None and self._view_state.others))

    @property
    def quiet(self) -> bool:
        """True if no frame is undecided and no write is in progress."""
        return not self._window.frames and not self._writing


def _same_epoch(frame: Frame, other: Frame) -> bool:
    return (frame.producer, frame.epoch) == (other.producer, other.epoch)
