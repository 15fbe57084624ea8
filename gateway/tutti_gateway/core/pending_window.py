"""The pending window: the undecided frames of this member's log, and the stage of two-phase commit that each has reached.

A position passes the stages of `CommitStage` in order. For each stage, the window stores the *mark* of the stage: the last position
that has reached this stage. The mark of a stage never passes the mark of the stage before. A member therefore votes for a frame
only after the fsync, and counts a frame as decided only after the vote. The window checks this order whenever a mark moves
(protocol/atomic).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tutti import limits as common_limits
from tutti.data.frames.bodies import AbortBody, RosterBody, decode_body
from tutti.data.frames.frame import HEADER_SIZE, Frame, Kind, chained
from tutti.data.log_state import LogState
from tutti.errors import InvariantViolated, invariant
from tutti_gateway.core import limits

_BATCH = int(Kind.BATCH)


class CommitStage(enum.IntEnum):
    """Stage of two-phase commit that a position has reached at this member."""

    APPENDED = 0  # the frame is in the window: this member ordered it, or received it in sequence
    WRITING = 1  # the disk thread has received the frame
    DURABLE = 2  # the disk has reported that the frame is durable
    VOTED = 3  # this member has sent a YES that covers the frame
    DECIDED = 4  # a CONFIRM covers the frame, so the frontier has passed it


class Barrier(NamedTuple):
    """An ordered ABORT at position `abort`, which voids the batches of (producer, epoch) from position `first` on.

    The frontier must not stop at a position from `first` to `abort` - 1, because readers would then see batches that are void.
    """

    first: int
    abort: int
    producer: int
    epoch: int


FRAME_OVERHEAD_BYTES = 2 * HEADER_SIZE  # estimated memory of a frame without its body


def weight(frame: Frame) -> int:
    """Return the estimated memory of a frame, with which the frame counts in the limits of a window."""
    return frame.body_length + FRAME_OVERHEAD_BYTES


class Window:
    """The undecided frames of the log, and the decided state of the log before these frames.

    Attributes:
        state: decided state of the log; `state.position` is the frontier.
        frames: the undecided frames, in order.
        bytes: approximate memory of the undecided frames.
        end: the last position of the log, decided or not.
        chain: the chain value at `end`.
        barriers: undecided ABORTs, in order.
        base: position after which `runs` describes all frames.
        runs: (view, first position) of each run of frames of one view, including decided frames.
        rosters: undecided ROSTER frames, in order.
        roster_changes: counter that increases when the rosters whose majorities count change.
    """

    __slots__ = (
        "_bytes_max",
        "_extra_frames",
        "_marks",
        "barriers",
        "base",
        "bytes",
        "chain",
        "end",
        "frames",
        "roster_changes",
        "rosters",
        "runs",
        "state",
    )

    def __init__(self, state: LogState, bytes_max: int = limits.UNDECIDED_BYTES_MAX) -> None:
        self.state = state
        self._bytes_max = bytes_max
        self._extra_frames = 0
        self.frames: deque[Frame] = deque()
        self.bytes = 0
        self.end = state.position
        self.chain = state.chain
        self.barriers: list[Barrier] = []
        self.base = state.position
        self.runs: deque[tuple[int, int]] = deque()
        self.rosters: list[Frame] = []
        self.roster_changes = 1
        self._marks = [state.position] * len(CommitStage)

    @property
    def frontier(self) -> int:
        """The last decided position."""
        return self.state.position

    @property
    def full(self) -> bool:
        """True if the coordinator may order no further batch, because too many frames or bytes are undecided."""
        return self.bytes >= self._bytes_max or len(self.frames) >= limits.BATCH_UNDECIDED_FRAMES_MAX

    @property
    def crowded(self) -> bool:
        """True if so many frames are undecided that the coordinator may order only ABORT, VIEW and ROSTER frames."""
        return len(self.frames) >= limits.REQUEST_UNDECIDED_FRAMES_MAX

    def mark(self, stage: CommitStage) -> int:
        """Return the last position that has reached the stage."""
        return self._marks[stage]

    def advance(self, stage: CommitStage, to: int) -> None:
        """Move the mark of a stage forward to position `to`.

        Raises:
            InvariantViolated: the mark would move back, or would pass the mark of the stage before (for example, a vote before the
                fsync).
        """
        marks = self._marks
        # Without this check, a member could vote for frames that a crash takes back (atomic, A1 and A2).
        if not marks[stage] <= to <= marks[stage - 1]:
            raise InvariantViolated(
                f"{stage.name} moves from {marks[stage]} to {to}, but {CommitStage(stage - 1).name} is at {marks[stage - 1]}"
            )
        marks[stage] = to

    def extend(self, frames: Sequence[Frame], more: int = 0) -> None:
        """Append the next frames of the log.

        The caller has checked that each frame continues the chain of the previous frame, or has stamped the frame with this chain
        value. This method checks the positions, and the chain of the first frame.

        `more` is added to the limit on undecided frames in this call, because a log of another member may exceed that limit.

        Raises:
            InvariantViolated: there would be too many undecided frames, or a frame does not continue the log.
        """
        end = self.end
        # Undecided frames stay in memory, so their number is limited (lifecycle, L6).
        if len(self.frames) + len(frames) > common_limits.UNDECIDED_FRAMES_MAX + self._extra_frames + more:
            raise InvariantViolated(f"{len(self.frames)} frames are undecided, and {len(frames)} more would exceed the limit")
        view = self.runs[-1][0] if self.runs else 0
        size = FRAME_OVERHEAD_BYTES * len(frames)
        for frame in frames:
            end += 1
            if frame.position != end or (frame is frames[0] and not chained(frame, self.chain)):
                raise InvariantViolated(f"{frame!r} does not continue the log at {end - 1}: its position or chain is wrong")
            if frame.view != view:
                view = frame.view
                self._begin_run(view, end)
            size += frame.body_length
            if frame.kind != _BATCH:
                self._track(frame)
        self.frames.extend(frames)
        self.bytes += size
        self.end = end
        if frames:
            self.chain = frames[-1].header_crc
        self._marks[CommitStage.APPENDED] = end

    def _track(self, frame: Frame) -> None:
        if frame.kind == Kind.ABORT:
            self._add_barrier(frame)
        elif frame.kind == Kind.ROSTER:
            self.rosters.append(frame)
            self.roster_changes += 1

    def _begin_run(self, view: int, first: int) -> None:
        self.runs.append((view, first))
        if len(self.runs) > limits.VIEW_RUNS_MAX:
            self.runs.popleft()
            # Without the dropped run, the frames of two logs must be compared up to `base` one by one (flush, F5).
            self.base = self.runs[0][1] - 1

    def log(self) -> bytes:
        """Return the uuid of the log; empty before its first ROSTER."""
        return self.state.log or (decode_body(RosterBody, self.rosters[0].body).log if self.rosters else b"")

    def forced(self) -> int:
        """Return the view of the last forced ROSTER, decided or not; 0 if there is none."""
        views = [frame.view for frame in self.rosters if decode_body(RosterBody, frame.body).forced]
        return views[-1] if views else self.state.forced

    def view_at_end(self) -> int:
        """Return the view of the last frame; 0 if this window has contained no frame since the start."""
        return self.runs[-1][0] if self.runs else 0

    def truncate(self, to: int) -> None:
        """Truncate the window after position `to`, and move all marks back to it.

        Raises:
            InvariantViolated: a decided frame would be truncated.
        """
        invariant(self.frontier <= to, f"a truncation to {to} is below the frontier {self.frontier}")
        while self.frames and self.frames[-1].position > to:
            self.bytes -= weight(self.frames.pop())
        self.end = min(self.end, to)
        self.chain = self.frames[-1].header_crc if self.frames else self.state.chain
        self.barriers = [barrier for barrier in self.barriers if barrier.abort <= to]
        while self.runs and self.runs[-1][1] > to:
            self.runs.pop()
        # If a ROSTER was truncated, majorities must be computed again without it.
        if self.rosters and self.rosters[-1].position > to:
            self.rosters = [frame for frame in self.rosters if frame.position <= to]
            self.roster_changes += 1
        # A write or vote for a truncated frame must not count for a new frame at the same position.
        self._marks = [min(mark, to) for mark in self._marks]

    def _add_barrier(self, frame: Frame) -> None:
        first = decode_body(AbortBody, frame.body).position
        invariant(self.frontier < first < frame.position, f"{frame!r} aborts {first} and the frontier is {self.frontier}")
        self.barriers.append(Barrier(first, frame.position, frame.producer, frame.epoch))

    def at(self, position: int) -> Frame:
        """Return the undecided frame at the position."""
        invariant(self.frontier < position <= self.end, f"position {position} is not in the window")
        return self.frames[position - self.frontier - 1]

    def chain_at(self, position: int) -> int:
        """Return the chain value of the frontier or of an undecided position."""
        return self.state.chain if position == self.frontier else self.at(position).header_crc

    def is_void(self, position: int) -> bool:
        """True if an ordered ABORT voids the batch at the position."""
        frame = self.at(position)
        return any(
            barrier.first <= position < barrier.abort and (barrier.producer, barrier.epoch) == (frame.producer, frame.epoch)
            for barrier in self.barriers
        )

    def reach(self, position: int) -> int:
        """Return the last position up to `position` at which the frontier may stop (protocol/atomic, A13)."""
        if not self.barriers:
            return position
        moved = True
        # The position before the range of one ABORT may be in the range of another ABORT, so the search repeats.
        while moved:
            moved = False
            for barrier in self.barriers:
                if barrier.first <= position < barrier.abort:
                    position, moved = barrier.first - 1, True
        return position

    def decide(self, up_to: int) -> tuple[tuple[Frame, ...], tuple[int, ...], frozenset[int]]:
        """Move the frontier to `up_to`. Return the decided run, the offset of each frame, and the positions of void batches."""
        invariant(up_to == self.reach(up_to), "the frontier would stop between a batch and its ABORT")
        self.advance(CommitStage.DECIDED, up_to)
        void: frozenset[int] = frozenset()
        if self.barriers and self.barriers[0].abort <= up_to:
            void = self._void(up_to)
        frames, count = self.frames, up_to - self.frontier
        run = tuple([frames.popleft() for _ in range(count)])
        offsets = self.state.apply_run(run, void)
        self.bytes -= sum([frame.body_length for frame in run]) + FRAME_OVERHEAD_BYTES * count
        if self.rosters and self.rosters[0].position <= up_to:
            self.rosters = [frame for frame in self.rosters if frame.position > up_to]
            self.roster_changes += 1
        return run, offsets, void

    def _void(self, up_to: int) -> frozenset[int]:
        passed = [barrier for barrier in self.barriers if barrier.abort <= up_to]
        self.barriers = [barrier for barrier in self.barriers if barrier.abort > up_to]
        return frozenset(
            position
            for barrier in passed
            for position in range(barrier.first, barrier.abort)
            if _is_batch_of(self.at(position), barrier)
        )

    def replace(self, state: LogState) -> None:
        """Replace the log by the decided state of a durable snapshot, which is followed by no frames.

        Raises:
            InvariantViolated: the frontier would move back.
        """
        invariant(state.position > self.frontier, f"a log decided up to {self.frontier} is replaced by one up to {state.position}")
        self.state.become(state)
        self.frames.clear()
        self.bytes = 0
        self.end, self.chain = state.position, state.chain
        self.barriers, self.rosters = [], []
        self.base = state.position
        self.runs.clear()
        self.roster_changes += 1
        self._marks = [state.position] * len(CommitStage)

    def restore(self, tail: Iterable[Frame]) -> None:
        """Append the durable frames after the frontier that the disk held at the start."""
        self.extend(tuple(tail), limits.TAIL_FRAMES_MAX - common_limits.UNDECIDED_FRAMES_MAX)
        # The restored frames may exceed the limit, and the next view must still be able to append new frames.
        self._extra_frames = max(0, len(self.frames) + limits.WINDOW_MORE_FRAMES - common_limits.UNDECIDED_FRAMES_MAX)
        self.advance(CommitStage.WRITING, self.end)
        self.advance(CommitStage.DURABLE, self.end)


def _is_batch_of(frame: Frame, barrier: Barrier) -> bool:
    return frame.kind == Kind.BATCH and (frame.producer, frame.epoch) == (barrier.producer, barrier.epoch)
