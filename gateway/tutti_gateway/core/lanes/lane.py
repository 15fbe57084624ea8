"""One lane at one member: the position up to which the lane is decided, and the undecided frames after that position."""

from __future__ import annotations

from collections import deque
from itertools import islice

from tutti.data.frames.frame import Frame, Kind
from tutti.errors import invariant
from tutti_gateway.core.pending_window import weight
from tutti_gateway.core.protocol.events import LaneLog
from tutti_gateway.core.protocol.messages import LaneBegin


class Lane:
    """A member's copy of one lane, which is the stream of one origin's disk.

    The positions `decided` and `confirmed` only move forward. A truncation moves the end back, but never below `confirmed`. All
    undecided frames belong to one attempt. A member accepts the VIEW of a higher attempt only when it knows that all earlier frames
    are decided, and accepts other frames of that attempt only after the VIEW.

    Attributes:
        attempt: attempt of the last frame in this copy.
        decided: last position that this member has delivered.
        offset: offset of the next record after `decided`.
        confirmed: last position that is known to be decided, durable or not.
        durable: last position that is durable on this disk.
        bytes: approximate memory of the frames after `decided`.
        sources: gateways from which this member requests missing frames, in this order, each with the position up to which it
            reported the lane as decided; empty if no frame is missing.
        source: gateway that received the last request for missing frames.
        asked: number of heartbeats for which this member still waits for an answer to its last LaneFetch.
        live: True if the origin sent a decision after this member's last report of its ends, so that no request is needed.
        replicated: last position that was reported to the disk as durable at every gateway of the roster.
        begin: the new start of the lane while the disk replaces the lane, and this copy accepts no frames; otherwise None.
        gap: True if this member has reported a missing frame to the origin, and no frame has arrived since.
    """

    __slots__ = (
        "_chain",
        "_tail",
        "_writes",
        "_written",
        "asked",
        "attempt",
        "begin",
        "bytes",
        "confirmed",
        "decided",
        "durable",
        "gap",
        "incarnation",
        "live",
        "offset",
        "origin",
        "replicated",
        "source",
        "sources",
    )

    def __init__(self, log: LaneLog) -> None:
        self.origin, self.incarnation, self.attempt = log.origin, log.incarnation, log.attempt
        self.decided = self.confirmed = log.position
        self.offset, self._chain = log.offset, log.chain
        self._tail = deque(log.tail)
        self.bytes = sum(map(weight, log.tail))
        self.durable = self._written = self.end
        self._writes: deque[tuple[int, int]] = deque()
        self.sources: dict[int, int] = {}
        self.asked = self.source = 0
        self.live = self.gap = False
        self.replicated = 0
        self.begin: LaneBegin | None = None
        # Before a restart, this member accepted a VIEW only when all earlier frames were decided, so these are decided now too.
        for frame in log.tail:
            if frame.kind == Kind.VIEW:
                self.confirmed = frame.position - 1

    @property
    def end(self) -> int:
        """Last position in this copy of the lane, decided or not."""
        return self.decided + len(self._tail)

    @property
    def chain(self) -> int:
        """Chain value of the last frame in this copy."""
        return self._tail[-1].header_crc if self._tail else self._chain

    def after(self, position: int) -> tuple[Frame, ...]:
        """Return the undecided frames after the position."""
        return tuple(islice(self._tail, max(0, position - self.decided), None))

    def at(self, position: int) -> Frame | None:
        """Return the undecided frame at the position, None if there is none."""
        index = position - self.decided - 1
        return self._tail[index] if 0 <= index < len(self._tail) else None

    def append(self, frame: Frame) -> None:
        """Append the frame that follows the end of this copy."""
        invariant(frame.position == self.end + 1, f"{frame!r} is not next in a lane that ends at {self.end}")
        # The origin has voted NO to frames of earlier attempts, so a copy with such a frame could never be decided (lanes, U15).
        invariant(frame.view >= self.attempt, f"{frame!r} belongs to an attempt before {self.attempt}")
        self._tail.append(frame)
        self.bytes += weight(frame)
        self.attempt = frame.view

    def truncate(self) -> int | None:
        """Drop the frames that are not known to be decided.

        Return the position after which the disk must truncate the lane, None if the disk holds none of the dropped frames.
        """
        while self.end > self.confirmed:
            self.bytes -= weight(self._tail.pop())
        if self._written <= self.confirmed:
            return None  # the disk never got the dropped frames
        self._written = self.confirmed
        self.durable = min(self.durable, self.confirmed)
        # A write that began before the truncation must not count as a write of a new frame at the same position.
        self._writes = deque((token, min(last, self.confirmed)) for token, last in self._writes)
        return self.confirmed

    def next_write(self, token: int, up_to: int) -> tuple[Frame, ...]:
        """Return the unwritten frames up to the position `up_to`, and record that the write with this token contains them."""
        frames = tuple(islice(self._tail, max(0, self._written - self.decided), max(0, up_to - self.decided)))
        if frames:
            self._written = up_to
            self._writes.append((token, up_to))
        return frames

    def persisted(self, token: int) -> None:
        """Advance `durable` after the completion of all writes up to the token."""
        while self._writes and self._writes[0][0] <= token:
            # A truncation may have lowered the end of a write in progress, so the maximum counts.
            self.durable = max(self.durable, self._writes.popleft()[1])

    def confirm(self, position: int) -> None:
        """Count all frames up to the position as decided."""
        invariant(position <= self.end, f"position {position} is decided, but the lane ends at {self.end}")
        self.confirmed = max(self.confirmed, position)

    def replace(self, begin: LaneBegin) -> None:
        """Replace this copy by the lane's new start, with which the disk has already replaced the old frames."""
        invariant(begin.position > self.confirmed, f"a lane decided up to {self.confirmed} is replaced by {begin}")
        # At the positions of the old undecided frames, different frames were decided, so the old ones are dropped (lanes, U27).
        self.decided = self.confirmed = self.durable = self._written = begin.position
        self.attempt, self.offset, self._chain = begin.attempt, begin.offset, begin.chain
        self._tail.clear()
        self._writes.clear()
        self.bytes = 0
        self.begin = None

    def pop_decided(self) -> tuple[int, tuple[Frame, ...]]:
        """Remove the frames that are both decided and durable, and return the offset of their first record, and the frames."""
        # A gateway may report a frame as decided before the frame is durable here, so `confirmed` alone is not enough.
        frames = tuple(islice(self._tail, max(0, min(self.confirmed, self.durable) - self.decided)))
        offset = self.offset
        for frame in frames:
            self._tail.popleft()
            self.bytes -= weight(frame)
            self._chain = frame.header_crc
            self.offset += frame.count
        self.decided += len(frames)
        return offset, frames
