"""One lane at one member: what is decided, and the undecided end behind it."""

from __future__ import annotations

from collections import deque
from itertools import islice

from tutti.data.frames.frame import Frame, Kind
from tutti.errors import invariant
from tutti_gateway.core.protocol.events import LaneLog
from tutti_gateway.core.protocol.messages import LaneBegin
from tutti_gateway.core.window import weight


class Lane:
    """The lane of one origin's disk. Marks only move forward: decided <= confirmed, durable <= end; a cut goes back to confirmed.

    All undecided frames have one attempt: a member takes the first frame of a higher one only when it knows everything before that
    frame as decided, and the others of its attempt only behind the first.

    Attributes:
        attempt: of the last frame.
        decided: last position that was handed out; `offset` is that of the next record behind it.
        confirmed: last position that is known as decided.
        durable: last position that the disk has.
        bytes: about what the undecided end holds in memory.
        sources: who has more of it decided, and up to where, in the order in which they are asked; empty when nothing is missing.
        source: who was asked last.
        asked: the heartbeats that an answer to a LaneFetch may still take.
        live: a Settled came since this member last told its ends: there is no need to ask.
        held: last position that every gateway of the roster has, as far as was told to the disk.
        begin: how the lane begins elsewhere, which the disk is writing in its place; nothing else is taken meanwhile.
        gap: a gap was told to the origin and nothing came since.
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
        "held",
        "incarnation",
        "live",
        "offset",
        "origin",
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
        self.held = 0
        self.begin: LaneBegin | None = None
        # A VIEW was taken only when everything before it was known as decided.
        for frame in log.tail:
            if frame.kind == Kind.VIEW:
                self.confirmed = frame.position - 1

    @property
    def end(self) -> int:
        """The last position that is here."""
        return self.decided + len(self._tail)

    @property
    def chain(self) -> int:
        """The chain value at the end."""
        return self._tail[-1].header_crc if self._tail else self._chain

    def behind(self, position: int) -> tuple[Frame, ...]:
        """The undecided frames behind a position."""
        return tuple(islice(self._tail, max(0, position - self.decided), None))

    def at(self, position: int) -> Frame | None:
        """The undecided frame at a position."""
        place = position - self.decided - 1
        return self._tail[place] if 0 <= place < len(self._tail) else None

    def append(self, frame: Frame) -> None:
        """Take the next frame."""
        invariant(frame.position == self.end + 1, f"{frame!r} is not next in a lane that ends at {self.end}")
        invariant(frame.view >= self.attempt, f"{frame!r} stands behind attempt {self.attempt}")
        self._tail.append(frame)
        self.bytes += weight(frame)
        self.attempt = frame.view

    def cut(self) -> int | None:
        """Forget what is not known as decided; the position behind which the disk has to be cut too, if it has more."""
        while self.end > self.confirmed:
            self.bytes -= weight(self._tail.pop())
        if self._written <= self.confirmed:
            return None
        self._written = self.confirmed
        self.durable = min(self.durable, self.confirmed)
        self._writes = deque((token, min(last, self.confirmed)) for token, last in self._writes)
        return self.confirmed

    def hand(self, token: int, up_to: int) -> tuple[Frame, ...]:
        """The frames up to a position that the disk was not given before: it is, now."""
        frames = tuple(islice(self._tail, max(0, self._written - self.decided), max(0, up_to - self.decided)))
        if frames:
            self._written = up_to
            self._writes.append((token, up_to))
        return frames

    def persisted(self, token: int) -> None:
        """The disk has everything up to the token."""
        while self._writes and self._writes[0][0] <= token:
            self.durable = max(self.durable, self._writes.popleft()[1])

    def confirm(self, position: int) -> None:
        """Everything up to the position is decided."""
        invariant(position <= self.end, f"position {position} is decided, and the lane ends at {self.end}")
        self.confirmed = max(self.confirmed, position)

    def replace(self, begin: LaneBegin) -> None:
        """The disk has what the lane was elsewhere, in the place of all that there was."""
        invariant(begin.position > self.confirmed, f"a lane decided up to {self.confirmed} is replaced by {begin}")
        self.decided = self.confirmed = self.durable = self._written = begin.position
        self.attempt, self.offset, self._chain = begin.attempt, begin.offset, begin.chain
        self._tail.clear()
        self._writes.clear()
        self.bytes = 0
        self.begin = None

    def settle(self) -> tuple[int, tuple[Frame, ...]]:
        """The frames that are decided and durable now, and the offset of their first record; they leave the undecided end."""
        frames = tuple(islice(self._tail, max(0, min(self.confirmed, self.durable) - self.decided)))
        offset = self.offset
        for frame in frames:
            self._tail.popleft()
            self.bytes -= weight(frame)
            self._chain = frame.header_crc
            self.offset += frame.count
        self.decided += len(frames)
        return offset, frames
