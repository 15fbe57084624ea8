"""What a disk keeps of its log: segments that begin somewhere, the oldest ones go when a TRIM is decided, and a log may be replaced
by what another member's says at its begin.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tutti.data.frames.bodies import AbortBody, TrimBody, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.log_state import LogState
from tutti_gateway.core.protocol.actions import Deliver, ReadSnapshot
from tutti_gateway.core.protocol.events import SnapshotRead, TrimProposed

if TYPE_CHECKING:
    from tests.sim.gateways import Process
    from tests.sim.grouplog import GroupLog

SEGMENT_FRAMES = 40  # about
PIECE_BYTES = (300, 4000)  # of a state, at once: between these
LONG_AGO = 3  # segments, behind which what a voter lacks may go too


class Trims:
    """Of one disk.

    Attributes:
        start: positions up to it are gone.
    """

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.blank()

    def blank(self) -> None:
        """Nothing was ever written."""
        self.start = 0
        self._firsts = [1]  # of the segments
        self._due: list[tuple[int, int]] = []  # (position of a TRIM, where the log begins then)

    def wrote(self, first: int, last: int) -> None:
        """Frames went into the log; a segment may have begun with any of them."""
        self._firsts += [position for position in range(max(first, 2), last + 1) if self._chance.random() < 1 / SEGMENT_FRAMES]

    def cut(self, behind: int) -> None:
        """The log was cut."""
        self._firsts = [first for first in self._firsts if first <= max(behind + 1, 1)]

    def replaced(self, position: int) -> None:
        """The log begins anew behind the position."""
        self.start, self._firsts, self._due = position, [position + 1], []

    def decided(self, run: Deliver) -> None:
        """What was delivered, with the TRIMs in it."""
        for frame in run.frames:
            if frame.kind == Kind.TRIM:
                self._due.append((frame.position, decode_body(TrimBody, frame.body).position))

    def recovered(self, state: LogState) -> None:
        """A start comes by what was decided."""
        self._due = [(state.position, state.start)] if state.start > self.start + 1 else []

    def go(self, watermark: int, frames: list[Frame]) -> int:
        """Whatever is to go at the watermark goes; where the log begins then."""
        while self._due and self._due[0][0] <= watermark:
            first = self._due.pop(0)[1]
            good = [one for one in self._firsts if self.start + 1 < one <= first and _clean(one, frames)]
            if good:
                self.start = max(good) - 1
                self._firsts = [one for one in self._firsts if one > self.start]
        return self.start

    def proposes(self, log: GroupLog, frontier: int) -> TrimProposed | None:
        """What the retention of this gateway lets go now: all but some of its segments."""
        firsts = [first for first in self._firsts if self.start + 1 < first <= frontier]
        firsts = firsts[: max(0, len(firsts) - self._chance.randint(0, 2))]
        if not firsts:
            return None
        forced = firsts[-1 - LONG_AGO] if len(firsts) > LONG_AGO and self._chance.random() < 0.5 else 0
        return TrimProposed(tuple((first, log.places[first - 1].offset) for first in firsts), forced)

    def read(self, action: ReadSnapshot, state_at: Callable[[int], LogState]) -> SnapshotRead:
        """A piece of the state with which the log begins."""
        position = action.position or self.start
        if not position or position != self.start:
            return SnapshotRead(action.token, position, 0, b"")
        data = state_at(position).to_bytes()
        piece = data[action.at : action.at + self._chance.randint(*PIECE_BYTES)]
        return SnapshotRead(action.token, position, len(data) if piece else 0, piece)


def _clean(first: int, frames: list[Frame]) -> bool:
    """Whether no ABORT from the position on reaches over it."""
    later = (frame for frame in frames[first - 1 :] if frame.kind == Kind.ABORT)
    return all(decode_body(AbortBody, frame.body).position >= first for frame in later)


class TrimChecks:
    """What must hold of trims, whoever orders and carries them out."""

    def __init__(self) -> None:
        self.forced = 0  # up to where the retention of any gateway said that it had to go

    def proposed(self, event: TrimProposed) -> None:
        """A retention has spoken."""
        self.forced = max(self.forced, event.forced)

    def lacking(self, process: Process, first: int) -> str:
        """Who of those that vote lacks something before the position, and should not; empty if nobody does."""
        world = process.world
        if first <= self.forced + 1:  # all before the place is up to there
            return ""
        for voter in world.log.state.roster.values():
            gateway = world.gateways.get(voter.name)
            if not voter.voting or gateway is None or gateway.disk.weak or gateway.incarnation != voter.incarnation:
                continue
            held = gateway.disk.frames[: min(gateway.disk.durable, first - 1)]
            if len(held) < first - 1 or held[-1].header != world.log.places[first - 2].frame.header:
                return voter.name
        return ""
